"""The indexer: brings the search indexes of topics with `index` up to date, behind the producers.

A worker process does it, some tens of megabytes at a time, and rests in between so that it stays below its rate. It
writes beside segments that others may drop, compact or cut: while a partition is `busy` its segments stay, and what
puts others in their place waits for `idle`. What a stop or a crash cuts short goes on where the index ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from headrace.errors import HeadraceError
from headrace.log import search_index
from headrace.log.interface import Durability
from headrace.log.search_index import BuildJob

if TYPE_CHECKING:
    from headrace.log.native import NativeLog
    from headrace.log.partition import NativePartition
    from headrace.log.segment import Segment

logger = structlog.get_logger("headrace.log")

# What a worker does in one call, less than a block more: about a second.
CALL_BYTES = 64 << 20
CALL_JOBS = 1_024


class Indexer:
    """The log's search indexes."""

    def __init__(self, log: NativeLog) -> None:
        self._log = log
        # Partitions beside whose segments a worker writes now.
        self.busy: set[NativePartition] = set()
        self._ended = asyncio.Event()
        # How far the index of each segment is, by its number; as of which fields.
        self._reached: dict[NativePartition, tuple[str, dict[int, int]]] = {}
        # From where on in its file the index of a segment is wrong.
        self._damaged: dict[NativePartition, dict[Segment, int]] = {}
        self._failed = False

    def report_damage(self, partition: NativePartition, segment: Segment, damage: search_index.DamagedIndex) -> None:
        """The index of a segment was found to be wrong: make it anew from there."""
        if partition in self.busy:
            return  # it may have been seen while it was written
        damaged = self._damaged.setdefault(partition, {})
        if segment not in damaged:
            logger.warning(
                "a search index is made anew", partition=partition.folder, base=segment.base, why=str(damage)
            )
        damaged[segment] = min(damage.at, damaged.get(segment, damage.at))

    async def idle(self, partition: NativePartition) -> None:
        """Wait until no worker writes beside a partition's segments."""
        while partition in self.busy:
            await self._ended.wait()

    async def run(self) -> None:
        """Bring all of them up to date."""
        for partition in [*self._reached, *self._damaged]:
            if partition.topic.deleted or not partition.topic.settings.index:
                self._reached.pop(partition, None)
                self._damaged.pop(partition, None)
        jobs: list[tuple[NativePartition, Segment, BuildJob]] = []
        size = 0
        for partition in list(self._candidates()):
            try:
                await self._look(partition)
            except (OSError, HeadraceError) as error:
                logger.warning("search indexes could not be read", partition=partition.folder, error=str(error))
                continue
            if not self._may_build(partition):
                continue
            for segment, job, length in self._due(partition):
                jobs.append((partition, segment, job))
                size += length
                if size >= CALL_BYTES or len(jobs) >= CALL_JOBS:
                    await self._build(jobs, size)
                    jobs, size = [], 0
                    if not self._may_build(partition):
                        break
            await asyncio.sleep(0)
        if jobs:
            await self._build(jobs, size)

    def _candidates(self) -> Iterator[NativePartition]:
        for topic in list(self._log.topics.values()):
            if topic.settings.index and topic.settings.durability is not Durability.MEMORY:
                for partition in self._log.partitions_of(topic):
                    if self._may_build(partition) and partition.start < partition.end:
                        yield partition

    def _may_build(self, partition: NativePartition) -> bool:
        return (
            partition.loaded
            and partition.writable
            and not partition.offline
            and not partition.topic.deleted
            and partition not in self._log.upkeep.cleaner.busy
        )

    async def _look(self, partition: NativePartition) -> None:
        """Find out how far the indexes of segments are that are not known yet."""
        fields = partition.topic.settings.index
        known = self._reached.get(partition)
        if known is None or known[0] != fields:
            known = self._reached[partition] = fields, {}
        numbers = {segment.number for segment in partition.segments.all}
        for number in known[1].keys() - numbers:
            del known[1][number]
        disk, offload = self._log.runtime.disk, self._log.runtime.offload
        for segment, at in self._damaged.pop(partition, {}).items():
            if segment in partition.segments.all:
                await offload.run(search_index.drop_from, disk, partition.folder, segment.base, at)
                known[1].pop(segment.number, None)
        new = [(each.number, each.base) for each in partition.segments.all if each.number not in known[1]]
        if new:
            bases = [base for _, base in new]
            found = await offload.run(_reached, disk, partition.folder, bases, partition.topic_bytes, fields)
            known[1].update(zip((number for number, _ in new), found, strict=True))

    def _due(self, partition: NativePartition) -> Iterator[tuple[Segment, BuildJob, int]]:
        """What can be built now, some of it at a time."""
        config, settings = self._log.config, partition.topic.settings
        known = self._reached[partition][1]
        segments = list(partition.segments.all)
        for index, segment in enumerate(segments):
            at = known.get(segment.number)
            if at is None or segment.base >= partition.saved_point or at >= segment.size:
                continue
            is_sealed = index + 1 < len(segments) and segments[index + 1].base <= partition.saved_point
            if not is_sealed and segment.size - at < config.search_index_block_bytes:
                continue
            end = segment.size if is_sealed else segment.locate(partition.saved_point)
            while end - at >= (1 if is_sealed else config.search_index_block_bytes):
                # A block more than that, and the batch that ends it: so there is always one to be made.
                upto = min(end, at + CALL_BYTES + config.search_index_block_bytes + settings.max_batch_bytes)
                job = BuildJob(
                    folder=partition.folder,
                    base=segment.base,
                    upto=upto,
                    is_sealed=is_sealed and upto == end,
                    topic_id=partition.topic_bytes,
                    fields=tuple(settings.index.split(",")),
                    block_bytes=config.search_index_block_bytes,
                    max_bytes=config.decompressed_max_bytes,
                )
                yield segment, job, upto - at
                after = known.get(segment.number, end)
                if after <= at:
                    break  # it is gathered, and not built yet; or it cannot be
                at = after

    async def _build(self, jobs: list[tuple[NativePartition, Segment, BuildJob]], size: int) -> None:
        runtime = self._log.runtime
        begun = runtime.clock.now_ms()
        self.busy = {partition for partition, _, _ in jobs}
        self._ended.clear()
        try:
            found = await runtime.offload.work(search_index.build, [job for _, _, job in jobs])
        except (OSError, HeadraceError) as error:
            # A full disk, mostly: what is not in an index is read.
            if not self._failed:
                logger.warning("search indexes could not be written: tried again", error=str(error))
            self._failed = True
            return
        finally:
            kept, self.busy = self.busy, set()
            self._ended.set()
            for partition in kept:
                self._log.upkeep.drop_expired(partition)
        self._failed = False
        for (partition, segment, job), reached in zip(jobs, found, strict=True):
            known = self._reached.get(partition)
            if known is not None and segment.number in known[1]:
                # What cannot be walked over is not tried again in this life.
                stuck = job.is_sealed and reached < job.upto
                known[1][segment.number] = segment.size if stuck else reached
        rest = size / self._log.config.search_index_rate_bytes - (runtime.clock.now_ms() - begun) / 1000
        if rest > 0:
            await asyncio.sleep(rest)


def _reached(disk: object, folder: str, bases: list[int], topic_id: bytes, fields: str) -> list[int]:
    return [search_index.reached(disk, folder, base, topic_id, fields.split(",")) for base in bases]  # type: ignore[arg-type]
