"""A sparse index of a segment, and the offset index (`.index`), which is one.

Entries of a fixed size in growing order stand in memory while a segment is written to, and in a file behind that. An
index is a hint: the segment checks each entry that it uses against the log and has the index made anew if it was
wrong. So index files need no sync of their own, and a sector that a power cut took from them costs time, never a
wrong answer. A closed segment's index is searched in its file, a few small reads a look-up, and takes no memory.

The offset index has eight bytes an entry: the last offset of a batch, relative to the segment's base, and its
position.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from struct import Struct

from headrace.runtime.disk import Disk, File

# Once the search has come down to this many entries, they are read at once.
BLOCK_ENTRIES = 256
# What a reader takes along of an index that is in its file: enough for 8 MiB of the smallest batches.
AHEAD_ENTRIES = 2_048


class SparseIndex:
    """Entries of two integers, sorted by the first."""

    __slots__ = ("_data", "_disk", "_exists", "_path", "_version", "_written", "entry")

    def __init__(self, disk: Disk, path: str, entry: Struct, *, new: bool) -> None:
        self.entry = entry
        self._disk = disk
        self._path = path
        # None: nothing is in memory, the file is all there is.
        self._data: bytearray | None = bytearray() if new else None
        # Bytes at the head of `_data` that the file holds already.
        self._written = 0
        self._exists = not new
        # Moves when entries are taken away, so that a write under way does not count as done.
        self._version = 0

    def __len__(self) -> int:
        if self._data is not None:
            return len(self._data) // self.entry.size
        file = self._open()
        if file is None:
            return 0
        with closing(file):
            return file.size() // self.entry.size

    @property
    def in_memory(self) -> bool:
        return self._data is not None

    def _open(self) -> File | None:
        try:
            return self._disk.open(self._path)
        except FileNotFoundError:
            return None

    def entries(self) -> list[tuple[int, int]]:
        """All entries. For rebuilding and checking, not for look-ups."""
        data: bytes | bytearray | None = self._data
        if data is None:
            file = self._open()
            if file is None:
                return []
            with closing(file):
                data = file.read(0, file.size())
        whole = len(data) - len(data) % self.entry.size
        return [(first, second) for first, second in self.entry.iter_unpack(memoryview(data)[:whole])]

    def last(self) -> tuple[int, int] | None:
        """The last entry."""
        data = self._data
        size = self.entry.size
        if data is not None:
            return self.entry.unpack_from(data, len(data) - size) if data else None
        file = self._open()
        if file is None:
            return None
        with closing(file):
            count = file.size() // size
            return self.entry.unpack(file.read((count - 1) * size, size)) if count else None

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose first integer is at most `key`."""
        data = self._data
        if data is not None:
            return self._floor_in(data, key)
        file = self._open()
        if file is None:
            return None
        with closing(file):
            return self._floor_in_file(file, key)

    def _floor_in(self, data: bytes | bytearray, key: int) -> tuple[int, int] | None:
        count = self._count_in(data, key, 0)
        return self.entry.unpack_from(data, (count - 1) * self.entry.size) if count else None

    def _count_in(self, data: bytes | bytearray, key: int, by: int) -> int:
        """How many of these entries are at most `key`, by the first of their integers or by the second."""
        size, unpack = self.entry.size, self.entry.unpack_from
        low, high = 0, len(data) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[by] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def _floor_in_file(self, file: File, key: int) -> tuple[int, int] | None:
        low, high = self._narrow(file, key)
        return self._floor_in(file.read(low * self.entry.size, (high - low) * self.entry.size), key)

    def _narrow(self, file: File, key: int) -> tuple[int, int]:
        """Where the few entries begin and end of which one is the last whose first integer is at most `key`."""
        size, unpack = self.entry.size, self.entry.unpack
        low, high = 0, file.size() // size
        # `low` stays on an entry that is known to be low enough: the answer may be that one.
        while high - low > BLOCK_ENTRIES:
            middle = (low + high) // 2
            if unpack(file.read(middle * size, size))[0] <= key:
                low = middle
            else:
                high = middle
        return low, high

    def load(self) -> None:
        """Bring the entries into memory; none if they are not in order. Blocks."""
        if self._data is not None:
            return
        file = self._open()
        if file is None:
            self._data = bytearray()
            self._exists = False
            return
        with closing(file):
            data = bytearray(file.read(0, file.size()))
        self._data = data
        self._written = len(data)
        if len(data) % self.entry.size or not self._in_order():
            self.clear()

    def _in_order(self) -> bool:
        entries = self.entries()
        firsts = [first for first, _ in entries]
        seconds = [second for _, second in entries]
        # Sorting what is sorted already is one pass in C.
        return firsts == sorted(firsts) and seconds == sorted(seconds) and len(set(firsts)) == len(firsts)

    def clear(self) -> None:
        """Forget all entries, in the file too when it is written next."""
        self._data = bytearray()
        self._written = 0
        self._exists = False
        self._version += 1

    def append(self, first: int, second: int) -> None:
        """Add an entry behind the last. The index must be in memory."""
        assert self._data is not None
        self._data += self.entry.pack(first, second)

    def keep(self, count: int) -> None:
        """Take away all entries but the first `count`. The index must be in memory."""
        assert self._data is not None
        size = count * self.entry.size
        if size < len(self._data):
            del self._data[size:]
            self._written = min(self._written, size)
            self._version += 1

    def unload(self) -> None:
        """Drop the entries from memory if the file has them all."""
        if self._data is not None and self._exists and self._written == len(self._data):
            self._data = None

    def pending(self) -> Callable[[], None] | None:
        """What brings the file up to date with the entries of now, or None if it is. Blocks; may be called anywhere."""
        data = self._data
        if data is None or (self._exists and self._written == len(data)):
            return None
        start, end, version = self._written, len(data), self._version
        fresh = bytes(memoryview(data)[start:])

        def write() -> None:
            with closing(self._disk.open(self._path, write=True, create=True)) as file:
                file.write(start, [fresh])
                if file.size() > end:
                    file.truncate(end)
            if self._version == version:
                self._written = end
                self._exists = True

        return write

    def cut_file(self) -> None:
        """Cut the file to the entries that are kept."""
        try:
            file = self._disk.open(self._path, write=True)
        except FileNotFoundError:
            return
        with closing(file):
            if file.size() > self._written:
                file.truncate(self._written)


