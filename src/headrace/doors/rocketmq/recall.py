"""Handles by which a delayed message is recalled, and messages that are to be delivered at a time.

A handle is RocketMQ's: a version, the topic, the broker's name, the time and the message's unique id, with spaces
between them, in base64. Behind these stands the id by which the timer knows the message; RocketMQ's clients, which read
the broker's name only, pass over it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.timer.pending import parse_id
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.records import TIMER_AT_MS, TIMER_MS, TIMER_SECONDS

VERSION = "v1"
HANDLE_CHARACTERS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """A delayed message."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str
    timer: str
    """The id by which it is cancelled."""

    def encode(self) -> str:
        """The handle as a producer gets it."""
        parts = (VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key, self.timer)
        return urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """The handle that a producer sends. Raises ResponseError."""
    try:
        if len(text) > HANDLE_CHARACTERS_MAX:
            raise ValueError
        version, topic, broker_name, due_ms, unique_key, timer = urlsafe_b64decode(text).decode().split(" ")
        if version != VERSION or len(due_ms) > 19:
            raise ValueError
        due, _ = parse_id(timer) or (-1, 0)
        if due != int(due_ms):
            raise ValueError
        return RecallHandle(topic, broker_name, due, unique_key, timer)
    except (ValueError, Base64Error):
        raise ResponseError(
            Code.ILLEGAL_OPERATION, f"recall handle is invalid ({text[:80]!r}): send it as this broker gave it"
        ) from None


def due_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """When a message is to be delivered by its timer properties; 0: now. Raises ResponseError."""
    for name, unit, since in ((TIMER_SECONDS, 1_000, now_ms), (TIMER_MS, 1, now_ms), (TIMER_AT_MS, 1, 0)):
        text = properties.get(name)
        if text is None:
            continue
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
            raise ResponseError(Code.MESSAGE_ILLEGAL, f"timer message illegal: {name} is not a number ({text[:40]!r})")
        due = since + int(text) * unit
        return due if due > now_ms else 0
    return 0
