"""Dead letters: where a message goes that could not be handled, and which headers it gets.

The headers are those that Headrace's own queues write, so that `headrace redrive` works on both.
"""

from __future__ import annotations

import time

import structlog

from headrace.format.headers import (
    ATTEMPTS,
    DEAD_AT,
    ERROR,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
)
from headrace.sdk.message import Message, Outgoing

log = structlog.get_logger("headrace.sdk")

REASON_BYTES = 4_096


def topic_of(topic: str, group: str) -> str:
    """Where the dead letters of a group lie."""
    return f"{topic}.{group}.dead"


def letter(message: Message, topic: str, group: str, reason: str) -> Outgoing:
    """A message of a group's subscription to a topic, to be put aside."""
    headers = {
        **message.headers,
        ORIGIN_TOPIC: message.topic.encode(),
        ORIGIN_PARTITION: b"%d" % message.partition,
        ORIGIN_OFFSET: b"%d" % message.offset,
        ORIGIN_QUEUE: group.encode(),
        ATTEMPTS: b"%d" % message.attempt,
        ERROR: reason.encode()[:REASON_BYTES],
        DEAD_AT: b"%d" % round(time.time() * 1_000),
    }
    return Outgoing(topic_of(topic, group), message.value, message.key, headers)


def without_value(dead: Outgoing, message: Message, reason: str) -> Outgoing:
    """A letter that is too large for its topic, without its value. It cannot be redriven, and so it names no queue."""
    log.error("a dead letter is too large, and is written without its value", message=message.id, error=reason)
    added = {name: value for name, value in dead.headers.items() if name.startswith("headrace-")}
    headers = {name: value for name, value in added.items() if name != ORIGIN_QUEUE}
    note = f"the value ({len(message.value)} bytes) is at {message.id} only, because {reason}: ".encode()
    headers[ERROR] = (note + dead.headers[ERROR])[:REASON_BYTES]
    return Outgoing(dead.topic, b"", None, headers)
