"""A segment: one `.log` file of batches and the indexes beside it, with Kafka's names and layout.

The file holds batches one behind the other and nothing else; everything that a segment knows can be read from it
again. The indexes are hints (see `headrace.log.index`), so a look-up ends with a short walk over batch headers, and a
walk that is too long, or starts at a batch that the index did not mean, has the index made anew.

A segment belongs to one loop. Only what `sync_job` returns runs in another thread. All else that reads or writes a
file may block on it; appends and reads of a warm range do so for microseconds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from struct import Struct

from headrace.errors import CorruptLog
from headrace.ground.disk import Buffer, Disk, File
from headrace.log.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    header_at,
)
from headrace.log.files import OpenFiles
from headrace.log.index import OffsetIndex
from headrace.log.interface import AbortedTransaction, FileRange
from headrace.log.scan import MAGIC, SCAN_BYTES, WALK_BYTES, checksum, walk
from headrace.log.timeindex import TimeIndex
from headrace.log.txnindex import AbortedEntry, TxnIndex

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

# Relative offsets and positions are signed 32-bit integers to Kafka's tools.
RELATIVE_MAX = (1 << 31) - 1

# A segment that has grown to this size asks for room ahead, so much at a time. The file system then need not find it
# page by page, which is a quarter of the cost of writing there. What is not needed in the end goes back when the
# segment is sealed.
RESERVE_FROM = 8 << 20
RESERVE_BYTES = 16 << 20

# What recovery reads and writes again at a time.
REWRITE_BYTES = 1 << 20

# Base offset, length, magic, last offset delta, max timestamp: what a walk looks at.
STEP = Struct(">qi4xb6xi8xq")


class NoRoomForIndex(OSError):
    """A full disk did not take an index that is no hint. Nothing of the segment itself is in doubt."""


def segment_path(folder: str, base: int, suffix: str) -> str:
    """Where a file of the segment that begins at `base` stands."""
    return f"{folder}/{base:020d}{suffix}"


def segment_bases(disk: Disk, folder: str, suffix: str = ".log") -> list[int]:
    """The offsets that the files with a suffix are named by, in their order."""
    names = [name.removesuffix(suffix) for name in disk.listdir(folder) if name.endswith(suffix)]
    return [int(name) for name in names if len(name) == 20 and name.isdigit()]


class Segment:
    """One segment of a partition."""

    __slots__ = (
        "_cuts",
        "_cuts_synced",
        "_disk",
        "_files",
        "_first_timestamp",
        "_folder",
        "_index",
        "_interval",
        "_max_offset",
        "_max_timestamp",
        "_path",
        "_ready",
        "_reserved",
        "_sealed",
        "_since_entry",
        "_sync_failed",
        "_synced_bytes",
        "_times",
        "_txns",
        "base",
        "size",
    )

    def __init__(
        self, disk: Disk, files: OpenFiles, folder: str, base: int, index_interval: int, ending: str, *, new: bool
    ) -> None:
        self.base = base
        self.size = 0
        """Bytes of the file that are valid."""
        self._disk = disk
        self._files = files
        self._folder = folder
        self._interval = index_interval
        self._path = segment_path(folder, base, ".log" + ending)
        self._index = OffsetIndex(disk, segment_path(folder, base, ".index" + ending), new=new)
        self._times = TimeIndex(disk, segment_path(folder, base, ".timeindex" + ending), new=new)
        aborted = segment_path(folder, base, ".txnindex" + ending)
        self._txns = TxnIndex(disk, aborted, new=new or not disk.exists(aborted))
        # Whether the indexes are in memory and complete, and what follows is known.
        self._ready = new
        self._since_entry = 0
        self._max_timestamp: int | None = NO_TIMESTAMP if new else None
        # Where the batch with the largest timestamp ends, relative to the base.
        self._max_offset = 0
        self._first_timestamp: int | None = None
        self._sealed = False
        # Up to where there is room on the device, or it need not be asked for.
        self._reserved = RESERVE_FROM
        # Set where the sync runs: a second one, already on its way, would succeed and prove nothing.
        self._sync_failed = False
        # What the device surely has; more may be there.
        self._synced_bytes = 0
        # How often a power cut could since bring back, or take, more than the newest bytes: the file is new, or it or
        # its folder has been cut. And how many of these a sync has seen to.
        self._cuts = int(new)
        self._cuts_synced = 0

    @classmethod
    def create(
        cls,
        disk: Disk,
        files: OpenFiles,
        folder: str,
        base: int,
        index_interval: int,
        ending: str = "",
        *,
        alone: bool = False,
    ) -> Segment:
        """Make an empty segment. Its name is durable once a sync job has run. Compaction writes beside the old files,
        under names with another `ending`. `alone`: the folder is new, so nothing of that name can be in it."""
        segment = cls(disk, files, folder, base, index_interval, ending, new=True)
        file = files.get(segment._path, create=True)
        if alone:
            return segment
        if file.size():
            file.truncate(0)
        for suffix in (".index", ".timeindex", ".txnindex"):
            disk.remove(segment_path(folder, base, suffix + ending))
        return segment

    @classmethod
    def open(cls, disk: Disk, files: OpenFiles, folder: str, base: int, index_interval: int) -> Segment:
        """Open a segment that is there. All of the file is taken for valid; `recover` finds out where it may not be."""
        segment = cls(disk, files, folder, base, index_interval, "", new=False)
        segment.size = files.get(segment._path).size()
        return segment

    def __repr__(self) -> str:
        return f"<Segment {self._path}, {self.size} bytes>"

    @property
    def names_synced(self) -> bool:
        """Whether the file's name, and what was cut from it and removed beside it, are durable."""
        return self._cuts_synced == self._cuts

    @property
    def path(self) -> str:
        """Where the `.log` file stands."""
        return self._path

    # --- what is known of the whole ---

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of a batch, -1 if there is none. May walk over headers when first asked."""
        if self._max_timestamp is None:
            self._find_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def first_timestamp_ms(self) -> int:
        """The timestamp of the first batch, by which a segment's age is told; -1 if it is empty."""
        if self._first_timestamp is None:
            if self.size < HEADER_BYTES:
                return NO_TIMESTAMP
            header = self._files.get(self._path).read(0, HEADER_BYTES)
            self._first_timestamp = header_at(header).max_timestamp
        return self._first_timestamp

    def last_offset(self) -> int:
        """The last offset of the last batch; one below the base if the segment is empty."""
        entry = self._index.last()
        if entry is not None and not self._fits(*entry):
            self._remake_index()
            entry = self._index.last()
        last_offset = self.base - 1
        for _, base, _, delta, _ in self._steps(entry[1] if entry else 0):
            last_offset = base + delta
        return last_offset

    def load(self) -> None:
        """Bring the indexes into memory and complete them, which an append needs. Blocks."""
        if self._ready:
            return
        self._index.load()
        self._times.load()
        _, reached = self._complete()
        if reached != self.size:
            raise CorruptLog(f"the batches of {self._path} end at position {reached} of {self.size}")

    def seal(self) -> None:
        """Nothing will be appended any more: the next sync job drops the indexes from memory."""
        self._sealed = True
        if self.size >= RESERVE_FROM:
            # An earlier life may have asked for room too, so it does not matter whether this one has.
            self._files.get(self._path).truncate(self.size)

    # --- writing ---

    def append(self, buffers: Sequence[Buffer], entries: Sequence[tuple[int, int, int, int]]) -> None:
        """Write `buffers` behind what is there. `entries` has base offset, last offset, bytes and largest timestamp of
        each batch in them. If this raises, nothing has changed."""
        if not self._ready:
            self.load()
        position = self.size
        file = self._files.get(self._path)
        try:
            file.write(position, buffers)
        except OSError:
            # A full disk took a part: a clean start believes all of the file.
            file.truncate(position)
            raise
        for _, last_offset, size, timestamp in entries:
            self._note(position, last_offset - self.base, size, timestamp)
            position += size
        self.size = position

    def append_one(self, batch: Buffer, last_offset: int, size: int, timestamp: int) -> None:
        """The same for one batch."""
        if not self._ready:
            self.load()
        position = self.size
        file = self._files.get(self._path)
        if position + size > self._reserved:
            self._reserved = position + RESERVE_BYTES
            file.reserve(position, RESERVE_BYTES)
        try:
            file.write_one(position, batch)
        except OSError:
            file.truncate(position)
            raise
        self._note(position, last_offset - self.base, size, timestamp)
        self.size = position + size

    def _note(self, position: int, relative: int, size: int, timestamp: int) -> None:
        """Take a batch into account that stands behind all others."""
        if timestamp > self._max_timestamp:  # type: ignore[operator]
            self._max_timestamp = timestamp
            self._max_offset = relative
        if self._since_entry > self._interval:
            self._index.append(relative, position)
            self._times.add(self._max_timestamp, self._max_offset)  # type: ignore[arg-type]
            self._since_entry = size
        else:
            self._since_entry += size

    def add_aborted(self, producer_id: int, first_offset: int, last_offset: int, last_stable: int) -> None:
        """Remember an aborted transaction whose marker, at `last_offset`, is in this segment."""
        self._txns.add(AbortedEntry(producer_id, first_offset, last_offset, last_stable))

    def truncate_to(self, position: int) -> None:
        """Cut the segment at `position`, where a batch begins. Blocks."""
        self.load()
        step = next(self._steps(position), None)
        end = self.last_offset() + 1 if step is None else step[1]
        self._files.get(self._path).truncate(position)
        self._cuts += 1
        self._cut(position)
        self._txns.cut(end)
        self._complete()

    def _cut(self, position: int) -> None:
        """Let the indexes, which are in memory, and their files end before `position`, and the segment there."""
        self._index.cut(position)
        last = self._index.last()
        self._times.cut(last[0] if last else -1)
        self._index.cut_file()
        self._times.cut_file()
        self.size = position
        self._synced_bytes = min(self._synced_bytes, position)
        self._first_timestamp = None
        self._ready = False

    def sync_job(self, *, gently: bool = False) -> Callable[[], None]:
        """What makes everything appended so far durable. Ask on the loop; the answer blocks and runs elsewhere.
        `gently`: nobody waits for it, and it shall hold up nobody else who waits for the device."""
        if self._ready and self.size:
            self._times.add(self.max_timestamp, self._max_offset)
        writes = [write for write in (self._index.pending(), self._times.pending()) if write is not None]
        write_txns = self._txns.pending()
        file = self._files.get(self._path)
        file.pin()
        end, cuts = self.size, self._cuts

        def sync() -> None:
            whole = True
            try:
                if self._sync_failed:
                    raise OSError(errno.EIO, "an earlier sync of this file has failed", self._path)
                for write in writes:
                    try:
                        write()
                    except OSError as error:
                        # An index is a hint, and the next sync writes it again: a full disk need not stop this one.
                        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                            raise
                        whole = False
                names = self._cuts_synced < cuts
                if write_txns is not None:
                    try:
                        names |= write_txns()
                    except OSError as error:
                        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                            raise
                        raise NoRoomForIndex(error.errno, error.strerror, self._path) from error
                if gently:
                    file.write_back(self._synced_bytes, end)
                file.sync()
                self._synced_bytes = end
                if names:
                    # One that another job makes meanwhile has its name from nobody yet.
                    named = self._txns.exists
                    self._disk.sync_dir(self._folder)
                    self._disk.sync_dir(self._folder.rpartition("/")[0])
                    self._cuts_synced = cuts
                    self._txns.named |= named
            except OSError as error:
                self._sync_failed = not isinstance(error, NoRoomForIndex) or self._sync_failed
                raise
            finally:
                file.unpin()
            if self._sealed and whole:
                self._ready = False
                self._index.unload()
                self._times.unload()

        return sync

    # --- reading ---

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` valid bytes from `position`."""
        return self._files.get(self._path).read(position, min(length, self.size - position))

    def range(self, position: int, length: int) -> FileRange:
        """The same bytes, unread; the file is pinned for the caller."""
        file = self._files.get(self._path)
        file.pin()
        return FileRange(file, position, min(length, self.size - position))

    def batch_at(self, position: int) -> bytes:
        """The whole batch at `position`."""
        file = self._files.get(self._path)
        head = file.read(position, min(WALK_BYTES, self.size - position))
        size = PREFIX.unpack_from(head)[1] + PREFIX_BYTES if len(head) >= HEADER_BYTES else 0
        if size < HEADER_BYTES or position + size > self.size:
            raise CorruptLog(f"no whole batch stands at position {position} of {self._path}")
        return head[:size] if size <= len(head) else head + file.read(position + len(head), size - len(head))

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from `position` that are whole before `end`, by their headers. Blocks."""
        file = self._files.get(self._path)
        file.pin()
        try:
            for at, buffer, index in walk(file, position, self.size if end is None else min(end, self.size)):
                yield at, header_at(buffer, index)
        finally:
            file.unpin()

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the first behind it; where the batches end if there is
        none, which is at `size` except in a file that has yet to be recovered. Raises CorruptLog if they end early."""
        if offset <= self.base:
            return 0
        entry = self._index.floor(offset - self.base)
        start = reached = entry[1] if entry else 0
        last_offset = self.base - 1
        for position, base, size, delta, _ in self._steps(start):
            last_offset = base + delta
            if position == start and entry is not None and last_offset - self.base != entry[0]:
                break
            if last_offset >= offset:
                return position
            reached = position + size
            if position - start > self._interval and not self._index.in_memory:
                # This batch would have an entry, and the look-up would have found it, were the index whole.
                self._index.load()
                self._times.load()
                self._complete()
        if entry is not None and reached == start:
            # No batch, or another one, stands where the index said.
            self._remake_index()
            return self.locate(offset)
        if reached != self.size and last_offset != offset - 1:
            raise CorruptLog(
                f"the batches of {self._path} end at position {reached} of {self.size}, before offset {offset}"
            )
        return reached

    def locate_time(self, timestamp: int) -> int | None:
        """The position of the first batch with a record at or after `timestamp`, if there is one."""
        if self.size == 0 or self.max_timestamp < timestamp:
            return None
        entry = self._times.floor(timestamp - 1)
        start = self._time_position(entry) if entry else 0
        for position, _, _, _, newest in self._steps(start):
            if newest >= timestamp:
                return position
        return None

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        """The aborted transactions that ended in this segment and overlap [first, last)."""
        return [AbortedTransaction(*entry[:3]) for entry in self.aborted_entries(first, last)[0]]

    @property
    def may_abort(self) -> bool:
        """Whether an aborted transaction may have ended in this segment; reads nothing."""
        return bool(self._txns)

    def aborted_entries(self, first: int, last: int) -> tuple[list[AbortedEntry], bool]:
        """The same, with all that the index says, and whether it says that none in a later segment overlaps."""
        return self._txns.overlapping(first, last) if self._txns else ([], False)

    # --- recovery ---

    def recover(self, position: int, seen: Callable[[BatchHeader], None]) -> int:
        """Check each batch from `position` on, calling `seen` for the good ones, cut the file at the first that is not,
        and make the indexes fit. The answer is how many bytes were cut off. What stands below `position` was synced
        once: if it is not there, this raises CorruptLog. Blocks."""
        file = self._files.get(self._path)
        found = file.size()
        if position > found:
            raise CorruptLog(
                f"{self._path} has {found} bytes, but {position} had been synced: the file was cut from outside"
            )
        self._index.load()
        self._times.load()
        self._cut(position)
        last_offset, reached = self._complete()
        if reached != position:
            raise CorruptLog(f"the batches of {self._path} end at position {reached}, but {position} had been synced")
        end_offset = last_offset + 1
        self._txns.recover(end_offset)
        for at, header in self._good(file, position, found, end_offset):
            seen(header)
            self._note(at, header.last_offset - self.base, header.size, header.max_timestamp)
            end_offset = header.last_offset + 1
            self.size = at + header.size
        if self.size < found:
            file.truncate(self.size)
            file.sync()
        # A sync may have failed in the last life: the kernel then shows pages that the device does not have and calls
        # them clean, and only writing them again makes the next sync mean something.
        for at in range(position, self.size, REWRITE_BYTES):
            file.write(at, [file.read(at, min(REWRITE_BYTES, self.size - at))])
        # The file was found by its name, which says nothing about a power cut to come.
        self._cuts += 1
        return found - self.size

    def _good(self, file: File, position: int, end: int, expected: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from `position` up to the first that is cut, broken, or not behind offset `expected`."""
        for at, buffer, index in walk(file, position, end, SCAN_BYTES):
            header = header_at(buffer, index)
            if (
                header.magic != MAGIC
                or header.base_offset < expected
                or header.last_offset_delta < 0
                or header.last_offset - self.base > RELATIVE_MAX
                or header.crc != checksum(file, at, header, buffer, index)
            ):
                return
            yield at, header
            expected = header.last_offset + 1

    # --- the indexes ---

    def _steps(self, position: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Position, base offset, size, last offset delta and largest timestamp of each batch from `position`, as far as
        there are batches."""
        expected = self.base
        unpack = STEP.unpack_from
        for at, buffer, index in walk(self._files.get(self._path), position, self.size):
            base, length, magic, delta, timestamp = unpack(buffer, index)
            # Above the recovery point of a file that was not recovered yet, anything can look like a header.
            if magic != MAGIC or base < expected or delta < 0 or base + delta - self.base > RELATIVE_MAX:
                return
            expected = base + delta + 1
            yield at, base, length + PREFIX_BYTES, delta, timestamp

    def _fits(self, relative: int, position: int) -> bool:
        """Whether a batch with this last offset stands at this position."""
        if position + HEADER_BYTES > self.size:
            return False
        head = self._files.get(self._path).read(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return False
        base, _, magic, delta, _ = STEP.unpack_from(head)
        return bool(magic == MAGIC and base + delta - self.base == relative)

    def _remake_index(self) -> None:
        self._index.clear()
        self._times.load()
        self._complete()

    def _time_position(self, entry: tuple[int, int]) -> int:
        """Where the batch of an entry of the time index stands, if it is there; else the index is made anew, and 0."""
        start = self.locate(self.base + entry[1])
        step = next(self._steps(start), None)
        if step is not None and (step[4], step[1] + step[3] - self.base) == entry:
            return start
        self._index.load()
        self._times.clear()
        self._complete()
        return 0

    def _find_max_timestamp(self) -> None:
        entry = self._times.last()
        start = self._time_position(entry) if entry else 0
        if self._max_timestamp is None:
            # Entries that a power cut took leave no trace, so what stands behind the last one is looked at too.
            self._max_timestamp = max((step[4] for step in self._steps(start)), default=NO_TIMESTAMP)

    def _complete(self) -> tuple[int, int]:
        """Bring the indexes, which are in memory, up to the end of the batches; last offset and position there."""
        entry = self._index.last()
        if entry is not None and not self._fits(*entry):
            self._index.clear()
            entry = None
        indexed = entry[1] if entry else 0
        start = 0
        newest = self._times.last()
        if newest is not None:
            start = self._position_of(newest[1])
            step = next(self._steps(start), None)
            if step is None or (step[4], step[1] + step[3] - self.base) != newest:
                self._times.clear()
                newest, start = None, 0
        max_timestamp, max_offset = newest or (NO_TIMESTAMP, 0)
        since, last_offset, reached = 0, self.base - 1, 0
        for position, base, size, delta, timestamp in self._steps(min(start, indexed)):
            last_offset, reached = base + delta, position + size
            if timestamp > max_timestamp:
                max_timestamp, max_offset = timestamp, last_offset - self.base
            if position == indexed:
                since = 0
            elif since > self._interval:
                self._times.add(max_timestamp, max_offset)
                if position > indexed:
                    self._index.append(last_offset - self.base, position)
                since = 0
            since += size
        self._ready = reached == self.size
        self._max_timestamp = max_timestamp if self._ready else None
        self._max_offset, self._since_entry = max_offset, since
        return last_offset, reached

    def _position_of(self, relative: int) -> int:
        """Where the batch that ends at a relative offset stands, as far as the index in memory and a walk can tell."""
        entry = self._index.floor(relative)
        for position, base, _, delta, _ in self._steps(entry[1] if entry else 0):
            if base + delta - self.base >= relative:
                return position
        return self.size

    # --- the end ---

    def close(self) -> None:
        """Let go of the file."""
        self._files.forget(self._path)

    def delete(self) -> None:
        """Remove the segment's files."""
        self._files.forget(self._path)
        self._txns.forget()
        for suffix in SUFFIXES:
            self._disk.remove(segment_path(self._folder, self.base, suffix))
