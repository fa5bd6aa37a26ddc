"""The cleaner: compacts partitions for which it is worth it, one at a time.

The reading and writing of records happens in a worker process, beside the old files (`compaction.py`). The decision
that the new ones count is one small durable file, written off the loop; only the renames that follow are done on it,
between two reads (`swap.py`). While a partition is being compacted, retention leaves its segments alone.

Compaction goes by the recovery points that are saved. Where these are all that holds it back, it does not wait for the
next checkpoint by the clock but asks for one, for all partitions together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from headrace.errors import HeadraceError
from headrace.log import compaction, swap
from headrace.log.interface import Durability

if TYPE_CHECKING:
    from headrace.log.native import NativeLog
    from headrace.log.partition import NativePartition

logger = structlog.get_logger("headrace.log")


class Cleaner:
    """The log's compaction."""

    def __init__(self, log: NativeLog) -> None:
        self._log = log
        # Partitions whose segments are being rewritten now.
        self.busy: set[NativePartition] = set()
        # Partitions with a segment that could not be read: left alone until the next start, and logged.
        self._quarantined: set[NativePartition] = set()
        self.runs = 0
        self.bytes_freed = 0

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    async def run(self) -> None:
        """Look at every partition of every compacted topic once."""
        held_back = False
        for partition in self._candidates():
            with self._reporting(partition):
                held_back |= await self._prepare(partition)
        if held_back:
            await self._log.upkeep.checkpoint_soon()
        for partition in self._candidates():
            with self._reporting(partition):
                await self._compact(partition)

    def _candidates(self) -> Iterator[NativePartition]:
        for topic in list(self._log.topics.values()):
            if not topic.settings.compact or topic.settings.durability is Durability.MEMORY:
                continue
            for partition in self._log.partitions_of(topic):
                if topic.deleted or partition.offline or partition in self._quarantined or partition in self._log.pins:
                    continue
                if partition.start < partition.end:
                    yield partition

    @contextmanager
    def _reporting(self, partition: NativePartition) -> Iterator[None]:
        """Log what goes wrong with one partition; the others have their turn."""
        try:
            yield
        except (OSError, HeadraceError) as error:
            if not partition.topic.deleted:
                logger.error("compaction failed", partition=partition.folder, error=str(error))

    async def _prepare(self, partition: NativePartition) -> bool:
        """Load a partition and close its newest segment if that is overdue. Whether more of it could be compacted if
        the recovery point were saved that it has by now."""
        await partition.load()
        if partition.cleaned_up_to < 0:
            offload, disk = self._log.runtime.offload, self._log.runtime.disk
            partition.cleaned_up_to = await offload.run(swap.read_checkpoint, disk, partition.folder)
        self._close_overdue(partition)
        if partition.saved_point >= partition.high_watermark:
            return False
        possible, now = self._plan(partition, partition.high_watermark), self._plan(partition, partition.saved_point)
        return possible is not None and (now is None or now.end < possible.end)

    async def _compact(self, partition: NativePartition) -> None:
        runtime = self._log.runtime
        disk, offload, folder = runtime.disk, runtime.offload, partition.folder
        if partition.cleaned_up_to < 0:
            return  # It came, or was loaded, after the look at all of them.
        plan = self._plan(partition, partition.saved_point)
        if plan is None:
            return
        self.busy.add(partition)
        truncations = partition.truncations
        try:
            if disk.exists(f"{folder}/{swap.LIST_NAME}"):
                # There was no room to settle the last run, whose list has names that this one gives to its own files.
                async with self._log.upkeep.reshaping:
                    await offload.run(swap.settle, disk, folder, partition.cleaned_up_to)
            cleaned = await offload.work(compaction.clean, folder, plan)
            if partition.truncations != truncations:
                return
            if cleaned.broken is not None:
                base, reason = cleaned.broken
                self._quarantined.add(partition)
                logger.error("segment quarantined: it is kept as it is", partition=folder, segment=base, reason=reason)
                return
            async with self._log.upkeep.reshaping:
                if partition.topic.deleted or partition.truncations != truncations:
                    return
                # From here to the end there is no way back, so a cancelled task finishes it, and a stop waits for that.
                placing = asyncio.ensure_future(self._put_in_place(partition, cleaned))
                try:
                    await asyncio.shield(placing)
                finally:
                    await asyncio.gather(placing, return_exceptions=True)
        finally:
            self.busy.discard(partition)

    def _plan(self, partition: NativePartition, saved: int) -> compaction.CleanPlan | None:
        """What compaction should do if `saved` is the recovery point that a start after a power cut would go by. It
        touches only what is decided below it, in itself and in its transactions: a marker above could be lost."""
        producers = partition.state.producers
        unstable = producers.first_unstable(saved)
        return compaction.plan(
            partition.segments.all,
            partition.topic.settings,
            self._log.runtime.clock.now_ms(),
            partition.cleaned_up_to,
            saved if unstable is None else min(unstable, saved),
            producers,
            self._log.config.decompressed_max_bytes,
            saved,
        )

    async def _put_in_place(self, partition: NativePartition, cleaned: compaction.Cleaned) -> None:
        log = self._log
        disk, offload, folder = log.runtime.disk, log.runtime.offload, partition.folder
        # None begins any more: the partition is busy.
        await log.upkeep.indexer.idle(partition)
        await offload.run(swap.commit, disk, folder, cleaned.groups, cleaned.clean_up_to)
        interval = partition.topic.settings.index_interval_bytes
        rename = partial(swap.install, disk, folder, cleaned.groups)
        try:
            partition.segments.replace(cleaned.removed, cleaned.added, rename, interval)
        except OSError as error:
            # What is in memory fits neither the old files nor the new ones. The next start completes it.
            partition.fail(f"its compacted segments could not be put in place: {error}")
            raise
        partition.cache.forget_compacted(cleaned.clean_up_to)
        partition.cleaned_up_to = cleaned.clean_up_to
        await offload.run(swap.settle, disk, folder, cleaned.clean_up_to)
        self.runs += 1
        self.bytes_freed += cleaned.bytes_before - cleaned.bytes_after
        logger.info("compacted", partition=folder, before=cleaned.bytes_before, after=cleaned.bytes_after)

    def _close_overdue(self, partition: NativePartition) -> None:
        """Records may not stay uncompacted for longer than the topic says, even in the segment that grows."""
        settings = partition.topic.settings
        active = partition.segments.active
        now = self._log.runtime.clock.now_ms()
        if (
            active is not None
            and active.first_timestamp_ms >= 0
            and now - active.first_timestamp_ms > settings.roll_ms
            and partition.writable
            and partition.flushed == partition.end
            and partition.write_back()
        ):
            partition.segments.roll_now(settings)
            self._log.dirty[partition] = None
