"""The leader's side of a copy: fix a position of the journal, and show what the partitions have there.

In one turn of the loop the ends of all partitions are taken: together they are what all frames up to that position
have made. From then on each partition is *pinned* until it was sent: retention, compaction and the removal of old
snapshots leave its files alone, and what is appended meanwhile stands behind the end that was taken. The catalogue is
taken later, and may be ahead: following repeats its changes, which changes nothing. A topic that is deleted meanwhile
drops out of the copy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.log import checkpoint as checkpoints
from headrace.log import swap
from headrace.log.copy.parts import CopiedFile, CopiedPartition, CopyHead, digest_of
from headrace.log.interface import Durability
from headrace.log.names import segment_bases
from headrace.runtime.disk import Disk

if TYPE_CHECKING:
    from headrace.log.partition import NativePartition
    from headrace.log.replicated import ReplicatedLog
    from headrace.log.segment import Segment

# How often a compaction that is under way is asked whether it is done.
BUSY_PAUSE_S = 0.05
# Partitions that are gone over between two turns of the loop.
STEP_PARTITIONS = 1_024


class CopyFailed(HeadraceError):
    """A copy cannot go on; another attempt may."""


@dataclass(slots=True)
class _Range:
    segment: Segment
    size: int
    is_closed: bool


class CopySource:
    """One round of a copy. `close` it."""

    def __init__(self, log: ReplicatedLog, sequence: int, ends: dict[NativePartition, int]) -> None:
        self._log = log
        self.sequence = sequence
        self._ends = ends
        self._left: deque[NativePartition] = deque()
        for partition in ends:
            log.pin(partition)

    @classmethod
    async def fix(cls, log: ReplicatedLog) -> CopySource:
        """Fix the position where the log stands now."""
        # One that is about to lead may be in the middle of a frame; it must give copies, or none may ever be in sync.
        while not log.replicated.leads and log.frames.applied < log.frames.committed:  # noqa: ASYNC110
            await asyncio.sleep(BUSY_PAUSE_S)
        partitions = [
            partition
            for topic in log.topics.values()
            if topic.settings.durability is not Durability.MEMORY
            for partition in log.partitions_of(topic)
        ]
        return cls(log, log.frames.applied, {each: each.high_watermark for each in partitions})

    def close(self) -> None:
        """Let go of what was not sent."""
        for partition in self._ends:
            self._log.unpin(partition)
        self._ends = {}

    async def head(self) -> CopyHead:
        """What does not belong to one partition."""
        log = self._log
        # What was committed when the position was fixed has taken effect behind this.
        await log.settle()
        topics = []
        for count, topic in enumerate(list(log.topics.values())):
            record = log.record_of(topic)
            # Of a `memory` topic goes along where its offsets are free; one that came since has nothing.
            in_memory = topic.settings.durability is Durability.MEMORY
            places = [
                (partition, partition.point if in_memory else self._ends.get(partition, 0))
                for partition in log.partitions_of(topic)
            ]
            record.partitions = [(min(partition.start, end), end) for partition, end in places]
            record.epochs = [partition.epoch for partition, _ in places]
            topics.append(checkpoints.topic_to_json(record))
            if not in_memory:
                self._left.extend(partition for partition, _ in places if partition in self._ends)
            if count % STEP_PARTITIONS == 0:
                await asyncio.sleep(0)
        history = tuple(each for each in log.frames.history() if each[1] <= self.sequence)
        return CopyHead(self.sequence, history, dict(log.counters), tuple(topics))

    async def size(self) -> int:
        """About how many bytes it has."""
        size = 0
        for partition in list(self._left):
            if not partition.topic.deleted:
                await partition.load()
                size += partition.size()
        return size

    async def next(self) -> tuple[NativePartition, CopiedPartition | None] | None:
        """The next partition, None in place of what it has if it is gone; None behind the last. Its files stay until
        `sent`. Raises CopyFailed, PartitionOffline, OSError, CorruptLog."""
        if not self._left:
            return None
        partition = self._left.popleft()
        if partition.topic.deleted:
            return partition, None
        try:
            return partition, await self._describe(partition, self._ends[partition])
        except FileNotFoundError:
            if partition.topic.deleted:
                return partition, None
            raise

    def sent(self, partition: NativePartition) -> None:
        """The partition's files may change again."""
        if self._ends.pop(partition, None) is not None:
            self._log.unpin(partition)

    async def _describe(self, partition: NativePartition, end: int) -> CopiedPartition:
        log, offload = self._log, self._log.runtime.offload
        await partition.load()
        while partition in log.upkeep.cleaner.busy:  # noqa: ASYNC110
            # It began before, and goes no further than the end that was taken.
            await asyncio.sleep(BUSY_PAUSE_S)
        partition.write_back()
        segments, state = partition.segments, partition.state
        if segments.end < end:
            raise CopyFailed(f"{partition.folder} could not be stored up to {end}: is the leader's disk full?")
        state.write_aborted(segments)
        # A start that moved meanwhile is repeated by what follows.
        start = partition.start
        found = CopiedPartition(
            partition.topic.id.hex, partition.index, start, max(start, end), partition.epoch, (), 0, (), ()
        )
        if start >= end:
            return found
        epochs = tuple(each for each in state.epochs.entries if each[1] < end)
        ranges = []
        for index, segment in enumerate(segments.all):
            is_last = index + 1 == len(segments.all)
            if segment.base >= end or (not is_last and segments.all[index + 1].base <= start):
                continue
            is_closed = not is_last and segments.all[index + 1].base <= end
            size = segment.size if is_closed else await offload.run(segment.locate, end)
            if size:
                ranges.append(_Range(segment, size, is_closed))
        aborted = []
        for each in ranges:
            if each.segment.may_abort:
                entries = each.segment.aborted_entries(0, end)[0]
                aborted += [(each.segment.base, entry) for entry in entries if entry.last_offset < end]
        files = await offload.run(_files, log.runtime.disk, partition.folder, ranges, end)
        cleaned = await offload.run(swap.read_checkpoint, log.runtime.disk, partition.folder)
        return replace(
            found, epochs=epochs, cleaned=min(cleaned, end), files=files,
            aborted=tuple((base, (*entry,)) for base, entry in aborted),
        )  # fmt: skip


def _files(disk: Disk, folder: str, ranges: list[_Range], end: int) -> tuple[CopiedFile, ...]:
    """Blocks."""
    found = []
    for each in ranges:
        found.append(_file(disk, folder, f"{each.segment.base:020d}.log", each.size))
        if each.is_closed:
            for suffix in (".index", ".timeindex"):
                # Hints: where one is missing it is made anew.
                with suppress(FileNotFoundError):
                    found.append(_file(disk, folder, f"{each.segment.base:020d}{suffix}"))
    for offset in segment_bases(disk, folder, ".snapshot"):
        if offset <= end:
            found.append(_file(disk, folder, f"{offset:020d}.snapshot"))
    return tuple(found)


def _file(disk: Disk, folder: str, name: str, size: int | None = None) -> CopiedFile:
    with closing(disk.open(f"{folder}/{name}")) as file:
        size = file.size() if size is None else size
        return CopiedFile(name, size, digest_of(file, size))
