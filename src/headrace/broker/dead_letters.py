"""Dead letters: which headers have its origin, and how to pick some of them.

A dead letter is the original record with headers added (`ORIGIN_TOPIC` and the rest). Taking those away again gives the
record back as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from headrace.format.headers import (
    ATTEMPTS,
    DEAD_AT,
    ERROR,
    FOR_QUEUE,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
    PARKED_FROM,
    REDRIVEN,
)
from headrace.format.records import Record, RecordHeaders

# What dying and being sent back add to a record.
ADDED = frozenset(
    (
        *(ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_QUEUE),
        *(ATTEMPTS, ERROR, DEAD_AT, FOR_QUEUE, REDRIVEN, PARKED_FROM),
    )
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, as far as its headers can be read."""

    offset: int
    """Where it lies in its partition of the dead-letter topic."""
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    """The original's own."""
    topic: str
    """The origin; empty where it does not say."""
    partition: int
    origin_offset: int
    queue: str
    attempts: int
    error: str
    dead_at: int
    redriven: int
    """How often it was sent back before."""
    parked_from: tuple[int, int] | None = None
    """Partition and offset of the dead-letter topic that it had before it was moved to a queue's parking."""

    @property
    def has_origin(self) -> bool:
        return bool(self.topic and self.queue) and self.partition >= 0


def read(record: Record) -> DeadLetter:
    """The dead letter in a record. What it does not say is empty, 0 or -1; it died when it was written, then."""
    offset, timestamp, key, value, headers = record
    found: dict[str, str] = {}
    own: RecordHeaders = []
    for name, content in headers:
        if name in ADDED:
            found[name] = (content or b"").decode("utf-8", "replace")
        else:
            own.append((name, content))
    return DeadLetter(
        offset=offset,
        key=key,
        value=value,
        headers=own,
        topic=found.get(ORIGIN_TOPIC, ""),
        partition=_number(found.get(ORIGIN_PARTITION), -1),
        origin_offset=_number(found.get(ORIGIN_OFFSET), -1),
        queue=found.get(ORIGIN_QUEUE, ""),
        attempts=_number(found.get(ATTEMPTS), 0),
        error=found.get(ERROR, ""),
        dead_at=_number(found.get(DEAD_AT), timestamp),
        redriven=_number(found.get(REDRIVEN), 0),
        parked_from=parked_from(found.get(PARKED_FROM, "")),
    )


def parked_from(text: str) -> tuple[int, int] | None:
    """Partition and offset in the header of a message that was moved to a queue's parking."""
    partition, _, offset = text.partition("/")
    place = _number(partition, -1), _number(offset, -1)
    return place if min(place) >= 0 else None


def restore_headers(letter: DeadLetter, for_queue: str) -> RecordHeaders:
    """The headers with which it is sent back: its own, how often it was, and (not empty) the one queue that is to see
    it, which must stand first."""
    count = (REDRIVEN, str(letter.redriven + 1).encode())
    only: RecordHeaders = [(FOR_QUEUE, for_queue.encode())] if for_queue else []
    return [*only, *letter.headers, count]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant: those that fit everything that is given here."""

    topic: str = ""
    """The origin topic."""
    queue: str = ""
    since_ms: int = -(1 << 63)
    """Dead since then, that moment included."""
    until_ms: int = (1 << 63) - 1
    """Dead before then."""
    key: bytes | None = None
    error: str = ""
    """A part of the error's text."""
    error_pattern: str = ""
    """A pattern (*, ?, [abc]) that the whole text of the error fits. Not a regular expression: some of those take for
    ever, and this runs on the broker's loop."""

    def selects(self, letter: DeadLetter) -> bool:
        return (
            (not self.topic or letter.topic == self.topic)
            and (not self.queue or letter.queue == self.queue)
            and self.since_ms <= letter.dead_at < self.until_ms
            and (self.key is None or letter.key == self.key)
            and (not self.error or self.error in letter.error)
            and (not self.error_pattern or fnmatchcase(letter.error, self.error_pattern))
        )


def _number(text: str | None, default: int) -> int:
    """A decimal number of at most 64 bits; a client can write anything to a dead-letter topic."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 20):
        return default
    return int(text)
