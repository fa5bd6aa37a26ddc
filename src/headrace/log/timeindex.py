"""The time index of a segment (`.timeindex`): twelve bytes an entry, a timestamp and a relative offset.

An entry says: no batch up to the one that ends at this offset is younger than this timestamp, and that one is as
young. The timestamps grow strictly, so batches that arrive out of order add nothing.
"""

from __future__ import annotations

from struct import Struct

from headrace.log.index import SparseIndex
from headrace.runtime.disk import Disk

TIME_ENTRY = Struct(">qI")


class TimeIndex(SparseIndex):
    """Largest timestamp so far, and the relative last offset of the batch that has it."""

    __slots__ = ("_newest",)

    def __init__(self, disk: Disk, path: str, *, new: bool) -> None:
        super().__init__(disk, path, TIME_ENTRY, new=new)
        self._newest = -1

    def load(self) -> None:
        super().load()
        self._remember()

    def clear(self) -> None:
        super().clear()
        self._newest = -1

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry if it says more than the last one."""
        if timestamp > self._newest:
            self.append(timestamp, offset)
            self._newest = timestamp

    def cut(self, offset: int) -> None:
        """Drop the entries above the relative `offset`."""
        entries = self.entries()
        count = len(entries)
        while count and entries[count - 1][1] > offset:
            count -= 1
        self.keep(count)
        self._remember()

    def _remember(self) -> None:
        last = self.last()
        self._newest = last[0] if last else -1
