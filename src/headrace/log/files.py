"""The descriptors of segments, a bounded number of them at once.

Tens of thousands of partitions share some thousand descriptors: whoever needs a file asks here every time and never
keeps it, so the least recently used one can be closed at any moment. Whoever must keep one (a reply being sent, a
sync in another thread) pins it, and the descriptor outlives its place here.

The files belong to the thread that made this object, the loop's. Work off the loop (loading, looking a place up) asks
here too, and gets descriptors of its own: one that the loop closes under it could already mean another file. They are
few, and opened anew once any file has been forgotten, because its name may mean another file by then.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.ground.disk import Disk, File
from headrace.ground.offload import thread_id

# Descriptors that each thread off the loop keeps.
OFF_LOOP_FILES = 4


class OpenFiles:
    """Open files by path, the most recently used last."""

    __slots__ = ("_disk", "_forgotten", "_limit", "_off_loop", "_open", "_owner")

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = max(1, limit)
        self._open: OrderedDict[str, File] = OrderedDict()
        self._owner = thread_id()
        # How often a file was forgotten; by thread, that number as of when its files were opened, and the files.
        self._forgotten = 0
        self._off_loop: dict[int, tuple[int, OrderedDict[str, File]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """The file at `path`, open for reading and writing. Good until the next call here, unless pinned."""
        if thread_id() != self._owner:
            return self._get_off_loop(path, create)
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        return _open(self._disk, self._open, self._limit, path, create)

    def _get_off_loop(self, path: str, create: bool) -> File:
        thread, forgotten = thread_id(), self._forgotten
        opened_at, files = self._off_loop.get(thread, (forgotten, OrderedDict()))
        if opened_at != forgotten:
            _close_all(files)
        self._off_loop[thread] = (forgotten, files)
        file = files.get(path)
        if file is not None:
            files.move_to_end(path)
            return file
        return _open(self._disk, files, OFF_LOOP_FILES, path, create)

    def forget(self, path: str) -> None:
        """Close the file if it is open: its name is about to move or to go."""
        self._forgotten += 1
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all of them. Nothing may be under way off the loop any more."""
        _close_all(self._open)
        for _, files in self._off_loop.values():
            _close_all(files)


def _open(disk: Disk, files: OrderedDict[str, File], limit: int, path: str, create: bool) -> File:
    file = disk.open(path, write=True, create=create)
    files[path] = file
    if len(files) > limit:
        files.popitem(last=False)[1].close()
    return file


def _close_all(files: OrderedDict[str, File]) -> None:
    while files:
        files.popitem()[1].close()
