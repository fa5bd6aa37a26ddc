"""A segment: one `.log` file of batches and the indexes beside it, with Kafka's names and layout.

The file holds batches one behind the other and nothing else; everything that a segment knows can be read from it
again. Batches are found by its indexes and a short walk (`hints.py`).

A segment belongs to one loop. Only what `sync_job` returns runs in another thread. All else that reads or writes a
file may block on it; appends and reads of a warm range do so for microseconds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from headrace.errors import CorruptLog
from headrace.format.batch import (
    HEADER_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    header_at,
)
from headrace.log import search_index
from headrace.log.files import OpenFiles
from headrace.log.hints import Hints
from headrace.log.interface import AbortedTransaction
from headrace.log.names import INDEX_SUFFIXES, SEARCH_SUFFIX, SUFFIXES, segment_path
from headrace.log.places import Place
from headrace.log.scan import RELATIVE_MAX, SCAN_BYTES, WALK_BYTES, Step, checksum, steps, walk
from headrace.log.txnindex import AbortedEntry, TxnIndex
from headrace.runtime.disk import NO_DESCRIPTORS, NO_SPACE, Buffer, Disk, File, FileRange

# A segment that has grown to this size asks for room ahead, so much at a time. The file system then need not find it
# page by page, which is a quarter of the cost of writing there. What is not needed in the end goes back when the
# segment is sealed.
RESERVE_FROM = 8 << 20
RESERVE_BYTES = 16 << 20

NUMBERS = count()

# What recovery reads and writes again at a time.
REWRITE_BYTES = 1 << 20


class NoRoomForIndex(OSError):
    """A full disk did not take an index that is no hint. Nothing of the segment itself is in doubt."""


def leaves_doubt(error: BaseException) -> bool:
    """Whether it is unknown what the device has, after a sync that raised this."""
    return not isinstance(error, NoRoomForIndex) and not (isinstance(error, OSError) and error.errno in NO_DESCRIPTORS)


class Segment:
    """One segment of a partition."""

    __slots__ = (
        "_cuts",
        "_cuts_synced",
        "_deleted",
        "_disk",
        "_files",
        "_first_timestamp",
        "_folder",
        "_hints",
        "_path",
        "_reserved",
        "_sealed",
        "_sync_failed",
        "_synced_bytes",
        "_txns",
        "base",
        "closed",
        "number",
        "size",
    )

    def __init__(
        self, disk: Disk, files: OpenFiles, folder: str, base: int, index_interval: int, ending: str, *, new: bool
    ) -> None:
        self.number = next(NUMBERS)
        """No other segment of this process has it, nor has this one once it was cut."""
        self.base = base
        self.size = 0
        """Bytes of the file that are valid."""
        self.closed = False
        self._disk = disk
        self._files = files
        self._folder = folder
        self._path = segment_path(folder, base, ".log" + ending)
        self._hints = Hints(disk, files, folder, base, index_interval, ending, new=new)
        aborted = segment_path(folder, base, ".txnindex" + ending)
        self._txns = TxnIndex(disk, aborted, new=new or not disk.exists(aborted))
        self._first_timestamp: int | None = None
        self._sealed = False
        # Up to where there is room on the device, or it need not be asked for.
        self._reserved = RESERVE_FROM
        # Set where the sync runs: a second one, already on its way, would succeed and prove nothing.
        self._sync_failed = False
        self._deleted = False
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
        for suffix in (*INDEX_SUFFIXES, SEARCH_SUFFIX):
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
        return self._hints.max_timestamp(self.size)

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
        return self._hints.last_offset(self.size)

    def load(self) -> None:
        """Bring the indexes into memory and complete them, which an append needs. Blocks."""
        hints = self._hints
        if hints.ready:
            return
        hints.load()
        _, reached = hints.complete(self.size)
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
        if not self._hints.ready:
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
            self._hints.note(position, last_offset - self.base, size, timestamp)
            position += size
        self.size = position

    def append_one(self, batch: Buffer, last_offset: int, size: int, timestamp: int) -> None:
        """The same for one batch."""
        if not self._hints.ready:
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
        self._hints.note(position, last_offset - self.base, size, timestamp)
        self.size = position + size

    def add_aborted(self, producer_id: int, first_offset: int, last_offset: int, last_stable: int) -> None:
        """Remember an aborted transaction whose marker, at `last_offset`, is in this segment."""
        self._txns.add(AbortedEntry(producer_id, first_offset, last_offset, last_stable))

    def truncate_to(self, position: int) -> None:
        """Cut the segment at `position`, where a batch begins: it is the newest again, and grows. Blocks."""
        self._sealed = False
        self.number = next(NUMBERS)
        self.load()
        search_index.cut(self._disk, self._folder, self.base, position)
        file = self._files.get(self._path)
        step = next(steps(file, self.base, position, self.size), None)
        end = self.last_offset() + 1 if step is None else step[1]
        self._files.get(self._path).truncate(position)
        self._cuts += 1
        self._cut(position)
        self._txns.cut(end)
        self._hints.complete(self.size)

    def _cut(self, position: int) -> None:
        """Let the indexes, which are in memory, and their files end before `position`, and the segment there."""
        self._hints.cut(position)
        self.size = position
        self._synced_bytes = min(self._synced_bytes, position)
        self._first_timestamp = None

    def sync_job(self, *, gently: bool = False) -> Callable[[], None]:
        """What makes everything appended so far durable. Ask on the loop; the answer blocks and runs elsewhere.
        `gently`: no append waits for it, and it holds up no other that waits for the device."""
        writes = self._hints.pending(self.size)
        write_txns = self._txns.pending()
        file = self._files.get(self._path)
        file.pin()
        end, cuts = self.size, self._cuts

        def sync() -> None:
            whole = True
            no_room: NoRoomForIndex | None = None
            try:
                if self._sync_failed:
                    raise OSError(errno.EIO, "an earlier sync of this file has failed", self._path)
                for write in writes:
                    try:
                        write()
                    except OSError as error:
                        # An index is a hint, and the next sync writes it again: a full disk need not stop this one.
                        if error.errno not in NO_SPACE and error.errno not in NO_DESCRIPTORS:
                            raise
                        whole = False
                names = self._cuts_synced < cuts
                if write_txns is not None:
                    try:
                        names |= write_txns()
                    except OSError as error:
                        if error.errno not in NO_SPACE:
                            raise
                        # The batches need no room any more, and may be read.
                        no_room = NoRoomForIndex(error.errno, error.strerror, self._path)
                if gently:
                    file.write_back(self._synced_bytes, end)
                file.sync()
                self._synced_bytes = end
                if names:
                    # One that another job makes meanwhile has no durable name yet.
                    named = self._txns.exists
                    self._disk.sync_dir(self._folder)
                    self._disk.sync_dir(self._folder.rpartition("/")[0])
                    self._cuts_synced = cuts
                    self._txns.named |= named
            except OSError as error:
                self._sync_failed = self._sync_failed or leaves_doubt(error)
                raise
            finally:
                file.unpin()
                if self._deleted and not self._disk.exists(self._path):
                    # The indexes were written after they were removed. Only they go: another segment
                    # of that name may have begun since.
                    self._remove_files(INDEX_SUFFIXES)
            if no_room is not None:
                raise no_room
            if self._sealed and whole:
                self._hints.unload()

        return sync

    # --- reading ---

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` valid bytes from `position`."""
        return self._files.get(self._path).read(position, min(length, self.size - position))

    def range(self, position: int, length: int, warm: int = 0) -> FileRange:
        """The same bytes, unread; the file is pinned for the caller."""
        file = self._files.get(self._path)
        file.pin()
        return FileRange(file, position, min(length, self.size - position), warm)

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
        return self._hints.locate(self.size, offset)

    def place(self, offset: int) -> Place:
        """The same, with what a reader needs to go on from there. Raises CorruptLog if no batch stands there."""
        return self._hints.place(self.size, offset)

    def boundary(self, stop: int, entries: bytes) -> Step | None:
        """The batch that begins at or before position `stop` and ends behind it, if that can be told at once. `entries`
        are those of a reader's place."""
        return self._hints.boundary(self.size, stop, entries)

    def locate_time(self, timestamp: int) -> int | None:
        """The position of the first batch with a record at or after `timestamp`, if there is one."""
        return self._hints.locate_time(self.size, timestamp)

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
        # It speaks of what the recovery point covers; more of it is from a life whose batches may have gone.
        search_index.cut(self._disk, self._folder, self.base, position)
        self._hints.load()
        self._cut(position)
        last_offset, reached = self._hints.complete(self.size)
        if reached != position:
            raise CorruptLog(f"the batches of {self._path} end at position {reached}, but {position} had been synced")
        end_offset = last_offset + 1
        self._txns.recover(end_offset)
        for at, header in self._good(file, position, found, end_offset):
            seen(header)
            self._hints.note(at, header.last_offset - self.base, header.size, header.max_timestamp)
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

    # --- the end ---

    def close(self) -> None:
        """Let go of the file: another one may have its name."""
        self.closed = True
        self._files.forget(self._path)

    def delete(self) -> None:
        """Remove the segment's files."""
        self._txns.forget()
        # First, for a sync that is under way looks at it last.
        self._deleted = True
        self._remove_files(SUFFIXES)
        self._files.forget(self._path)

    def _remove_files(self, suffixes: Sequence[str]) -> None:
        for suffix in suffixes:
            self._disk.remove(segment_path(self._folder, self.base, suffix))
