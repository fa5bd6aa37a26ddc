"""Physical offsets: one number of 63 bits for a topic, a partition and an offset, and back.

RocketMQ's clients send messages back, and look them up, by their offset in its one commit log. Headrace has a log for
each partition. So each partition gets a number from a durable counter when the first RocketMQ client needs one, and a
physical offset is that number (24 bits) and the offset (39 bits). A number is never given twice: what names a message
of a deleted topic names nothing from then on. A partition that has used up the 39 bits, its span, gets another number
for the next.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

OFFSET_BITS = 39
OFFSET_MASK = (1 << OFFSET_BITS) - 1
NUMBERS_MAX = 1 << 24


class Span(NamedTuple):
    """The offsets of a partition that share a number."""

    topic_id: UUID
    partition: int
    number: int
    """From `number << OFFSET_BITS` on; the first is 0."""


class PhysicalOffsets:
    """The numbers that were given."""

    def __init__(self) -> None:
        self.spans: dict[int, Span] = {}
        self._numbers: dict[tuple[UUID, int, int], int] = {}

    def put(self, number: int, span: Span) -> None:
        """A span has a number."""
        self.spans[number] = span
        self._numbers[span] = number

    def drop(self, number: int) -> None:
        """A number names nothing any more."""
        span = self.spans.pop(number, None)
        if span is not None:
            self._numbers.pop(span, None)

    def has(self, span: Span) -> bool:
        """Whether the span has a number."""
        return span in self._numbers

    def of_topic(self, topic_id: UUID) -> list[int]:
        """The numbers of a topic."""
        return [number for number, span in self.spans.items() if span.topic_id == topic_id]

    def encode(self, topic_id: UUID, partition: int, offset: int) -> int | None:
        """The physical offset; None where the span has no number yet."""
        # A plain tuple is equal to the Span, and made in less time.
        number = self._numbers.get((topic_id, partition, offset >> OFFSET_BITS))
        return None if number is None else number << OFFSET_BITS | offset & OFFSET_MASK

    def decode(self, physical_offset: int) -> tuple[UUID, int, int] | None:
        """Topic, partition and offset; None where the number names nothing."""
        span = self.spans.get(physical_offset >> OFFSET_BITS)
        if span is None:
            return None
        return span.topic_id, span.partition, span.number << OFFSET_BITS | physical_offset & OFFSET_MASK
