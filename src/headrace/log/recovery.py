"""Starting after a stop that was not clean.

The checkpoint says how each partition stood; journal and spool say what changed since. Partitions that these speak of
are recovered at once: their segments are scanned from the recovery point on, and what the two have beyond that is
written behind. All others are recovered when first touched, by the same scan, so a start costs what was in flight, not
what is stored. The leader epochs rise by one, and only a new checkpoint, written at the end, makes the journal
superfluous: a crash on the way repeats it all.

A disk may be too full for that. What it does not take then waits in memory, as it did before the stop, and readers get
it from there; journal and spool stay as they are. Nothing is appended until there is room, a checkpoint has been
written, and with it the new epochs.
"""

from __future__ import annotations

import asyncio
import errno
import json
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace.errors import CorruptLog, PartitionOffline
from headrace.format.batch import HEADER_BYTES, header_at
from headrace.log import checkpoint as checkpoints
from headrace.log import journal as journals
from headrace.log import spool as spools
from headrace.log.frames import Frame, Kind
from headrace.log.interface import Durability
from headrace.log.loading import learn, rebuild_producers
from headrace.log.replay import Replay, read_replays
from headrace.log.segments import Loaded, sync_now
from headrace.log.truncation import cut_files
from headrace.log.upkeep import RESUME_BYTES
from headrace.runtime.disk import NO_SPACE

if TYPE_CHECKING:
    from headrace.log.checkpoint import Checkpoint
    from headrace.log.journal import Journal
    from headrace.log.native import NativeLog
    from headrace.log.partition import NativePartition

logger = structlog.get_logger("headrace.log")

NO_ROOM = "the disk does not take what journal and spool have"


async def recover(log: NativeLog, found: Checkpoint, journal: Journal) -> None:
    """Bring the log to the state that its clients were promised."""
    disk, offload = log.runtime.disk, log.runtime.offload
    read = await offload.run(journals.read_frames, disk, found.journal_from)
    frames = read.frames
    log.epoch = found.epoch + 1
    journal.next_sequence = max(
        [found.journal_from, *(frame.sequence + 1 for frame in frames), *(lost + 1 for lost in read.lost)]
    )
    read_catalogue(log, found, frames)
    spooled = await offload.run(spools.read_spool, disk, found.epoch)
    replays = read_replays((entry for frame in frames for entry in frame.entries()), spooled)
    await offload.run(_sweep, log, found)
    wanted = RESUME_BYTES + sum(replay.size for replay in replays.values())
    if not read.lost and await offload.run(disk.free_bytes) < wanted:
        await offload.run(journals.give_back, disk, read, found.journal_from)
        await offload.run(spools.give_back, disk, found.epoch)
    replayed = 0
    damaged = bool(read.lost)
    if damaged:
        logger.error(
            "the journal is damaged: what stood in some of its frames is lost, though it was acknowledged",
            frames=read.lost,
        )
    # Several at once: each waits for the device a few times, and the file system lets them wait together.
    recovering = [recover_partition(log, *place, replay) for place, replay in replays.items()]
    for result in await asyncio.gather(*recovering, return_exceptions=True):
        if isinstance(result, BaseException):
            # The disk fails, and so does the start; the journal stays for the next one.
            raise result
        if result is None:
            damaged = True
        else:
            replayed += result
    logger.info("recovered", epoch=log.epoch, frames=len(frames), batches=replayed, partitions=len(replays))
    waiting = [partition for partition in log.dirty if partition.waits]
    try:
        if waiting:
            raise OSError(errno.ENOSPC, NO_ROOM, waiting[0].folder)
        await log.upkeep.save_checkpoint(journal.next_sequence)
    except OSError as error:
        # What is damaged needs the journal for itself, aside.
        if error.errno not in NO_SPACE or damaged:
            raise
        await offload.run(journals.write_again, disk, read)
        journal.inherit(read)
        log.upkeep.owe_checkpoint(found.journal_from)
        logger.error(
            "disk full: what journal and spool have is read from memory, and appends are refused until there is room",
            error=str(error),
        )
        return
    if damaged:
        # The journal may be all that is left of a damaged partition's newest batches.
        kept = await offload.run(journals.set_aside, disk, log.epoch)
        logger.error("not everything could be recovered; the journal is kept", folder=kept)
    else:
        await offload.run(journals.remove_files, disk)


