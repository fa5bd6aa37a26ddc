"""Dead letters: where a message goes that nobody could handle, and what is written on it.

The headers are those that Headrace's own queues write, so that `headrace redrive` brings it back, whoever put it there.
"""

from __future__ import annotations

import time

from headrace.sdk.message import Message, Outgoing

REASON_BYTES = 4_096


def topic_of(topic: str, group: str) -> str:
    """Where the dead letters of a group lie."""
    return f"{topic}.{group}.dead"


def letter(message: Message, topic: str, group: str, reason: str) -> Outgoing:
    """A message of a group's subscription to a topic, to be put aside."""
    headers = {
        **message.headers,
        "headrace-origin-topic": message.topic.encode(),
        "headrace-origin-partition": b"%d" % message.partition,
        "headrace-origin-offset": b"%d" % message.offset,
        "headrace-origin-queue": group.encode(),
        "headrace-attempts": b"%d" % message.attempt,
        "headrace-error": reason.encode()[:REASON_BYTES],
        "headrace-dead-at": b"%d" % round(time.time() * 1_000),
    }
    return Outgoing(topic_of(topic, group), message.value, message.key, headers)
