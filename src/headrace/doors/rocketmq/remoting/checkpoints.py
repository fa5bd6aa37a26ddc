"""POP_CK: the eight fields by which RocketMQ's clients name a message that they popped.

They are the offset at which the pop began, its time, how long the message is invisible, the revive queue, the kind of
topic (0: not a retry topic), the broker, the queue and the message's offset. Clients hand them back as they came, or
build them from the header of an answer. Here they are the handle of a lease: time and duration add up to the lease's
end, and the place of the revive queue, of which there are none, has the attempt.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.broker.queues import Handle
from headrace.broker.queues.ledger import ATTEMPTS_MAX
from headrace.errors import InvalidHandle

NORMAL = "0"
FIELDS = 8
TEXT_MAX = 512
INT64_MAX = (1 << 63) - 1
# Bits of one entry of a batch of acknowledgements, and bytes of their text.
BITS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Of one message, or of those of one pop."""

    lane: int
    offset: int
    attempt: int
    popped_ms: int
    invisible_ms: int

    @classmethod
    def of(cls, handle: Handle, popped_ms: int) -> Checkpoint:
        """That of a lease which began at a time."""
        return cls(handle.lane, handle.offset, handle.attempt, popped_ms, handle.until_ms - popped_ms)

    def handle(self, queue: int) -> Handle:
        """The handle of the lease, in a queue of that number."""
        return Handle(queue, self.lane, self.offset, self.attempt, self.popped_ms + self.invisible_ms)

    def encode(self, start: int, broker: str) -> str:
        """As text, of a pop that began at an offset."""
        fields = (
            *(start, self.popped_ms, self.invisible_ms, self.attempt, NORMAL, broker),
            *(self.lane, self.offset),
        )
        return " ".join(map(str, fields))

    @classmethod
    def decode(cls, text: str) -> Checkpoint:
        """That of a text. Raises InvalidHandle."""
        fields = text.split(" ")
        try:
            if len(text) > TEXT_MAX or len(fields) != FIELDS:
                raise ValueError
            start, popped_ms, invisible_ms, attempt, _, _, lane, offset = fields
            int(start)
            return cls.check(int(lane), int(offset), int(attempt), int(popped_ms), int(invisible_ms))
        except ValueError:
            raise InvalidHandle(
                f"{text[:80]!r} is not the extraInfo of a popped message. Send its property POP_CK."
            ) from None

    @classmethod
    def check(cls, lane: int, offset: int, attempt: int, popped_ms: int, invisible_ms: int) -> Checkpoint:
        """Numbers of a client, if they can be a checkpoint's. Raises ValueError."""
        numbers = (lane, offset, attempt, popped_ms, invisible_ms)
        if not all(0 <= each <= INT64_MAX for each in numbers) or attempt > ATTEMPTS_MAX or lane >= 1 << 31:
            raise ValueError
        return cls(*numbers)


def read_batch(entry: Mapping[str, Any]) -> Iterable[Checkpoint]:
    """The checkpoints of an entry of BATCH_ACK_MESSAGE: a bit for each offset from the first one on. Raises
    InvalidHandle."""
    bits = entry.get("b")
    try:
        if not isinstance(bits, str) or len(bits) > BITS_MAX // 6:
            raise ValueError
        numbers = [entry.get(name) for name in ("q", "so", "rq", "pt", "it")]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
            raise ValueError
        lane, start, attempt, popped_ms, invisible_ms = map(int, numbers)  # type: ignore[arg-type]
        mask = int.from_bytes(b64decode(bits, validate=True), "little")
        return [
            Checkpoint.check(lane, start + place, attempt, popped_ms, invisible_ms)
            for place in range(mask.bit_length())
            if mask >> place & 1
        ]
    except (ValueError, binascii.Error):
        raise InvalidHandle(f"{str(dict(entry))[:80]} is not an entry of a batch of acknowledgements") from None