async def recover_partition(log: NativeLog, topic_bytes: bytes, index: int, replay: Replay) -> int | None:
    """Recover one partition; how many batches were replayed, None if it is damaged."""
    topic = log.topics.by_id.get(UUID(bytes=topic_bytes))
    if topic is None or index >= len(topic.partitions):
        return 0
    partition = log.partitions_of(topic)[index]
    partition.epoch = max(partition.epoch, replay.epoch + 1)
    if topic.settings.durability is Durability.MEMORY:
        # Of a replica: where offsets are free.
        partition.begin_again(replay.start)
        return 0
    partition.start = max(partition.start, replay.start)
    partition.point = replay.point(partition.point)
    try:
        partition.adopt(await log.runtime.offload.run(_load_and_replay, log, partition, replay))
    except (PartitionOffline, CorruptLog) as error:
        partition.fail(str(error))
        return None
    return len(replay.batches) + len(replay.spooled)


def read_catalogue(log: NativeLog, found: Checkpoint, frames: list[Frame]) -> None:
    """Take the catalogue of the checkpoint, and the journal's changes of it."""
    entries = (entry for frame in frames for entry in frame.entries())
    changes = [json.loads(entry.data) for entry in entries if entry.kind is Kind.CATALOGUE]
    for record in checkpoints.replay_changes(found.topics, changes):
        log.add_topic(record)
    for change in changes:
        if change["op"] == "counter":
            log.counters[change["name"]] = max(log.counters.get(change["name"], 0), change["value"])


def _sweep(log: NativeLog, found: Checkpoint) -> None:
    """Remove the folders of topics that were deleted just before the stop. Blocks."""
    live = {partition.folder for topic in log.topics.values() for partition in log.partitions_of(topic)}
    known = checkpoints.folders_of(found.topics)
    for name in log.runtime.disk.listdir(""):
        if name.endswith("-delete") or (name in known and name not in live):
            log.runtime.disk.remove_tree(name)


def _load_and_replay(log: NativeLog, partition: NativePartition, replay: Replay) -> Loaded:
    """Load a partition and write what only the journal and the spool have behind it. Blocks."""
    found = partition.load_now(replay.cut)
    folder = partition.folder
    segments = partition.segments_for(found)
    if replay.cut >= 0:
        if found.end > replay.cut:
            segments.cut_back(replay.cut)
            found.end = replay.cut
        found.epochs.truncate_end(found.end)
        if found.folder_made:
            cut_files(log.runtime.disk, folder, found)
        rebuild_producers(log.runtime.disk, folder, found, partition.point)
    for entry, journalled in replay.promised():
        header = header_at(entry.data)
        base, last = entry.offset, entry.offset + header.last_offset_delta
        if last < max(partition.point, partition.start):
            continue
        # The same batch is in the segment already, or one whose flush had failed: then the journal is right.
        if last < found.end and segments.batch_start(base, HEADER_BYTES) == entry.data[:HEADER_BYTES]:
            continue
        if found.waiting:
            behind, same = found.waiting[-1]
            if base == behind.last_offset + 1:
                found.waiting.append((header, entry.data))
            elif entry.data[:HEADER_BYTES] != same[:HEADER_BYTES] and (journalled or base <= behind.last_offset):
                # More than a full disk is wrong: sorted out by a start that can write.
                raise OSError(errno.ENOSPC, NO_ROOM, folder)
            continue
        if found.end < base <= partition.start:
            # Everything before was trimmed away, and need not be there.
            segments.begin_at(base)
            found.end = base
        if base > found.end and not journalled:
            # A power cut took what stood between, as it may; the journal goes on behind nothing that it can take.
            continue
        if base > found.end:
            raise PartitionOffline(f"{folder}: the journal goes on at offset {base}, the segments end at {found.end}")
        if base < found.end:
            segments.cut_back(base)
            found.end = base
            found.epochs.truncate_end(base)
            rebuild_producers(log.runtime.disk, folder, found, partition.point)
        try:
            segments.store(
                [(base, last, entry.data, header.max_timestamp)],
                partition.topic.settings,
                log.runtime.clock.now_ms(),
                lambda _: None,
            )
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            found.waiting.append((header, entry.data))
            continue
        found.end = last + 1
        if header.leader_epoch != found.epochs.latest:
            found.epochs.assign(header.leader_epoch, base)
        if header.producer_id >= 0:
            learn(found.producers, header, entry.read, segments.active)
    if found.end < partition.start and not found.waiting:
        segments.begin_at(partition.start)
        found.end = partition.start
    found.unsynced = [] if sync_now(segments.sync_jobs()) else segments.unsynced
    found.segments, found.folder_made = segments.all, segments.folder_made
    found.start = max(found.start, partition.start)
    return found