class OffsetIndex(SparseIndex):
    """Relative last offset of a batch, and its position."""

    __slots__ = ()

    def __init__(self, disk: Disk, path: str, *, new: bool) -> None:
        super().__init__(disk, path, OFFSET_ENTRY, new=new)

    def ahead(self, relative: int) -> bytes:
        """Entries from the last at or below a relative offset on, for `floor_at`; none while all are in memory."""
        file = self._open() if self._data is None else None
        if file is None:
            return b""
        with closing(file):
            low, high = self._narrow(file, relative)
            block = file.read(low * OFFSET_ENTRY.size, (high - low + AHEAD_ENTRIES) * OFFSET_ENTRY.size)
        first = max(self._count_in(block, relative, 0) - 1, 0)
        return block[first * OFFSET_ENTRY.size :][: AHEAD_ENTRIES * OFFSET_ENTRY.size]

    def floor_at(self, position: int, entries: bytes) -> tuple[int, int] | None:
        """The last entry at or below a position, as far as memory, or else some `entries`, can tell."""
        held = self._data
        data = entries if held is None else held
        count = self._count_in(data, position, 1)
        if not count or (data is entries and count == AHEAD_ENTRIES):
            return None  # none, or more may follow
        return OFFSET_ENTRY.unpack_from(data, (count - 1) * OFFSET_ENTRY.size)

    def cut(self, position: int) -> None:
        """Drop the entries at or above `position`."""
        entries = self.entries()
        count = len(entries)
        while count and entries[count - 1][1] >= position:
            count -= 1
        self.keep(count)


OFFSET_ENTRY = Struct(">II")
