"""Finding messages: where an index tells of few batches these are read, and elsewhere all of them.

What is found is what committed readers get, compared with the question itself: neither an index that is not there yet
nor one that errs changes an answer, only the time that it takes. That time is bounded: a page says how far it came, and
the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.reading import POISON, RecordFinder, batches, bytes_now, bytes_of, chunk_at
from headrace.broker.search.fields import fields_of
from headrace.broker.search.query import EVER, Query
from headrace.broker.settings import BrokerSettings
from headrace.broker.unpacking import Unpacker
from headrace.errors import OffsetOutOfRange, TooManySearches
from headrace.format.aborted import Aborted
from headrace.format.batch import header_at
from headrace.format.records import Record
from headrace.format.terms import suspects
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

# What is looked through between two turns of the loop, about half a millisecond.
SCAN_BYTES = 1 << 20
# From the end backwards so many offsets are looked through at once.
BACK_OFFSETS = 65_536


class Place(NamedTuple):
    """Where a search goes on."""

    partition: int
    offset: int


class Match(NamedTuple):
    """A message that was found."""

    partition: int
    record: Record


@dataclass(slots=True)
class Page:
    """What one request came to."""

    found: list[Match] = field(default_factory=list)
    size: int = 0
    """Bytes of the messages."""
    next: Place | None = None
    """Where to go on; None: all was searched."""
    scanned_bytes: int = 0
    """What was read for want of an index."""
    passed: int = 0
    total: int = 0
    """Offsets that were searched, of all that there are."""


@dataclass(slots=True)
class PageOfTopics:
    """What one request to search several topics came to."""

    found: list[tuple[Topic, Match]] = field(default_factory=list)
    size: int = 0
    next: tuple[str, Place] | None = None
    """The topic and the place where to go on; None: all were searched."""
    scanned_bytes: int = 0
    topics: int = 0
    """Topics that were looked into."""


@dataclass(slots=True)
class _Bounds:
    """When a search ends before its end."""

    count: int
    size: int
    deadline: float

    def are_reached(self, page: Page) -> bool:
        return (
            len(page.found) >= self.count
            or page.size >= self.size
            or asyncio.get_running_loop().time() >= self.deadline
        )


class Search:
    """Searches the topics of a broker."""

    def __init__(self, runtime: Runtime, log: LocalLog, unpacking: Unpacker, config: BrokerSettings) -> None:
        self._runtime = runtime
        self._log = log
        self._unpacking = unpacking
        self._seconds = config.search_ms / 1000
        self._most = config.searches_max
        self._running = 0

    @asynccontextmanager
    async def turn(self, count: int, size: int) -> AsyncIterator[_Bounds]:
        """One of the searches that may be under way at a time, and its bounds. Raises TooManySearches."""
        if self._running >= self._most:
            raise TooManySearches(
                f"{self._most} searches are under way, the maximum (searches_max): try again in a moment"
            )
        self._running += 1
        try:
            yield _Bounds(count, size, asyncio.get_running_loop().time() + self._seconds)
        finally:
            self._running -= 1

    async def page(self, topic: Topic, query: Query, count: int, size: int, after: Place | None = None) -> Page:
        """Matches by partition and offset, the oldest first: at most so many, and so large unless it is one."""
        page, steps = Page(), 0
        begin = after or Place(0, 0)
        async with self.turn(count, size) as bounds:
            for partition in topic.partitions[begin.partition :]:
                await partition.load()
                start, end = partition.start, partition.last_stable
                if partition.index == begin.partition and begin.offset:
                    offset = max(start, begin.offset)
                else:
                    offset = await self._first(partition, query)
                while offset < end:
                    # Every page comes further than the one before, however short its time.
                    if steps and bounds.are_reached(page):
                        page.next = Place(partition.index, offset)
                        break
                    steps += 1
                    offset = max(partition.start, await self._step(partition, query, offset, end, page, bounds))
                if page.next is not None:
                    break
            page.passed, page.total = _progress(topic, page.next)
        return page

    async def everywhere(
        self, topics: Sequence[Topic], query: Query, count: int, size: int, after: tuple[str, Place] | None = None
    ) -> PageOfTopics:
        """Matches in several topics, in their order: at most so many, and so large unless it is one. A page goes on
        from where the one before it ended, also where that topic is gone since."""
        found = PageOfTopics()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        for topic in topics:
            if after is not None and topic.name < after[0]:
                continue
            place = after[1] if after is not None and topic.name == after[0] else None
            room, left = count - len(found.found), size - found.size
            if room <= 0 or left <= 0 or (found.topics and clock() >= deadline):
                found.next = topic.name, place or Place(0, 0)
                break
            page = await self.page(topic, query, room, left, place)
            found.found += [(topic, match) for match in page.found]
            found.size += page.size
            found.scanned_bytes += page.scanned_bytes
            found.topics += 1
            if page.next is not None:
                found.next = topic.name, page.next
                break
            await asyncio.sleep(0)
        return found

    async def newest(self, topic: Topic, query: Query, count: int, size: int) -> Page:
        """The newest matches, at most so many; the latest first."""
        page = Page()
        async with self.turn(count, size) as bounds:
            for partition in topic.partitions:
                await partition.load()
                found = Page()
                offset = partition.last_stable
                begin = await self._first(partition, query)
                while offset > max(begin, partition.start) and not bounds.are_reached(found):
                    offset = await self._step_back(partition, query, offset, found, bounds)
                page.found += found.found
                page.scanned_bytes += found.scanned_bytes
                if offset > max(begin, partition.start) and len(found.found) < count:
                    page.next = Place(partition.index, offset)
        page.found.sort(key=lambda match: match.record[1], reverse=True)
        del page.found[count:]
        return page

    async def at(self, topic: Topic, place: Place) -> Record | None:
        """The message at a place."""
        if place.partition >= len(topic.partitions):
            return None
        partition = topic.partitions[place.partition]
        await partition.load()
        if not partition.start <= place.offset < partition.last_stable:
            return None
        found = await RecordFinder(self._runtime, partition, self._unpacking).find([place.offset], 1)
        return found.records[0] if found.records else None

    # --- one way through a partition ---

    async def _first(self, partition: Partition, query: Query) -> int:
        """The first offset at which a record can be young enough."""
        if query.since == EVER or partition.start >= partition.last_stable:
            return partition.start
        found = await partition.offset_at(max(query.since, 0))
        return partition.last_stable if found.offset < 0 else max(found.offset, partition.start)

    async def _step(
        self, partition: Partition, query: Query, offset: int, end: int, page: Page, bounds: _Bounds
    ) -> int:
        """Search the offsets from one on, as far as there is room and time; up to where."""
        suspected = await self._log.local(partition).suspects(query.question, offset)
        after = min(suspected.after, end)
        if suspected.batches is None:
            return await self._scan(partition, query, offset, after, page, bounds)
        for base in suspected.batches:
            if base >= after:
                break
            reached = await self._visit(partition, query, max(base, offset), after, page, bounds)
            if reached is not None:
                return reached
        return max(after, offset + 1)

    async def _step_back(self, partition: Partition, query: Query, offset: int, page: Page, bounds: _Bounds) -> int:
        """Search the offsets before one; up to where. The newest matches come first in the page."""
        suspected = await self._log.local(partition).suspects(query.question, offset, backwards=True)
        first = min(suspected.first, offset - 1)
        found = Page()
        within = _Bounds(1 << 30, bounds.size, bounds.deadline)
        if suspected.batches is None:
            span, reached = BACK_OFFSETS, first
            while span and reached < offset:
                # Too many match for the room that there is: less of it, from the end.
                first, found = max(first, offset - span), Page()
                reached = await self._scan(partition, query, first, offset, found, within)
                page.scanned_bytes += found.scanned_bytes
                span = 0 if found.size < bounds.size else span // 8
            page.found += reversed(found.found)
            page.size += found.size
            # Out of time: what was not looked at lies behind.
            return first if reached >= offset else offset
        for base in reversed(suspected.batches):
            single = Page()
            await self._visit(partition, query, max(base, partition.start), offset, single, within)
            page.found += reversed(single.found)
            page.size += single.size
            if bounds.are_reached(page):
                return base
        return first

    async def _visit(
        self, partition: Partition, query: Query, offset: int, end: int, page: Page, bounds: _Bounds
    ) -> int | None:
        """Look through one batch; where to go on if there is no more room or time."""
        offset = max(offset, partition.start)
        try:
            found = await batches(self._runtime, partition, offset, 1)
        except OffsetOutOfRange:
            return None
        for header, batch in found[:1]:
            if header.base_offset > offset:
                return None  # compaction took it meanwhile
            if batch is not None and not await self._match(partition, query, batch, offset, end, page, bounds):
                return page.found[-1].record[0] + 1
            if bounds.are_reached(page):
                return header.last_offset + 1
        return None

    async def _scan(
        self, partition: Partition, query: Query, offset: int, end: int, page: Page, bounds: _Bounds
    ) -> int:
        """Look through all batches of a range; up to where."""
        while offset < end:
            try:
                chunk = await chunk_at(self._runtime, partition, max(offset, partition.start), SCAN_BYTES, True)
            except OffsetOutOfRange:
                return end
            aborted = Aborted(chunk.aborted)
            now = bytes_now(chunk)
            raw = await bytes_of(self._runtime, chunk) if now is None else now
            positions, after = suspects(raw, query.needle, query.since)
            page.scanned_bytes += len(raw)
            for position in positions:
                header = header_at(raw, position)
                if header.base_offset >= end:
                    break
                if header.is_control or (
                    header.is_transactional and aborted.has(header.producer_id, header.base_offset)
                ):
                    continue
                batch = raw[position : position + header.size]
                if not await self._match(partition, query, batch, offset, end, page, bounds):
                    return page.found[-1].record[0] + 1
            if after < 0:
                return end
            offset = max(after, offset + 1)
            if bounds.are_reached(page):
                break
            await asyncio.sleep(0)
        return min(offset, end)

    async def _match(
        self, partition: Partition, query: Query, batch: bytes, offset: int, end: int, page: Page, bounds: _Bounds
    ) -> bool:
        """Take the matches of a batch; False if there is no room for more."""
        room = max(bounds.count - len(page.found), 1)
        try:
            found = await self._unpacking.read(query.matcher.match, batch, max(offset, partition.start), end, room)
        except POISON:
            # It is the same for every reader.
            return True
        for record in found:
            page.found.append(Match(partition.index, record))
            page.size += size_of(record)
            if page.size >= bounds.size:
                return False
        return len(page.found) < bounds.count


def size_of(record: Record) -> int:
    """Bytes of a message."""
    _, _, key, value, headers = record
    return len(key or b"") + len(value or b"") + sum(len(name) + len(content or b"") for name, content in headers)


def has_index(topic: Topic, query: Query) -> bool:
    """Whether the topic has an index of one of the terms."""
    return bool({name for name, _ in query.terms} & set(fields_of(topic.settings.index)))


def _progress(topic: Topic, place: Place | None) -> tuple[int, int]:
    passed = total = 0
    for partition in topic.partitions:
        if not partition.loaded:
            continue
        count = partition.last_stable - partition.start
        total += count
        if place is None or partition.index < place.partition:
            passed += count
        elif partition.index == place.partition:
            passed += min(max(place.offset - partition.start, 0), count)
    return passed, total
