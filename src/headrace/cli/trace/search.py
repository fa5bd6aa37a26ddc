"""Searches topics for records: one by its place, or all that contain some bytes, in a range of time.

Of a batch, records are parsed only if it contains the bytes, or is compressed. That makes a scan fast without an index.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.client import EARLIEST, LATEST, Client, Record
from headrace.client.cluster import Partition
from headrace.errors import HeadraceError
from headrace.format.batch import COMPRESSION_MASK, HEADER
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

TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-.*", re.DOTALL)
PLACE = re.compile(r"([^/\s]+)/([0-9]{1,9})/([0-9]{1,18})")

# After so long without a batch, the scan checks whether retention has deleted the rest.
QUIET_SECONDS = 5.0


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


def trace_record(record: Record) -> TracedRecord:
    """Of several headers of one name, the last one counts."""
    headers = {name: value or b"" for name, value in record.headers}
    place = Place(record.topic, record.partition, record.offset)
    return TracedRecord(place, record.timestamp, record.key, record.value, headers)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets in each of some partitions."""

    begin: Mapping[Partition, int]
    end: Mapping[Partition, int]

    @property
    def size(self) -> int:
        return sum(max(0, end - self.begin[each]) for each, end in self.end.items())


async def find_span(client: Client, topics: Sequence[str], since_ms: int, until_ms: int | None) -> Span:
    """The offsets of topics between two times; None: up to now."""
    partitions = [
        (topic, index) for topic in topics for index in range(len((await client.cluster.topic(topic)).partitions))
    ]
    if not partitions:
        return Span({}, {})
    latest = await client.admin.list_offsets(dict.fromkeys(partitions, LATEST), committed=True)
    ends = {each: at.offset for each, at in latest.items()}

    async def at(moment: int) -> dict[Partition, int]:
        found = await client.admin.list_offsets(dict.fromkeys(partitions, max(0, moment)), committed=True)
        return {each: where.offset if where.offset >= 0 else ends[each] for each, where in found.items()}

    return Span(await at(since_ms), ends if until_ms is None else await at(until_ms))


async def scan(
    client: Client, span: Span, needle: bytes, advance: Callable[[int], None], *, committed: bool = True
) -> AsyncIterator[TracedRecord]:
    """The records of all batches that may contain `needle`. `advance` is called with the number of offsets passed."""
    ends = {each: end for each, end in span.end.items() if span.begin[each] < end}
    if not ends:
        return
    pattern = re.compile(re.escape(needle))
    async with client.consumer(out_of_range=EARLIEST, max_wait=0.1, committed=committed) as consumer:
        await consumer.assign({each: span.begin[each] for each in ends})
        while any(consumer.positions[each] < end for each, end in ends.items()):
            try:
                chunk = await asyncio.wait_for(consumer.chunk(), QUIET_SECONDS)
            except TimeoutError:
                # Retention may have deleted the rest of the span meanwhile.
                starts = await client.admin.list_offsets(dict.fromkeys(ends, EARLIEST))
                ends = {each: end for each, end in ends.items() if starts[each].offset < end}
                continue
            key = (chunk.topic, chunk.partition)
            batches = [each for each in chunk.batches if _is_compressed(each) or pattern.search(each)]
            for record in consumer.parse(chunk._replace(batches=batches)):
                if record.offset < span.end[key]:
                    yield trace_record(record)
            advance(min(chunk.next_offset, span.end[key]) - chunk.offset)


async def read_record(client: Client, place: Place) -> TracedRecord | str:
    """The record at a place, or why there is none."""
    partition = (place.topic, place.partition)
    if place.partition >= len((await client.cluster.topic(place.topic)).partitions):
        raise HeadraceError(f"topic {place.topic} has no partition {place.partition}")
    [start] = (await client.admin.list_offsets({partition: EARLIEST})).values()
    [end] = (await client.admin.list_offsets({partition: LATEST})).values()
    if place.offset < start.offset:
        return f"{place} is deleted: by its retention the partition begins at {start.offset}"
    if place.offset >= end.offset:
        return f"{place} is not written yet: the partition ends at {end.offset}"
    [stable] = (await client.admin.list_offsets({partition: LATEST}, committed=True)).values()
    if place.offset >= stable.offset:
        return f"{place} is in or behind a transaction that is still open"
    span = Span({partition: place.offset}, {partition: place.offset + 1})
    for committed in (True, False):
        async for each in scan(client, span, b"", lambda count: None, committed=committed):
            if each.place == place:
                return each if committed else f"{place} belongs to an aborted transaction: no committed reader got it"
    return f"{place} holds no message: it was compacted away, or marks the end of a transaction"


def _is_compressed(batch: memoryview) -> bool:
    return bool(HEADER.unpack_from(batch)[5] & COMPRESSION_MASK)
