"""The aborted transactions that ended in a segment (`.txnindex`).

Thirty-four bytes an entry: version, producer id, first and last offset of the transaction, and the last stable offset
when it ended. Unlike the other indexes this one cannot be made anew from the segment alone, because a transaction may
begin segments before its end: it is synced with the log, and a broken one is corruption. Most segments have none, and
no file.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from headrace.errors import CorruptLog
from headrace.ground.disk import Disk, read_whole

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

    __slots__ = ("_disk", "_entries", "_exists", "_path", "_version", "_written")

    def __init__(self, disk: Disk, path: str, *, new: bool) -> None:
        self._disk = disk
        self._path = path
        self._entries: list[AbortedEntry] | None = [] if new else None
        self._written = 0
        self._exists = not new
        self._version = 0

    def entries(self) -> list[AbortedEntry]:
        """All of them. Reads the file when first asked; raises CorruptLog."""
        if self._entries is None:
            contents = read_whole(self._disk, self._path)
            self._exists = contents is not None
            self._entries = parse(contents or b"", self._path)
            self._written = len(self._entries)
        return self._entries

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
        self._version += 1
        if count < self._written:
            self._written = count
            file = self._disk.open(self._path, write=True)
            try:
                file.truncate(count * ABORTED_ENTRY.size)
                file.sync()
            finally:
                file.close()

    def pending(self) -> Callable[[], bool] | None:
        """What makes the entries of now durable, or None. Blocks; answers whether the folder must be synced as well."""
        entries = self._entries
        if entries is None or self._written == len(entries):
            return None
        start, end, version, new = self._written, len(entries), self._version, not self._exists
        fresh = b"".join(ABORTED_ENTRY.pack(VERSION, *entry) for entry in entries[start:])

        def write() -> bool:
            file = self._disk.open(self._path, write=True, create=True)
            try:
                file.write(start * ABORTED_ENTRY.size, [fresh])
                file.sync()
            finally:
                file.close()
            if self._version == version:
                self._written = end
                self._exists = True
            return new

        return write


def parse(contents: bytes, path: str) -> list[AbortedEntry]:
    """The entries of a file. Raises CorruptLog."""
    if len(contents) % ABORTED_ENTRY.size:
        raise CorruptLog(
            f"{path} has {len(contents)} bytes, which is not a multiple of {ABORTED_ENTRY.size}: "
            "readers of committed records cannot trust it; restore it, or delete the partition's records up to there"
        )
    entries = []
    last = -1
    for version, *fields in ABORTED_ENTRY.iter_unpack(contents):
        entry = AbortedEntry._make(fields)
        if version != VERSION or entry.last_offset <= last or entry.first_offset > entry.last_offset:
            raise CorruptLog(f"{path} has a broken entry (version {version}, {entry}) behind offset {last}")
        entries.append(entry)
        last = entry.last_offset
    return entries
