"""What the log does in the background: checkpoints, retention, the watch over a full disk; compaction is in
`cleaner.py`, search indexes in `indexer.py`.

A checkpoint moves the recovery points up: it switches the journal to a new file, waits for the flush under way, stores
and syncs partition after partition (spread out, one at a time, so that the device stays free for the journal), writes
the checkpoint file, and gives the old journal files free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from headrace.errors import PartitionOffline
from headrace.log import checkpoint as checkpoints
from headrace.log import journal as journals
from headrace.log import retention
from headrace.log.cleaner import Cleaner
from headrace.log.frames import Kind
from headrace.log.indexer import Indexer
from headrace.log.interface import Durability
from headrace.log.replay import read_replays
from headrace.log.segment import leaves_doubt
from headrace.log.spool import remove_spool
from headrace.runtime.disk import NO_SPACE

if TYPE_CHECKING:
    from headrace.log.native import NativeLog
    from headrace.log.partition import NativePartition

logger = structlog.get_logger("headrace.log")

# Partitions that a checkpoint goes over between two turns of the loop: about a millisecond.
STEP_PARTITIONS = 4_096
FULL_DISK_RETRY_S = 0.5
# Writes resume once this much is free, so that they do not flap at the edge.
RESUME_BYTES = 1 << 20
# A checkpoint does not wait for its timer once the journal has this many files' worth of frames.
JOURNAL_FILES_BEFORE_CHECKPOINT = 2


class Upkeep:
    """The log's background work."""

    def __init__(self, log: NativeLog) -> None:
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        # Held by what changes recovery points or puts other files in place: a checkpoint, a truncation, compaction's
        # swap. So a truncation that the journal has came after the checkpoint that the file has.
        self.reshaping = asyncio.Lock()
        self._asked: asyncio.Future[None] | None = None
        self._full_watch: asyncio.TimerHandle | None = None
        self._may_prepare = True
        self._no_room_logged = False
        # The start could not write its checkpoint: nothing is appended before there is one.
        self.owes_checkpoint = False
        # The first frame of the journal that the checkpoint file calls for, and what was last carried over of offline
        # partitions.
        self.journal_from = 1
        self._carried = 0
        self.cleaner = Cleaner(log)
        self.indexer = Indexer(log)
        # What may take long in a worker, and is given up at a stop.
        self._working: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self) -> None:
        self._tasks = [
            asyncio.ensure_future(self._checkpoint_often()),
            asyncio.ensure_future(self._repeat("retention_check_ms", self.retain)),
        ]
        self._working = [
            asyncio.ensure_future(self._repeat("compaction_check_ms", self.cleaner.run)),
            asyncio.ensure_future(self._repeat("search_index_check_ms", self.indexer.run)),
        ]
        if self.owes_checkpoint:
            self.watch_full_disk()

    async def stop(self) -> None:
        """End the background work. What is under way off the loop is waited for, because a thread cannot be called
        back; a compaction or an index, which may take long, is given up."""
        self._stopping.set()
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await asyncio.gather(*self._tasks)
        if self._full_watch is not None:
            self._full_watch.cancel()

    async def _pause(self, seconds: float) -> bool:
        """Sleep; False if it is time to stop instead."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False

    async def _repeat(self, setting: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work from time to time, as a setting says now: it may change while the broker runs."""
        while await self._pause(getattr(self._log.config, setting) / 1000):
            try:
                await work()
            except Exception:
                logger.exception("upkeep failed", work=work.__qualname__)

    # --- checkpoints ---

    async def _checkpoint_often(self) -> None:
        """On a timer, as soon as the journal holds enough, or when one is asked for."""
        log = self._log
        step = min(log.config.checkpoint_ms / 1000, 0.25)
        limit = JOURNAL_FILES_BEFORE_CHECKPOINT * log.config.journal_bytes
        waited = 0.0
        while await self._pause(step):
            waited += step
            asked, self._asked = self._asked, None
            await self._prepare_journal()
            due = waited * 1000 >= log.config.checkpoint_ms and any(not each.offline for each in log.dirty)
            due = due or asked is not None or log.journal.used > limit + self._carried
            if self.owes_checkpoint:
                due = self._roomy()
            if due:
                waited = 0.0
                try:
                    await self.checkpoint()
                    self._no_room_logged = False
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        logger.exception("checkpoint failed")
                    elif not self._no_room_logged:
                        self._no_room_logged = True
                        logger.warning("a full disk does not take the checkpoint: tried again", error=str(error))
                except Exception:
                    logger.exception("checkpoint failed")
            if asked is not None and not asked.done():
                asked.set_result(None)

    async def checkpoint_soon(self) -> None:
        """Wait for a checkpoint that begins from now on. If it cannot be taken, the recovery points are the old
        ones."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        await self._asked

    async def _prepare_journal(self) -> None:
        """Have a file of the journal ready before it is needed."""
        journal, offload = self._log.journal, self._log.runtime.offload
        spare = journal.unprepared() if self._may_prepare and not self._log.full else None
        if spare is None:
            return
        try:
            await offload.run(journal.prepare, spare)
        except OSError as error:
            # The journal does without; another time there may be room.
            self._may_prepare = False
            logger.info("a file of the journal could not be prepared", error=str(error))
            await offload.run(self._log.runtime.disk.remove, journal.give_up(spare))
        else:
            journal.use_prepared(spare)

    def want_spool(self) -> None:
        """There is use for the spool: make its files."""
        if not self._stopping.is_set():
            self._tasks.append(asyncio.ensure_future(self._make_spool()))

    async def _make_spool(self) -> None:
        spool = self._log.spool
        try:
            spool.use(await self._log.runtime.offload.run(spool.make))
        except OSError as error:
            logger.warning("the spool could not be made: each partition writes its own", error=str(error))

    async def checkpoint(self, *, final: bool = False) -> bool:
        """Move the recovery points up; False if something could not be made durable. `final`: nothing will follow."""
        journal = self._log.journal
        async with self.reshaping:
            since = journal.switch(roomy=not self._log.full and self._roomy())
            whole = False
            try:
                await self._give_back(journal.surplus())
                whole = await self._checkpoint(since, final)
            finally:
                if not whole:
                    journal.stay()
            return whole

    async def _give_back(self, surplus: Iterable[tuple[str, int]]) -> None:
        """Cut files of the journal to what their frames need."""
        runtime = self._log.runtime
        for path, size in surplus:
            try:
                await runtime.offload.run(journals.cut, runtime.disk, path, size)
            except OSError as error:
                logger.info("a file of the journal keeps its room", path=path, error=str(error))

    async def _checkpoint(self, since: int, final: bool) -> bool:
        log = self._log
        await log.settle()
        dirty, log.dirty = log.dirty, {}
        whole = True
        offline = []
        try:
            for partition in list(dirty):
                if not await self.sync(partition, final=final):
                    log.dirty[partition] = None
                    if partition.offline and not partition.topic.deleted:
                        offline.append(partition)
                    else:
                        whole = False
                del dirty[partition]
        finally:
            # Those not reached are, before the journal lets go of what it has.
            log.dirty.update(dirty)
        if final:
            whole = self._write_final_states() and whole and not offline
        if offline and log.is_replicated:
            # The journal keeps what they lack until the next start; a replica cannot write it again.
            whole = False
        if whole:
            self._carried = await self._carry_over(offline)
            await self.save_checkpoint(since)
            if self.owes_checkpoint:
                await log.runtime.offload.run(remove_spool, log.runtime.disk)
                self.owes_checkpoint = False
            self._may_prepare = True
            for path in log.journal.retire(since):
                await log.runtime.offload.run(log.runtime.disk.remove, path)
        return whole

    async def _carry_over(self, offline: list[NativePartition]) -> int:
        """What only the journal has of partitions that are offline must last until the next start: write it again, all
        of it and in its order, so that the old files are not needed any more. Its bytes."""
        if not offline:
            return 0
        log = self._log
        # They take nothing more, but something may have been under way.
        await log.committer.barrier()
        points = {(each.topic_bytes, each.index): each.point for each in offline}
        found = await log.runtime.offload.run(journals.read_frames, log.runtime.disk, self.journal_from)
        replays = read_replays((entry for frame in found.frames for entry in frame.entries()), ())
        size = 0
        written = []
        for place, point in points.items():
            replay = replays[place]
            if replay.cut >= 0:
                written.append(log.committer.add_note(Kind.TRUNCATE, *place, replay.cut))
            for entry in replay.batches:
                if entry.offset >= point:
                    written.append(log.committer.add_note(Kind.DATA, *place, entry.offset, entry.data))
                    size += len(entry.data)
        await asyncio.gather(*written)
        return size

    async def recover_rest(self) -> None:
        """Recover the partitions that were not touched since an unclean start: a clean stop says that every partition
        ends at its recovery point, and theirs is from before the crash."""
        for topic in list(self._log.topics.values()):
            for partition in self._log.partitions_of(topic):
                try:
                    await partition.load()
                except PartitionOffline:
                    continue  # logged already; the stop will not be a clean one

    async def sync(self, partition: NativePartition, *, final: bool = False) -> bool:
        """Store what a partition has in memory, and raise its recovery point; False if the disk does not take it."""
        if partition.topic.deleted:
            return True
        if partition.offline:
            return False
        if partition.topic.settings.durability is Durability.MEMORY:
            return True
        if not partition.write_back():
            return False
        if final:
            partition.write_state()
        try:
            point, jobs = partition.prepare_sync(gently=not final)
        except OSError as error:
            partition.write_failed(error)
            return False
        roomy = True
        for job in jobs:
            try:
                await self._log.runtime.offload.run(job)
            except OSError as error:
                if leaves_doubt(error):
                    partition.fail(f"a sync of its segment failed: {error}")
                    return False
                partition.write_failed(error)
                roomy = False
        if not roomy:
            return False
        partition.mark_synced(point)
        if partition.end > point:
            # Appended meanwhile, and in frames of the journal that the next checkpoint will free.
            self._log.dirty[partition] = None
        return True

    def _write_final_states(self) -> bool:
        for topic in self._log.topics.values():
            for partition in self._log.partitions_of(topic):
                if topic.settings.durability is Durability.MEMORY:
                    partition.point = partition.end
                elif partition.offline:
                    return False
                else:
                    partition.write_final_state()
        return True

    async def save_checkpoint(self, journal_from: int) -> None:
        """Write the checkpoint file: the journal matters from frame `journal_from` on."""
        log = self._log
        saved = log.new_checkpoint(journal_from)
        step = 0
        for topic in list(log.topics.values()):
            saved.topics.append(log.record_of(topic))
            step += 64 + len(topic.partitions)
            if step >= STEP_PARTITIONS:
                step = 0
                await asyncio.sleep(0)
        await log.runtime.offload.run(checkpoints.save, log.runtime.disk, saved)
        self.journal_from = journal_from
        for record in saved.topics:
            saved_topic = log.topics.by_id.get(record.id)
            if saved_topic is not None:
                for partition, saved_pair in zip(log.partitions_of(saved_topic), record.partitions, strict=False):
                    partition.mark_saved(*saved_pair)
                    step += 1
                    if step >= STEP_PARTITIONS:
                        step = 0
                        await asyncio.sleep(0)

    # --- a full disk ---

    def owe_checkpoint(self, journal_from: int) -> None:
        """A start found the disk too full for the checkpoint that ends it: the one before, which needs the journal from
        frame `journal_from` on, and the spool, holds until there is room."""
        self.owes_checkpoint = True
        self.journal_from = journal_from
        self._log.full = True

    def _roomy(self) -> bool:
        try:
            return self._log.runtime.disk.free_bytes() >= RESUME_BYTES
        except OSError:
            return False

    def watch_full_disk(self) -> None:
        """Try again until the disk takes what waits, or another process may own it."""
        if self._stopping.is_set():
            return
        self._full_watch = asyncio.get_running_loop().call_later(FULL_DISK_RETRY_S, self._try_full_disk)

    def _try_full_disk(self) -> None:
        log = self._log
        waiting = [partition for partition in log.dirty if partition.waits and not partition.offline]
        stored = self._roomy() and all(partition.write_back() for partition in waiting)
        if stored and not self.owes_checkpoint:
            log.full = False
            self._full_watch = None
            logger.info("the disk has room again: appends are taken")
        else:
            self.watch_full_disk()

    # --- retention ---

    async def retain(self) -> None:
        """Drop what has expired, in all topics."""
        log = self._log
        now = log.runtime.clock.now_ms()
        for topic in list(log.topics.values()):
            if topic.settings.durability is Durability.MEMORY:
                continue
            for partition in log.partitions_of(topic):
                if self._stopping.is_set():
                    return
                if not log.decides_retention:
                    # The leader moves the start; what is before it goes on each node by itself.
                    if partition.loaded and not partition.offline:
                        self.drop_expired(partition)
                    continue
                if topic.deleted or partition.offline or partition.point == partition.start == partition.end:
                    continue
                try:
                    await partition.load()
                except PartitionOffline:
                    continue  # logged already, or it passes; others have something to give up all the same
                if not partition.writable:
                    continue
                partition.state.producers.expire(now, log.config.producer_id_expiration_ms)
                self._close_expired(partition, now)
                await self._expire(partition, now)
                await asyncio.sleep(0)

    def _close_expired(self, partition: NativePartition, now: int) -> None:
        """A quiet partition's newest segment expires too, once it is not the newest any more."""
        settings = partition.topic.settings
        active = partition.segments.active
        if (
            settings.delete
            and settings.retention_ms >= 0
            and active is not None
            and active.size
            and active.max_timestamp < now - settings.retention_ms
        ):
            partition.close_active()

    async def _expire(self, partition: NativePartition, now: int) -> None:
        """Move the start past what retention gives up. The start is durable before a file goes: a power cut may undo
        any of the removals, and without it no start could tell what is left over from what is missing."""
        segments = partition.segments
        active_bytes = segments.active.size if segments.active is not None else 0
        gone = retention.expired(
            segments.closed, partition.topic.settings, now, partition.start, partition.high_watermark, active_bytes
        )
        held_from = self._log.held_from(partition)
        if held_from is not None:
            gone = [segment for segment in gone if segments.behind(segment) <= held_from]
        if gone:
            await partition.trim(max(partition.start, segments.behind(gone[-1])))
        self.drop_expired(partition)

    def drop_expired(self, partition: NativePartition) -> None:
        """Drop a partition's segments that lie before its start."""
        busy = partition in self.cleaner.busy or partition in self.indexer.busy
        if busy or partition in self._log.pins or partition.topic.deleted:
            return
        segments = partition.segments
        # A replica may find again on its disk less than it had heard to be committed: then it has the old start, and
        # needs what is behind that.
        gone = segments.before(partition.saved_start if self._log.is_replicated else partition.start)
        if gone:
            partition.write_state()
            freed = segments.drop(gone)
            logger.info(
                "segments dropped", topic=partition.topic.name, partition=partition.index, segments=len(gone),
                bytes=freed, start=partition.start,
            )  # fmt: skip
