"""Queues as keys of JSON objects, as RocketMQ's tools read and write them.

RocketMQ's encoder writes a table by queue with the queue itself, an object, as the key: that is no JSON, but what its
clients expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.doors.rocketmq.frames import dump


class Queue(NamedTuple):
    """A queue of a broker."""

    broker: str
    topic: str
    """RocketMQ's name."""
    number: int

    def describe(self) -> dict[str, object]:
        """The queue as an object."""
        return {"brokerName": self.broker, "queueId": self.number, "topic": self.topic}


def dump_table(table: Mapping[Queue, object]) -> bytes:
    """A table by queue."""
    rows = (dump(queue.describe()) + b":" + dump(value) for queue, value in table.items())
    return b"{" + b",".join(rows) + b"}"


def dump_with(fields: Mapping[str, bytes]) -> bytes:
    """An object of fields that are written already."""
    return b"{" + b",".join(dump(name) + b":" + value for name, value in fields.items()) + b"}"
