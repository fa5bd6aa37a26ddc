"""Records, with what their headers tell of their lives, and ranges of a log to look for them in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.format.headers import (
    ATTEMPT,
    ATTEMPTS,
    DEAD_AT,
    ERROR,
    ORIGIN,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
    REDRIVEN,
)

Partition = tuple[str, int]
"""A topic and the number of a partition of it."""
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-.*", re.DOTALL)
# A trace id, alone or as it stands in `traceparent`.
TRACE = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
PLACE = re.compile(r"([^/\s]+)/([0-9]{1,9})/([0-9]{1,18})")


class Place(NamedTuple):
    """The position of a message, which is its id."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def place_of(text: str) -> Place | None:
    """The place TOPIC/PARTITION/OFFSET; None if the text has another form."""
    found = PLACE.fullmatch(text)
    return None if found is None else Place(found[1], int(found[2]), int(found[3]))


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """A record, with what its headers tell of its life."""

    place: Place
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def trace(self) -> str:
        """The id of its trace; empty where it has none."""
        parent = TRACEPARENT.fullmatch(self.headers.get("traceparent", b""))
        return "" if parent is None else parent[1].decode()

    @property
    def origin(self) -> Place | None:
        """The message of which this is the dead letter or the retry."""
        if ORIGIN_TOPIC in self.headers:
            parts = (self.text(ORIGIN_TOPIC), self.text(ORIGIN_PARTITION), self.text(ORIGIN_OFFSET))
            return place_of("/".join(parts))
        return place_of(self.text(ORIGIN)) if ORIGIN in self.headers else None

    @property
    def is_letter(self) -> bool:
        return ORIGIN_TOPIC in self.headers

    @property
    def queue(self) -> str:
        """Where it died."""
        return self.text(ORIGIN_QUEUE)

    @property
    def attempts(self) -> int:
        return self.number(ATTEMPTS) if self.is_letter else self.number(ATTEMPT)

    @property
    def error(self) -> str:
        return self.text(ERROR)

    @property
    def dead_at(self) -> int:
        return self.number(DEAD_AT) or self.timestamp

    @property
    def redriven(self) -> int:
        """How often it was sent back."""
        return self.number(REDRIVEN)

    def text(self, header: str) -> str:
        return self.headers.get(header, b"").decode(errors="replace")

    def number(self, header: str) -> int:
        digits = self.headers.get(header, b"")
        return int(digits) if digits.isdigit() and len(digits) < 20 else 0


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets in each of some partitions."""

    begin: Mapping[Partition, int]
    end: Mapping[Partition, int]

    @property
    def size(self) -> int:
        return sum(max(0, end - self.begin[each]) for each, end in self.end.items())
