"""Ids of messages, the same at every delivery.

A message is identified by its topic, partition and offset. A queue's consumer does not get these, but the id of a
delivery holds them, beside the number of the attempt, which differs from one delivery to the next.
"""

from __future__ import annotations

from headrace.format.message_id import ID_BYTES, decode_id
from headrace.inbox.errors import InvalidId


def message_id(topic: str, partition: int, offset: int) -> str:
    """The id of a message of a consumer group."""
    return f"{topic}/{partition}/{offset}"


def nsq_message_id(topic: str, delivery: bytes | str) -> str:
    """The id of a message that came through the NSQ door, made from the id of its delivery. The same message has the
    same id for a consumer group."""
    encoded = delivery.encode() if isinstance(delivery, str) else delivery
    found = decode_id(encoded) if len(encoded) == ID_BYTES else None
    if found is None:
        raise InvalidId(f"{delivery!r} is not the id of a delivery by Headrace's NSQ door, which has 16 characters")
    partition, offset, _ = found
    return message_id(topic, partition, offset)
