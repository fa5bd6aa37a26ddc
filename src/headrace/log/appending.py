"""Appending: a batch gets its offset, and the road on which it becomes durable in the sense of its topic.

There are four. What a `memory` topic takes is there at once. A small batch of a `sync` topic goes through the journal;
a large one to its segment, whose sync joins the flush. `async` batches gather until the turn of the loop is over; large
ones, and those that come alone, are written as they come. Two rules tie the roads together: a batch behind one that
waits for the journal waits for it too, and before the journal goes on behind what only the operating system has, that
is synced (`tighten`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import BatchDiverges, StorageFailed
from headrace.format.batch import HEADER, HEADER_BYTES, OFFSET_AND_EPOCH, PREFIX_BYTES, BatchHeader
from headrace.log.admission import admit, split
from headrace.log.frames import DATA as ENTRY_OF_DATA
from headrace.log.frames import ENTRY_BYTES, PACK_ENTRY
from headrace.log.interface import Appended, Done, Durability
from headrace.log.tail import BASE, LAST

if TYPE_CHECKING:
    from headrace.log.partition import NativePartition

# A partition whose batches in memory wait for their segment writes them once there are this many bytes of them.
WRITE_BACK_BYTES = 262_144
# A larger batch of an `async` topic is not kept in memory too: sending it from the page cache costs less than the copy.
TAIL_BATCH_BYTES = 16_384
# A named tuple's own constructor costs a call in Python, and one of these is made for every batch.
new_appended = tuple.__new__


class Appender:
    """What is appended to a partition that is loaded."""

    __slots__ = (
        "_atomic_end",
        "_cache",
        "_journal_end",
        "_log",
        "_loose",
        "_on_write_failed",
        "_segments",
        "_state",
        "_topic",
        "partition",
    )

    def __init__(self, partition: NativePartition, on_write_failed: Callable[[OSError], None]) -> None:
        self.partition = partition
        self._on_write_failed = on_write_failed
        self._log = partition.log
        self._topic = partition.topic
        self._cache = partition.cache
        self._segments = partition.segments
        self._state = partition.state
        # Whether there are batches that only the operating system has.
        self._loose = False
        # Where the last batch of an append to several partitions ends: above `flushed`, it may not reach a segment.
        self._atomic_end = 0
        # Where the last batch that was given to the journal, or to a sync, ends.
        self._journal_end = 0

    # --- checking ---

    def append(self, batches: bytearray | memoryview, size: int, done: Done | None, now: int) -> Appended:
        """Append one batch, or several one behind the other, of which nothing is known yet."""
        if size < HEADER_BYTES:
            admit(batches, self._topic, 0, 0)
        if HEADER.unpack_from(batches)[1] + PREFIX_BYTES < size:
            return self._append_several(batches, done)
        header = admit(batches, self._topic, now, self._log.config.decompressed_max_bytes)
        delta, newest = header.last_offset_delta, header.max_timestamp
        if header.producer_id < 0:
            return self.put(batches, size, delta, newest, None, done, now, False, self.partition.epoch)
        first = self._state.producers.check(header)
        if first is not None:
            return self._duplicate(first, header, done)
        return self.put(batches, size, delta, newest, header, done, now, False, self.partition.epoch)

    def _append_several(self, batches: bytearray | memoryview, done: Done | None) -> Appended:
        """Batches one behind the other: each checked by itself first, so that a broken one leaves nothing behind. (One
        that is out of its producer's order is found out in turn.)"""
        parts = self.check_all(batches)
        first: Appended | None = None
        for part, header in parts:
            last = part is parts[-1][0]
            if header.producer_id >= 0 and self._state.producers.check(header) is not None:
                if last and done is not None and first is not None and not first.durable:
                    self._when_durable(done)
                continue
            # Through memory and the journal, where nothing can fail halfway.
            atomic = self._topic.settings.durability is not Durability.MEMORY
            appended = self.take(part, header, done if last else None, atomic=atomic)
            first = first or appended
        if first is None:
            duplicate = self._state.producers.check(parts[0][1])
            return self._duplicate(self.partition.flushed if duplicate is None else duplicate, parts[-1][1], done)
        return first

    def append_as_is(self, batches: bytearray | memoryview, done: Done | None) -> Appended:
        """Append batches with the offsets and epochs that they have."""
        parts = self.check_as_is(batches)
        # Several go through memory and the journal, where nothing can fail halfway.
        atomic = len(parts) > 1 and self._topic.settings.durability is not Durability.MEMORY
        return self.take_all(parts, done, atomic=atomic, as_is=True)

    def check_as_is(self, batches: bytearray | memoryview) -> list[tuple[memoryview, BatchHeader]]:
        """Whether batches follow the end of the log, in their offsets and epochs: each, and its header."""
        parts = split(batches)
        end, epoch = self.partition.end, self._state.epoch
        for _, header in parts:
            if header.base_offset != end or header.leader_epoch < epoch:
                raise BatchDiverges(
                    f"the batch of offset {header.base_offset} and epoch {header.leader_epoch} does not follow "
                    f"{self.partition.folder}, which ends at offset {end} in epoch {epoch}: truncate the log first"
                )
            end, epoch = header.last_offset + 1, header.leader_epoch
        return parts

    def check(self, batch: bytearray | memoryview, *, sparse: bool = False, moved: bool = False) -> BatchHeader:
        """Whether one batch may be appended, as far as it alone tells."""
        log = self._log
        return admit(batch, self._topic, log.runtime.clock.now_ms(), log.config.decompressed_max_bytes, sparse, moved)

    def check_all(
        self, batches: bytearray | memoryview, *, sparse: bool = False, moved: bool = False
    ) -> list[tuple[memoryview, BatchHeader]]:
        """The same for batches one behind the other: each, and its header."""
        view = memoryview(batches)
        parts: list[tuple[memoryview, BatchHeader]] = []
        while view or not parts:
            size = HEADER.unpack_from(view)[1] + PREFIX_BYTES if len(view) >= HEADER_BYTES else len(view)
            if size < HEADER_BYTES:
                # Too short, or a length that would lead backwards: refused by what checks one batch.
                size = len(view)
            parts.append((view[:size], self.check(view[:size], sparse=sparse, moved=moved)))
            view = view[size:]
        return parts

    def check_sequence(self, header: BatchHeader) -> int | None:
        """The first offset of the batch if it is a duplicate. Raises what `ProducerStates.check` raises."""
        return self._state.producers.check(header) if header.producer_id >= 0 else None

    def _duplicate(self, first: int, header: BatchHeader, done: Done | None) -> Appended:
        end = first + header.last_offset_delta + 1
        durable = end <= self.partition.high_watermark
        if not durable and done is not None:
            self._when_durable(done)
        return Appended(first, -1, durable, duplicate=True)

    def _when_durable(self, done: Done) -> None:
        """Call `done` once all that has come so far is durable."""
        if self._journal_end > self.partition.flushed:
            self._log.committer.add_done(done)
        else:
            self._log.turn.add(self, self.partition.end, 0, done)

    # --- the roads ---

    @property
    def needs_journal(self) -> bool:
        """Whether a part of an append to several partitions counts only once the journal has the append."""
        return self._topic.settings.durability is not Durability.MEMORY or self._journal_end > self.partition.flushed

    def take(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        done: Done | None,
        *,
        atomic: bool,
        as_is: bool = False,
    ) -> Appended:
        """Append a checked batch. `atomic`: it must go through the journal with the others of its append."""
        delta, newest, now = header.last_offset_delta, header.max_timestamp, self._log.now_ms()
        known = header if header.producer_id >= 0 else None
        epoch = self.partition.epoch
        if as_is:
            epoch = header.leader_epoch
            # Nothing else is to be appended in an epoch before it.
            self.partition.advance_epoch(epoch)
        return self.put(batch, len(batch), delta, newest, known, done, now, atomic, epoch)

    def take_all(
        self,
        parts: Sequence[tuple[memoryview, BatchHeader]],
        done: Done | None = None,
        *,
        atomic: bool,
        as_is: bool = False,
    ) -> Appended:
        """Append checked batches; where the first went. `done` is for all of them."""
        *others, (batch, header) = parts
        appended = [self.take(each, its, None, atomic=atomic, as_is=as_is) for each, its in others]
        appended.append(self.take(batch, header, done, atomic=atomic, as_is=as_is))
        return appended[0]

    def put(
        self,
        batch: bytearray | memoryview,
        size: int,
        delta: int,
        newest: int,
        header: BatchHeader | None,
        done: Done | None,
        now: int,
        atomic: bool,
        epoch: int,
    ) -> Appended:
        """The same by the numbers that matter to most batches: size, last offset delta and largest timestamp. Only one
        that a producer has numbered comes with its whole header."""
        log, partition = self._log, self.partition
        base = partition.end
        last = base + delta
        end = last + 1
        OFFSET_AND_EPOCH.pack_into(batch, 0, base, size - PREFIX_BYTES, epoch)
        settings = self._topic.settings
        durability = settings.durability
        cache = self._cache
        stamped = newest if settings.log_append_time else -1
        if epoch != self._state.epoch:
            self._state.begin_epoch(epoch, base)
        if durability is Durability.MEMORY:
            if log.reserve_offsets is not None and not log.reserve_offsets(partition, end):
                # Nor may it see an offset that another leader may give again.
                atomic = True
            cache.batches.append((base, last, bytes(batch), newest))
            if header is not None:
                self._state.learn(header, base, batch, partition.high_watermark, self._segments)
            cache.memory_bytes += size
            partition.end = end
            if atomic or self._journal_end > partition.flushed:
                # No reader may see it before the journal has what it came with: that may fail.
                self._journal_end = end
                log.committer.add_end(partition, end, done)
                return new_appended(Appended, (base, stamped, False, False))
            partition.mark_flushed(end)
            return new_appended(Appended, (base, stamped, True, False))
        log.dirty[partition] = None
        # A batch behind one that waits for the journal must wait for it too.
        if atomic or durability is Durability.SYNC or self._journal_end > partition.flushed:
            if self._loose:
                self.tighten()
            self._journal_end = end
            if size < log.config.direct_bytes or atomic or self._atomic_end > partition.flushed:
                if atomic:
                    self._atomic_end = end
                data = bytes(batch)
                cache.batches.append((base, last, data, newest))
                if header is not None:
                    self._state.learn(header, base, data, partition.high_watermark, self._segments)
                cache.pending_bytes += size
                partition.end = end
                log.committer.add_batch(partition, base, end, epoch, data, done)
                log.tail.add(self, size)
                if cache.pending_bytes >= WRITE_BACK_BYTES:
                    self.write_back()
            else:
                self._store_directly(base, last, batch, newest, header, now)
                try:
                    log.committer.add_sync(partition, end, self._segments.sync_jobs(), done)
                except OSError:
                    # There is no descriptor for a sync. It is stored, and others will follow it: the journal has it.
                    log.committer.add_batch(partition, base, end, epoch, bytes(batch), done)
            return new_appended(Appended, (base, stamped, False, False))
        self._loose = True
        if size < TAIL_BATCH_BYTES and log.turn.gathers():
            cache.batches.append((base, last, bytes(batch), newest))
            if header is not None:
                self._state.learn(header, base, batch, partition.high_watermark, self._segments)
            cache.pending_bytes += size
            partition.end = end
            log.turn.add(self, end, size, done)
            log.tail.add(self, size)
            if cache.pending_bytes >= WRITE_BACK_BYTES:
                self.write_back()
            return new_appended(Appended, (base, stamped, False, False))
        self._store_directly(base, last, batch, newest, header, now)
        if size < TAIL_BATCH_BYTES:
            cache.batches.append((base, last, bytes(batch), newest))
            log.tail.add(self, size)
        partition.mark_flushed(end)
        return new_appended(Appended, (base, stamped, True, False))

    def take_found(self, header: BatchHeader, batch: bytes) -> None:
        """Append a batch that was acknowledged in the life before: it waits in memory for a disk that is full."""
        partition, base, end = self.partition, header.base_offset, header.last_offset + 1
        if header.leader_epoch != self._state.epoch:
            self._state.begin_epoch(header.leader_epoch, base)
        self._cache.batches.append((base, header.last_offset, batch, header.max_timestamp))
        self._cache.pending_bytes += len(batch)
        partition.end = partition.flushed = partition.high_watermark = end
        if header.producer_id >= 0:
            self._state.learn(header, base, batch, end, self._segments)
        self._log.tail.add(self, len(batch))

    def apply(self, header: BatchHeader, batch: bytes) -> None:
        """Append a batch that the group of this replica has committed."""
        partition = self.partition
        partition.advance_epoch(header.leader_epoch)
        self.take_found(header, batch)
        self._log.dirty[partition] = None
        partition.wake_all()
        if self._cache.pending_bytes >= WRITE_BACK_BYTES:
            self.write_back()

    def _store_directly(
        self, base: int, last: int, batch: bytearray | memoryview, newest: int, header: BatchHeader | None, now: int
    ) -> None:
        """Into the segment at once, behind what still waits in memory."""
        partition = self.partition
        if self._cache.pending_bytes and not self.write_back():
            raise self._refusal("the disk is full: writes resume once there is room")
        try:
            self._segments.store_one(base, last, batch, newest, self._topic.settings, now, self._cache.on_rolled)
        except OSError as error:
            self._on_write_failed(error)
            raise self._refusal(f"{partition.folder} could not be written: {error}") from error
        partition.end = last + 1
        if header is not None:
            self._state.learn(header, base, batch, partition.high_watermark, self._segments)

    def _refusal(self, reason: str) -> StorageFailed:
        """Why a batch does not come after all: nothing was written in the epoch that it would have begun."""
        self._state.end_epochs(self.partition.end)
        return StorageFailed(reason)

    # --- the end of a turn ---

    def spool(self, end: int, entries: list[bytes]) -> int:
        """Add the entries of what came in this turn of the loop and is not stored; their bytes."""
        partition = self.partition
        since = max(partition.flushed, self._segments.end)
        if since >= end or partition.offline:
            return 0
        size = 0
        found = []
        for batch in reversed(self._cache.batches):
            if batch[BASE] < since:
                break
            if batch[LAST] < end:
                found.append(batch)
        topic, index, epoch = partition.topic_bytes, partition.index, self._state.epoch
        for base, _, data, _ in reversed(found):
            length = len(data)
            entries.append(PACK_ENTRY(ENTRY_OF_DATA, topic, index, base, epoch, length))
            entries.append(data)
            size += ENTRY_BYTES + length
        return size

    def settle(self, end: int) -> bool:
        """Store what the spool has below `end`; False if the disk does not take it."""
        if self._topic.deleted or self._segments.end >= end:
            return True
        return not self.partition.offline and self.write_back()

    def finish_turn(self, end: int, *, spooled: bool) -> int:
        """Store what came in this turn of the loop, if it is not in the spool; the offset up to which that worked."""
        partition = self.partition
        if spooled and not partition.offline:
            partition.mark_flushed(end)
            return end
        if self._segments.end < end:
            self.write_back()
        reached = min(self._segments.end, end)
        partition.mark_flushed(reached)
        return reached

    # --- between the roads ---

    def write_back(self) -> bool:
        """Store what is in memory only; False if the disk does not take it. A part of an append to several partitions
        stays in memory until the journal has all of it, or a crash could leave the part alone in its segment. So does
        what a group has not committed: a segment never has to be truncated."""
        partition = self.partition
        try:
            whole = self._atomic_end <= partition.flushed and not self._log.is_replicated
            self._cache.write_back(partition.end if whole else partition.flushed)
        except OSError as error:
            self._on_write_failed(error)
            return False
        return True

    def release_oldest(self) -> bool:
        """Let the oldest batch leave memory; False if it cannot go yet, because the disk does not take it."""
        cache = self._cache
        if cache.release_oldest():
            return True
        self.write_back()
        if cache.release_oldest():
            return True
        if self.partition.offline is None:
            return False
        # It is not read, and journal or spool have it for the next start. All of it goes, so that nothing is stored
        # behind a gap.
        cache.clear()
        return True

    def tighten(self) -> None:
        """Let what only the operating system has reach the device with the next flush: the journal may not go on behind
        batches that a power cut can take."""
        if self._loose:
            if not self.write_back():
                raise self._refusal("the disk is full: writes resume once there is room")
            try:
                jobs = self._segments.sync_jobs()
            except OSError as error:
                self._on_write_failed(error)
                raise self._refusal(f"{self.partition.folder} could not be synced: {error}") from error
            self._loose = False
            end = self._journal_end = self.partition.end
            self._log.committer.add_sync(self.partition, end, jobs, None)

    def wait_for_journal(self) -> None:
        """The journal may have an entry whose flush failed: only another frame says that it is void, so the next batch
        goes there."""
        self._journal_end = max(self._journal_end, self.partition.end + 1)

    def loosen(self) -> None:
        """A flush failed; a sync that `tighten` had asked for may be what did."""
        self._loose = self._loose or bool(self._segments.unsynced)

    def roll_back(self, end: int) -> None:
        """The batches from `end` on never came, or were truncated."""
        self._atomic_end = min(self._atomic_end, end)
