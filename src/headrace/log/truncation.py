"""Truncating a partition: a replica whose log differs from its leader's forgets what the leader does not have.

The journal decides. Once it has the new end, a start after a crash completes the cut; before, it finds the old end.
Then the files follow: segments and their indexes, producer snapshots, leader epochs, the mark of the cleaner, all of
them synced, and a point in the journal says that they have. Only then is something appended again, so whatever a start
finds behind that point is new. Nothing is left to bring back what was cut: the spool, which has batches by their
offsets and no order, is emptied first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import CorruptLog, OffsetOutOfRange, PartitionOffline, StorageFailed
from headrace.log import swap
from headrace.log.epochs import FILE_NAME, LeaderEpochs
from headrace.log.frames import Kind
from headrace.log.interface import Durability
from headrace.log.journal import FOLDER
from headrace.log.loading import rebuild_producers
from headrace.log.segments import Loaded
from headrace.log.spool import remove_spool
from headrace.runtime.disk import Disk

if TYPE_CHECKING:
    from headrace.log.native import NativeLog
    from headrace.log.partition import NativePartition

NO_ROOM = "the disk is full: nothing is truncated before there is room"


async def truncate(partition: NativePartition, offset: int) -> int:
    """See `LocalPartition.truncate`."""
    if partition.topic.settings.durability is Durability.MEMORY:
        raise ValueError(f"{partition.folder} is in memory only, and has no replica to agree with: it is not truncated")
    await partition.load()
    # Once the journal is asked there is no way back, so a cancelled task finishes it.
    truncating = asyncio.ensure_future(_truncate_alone(partition, offset))
    try:
        return await asyncio.shield(truncating)
    finally:
        await asyncio.wait([truncating])


async def _truncate_alone(partition: NativePartition, offset: int) -> int:
    log = partition.log
    async with log.upkeep.reshaping:
        partition.writable = False
        try:
            await log.upkeep.indexer.idle(partition)
            # Whatever is under way arrives before the journal has the new end.
            log.turn.finish()
            await log.committer.barrier()
            _check_online(partition)
            if not partition.start <= offset <= partition.end:
                raise OffsetOutOfRange(offset, partition.start, partition.end)
            if offset < partition.end:
                await _truncate(log, partition, offset)
        finally:
            partition.writable = True
    return partition.end


async def _truncate(log: NativeLog, partition: NativePartition, offset: int) -> None:
    disk, offload = log.runtime.disk, log.runtime.offload
    place = partition.topic_bytes, partition.index
    # Without a checkpoint of this life, the spool of the one before counts.
    if log.upkeep.owes_checkpoint or not partition.write_back():
        raise StorageFailed(NO_ROOM)
    end = max(partition.start, await offload.run(partition.segments.whole_before, offset))
    if not log.spool.empty():
        raise StorageFailed(NO_ROOM)
    try:
        if log.spool.is_used:
            await offload.run(_remove_spool, disk)
            log.spool.reuse()
        await offload.run(_settle_swap, disk, partition)
    except OSError as error:
        raise StorageFailed(f"{partition.folder} could not be truncated: {error}") from error
    log.committer.forget_point(partition)
    try:
        await log.committer.add_note(Kind.TRUNCATE, *place, end)
    except StorageFailed:
        # The journal may have it all the same.
        partition.appender.wait_for_journal()
        raise
    _check_online(partition)
    try:
        partition.cut(end)
        if not await log.upkeep.sync(partition):
            raise StorageFailed("its files could not be synced")
        found = await offload.run(_read_again, disk, partition)
        # Or a start would cut off what is appended from now on.
        await log.committer.add_note(Kind.POINT, *place, end)
    except (OSError, CorruptLog, StorageFailed) as error:
        # The next start completes it.
        partition.fail(f"its files could not be truncated to {end}: {error}")
        raise StorageFailed(f"{partition.folder} could not be truncated: {error}") from error
    partition.adopt_state(found)
    _check_online(partition)


def _check_online(partition: NativePartition) -> None:
    if partition.offline:
        raise PartitionOffline(f"{partition.folder} is offline: {partition.offline}")


def _remove_spool(disk: Disk) -> None:
    remove_spool(disk)
    disk.sync_dir(FOLDER)


def _settle_swap(disk: Disk, partition: NativePartition) -> None:
    """Where there was no room to settle a compaction, its list is still there, and has names that segments behind the
    cut may get again. Blocks."""
    if disk.exists(f"{partition.folder}/{swap.LIST_NAME}"):
        swap.settle(disk, partition.folder, partition.cleaned_up_to)


def _read_again(disk: Disk, partition: NativePartition) -> Loaded:
    """What follows from the batches that are left, with the files that have it cut too. Blocks."""
    found = Loaded(list(partition.segments.all), partition.start, partition.end)
    found.epochs = LeaderEpochs(partition.state.epochs.entries)
    found.epochs.truncate_end(found.end)
    if partition.segments.folder_made:
        cut_files(disk, partition.folder, found)
    rebuild_producers(disk, partition.folder, found, found.end)
    return found


def cut_files(disk: Disk, folder: str, found: Loaded) -> None:
    """Remove what stands beside the segments and does not show it when it is ahead of them: leader epochs, which are
    written anew with the next segment, and the mark of the cleaner. Durably, and without need for room; blocks."""
    disk.remove(f"{folder}/{FILE_NAME}")
    found.epochs_written = False
    if swap.read_checkpoint(disk, folder) > found.end:
        disk.remove(f"{folder}/{swap.CHECKPOINT_NAME}")
    disk.sync_dir(folder)
