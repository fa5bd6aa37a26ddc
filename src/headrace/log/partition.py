"""One partition of the native log: offsets, producers, readers, and where its bytes are.

A batch is given its offset at once and becomes readable when it is durable in the sense of its topic. Where it is until
then and afterwards is the tail (memory), the journal, and the segments (files); `segments.end` divides what is in files
from what is in memory only. One loop owns all of it, so nothing here is locked.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import CorruptLog, OffsetOutOfRange, OwnerFenced, PartitionOffline, StorageFailed
from headrace.log import compaction, lookup, retention
from headrace.log.admission import admit, plainly
from headrace.log.batch import HEADER, HEADER_BYTES, OFFSET_AND_EPOCH, PREFIX_BYTES, BatchHeader
from headrace.log.epochs import LeaderEpochs
from headrace.log.interface import (
    MAX_TIMESTAMP,
    AbortedTransaction,
    ActiveProducer,
    Appended,
    Chunk,
    Done,
    Durability,
    OffsetAtTime,
    Topic,
    Wake,
)
from headrace.log.journal import DATA as ENTRY_OF_DATA
from headrace.log.journal import ENTRY_BYTES, PACK_ENTRY, Kind
from headrace.log.loading import learn, load, stable_after
from headrace.log.producers import ProducerStates
from headrace.log.segments import EPOCHS_FILE, Loaded, Segments
from headrace.log.tail import BASE, DATA, LAST, TIME, TailBatch, find, from_index

if TYPE_CHECKING:
    from headrace.log.native import NativeLog

# A partition whose batches in memory wait for their segment writes them once there are this many bytes of them.
WRITE_BACK_BYTES = 262_144
# A larger batch of an `async` topic is not kept in memory too: sending it from the page cache costs less than the copy.
TAIL_BATCH_BYTES = 16_384
# A named tuple's own constructor costs a call in Python, and one of these is made for every batch.
new_appended = tuple.__new__
# What a `memory` topic keeps where it does not say.
MEMORY_BYTES = 67_108_864


class NativePartition:
    """A partition on this machine's disk."""

    __slots__ = (
        "_aborted_waiting", "_atomic_end", "_epoch", "_epochs", "_epochs_written", "_fresh", "_journal_end", "_loading",
        "_log", "_loose", "_memory_bytes", "_pending_bytes", "_producers", "_producers_at", "_ready", "_released",
        "_tail", "_unstable", "_waiters", "cleaned_up_to", "durable", "end", "index", "offline", "point", "saved_point",
        "segments", "start", "topic", "topic_bytes",
    )  # fmt: skip

    def __init__(self, log: NativeLog, topic: Topic, index: int, start: int, point: int, *, fresh: bool) -> None:
        self._log = log
        self.topic = topic
        self.topic_bytes = topic.id.bytes
        self.index = index
        self.start = start
        self.durable = point
        self.end = point
        # The recovery point: everything below it is in the segments and synced.
        self.point = point
        # The recovery point that the checkpoint file has: what the next start goes by.
        self.saved_point = point
        self.offline: str | None = None
        # Up to where the log is compacted; -1 until the cleaner has looked.
        self.cleaned_up_to = -1
        self._ready = False
        # The first offset of the oldest open transaction; where nothing was read from disk, none is known.
        self._unstable: int | None = None
        # Nothing was ever written: there is nothing to load.
        self._fresh = fresh
        self._loading: asyncio.Future[None] | None = None
        self._waiters: list[Wake] = []

    def __repr__(self) -> str:
        return f"<{self.topic.name}-{self.index} {self.start}..{self.durable}..{self.end}>"

    @property
    def folder(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def last_stable(self) -> int:
        unstable = self._unstable
        if unstable is None or unstable > self.durable:
            return self.durable
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
        self.durable = self.point = found.end
        self._epochs: LeaderEpochs = found.epochs
        self._producers: ProducerStates = found.producers
        self._producers_at = found.snapshot
        self._epochs_written = True
        # The epoch that `_epochs` is known to have: of every batch so far, where there was one.
        self._epoch = found.epochs.latest
        self._unstable = found.producers.first_unstable(found.end)
        self._aborted_waiting: list[tuple[int, int, int, int]] = []
        self._tail: deque[TailBatch] = deque()
        # Batches that left it before their turn.
        self._released = 0
        self._memory_bytes = 0
        self._pending_bytes = 0
        # Whether there are batches that only the operating system has.
        self._loose = False
        # Where the last batch of an append to several partitions ends: above `durable`, it may not reach a segment.
        self._atomic_end = 0
        # Where the last batch that was given to the journal, or to a sync, ends.
        self._journal_end = 0
        self._ready = True

    def segments_for(self, found: Loaded) -> Segments:
        """The partition's files, once they have been found."""
        segments = Segments(self._log.ground.disk, self._log.files, self.folder, self.topic_bytes)
        segments.adopt(found)
        return segments

    def load_now(self) -> Loaded:
        """Read the partition's folder; see `load`. Blocks."""
        log = self._log
        settings = self.topic.settings
        return load(
            log.ground.disk, log.files, self.folder, self.topic_bytes, settings, self.start, self.point, log.clean
        )

    async def load(self) -> None:
        if self.loaded:
            return
        if self.offline:
            raise PartitionOffline(self.offline)
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            self.adopt(await self._log.ground.offload.run(self._load_and_sync))
        except (OSError, PartitionOffline, CorruptLog) as error:
            self.fail(str(error))
            raise PartitionOffline(str(error)) from error
        finally:
            self._loading = None

    def _load_and_sync(self) -> Loaded:
        found = self.load_now()
        for segment in found.unsynced:
            segment.sync_job()()
        found.unsynced = []
        return found

    def fail(self, reason: str) -> None:
        """Serve nothing until the next start."""
        if self.offline is None:
            self.offline = reason
            self._log.report_offline(self, reason)
            self._wake()

    # --- appending ---

    def append(
        self, batches: bytearray | memoryview, done: Done | None = None, owner_epoch: int | None = None
    ) -> Appended:
        log = self._log
        if not self._ready or self.offline or log.full or owner_epoch is not None:
            self.check_writable(owner_epoch)
        size, now = len(batches), log.now_ms()
        plain = plainly(batches, self.topic.settings, now)
        if plain is not None:
            return self._put(batches, size, plain[0], plain[1], None, done, now, False)
        if size < HEADER_BYTES:
            admit(batches, self.topic, 0, 0)
        if HEADER.unpack_from(batches)[1] + PREFIX_BYTES < size:
            return self._append_several(batches, done)
        checked = admit(batches, self.topic, now, log.config.decompressed_max_bytes)
        if checked.producer_id >= 0:
            first = self._producers.check(checked)
            if first is not None:
                return self._duplicate(first, checked, done)
        return self.take(batches, checked, done, atomic=False)

    def _append_several(self, batches: bytearray | memoryview, done: Done | None) -> Appended:
        """Batches one behind the other: each checked by itself first, so that a broken one leaves nothing behind. (One
        that is out of its producer's order is found out in turn.)"""
        view = memoryview(batches)
        parts = []
        while view:
            size = HEADER.unpack_from(view)[1] + PREFIX_BYTES if len(view) >= HEADER_BYTES else len(view)
            parts.append((view[:size], self.check(view[:size])))
            view = view[size:]
        self.tighten()
        first: Appended | None = None
        for part, header in parts:
            last = part is parts[-1][0]
            if header.producer_id >= 0 and self._producers.check(header) is not None:
                if last and done is not None and first is not None:
                    self._when_durable(done)
                continue
            # Through memory and the journal, where nothing can fail halfway.
            atomic = self.topic.settings.durability is not Durability.MEMORY
            appended = self.take(part, header, done if last else None, atomic=atomic)
            first = first or appended
        if first is None:
            duplicate = self._producers.check(parts[0][1])
            return self._duplicate(self.durable if duplicate is None else duplicate, parts[-1][1], done)
        return first

    def check_writable(self, owner_epoch: int | None) -> None:
        """Raise if nothing can be appended now."""
        if self.offline:
            raise StorageFailed(f"{self.folder} is offline: {self.offline}")
        if owner_epoch is not None and owner_epoch != self._log.epoch:
            raise OwnerFenced(f"{self.folder} is owned in epoch {self._log.epoch}, not {owner_epoch}")
        if self._log.full and self.topic.settings.durability is not Durability.MEMORY:
            raise StorageFailed("the disk is full: writes resume once there is room")
        if not self.loaded:
            raise RuntimeError(f"{self.folder} is cold: load it before appending")

    def check(self, batch: bytearray | memoryview, *, sparse: bool = False) -> BatchHeader:
        """Whether one batch may be appended, as far as it alone tells."""
        log = self._log
        return admit(batch, self.topic, log.ground.clock.now_ms(), log.config.decompressed_max_bytes, sparse)

    def check_sequence(self, header: BatchHeader) -> int | None:
        """The first offset of the batch if it is a duplicate. Raises what `ProducerStates.check` raises."""
        return self._producers.check(header) if header.producer_id >= 0 else None

    def probe(self, batch: bytearray | memoryview) -> int | None:
        self.check_writable(None)
        first = self.check_sequence(self.check(batch))
        if first is None:
            # That can fail too.
            self.tighten()
        return first

    def _duplicate(self, first: int, header: BatchHeader, done: Done | None) -> Appended:
        end = first + header.last_offset_delta + 1
        durable = end <= self.durable
        if not durable and done is not None:
            self._when_durable(done)
        return Appended(first, -1, durable or done is None, duplicate=True)

    def _when_durable(self, done: Done) -> None:
        """Call `done` once all that has come so far is durable."""
        if self._journal_end > self.durable:
            self._log.committer.add_done(done)
        else:
            self._log.turn.add(self, self.end, 0, done)

    def take(self, batch: bytearray | memoryview, header: BatchHeader, done: Done | None, *, atomic: bool) -> Appended:
        """Append a checked batch. `atomic`: it must go through the journal with the others of its append."""
        delta, newest, now = header.last_offset_delta, header.max_timestamp, self._log.now_ms()
        known = header if header.producer_id >= 0 else None
        return self._put(batch, len(batch), delta, newest, known, done, now, atomic)

    def _put(
        self,
        batch: bytearray | memoryview,
        size: int,
        delta: int,
        newest: int,
        header: BatchHeader | None,
        done: Done | None,
        now: int,
        atomic: bool,
    ) -> Appended:
        """The same by the numbers that matter to most batches: size, last offset delta and largest timestamp. Only one
        that a producer has numbered comes with its whole header."""
        log = self._log
        base = self.end
        last = base + delta
        epoch = log.epoch
        OFFSET_AND_EPOCH.pack_into(batch, 0, base, size - PREFIX_BYTES, epoch)
        settings = self.topic.settings
        durability = settings.durability
        stamped = newest if settings.log_append_time else -1
        if epoch != self._epoch:
            self._begin_epoch(epoch, base)
        if durability is Durability.MEMORY:
            self._tail.append((base, last, bytes(batch), newest))
            if header is not None:
                self._learn(header, base, batch)
            self._memory_bytes += size
            self.end = last + 1
            if atomic or self._journal_end > self.durable:
                # Nobody may see it before the journal has what it came with: that may fail.
                self._journal_end = self.end
                log.committer.add_end(self, self.end, done)
                return new_appended(Appended, (base, stamped, False, False))
            self.commit(self.end)
            return new_appended(Appended, (base, stamped, True, False))
        log.dirty[self] = None
        # A batch behind one that waits for the journal must wait for it too.
        if atomic or durability is Durability.SYNC or self._journal_end > self.durable:
            if self._loose:
                self.tighten()
            self._journal_end = last + 1
            if size < log.config.direct_bytes or atomic or self._atomic_end > self.durable:
                if atomic:
                    self._atomic_end = last + 1
                data = bytes(batch)
                self._tail.append((base, last, data, newest))
                if header is not None:
                    self._learn(header, base, data)
                self._pending_bytes += size
                self.end = last + 1
                log.committer.add_batch(self, base, last + 1, epoch, data, done)
                log.tail.add(self, size)
                if self._pending_bytes >= WRITE_BACK_BYTES:
                    self.write_back()
            else:
                self._store_directly(base, last, batch, newest, header, now)
                log.committer.add_sync(self, last + 1, self.segments.sync_jobs(), done)
            return new_appended(Appended, (base, stamped, False, False))
        self._loose = True
        if size < TAIL_BATCH_BYTES and log.turn.gathers():
            self._tail.append((base, last, bytes(batch), newest))
            if header is not None:
                self._learn(header, base, batch)
            self._pending_bytes += size
            self.end = last + 1
            log.turn.add(self, last + 1, size, done)
            log.tail.add(self, size)
            if self._pending_bytes >= WRITE_BACK_BYTES:
                self.write_back()
            return new_appended(Appended, (base, stamped, False, False))
        self._store_directly(base, last, batch, newest, header, now)
        if size < TAIL_BATCH_BYTES:
            self._tail.append((base, last, bytes(batch), newest))
            log.tail.add(self, size)
        self.commit(self.end)
        return new_appended(Appended, (base, stamped, True, False))

    def spool(self, end: int, entries: list[bytes]) -> int:
        """Add the entries of what came in this turn of the loop and is not stored; their bytes."""
        since = max(self.durable, self.segments.end)
        if since >= end or self.offline:
            return 0
        size = 0
        found = []
        for batch in reversed(self._tail):
            if batch[BASE] < since:
                break
            if batch[LAST] < end:
                found.append(batch)
        for base, _, data, _ in reversed(found):
            length = len(data)
            entries.append(PACK_ENTRY(ENTRY_OF_DATA, self.topic_bytes, self.index, base, self._epoch, length))
            entries.append(data)
            size += ENTRY_BYTES + length
        return size

    def settle(self, end: int) -> bool:
        """Store what the spool has below `end`; False if the disk does not take it."""
        if self.topic.deleted or self.segments.end >= end:
            return True
        return not self.offline and self.write_back()

    def finish_turn(self, end: int, *, spooled: bool) -> int:
        """Store what came in this turn of the loop, if it is not in the spool; if that does not work, what was not
        stored never came."""
        if spooled and not self.offline:
            self.commit(end)
            return end
        if self.segments.end < end:
            self.write_back()
        reached = min(self.segments.end, end)
        self.commit(reached)
        if reached < end:
            self.roll_back()
        return reached

    def tighten(self) -> None:
        """Let what only the operating system has reach the device with the next flush: the journal may not go on behind
        batches that a power cut can take."""
        if self._loose:
            if not self.write_back():
                raise StorageFailed("the disk is full: writes resume once there is room")
            self._loose = False
            self._journal_end = self.end
            self._log.committer.add_sync(self, self.end, self.segments.sync_jobs(), None)

    def _store_directly(
        self, base: int, last: int, batch: bytearray | memoryview, newest: int, header: BatchHeader | None, now: int
    ) -> None:
        """Into the segment at once, behind what still waits in memory."""
        if self._pending_bytes and not self.write_back():
            raise StorageFailed("the disk is full: writes resume once there is room")
        try:
            self.segments.store_one(base, last, batch, newest, self.topic.settings, now, self._rolled)
        except OSError as error:
            self._log.report_write_error(self, error)
            raise StorageFailed(f"{self.folder} could not be written: {error}") from error
        self.end = last + 1
        if header is not None:
            self._learn(header, base, batch)

    def _begin_epoch(self, epoch: int, base: int) -> None:
        """The first batch of an epoch is about to stand at `base`."""
        if self._epochs.assign(epoch, base):
            self._epochs_written = False
        self._epoch = epoch

    def _learn(self, header: BatchHeader, base: int, batch: bytes | bytearray | memoryview) -> None:
        """Take a numbered batch, or a marker, into the state of its producer."""
        header = header._replace(base_offset=base)
        self._producers.remember(header.producer_id, base, self.durable)
        aborted = learn(self._producers, header, partial(bytes, batch), None)
        self._unstable = self._producers.first_unstable(self.durable)
        if aborted is not None:
            self._aborted_waiting.append((*aborted, stable_after(self._producers, header)))
            self._write_aborted()

    def _write_aborted(self) -> None:
        """Aborted transactions go into the index of the segment that holds their marker, once that is stored."""
        segments = self.segments
        while self._aborted_waiting and segments.all and self._aborted_waiting[0][2] < segments.end:
            segments.add_aborted(*self._aborted_waiting.pop(0))

    def _rolled(self, base: int) -> None:
        """A segment begins at `base`: keep what a restart would otherwise have to read the log for."""
        if len(self.segments.all) > 1:
            self.write_state()

    def write_state(self) -> None:
        """Write the producer snapshot and the leader epochs, where they changed."""
        try:
            if self._producers_at != self.end or not self.end:
                self.segments.write_snapshot(self.end, self._producers.dump())
                self._producers_at = self.end
            if not self._epochs_written:
                self.segments.write_small(EPOCHS_FILE, self._epochs.dump())
                self._epochs_written = True
        except OSError as error:
            # Both can be read from the log again: a full disk need not stop what this is written for.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def write_final_state(self) -> None:
        """The same before a clean stop: the batches that the state comes from may have been trimmed away."""
        if self._ready and self._producers_at != self.end:
            self.write_state()

    def _settle_memory(self, bound: int) -> None:
        """A `memory` topic keeps its newest bytes."""
        limit = bound if bound >= 0 else MEMORY_BYTES
        if self._memory_bytes <= limit:
            return
        was = self.start
        while self._memory_bytes > limit and len(self._tail) > 1 and self._tail[0][LAST] < self.durable:
            gone = self._tail.popleft()
            self._memory_bytes -= len(gone[DATA])
            self.start = gone[LAST] + 1
        self._forget_aborted()
        self._tell_trimmed(was)

    def _release_trimmed(self) -> None:
        """Nothing but its memory holds what a `memory` topic has, so what is trimmed goes at once."""
        if self.topic.settings.durability is Durability.MEMORY:
            while self._tail and self._tail[0][LAST] < self.start:
                self._memory_bytes -= len(self._tail.popleft()[DATA])
            self._forget_aborted()

    def _forget_aborted(self) -> None:
        """A `memory` topic has no index: its aborted transactions go with their markers."""
        while self._aborted_waiting and self._aborted_waiting[0][2] < self.start:
            self._aborted_waiting.pop(0)

    # --- between memory and files ---

    def write_back(self) -> bool:
        """Store what is in memory only; False if the disk does not take it. A part of an append to several partitions
        stays in memory until the journal has all of it, or a crash could leave the part alone in its segment."""
        segments = self.segments
        limit = self.end if self._atomic_end <= self.durable else self.durable
        if segments.end >= limit:
            # Without a look at all that waits for the journal, which each further append would repeat.
            return True
        if self._tail and self._tail[-1][BASE] == segments.end:
            # One batch waits, as in most turns of a partition among many.
            waiting = [self._tail[-1]] if self._tail[-1][LAST] < limit else []
            return not waiting or self._store(waiting)
        waiting = []
        for batch in reversed(self._tail):
            if batch[BASE] < segments.end:
                break
            if batch[LAST] < limit:
                waiting.append(batch)
        waiting.reverse()
        return not waiting or self._store(waiting)

    def _store(self, waiting: list[TailBatch]) -> bool:
        """Store batches of the tail; False if the disk does not take them."""
        segments = self.segments
        settings, now = self.topic.settings, self._log.now_ms()
        try:
            if len(waiting) == 1:
                base, last, data, newest = waiting[0]
                segments.store_one(base, last, data, newest, settings, now, self._rolled)
            else:
                segments.store(waiting, settings, now, self._rolled)
        except OSError as error:
            self._log.report_write_error(self, error)
            return False
        finally:
            self._pending_bytes = 0 if segments.end == self.end else self._count_pending()
        if self._aborted_waiting:
            self._write_aborted()
        return True

    def _count_pending(self) -> int:
        """Bytes that are in memory only: the newest of the tail, which may be long."""
        size = 0
        for batch in reversed(self._tail):
            if batch[BASE] < self.segments.end:
                break
            size += len(batch[DATA])
        return size

    def release_oldest(self) -> bool:
        if not self._ready:
            return True
        if self._released:
            self._released -= 1
            return True
        if not self._tail:
            return True
        if self._tail[0][BASE] >= self.segments.end:
            self.write_back()
            if self._tail[0][BASE] >= self.segments.end:
                return False
        self._tail.popleft()
        return True

    @property
    def waits(self) -> bool:
        """Whether something is in memory only."""
        return self._ready and self._pending_bytes > 0

    # --- durability ---

    def commit(self, end: int) -> None:
        if end > self.durable:
            self.durable = end
            if self._memory_bytes:
                self._settle_memory(self.topic.settings.retention_bytes)
            if self._unstable is not None:
                self._unstable = self._producers.first_unstable(end)
                if self.topic.settings.durability is Durability.MEMORY:
                    self._producers.settle(end)
            if self._waiters:
                self._wake()

    def synced(self, point: int) -> None:
        self.point = max(self.point, point)
        self.segments.synced(point)

    def roll_back(self) -> None:
        if not self._ready:
            return
        # A sync that `tighten` had asked for may be what failed.
        self._loose = self._loose or self.segments.dirty
        if self.end == self.durable:
            return
        in_memory = self.topic.settings.durability is Durability.MEMORY
        while self._tail and self._tail[-1][BASE] >= self.durable:
            gone = self._tail.pop()
            if in_memory:
                self._memory_bytes -= len(gone[DATA])
        self.end = self.durable
        self._atomic_end = min(self._atomic_end, self.durable)
        if self.segments.end > self.durable:
            # What was cut off must not come back.
            self._log.dirty[self] = None
            try:
                self.segments.cut_back(self.durable)
            except (OSError, CorruptLog) as error:
                self.fail(f"its segment could not be cut back to {self.durable}: {error}")
        if self._producers_at >= self.durable:
            # One at that very offset is true, but went with a segment that began there.
            self.segments.drop_snapshots(self.durable)
            self._producers_at = -1
        self._pending_bytes = 0 if in_memory else self._count_pending()
        self._producers.truncate(self.durable)
        self._epochs.truncate_end(self.durable)
        self._epoch = self._epochs.latest
        self._unstable = self._producers.first_unstable(self.durable)
        self._aborted_waiting = [each for each in self._aborted_waiting if each[2] < self.durable]

    # --- reading ---

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True) -> Chunk:
        if self.offline:
            raise PartitionOffline(f"{self.folder} is offline: {self.offline}")
        upto = self.last_stable if committed else self.durable
        if offset < self.start or offset > self.end:
            raise OffsetOutOfRange(offset, self.start, self.durable)
        if offset >= upto:
            return Chunk()
        tail = self._tail
        if tail and offset >= tail[0][BASE]:
            index = find(tail, offset)
            if offset <= tail[index][LAST]:
                return self._read_tail(index, upto, max_bytes, at_least_one)
        return self.segments.read(offset, upto, max_bytes, at_least_one)

    def _read_tail(self, index: int, upto: int, max_bytes: int, at_least_one: bool) -> Chunk:
        chunk = Chunk()
        expected = self._tail[index][BASE]
        for base, last, data, _ in from_index(self._tail, index):
            size = chunk.size + len(data)
            if base != expected or last >= upto or (size > max_bytes and (chunk.parts or not at_least_one)):
                break
            chunk.parts.append(data)
            chunk.size = size
            expected = last + 1
        chunk.before = expected
        return chunk

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        if self.offline:
            raise PartitionOffline(f"{self.folder} is offline: {self.offline}")
        found = self.segments.aborted(first, last)
        if self._aborted_waiting:
            found += [
                AbortedTransaction(producer, begun, ended)
                for producer, begun, ended, _ in self._aborted_waiting
                if begun < last and ended >= first
            ]
        return found

    def wait(self, wake: Wake) -> None:
        self._waiters.append(wake)

    def unwait(self, wake: Wake) -> None:
        try:
            self._waiters.remove(wake)
        except ValueError:
            pass

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    # --- looking up and forgetting ---

    async def offset_at(self, timestamp: int) -> OffsetAtTime:
        if timestamp == MAX_TIMESTAMP:
            best = max((segment.max_timestamp for segment in self.segments.all), default=-1)
            best = max(best, max((batch[TIME] for batch in self._tail), default=-1))
            if best < 0:
                return OffsetAtTime(-1, -1, -1)
            timestamp = best
        start, bound = self.start, self._log.config.decompressed_max_bytes
        # Both as of now: a batch may move from memory to a file while the files are searched.
        segments, tail = list(self.segments.all), list(self._tail)
        found = await self._log.ground.offload.run(lookup.in_segments, segments, timestamp, start, bound)
        if found is None:
            found = lookup.in_tail(tail, timestamp, start, bound)
        if found is None or found[0] >= self.durable:
            return OffsetAtTime(-1, -1, -1)
        return OffsetAtTime(found[0], found[1], self._epochs.epoch_at(found[0]))

    async def trim(self, before: int) -> int:
        if before == -1:
            before = self.durable
        if before < 0 or before > self.durable:
            raise OffsetOutOfRange(before, self.start, self.durable)
        if before > self.start:
            if self.topic.settings.durability is not Durability.MEMORY:
                await self._log.committer.add_note(Kind.START, self.topic_bytes, self.index, before)
            was, self.start = self.start, max(self.start, before)
            self._release_trimmed()
            if self.start == self.end:
                # Nothing of the newest segment is left either.
                self.close_active()
            self._log.drop_expired(self)
            self._tell_trimmed(was)
        return self.start

    def _tell_trimmed(self, was: int) -> None:
        if self.start > was:
            for call in self._log.trimmed:
                call(self, was)

    async def shrink(self, limit: int) -> int:
        if self.topic.settings.durability is Durability.MEMORY:
            self._settle_memory(limit)
            return self.start
        excess = self.size() - limit
        if excess > sum(segment.size for segment in self.segments.closed):
            self.close_active()
        before = max(self.start, retention.start_without(self.segments, excess, self.durable))
        return await self.trim(before)

    def doomed(self, ahead_ms: int) -> int:
        segments, settings = self.segments, self.topic.settings
        then = self._log.ground.clock.now_ms() + ahead_ms
        doomed = retention.start_at(segments, settings, then, self.start, self.durable)
        held_from = self._log.held_from(self)
        return max(self.start, doomed if held_from is None else min(doomed, held_from))

    def freed_by(self, before: int) -> int:
        if before >= self.end:
            return self.size()
        if self.topic.settings.durability is Durability.MEMORY:
            return sum(len(batch[DATA]) for batch in self._tail if batch[LAST] < before)
        return sum(segment.size for segment in self.segments.before(before))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_of(epoch, self.end)

    def producers(self) -> list[ActiveProducer]:
        return self._producers.active()

    def size(self) -> int:
        if not self._ready:
            return 0
        return self.segments.size + self._pending_bytes + self._memory_bytes

    # --- upkeep ---

    def close_active(self) -> bool:
        """Begin a new segment, so that the newest can go like any other; False where it cannot be just now."""
        if self.topic.deleted or self.offline or self.topic.settings.durability is Durability.MEMORY:
            return False
        if self.durable != self.end or not self.write_back():
            return False
        self.write_state()
        try:
            if not self.segments.roll_now(self.topic.settings):
                return False
        except OSError as error:
            self._log.report_write_error(self, error)
            return False
        self._log.dirty[self] = None
        return True

    def expire_producers(self, now_ms: int, after_ms: int) -> None:
        self._producers.expire(now_ms, after_ms)

    def compaction_plan(self) -> compaction.CleanPlan | None:
        """What compaction should do now. It touches only what is decided, in itself and in its transactions, below the
        recovery point that a start after a power cut would go by: a marker above that could be lost."""
        unstable = self._producers.first_unstable(self.saved_point)
        return compaction.plan(
            self.segments.all,
            self.topic.settings,
            self._log.ground.clock.now_ms(),
            self.cleaned_up_to,
            self.saved_point if unstable is None else min(unstable, self.saved_point),
            self._producers,
            self._log.config.decompressed_max_bytes,
        )

    def saved(self, point: int) -> None:
        """The checkpoint file has this recovery point."""
        self.saved_point = point
        if self._ready:
            self._producers.settle(point)

    def forget_compacted(self, before: int) -> None:
        """Files up to there were compacted: readers shall find in memory no more than in them."""
        while self._tail and self._tail[0][LAST] < before:
            self._tail.popleft()
            self._released += 1

    def forget_tail(self) -> None:
        """The topic is gone: free what it holds in memory."""
        if self._ready:
            self._tail.clear()
            self._pending_bytes = self._memory_bytes = 0
            self.segments.close()
        self._wake()

    def prepare_sync(self, *, gently: bool) -> tuple[int, list[Callable[[], None]]]:
        """Store what waits; the jobs that make it durable, and the recovery point once they are done."""
        self.write_back()
        return min(self.segments.end, self.durable), self.segments.sync_jobs(gently=gently)
