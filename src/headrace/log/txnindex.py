"""The aborted transactions that ended in a segment (`.txnindex`).

Thirty-four bytes an entry: version, producer id, first and last offset of the transaction, and the last stable offset
when it ended. Unlike the other indexes this one cannot be made anew from the segment alone, because a transaction may
begin segments before its end: it is synced with the log, and a broken one is corruption. Above the recovery point,
where anything may be torn, it is forgotten at a start and made anew from the batches. Most segments have none, and no
file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from struct import Struct
from typing import NamedTuple

from headrace.errors import CorruptLog
from headrace.runtime.disk import Disk, File, read_whole

ABORTED_ENTRY = Struct(">hqqqq")
VERSION = 0


class AbortedEntry(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
    last_stable: int


class TxnIndex:
    """Aborted transactions in the order of their markers."""

    __slots__ = ("_disk", "_entries", "_path", "_version", "_written", "exists", "named")

    def __init__(self, disk: Disk, path: str, *, new: bool) -> None:
        self._disk = disk
        self._path = path
        self._entries: list[AbortedEntry] | None = [] if new else None
        self.exists = not new
        self.named = not new
        """Whether the file's name is durable."""
        # Counts the cuts.
        self._version = 0
        # How many entries are in the file, and as of which version: one value, because a job in another thread sets it.
        self._written = (0, 0)

    def __bool__(self) -> bool:
        """Whether there may be an entry; reads nothing."""
        return self._entries is None or bool(self._entries)

    def entries(self) -> list[AbortedEntry]:
        """All of them. Reads the file when first asked; raises CorruptLog."""
        if self._entries is None:
            contents = read_whole(self._disk, self._path)
            if contents is None:
                # It was there when the segment was opened. Without it, what was aborted would look committed.
                raise CorruptLog(f"{self._path} is missing")
            self._entries = parse(contents, self._path)
            self._written = (self._version, len(self._entries))
        return self._entries

    def overlapping(self, first: int, last: int) -> tuple[list[AbortedEntry], bool]:
        """The transactions that overlap [first, last), and whether an entry says that no later one can."""
        entries = self.entries()
        found = []
        for at in range(bisect_left(entries, first, key=_marker), len(entries)):
            entry = entries[at]
            if entry.first_offset < last:
                found.append(entry)
            if entry.last_stable >= last:
                return found, True
        return found, False

    def add(self, entry: AbortedEntry) -> None:
        """Add a transaction behind the last; one that is there already (a replay) is left alone."""
        entries = self.entries()
        if not entries or entry.last_offset > entries[-1].last_offset:
            entries.append(entry)

    def cut(self, offset: int) -> None:
        """Drop the transactions that ended at or above `offset`, durably. Blocks."""
        entries = self.entries()
        count = len(entries)
        while count and entries[count - 1].last_offset >= offset:
            count -= 1
        if count == len(entries):
            return
        del entries[count:]
        before = self._written
        self._version += 1
        self._written = (self._version, min(before[1], count))
        if count < before[1]:
            self._truncate(count)

    def recover(self, offset: int) -> None:
        """After a stop that was not clean: keep the transactions that ended before `offset`, up to where all had been
        synced, and forget whatever stands behind them. Blocks."""
        contents = read_whole(self._disk, self._path)
        self.exists, self.named = contents is not None, False
        self._entries = []
        for entry in _entries(contents or b""):
            if entry is None or entry.last_offset >= offset:
                break
            self._entries.append(entry)
        self._written = (self._version, len(self._entries))
        if contents is not None and len(contents) > len(self._entries) * ABORTED_ENTRY.size:
            self._truncate(len(self._entries))

    def forget(self) -> None:
        """The segment is gone: a job that is still on its way must not bring the file back with what it had."""
        self._entries = []
        self._version += 1

    def _truncate(self, count: int) -> None:
        with closing(self._disk.open(self._path, write=True)) as file:
            file.truncate(count * ABORTED_ENTRY.size)
            file.sync()

    def pending(self) -> Callable[[], bool] | None:
        """What makes the entries of now durable, or None. Blocks; answers whether the folder must be synced as well."""
        entries = self._entries
        if entries is None or self._written == (self._version, len(entries)):
            return None

        def write() -> bool:
            if not self._entries:
                return False
            with closing(self._disk.open(self._path, write=True, create=True)) as file:
                while not self._write(file):
                    pass
            self.exists = True
            return not self.named

        return write

    def _write(self, file: File) -> bool:
        """Bring the file up to date, as of when this runs: what was to be written when it was asked for may have been
        cut since. False if there was a cut meanwhile."""
        version, (as_of, count) = self._version, self._written
        entries = list(self._entries or ())
        start = count if as_of == version else 0
        if start < len(entries):
            fresh = b"".join(ABORTED_ENTRY.pack(VERSION, *entry) for entry in entries[start:])
            file.write(start * ABORTED_ENTRY.size, [fresh])
        if as_of != version:
            file.truncate(len(entries) * ABORTED_ENTRY.size)
        file.sync()
        self._written = (version, len(entries))
        return version == self._version


def parse(contents: bytes, path: str) -> list[AbortedEntry]:
    """The entries of a file. Raises CorruptLog."""
    if len(contents) % ABORTED_ENTRY.size:
        raise CorruptLog(
            f"{path} has {len(contents)} bytes, which is not a multiple of {ABORTED_ENTRY.size}: "
            "readers of committed records cannot trust it; restore it, or delete the partition's records up to there"
        )
    entries: list[AbortedEntry] = []
    for entry in _entries(contents):
        if entry is None:
            raise CorruptLog(f"{path} has a broken entry behind its first {len(entries)}: restore it")
        entries.append(entry)
    return entries


def _entries(contents: bytes) -> Iterator[AbortedEntry | None]:
    """The entries of a file; None, and no more, where one is broken."""
    last = -1
    whole = len(contents) // ABORTED_ENTRY.size * ABORTED_ENTRY.size
    for version, *fields in ABORTED_ENTRY.iter_unpack(memoryview(contents)[:whole]):
        entry = AbortedEntry._make(fields)
        # A transaction has a batch before its marker; so zeros, where a file had grown before a power cut, are none.
        if version != VERSION or entry.last_offset <= last or entry.first_offset >= entry.last_offset:
            yield None
            return
        yield entry
        last = entry.last_offset


def _marker(entry: AbortedEntry) -> int:
    return entry.last_offset
