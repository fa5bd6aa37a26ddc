"""The descriptors of segments, a bounded number of them at once.

Tens of thousands of partitions share a thousand descriptors: whoever needs a file asks here every time and never
keeps it, so the least recently used one can be closed at any moment. Whoever must keep one (a reply being sent, a
sync in another thread) pins it, and the descriptor outlives its place here.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.ground.disk import Disk, File


class OpenFiles:
    """Open files by path, the most recently used last."""

    __slots__ = ("_disk", "_limit", "_open")

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = max(1, limit)
        self._open: OrderedDict[str, File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """The file at `path`, open for reading and writing. Good until the next call here, unless pinned."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._disk.open(path, write=True, create=create)
        self._open[path] = file
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[1].close()
        return file

    def forget(self, path: str) -> None:
        """Close the file if it is open: its name is about to move or to go."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1].close()
