"""Pages of messages over several partitions, in the order of their times, and what comes behind them.

A page looks at a bounded number of records and bytes, and says where to go on: by partition, the next offset. Nothing
of a reader lives in the broker.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from headrace.broker.browse.conditions import Conditions
from headrace.broker.browse.mask import Mask
from headrace.broker.browse.view import View
from headrace.broker.browse.walk import Stretch, backwards, forwards
from headrace.broker.unpacking import Unpacker
from headrace.format.records import Record
from headrace.log.interface import Partition, Topic
from headrace.runtime import Runtime

Place = Mapping[int, int]
"""By partition: the next offset, or (the newest first) the one behind it."""

# What a page looks at.
LOOKED_RECORDS = 20_000
LOOKED_BYTES = 67_108_864
# Readers at a time: each holds a stretch of each of its partitions.
READERS_MAX = 4
# What is judged between two turns of the loop, in bytes; a record counts as some more than it has.
STEP_BYTES = 262_144
RECORD_BYTES = 2_048


class Range(NamedTuple):
    """Offsets of a partition: from the first to before the last."""

    first: int
    end: int


@dataclass(slots=True)
class Browsed:
    """A page."""

    views: list[View] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    """Where to go on."""
    looked: int = 0
    done: bool = False
    """All was looked at that there was."""


class Browser:
    """Reads topics for people."""

    def __init__(self, runtime: Runtime, unpacking: Unpacker) -> None:
        self._runtime = runtime
        self._unpacking = unpacking
        self._turn = asyncio.Semaphore(READERS_MAX)

    async def page(
        self,
        topic: Topic,
        ranges: Mapping[int, Range],
        limit: int,
        conditions: Conditions,
        mask: Mask | None,
        *,
        newest: bool = False,
        looked_max: int = LOOKED_RECORDS,
    ) -> Browsed:
        """The first messages of some ranges that meet the conditions; `newest`: the last ones, the newest first."""
        page = Browsed(place={index: each.end if newest else each.first for index, each in ranges.items()})
        async with self._turn:
            sources = [self._source(topic.partitions[index], each, newest) for index, each in ranges.items()]
            merged = _Merge(sources, list(ranges), page.place, -1 if newest else 1)
            await merged.begin()
            weight = 0
            while len(page.views) < limit and page.looked < looked_max and merged.size < LOOKED_BYTES:
                found = await merged.next()
                if found is None:
                    page.done = True
                    break
                page.looked += 1
                view = View(*found)
                if mask is not None:
                    mask.apply(view)
                if conditions.meets(view):
                    page.views.append(view)
                weight += view.size + RECORD_BYTES
                if weight >= STEP_BYTES:
                    weight = 0
                    await asyncio.sleep(0)
            page.done = page.done or merged.is_done
            await merged.close()
        return page

    def _source(self, partition: Partition, wanted: Range, newest: bool) -> AsyncIterator[Stretch]:
        walk = partial(backwards if newest else forwards, self._runtime, self._unpacking, partition)
        return walk(wanted.end, wanted.first) if newest else walk(wanted.first, wanted.end)

    async def wait(self, partitions: Sequence[Partition], place: Place, seconds: float) -> None:
        """Wait until there is something behind a place, for so long at most."""
        if any(each.last_stable > place.get(each.index, 0) for each in partitions):
            return
        woken = asyncio.Event()
        wake = woken.set
        for each in partitions:
            each.wait(wake)
        try:
            async with asyncio.timeout(seconds):
                while not any(each.last_stable > place.get(each.index, 0) for each in partitions):
                    await woken.wait()
                    woken.clear()
                    for each in partitions:
                        each.unwait(wake)
                        each.wait(wake)
        except TimeoutError:
            pass
        finally:
            for each in partitions:
                each.unwait(wake)


class _Merge:
    """Records of several partitions in the order of their times. `place` follows: what was taken lies before it."""

    def __init__(
        self, sources: Sequence[AsyncIterator[Stretch]], indexes: Sequence[int], place: dict[int, int], sign: int
    ) -> None:
        self.size = 0
        self._sources = sources
        self._indexes = indexes
        self._place = place
        self._sign = sign
        self._ready: list[list[Record]] = [[] for _ in sources]
        self._behind = [0] * len(sources)
        self._heap: list[tuple[int, int]] = []

    async def begin(self) -> None:
        for at in range(len(self._sources)):
            await self._refill(at)

    @property
    def is_done(self) -> bool:
        return not self._heap

    async def next(self) -> tuple[int, Record] | None:
        if not self._heap:
            return None
        _, at = heapq.heappop(self._heap)
        record = self._ready[at].pop()
        index = self._indexes[at]
        self._place[index] = record[0] + 1 if self._sign > 0 else record[0]
        await self._refill(at)
        return index, record

    async def _refill(self, at: int) -> None:
        """Have the next record of a source ready, if there is any."""
        while not self._ready[at]:
            stretch = await anext(self._sources[at], None)
            if stretch is None:
                return
            self.size += stretch.size
            self._ready[at] = stretch.records[::-1]
            if not stretch.records:
                self._place[self._indexes[at]] = stretch.next
        heapq.heappush(self._heap, (self._sign * self._ready[at][-1][1], at))

    async def close(self) -> None:
        for each in self._sources:
            close = getattr(each, "aclose", None)
            if close is not None:
                await close()
