"""One partition of the native log: its offsets, what of it is durable, and reading.

A batch is given its offset at once and becomes readable when it is durable in the sense of its topic. How it gets there
is in `appending.py`; where it is meanwhile and afterwards is memory (`cache.py`), the journal or the spool, and the
segments; what it says of producers and epochs is in `state.py`. One loop owns all of it, so nothing here is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import (
    AppendOffline,
    CorruptLog,
    OffsetOutOfRange,
    OwnerFenced,
    PartitionOffline,
    StorageFailed,
)
from headrace.log import log_start, lookup, searching
from headrace.log.admission import plainly
from headrace.log.appending import Appender
from headrace.log.cache import BatchCache
from headrace.log.frames import Kind
from headrace.log.interface import (
    AbortedTransaction,
    Appended,
    Chunk,
    Done,
    Durability,
    OffsetAtTime,
    Topic,
)
from headrace.log.loading import load
from headrace.log.local import ActiveProducer, LocalPartition
from headrace.log.log_start import keep_newest
from headrace.log.segments import Loaded, Segments, sync_now
from headrace.log.state import UNREAD, PartitionState
from headrace.log.tail import BASE, LAST, find
from headrace.log.truncation import truncate
from headrace.runtime.disk import NO_DESCRIPTORS, NO_SPACE

if TYPE_CHECKING:
    from headrace.log.native import NativeLog


class NativePartition(LocalPartition):
    """A partition on this machine's disk."""

    __slots__ = (
        "_fresh",
        "_loading",
        "_ready",
        "appender",
        "cache",
        "cleaned_up_to",
        "log",
        "point",
        "saved_point",
        "saved_start",
        "segments",
        "state",
        "topic_bytes",
        "truncations",
        "writable",
    )  # fmt: skip

    def __init__(self, log: NativeLog, topic: Topic, index: int, start: int, point: int, *, fresh: bool) -> None:
        super().__init__(topic, index, log.epoch, start, point)
        self.log = log
        self.topic_bytes = topic.id.bytes
        # The recovery point: everything below it is in the segments and synced. Of a `memory` topic: where the next
        # start begins.
        self.point = point
        # The recovery point and the start that the checkpoint file has: what the next start goes by.
        self.saved_point = point
        self.saved_start = start
        # Up to where the log is compacted; -1 until the cleaner has looked.
        self.cleaned_up_to = -1
        self._ready = False
        # Whether appends may come, as far as the partition alone is concerned: it is loaded, and not being truncated.
        self.writable = False
        # Counts truncations, for what began before one and goes on behind it.
        self.truncations = 0
        self.state = UNREAD
        # Nothing was ever written: there is nothing to load.
        self._fresh = fresh
        self._loading: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.topic.name}-{self.index} {self.start}..{self.high_watermark}..{self.end}>"

    @property
    def folder(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def deleted(self) -> bool:
        return self.topic.deleted

    @property
    def last_stable(self) -> int:
        unstable = self.state.unstable
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return unstable if unstable > self.start else self.start

    # --- loading ---

    @property
    def loaded(self) -> bool:
        if self._ready:
            return True
        if self._fresh:
            self.adopt(Loaded(start=self.start, end=self.end))
            return True
        return False

    def adopt(self, found: Loaded) -> None:
        """Take what was found on disk; the partition is warm from now on."""
        self.segments = self.segments_for(found)
        self.start, self.end = found.start, found.end
        self.high_watermark = self.flushed = found.end
        if not found.unsynced:
            self.point = found.end
        self.state = PartitionState(found)
        # Batches that came as they are may have raised it since the checkpoint.
        self.epoch = max(self.epoch, found.epochs.latest + self.log.epoch_step)
        self.cache = BatchCache(self, self.topic, self.segments, self.state, self.log.now_ms)
        self.appender = Appender(self, self.write_failed)
        self._ready = self.writable = True
        for header, batch in found.waiting:
            self.appender.take_found(header, batch)
        if found.unsynced or found.waiting:
            self.log.dirty[self] = None

    def segments_for(self, found: Loaded) -> Segments:
        """The partition's files, once they have been found."""
        log = self.log
        segments = Segments(log.runtime.disk, log.files, self.folder, self.topic_bytes, log.places)
        segments.adopt(found)
        segments.keeps_snapshots = self in log.pins
        return segments

    def load_now(self, cut: int = -1) -> Loaded:
        """Read the partition's folder; see `load`. Blocks."""
        log = self.log
        settings = self.topic.settings
        return load(
            log.runtime.disk, log.files, self.folder, self.topic_bytes, settings, self.start, self.point, log.clean, cut
        )

    async def load(self) -> None:
        if self.loaded:
            return
        if self.offline:
            raise PartitionOffline(self.offline)
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
            # A failure is raised in those that wait, and in those that come later: they may all have gone.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            self.adopt(await self.log.runtime.offload.run(self._load_and_sync))
        except (OSError, PartitionOffline, CorruptLog) as error:
            if not (isinstance(error, OSError) and error.errno in (*NO_SPACE, *NO_DESCRIPTORS)):
                self.fail(str(error))
            raise PartitionOffline(str(error)) from error
        finally:
            self._loading = None

    def _load_and_sync(self) -> Loaded:
        found = self.load_now()
        if sync_now(segment.sync_job() for segment in found.unsynced):
            found.unsynced = []
        return found

    def begin_again(self, at: int = 0) -> None:
        """What a `memory` topic held is gone with the leader that held it: go on empty, behind all offsets that one of
        the group's leaders may have given (`offset_blocks.py`)."""
        self.start = self.end = max(at, self.point)
        self.adopt(Loaded(start=self.start, end=self.end))
        self.wake_all()

    def mark_pinned(self, is_pinned: bool) -> None:
        """Its files are being copied, or are not any more."""
        if self._ready:
            self.segments.keeps_snapshots = is_pinned

    def fail(self, reason: str) -> None:
        """Serve nothing until the next start."""
        if self.offline is None:
            self.offline = reason
            self.log.report_offline(self, reason)
            self.wake_all()

    # --- appending ---

    def append(self, batches: bytearray | memoryview, done: Done | None = None) -> Appended:
        log = self.log
        if not self.writable or self.offline or log.full or log.refusal:
            self.check_writable()
        size, now = len(batches), log.now_ms()
        plain = plainly(batches, self.topic.settings, now)
        if plain is not None:
            return self.appender.put(batches, size, plain[0], plain[1], None, done, now, False, self.epoch)
        return self.appender.append(batches, size, done, now)

    def check_writable(self) -> None:
        """Raise if nothing can be appended now."""
        if self.offline:
            raise AppendOffline(f"{self.folder} is offline: {self.offline}")
        if self.log.refusal is not None:
            raise self.log.refusal()
        # What only the process has needs no room, but an epoch that is not given again.
        if self.log.full and (
            self.log.upkeep.owes_checkpoint or self.topic.settings.durability is not Durability.MEMORY
        ):
            raise StorageFailed("the disk is full: writes resume once there is room")
        if not self.loaded:
            raise RuntimeError(f"{self.folder} is cold: load it before appending")
        if not self.writable:
            raise AppendOffline(f"{self.folder} is being truncated: try again in a moment")

    async def raise_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise OwnerFenced(f"leader epoch {epoch} of {self.folder} has passed: it is {self.epoch}")
        if epoch > self.epoch:
            await self.log.committer.add_note(Kind.EPOCH, self.topic_bytes, self.index, 0, epoch=epoch)
            self.advance_epoch(epoch)

    def advance_epoch(self, epoch: int) -> None:
        """Append in this epoch, or the current one if that is later, from now on."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.log.report_change(self)

    # --- between memory and files ---

    def write_back(self) -> bool:
        """Store what is in memory only, as far as it may be; False if the disk does not take it."""
        return self.appender.write_back()

    def write_failed(self, error: OSError) -> None:
        """A segment could not be written: a full disk passes, and so does a lack of descriptors; anything else takes
        the partition offline."""
        if error.errno in NO_SPACE or error.errno in NO_DESCRIPTORS:
            self.log.report_full(error)
        else:
            self.fail(f"a write to its segment failed: {error}")

    @property
    def waits(self) -> bool:
        """Whether something is in memory only."""
        return self._ready and self.cache.pending_bytes > 0

    def write_state(self) -> None:
        """Keep what a start would otherwise have to read the log for."""
        self.state.write(self.segments, self.end)

    def write_final_state(self) -> None:
        """The same before a clean stop."""
        if self._ready:
            self.state.write_final(self.segments, self.end)

    # --- durability ---

    def mark_flushed(self, end: int) -> None:
        if end > self.flushed:
            self.flushed = end
            # No other replica must have it first.
            self._raise_high_watermark(end)

    def _raise_high_watermark(self, end: int) -> None:
        if end > self.high_watermark:
            self.high_watermark = end
            if self.cache.memory_bytes:
                keep_newest(self, self.topic.settings.retention_bytes)
            state = self.state
            if state.unstable is not None:
                state.unstable = state.producers.first_unstable(end)
                if self.topic.settings.durability is Durability.MEMORY:
                    state.producers.settle(end)
            if self._waiters:
                self.wake_all()

    def mark_synced(self, point: int) -> None:
        self.point = max(self.point, point)
        self.segments.mark_synced(point)

    def roll_back(self) -> None:
        """What is not flushed never came."""
        self.appender.loosen()
        if self.end == self.flushed:
            return
        in_memory = self.topic.settings.durability is Durability.MEMORY
        self.cache.roll_back(self.flushed, in_memory=in_memory)
        self.end = self.flushed
        self.appender.roll_back(self.flushed)
        try:
            if self.segments.end > self.flushed:
                # What was cut off must not come back.
                self.log.dirty[self] = None
                self.segments.cut_back(self.flushed)
            self.state.roll_back(self.segments, self.flushed)
        except (OSError, CorruptLog) as error:
            self.fail(f"its files could not be cut back to {self.flushed}: {error}")
        self.cache.pending_bytes = 0 if in_memory else self.cache.count_pending()

    # --- reading ---

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True) -> Chunk:
        if self.offline:
            raise PartitionOffline(f"{self.folder} is offline: {self.offline}")
        upto = self.last_stable if committed else self.high_watermark
        if offset < self.start or offset > self.end:
            raise OffsetOutOfRange(offset, self.start, self.high_watermark)
        if offset >= upto:
            return Chunk()
        tail = self.cache.batches
        index = find(tail, offset) if tail and offset >= tail[0][BASE] else -1
        if index >= 0 and offset <= tail[index][LAST]:
            chunk = self.cache.read(index, upto, max_bytes, at_least_one)
        else:
            chunk = self.segments.read(offset, upto, max_bytes, at_least_one)
        if committed and chunk.size:
            try:
                # Now: compaction may forget a transaction whose records are on their way still.
                chunk.aborted = self.aborted(offset, chunk.before)
            except BaseException:
                chunk.release()
                raise
        return chunk

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [first, last). Cost nothing where there are none."""
        found = self.segments.aborted(first, last)
        if self.state.unindexed:
            found += self.state.aborted(first, last)
        return found

    # --- looking up and forgetting ---

    async def offset_at(self, timestamp: int) -> OffsetAtTime:
        start, bound = self.start, self.log.config.decompressed_max_bytes
        found = await lookup.at_time(
            self.log.runtime.offload, self.segments.all, self.cache.batches, timestamp, start, bound
        )
        if found is None or found[0] >= self.high_watermark:
            return OffsetAtTime(-1, -1, -1)
        return OffsetAtTime(found[0], found[1], self.state.epochs.epoch_at(found[0]))

    trim = log_start.trim
    shrink = log_start.shrink
    expires_within = log_start.expires_within
    freed_by = log_start.freed_by
    truncate = truncate
    suspects = searching.suspects

    def cut(self, end: int) -> None:
        """The log ends at `end`, below what was flushed. What follows from its batches has yet to be read again."""
        self.truncations += 1
        # Until then committed readers get nothing.
        self.state.unstable = self.start
        self.cache.roll_back(end, in_memory=False)
        self.appender.roll_back(end)
        self.end = self.flushed = self.high_watermark = end
        self.point, self.saved_point = min(self.point, end), min(self.saved_point, end)
        self.cleaned_up_to = min(self.cleaned_up_to, end)
        self.log.dirty[self] = None
        if end == self.start:
            self.segments.drop(list(self.segments.all))
            self.segments.end = end
        else:
            self.segments.cut_back(end)
        self.wake_all()

    def adopt_state(self, found: Loaded) -> None:
        """Take what follows from the batches that were left."""
        self.state.adopt(found)
        self.wake_all()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        epochs = self.state.epochs
        if epochs.latest < epoch <= self.epoch:
            # Nothing was written in it, nor in a later one.
            return epoch, self.end
        return epochs.end_of(epoch, self.end)

    def producers(self) -> list[ActiveProducer]:
        return self.state.producers.active()

    def size(self) -> int:
        if not self._ready:
            return 0
        return self.segments.size + self.cache.pending_bytes + self.cache.memory_bytes

    # --- upkeep ---

    def close_active(self) -> bool:
        """Begin a new segment, so that the newest can go like any other; False where it cannot be just now."""
        if self.topic.deleted or self.offline or self.topic.settings.durability is Durability.MEMORY:
            return False
        if not self.writable:
            return False
        if self.flushed != self.end or not self.write_back():
            return False
        self.write_state()
        try:
            if not self.segments.roll_now(self.topic.settings):
                return False
        except OSError as error:
            self.write_failed(error)
            return False
        self.log.dirty[self] = None
        return True

    def mark_saved(self, start: int, point: int) -> None:
        """The checkpoint file has this start and this recovery point."""
        self.saved_start = start
        self.saved_point = point
        if self._ready:
            self.state.producers.settle(point)

    def forget_tail(self) -> None:
        """The topic is gone: free what it holds in memory."""
        if self._ready:
            self.cache.clear()
            self.segments.close()
        self.wake_all()

    def prepare_sync(self, *, gently: bool) -> tuple[int, list[Callable[[], None]]]:
        """Store what waits; the jobs that make it durable, and the recovery point once they are done."""
        self.write_back()
        return min(self.segments.end, self.flushed), self.segments.sync_jobs(gently=gently)
