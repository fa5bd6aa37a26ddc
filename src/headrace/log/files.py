"""The descriptors of segments, a bounded number of them at once.

Tens of thousands of partitions share some thousand descriptors: each user of a file asks here every time and never
keeps it, so any of them can be closed at any moment. A user that must keep one (a reply being sent, a sync in another
thread) pins it, and the descriptor outlives its place here.

Producers go round their partitions. Where those are more than the descriptors, closing the least recently used file
would close each one just before its turn. So a hand goes round the open files, a step with every file that needs room:
a file that was not used since the hand last came by makes room; if it was, the file that was opened last does. So as
many stay as there is room for, and those out of use leave within two rounds.

The files belong to the thread that made this object, the loop's. Work off the loop (loading, looking a place up) asks
here too, and gets descriptors of its own: one that the loop closes under it could already mean another file. They are
few, and opened anew once any file has been forgotten, because its name may mean another file by then.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.runtime.disk import Disk, File
from headrace.runtime.offload import thread_id

# Descriptors that each thread off the loop keeps.
OFF_LOOP_FILES = 4


class _Open:
    __slots__ = ("file", "used")

    def __init__(self, file: File) -> None:
        self.file = file
        # Since the hand last came by.
        self.used = True


class OpenFiles:
    """Open files by path, in the order in which the hand comes to them."""

    __slots__ = ("_disk", "_forgotten", "_limit", "_newest", "_off_loop", "_open", "_owner")

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = max(1, limit)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._newest = ""
        self._owner = thread_id()
        # How often files were forgotten; by thread, that number as of when its files were opened, and the files.
        self._forgotten = 0
        self._off_loop: dict[int, tuple[int, OrderedDict[str, File]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """The file at `path`, open for reading and writing. Good until the next call here, unless pinned."""
        if thread_id() != self._owner:
            return self._get_off_loop(path, create)
        found = self._open.get(path)
        if found is not None:
            found.used = True
            return found.file
        opened = self._disk.open(path, write=True, create=create)
        if len(self._open) >= self._limit:
            self._make_room()
        self._open[path] = _Open(opened)
        self._newest = path
        return opened

    def _make_room(self) -> None:
        at_hand, found = next(iter(self._open.items()))
        if found.used:
            found.used = False
            self._open.move_to_end(at_hand)
            # Where that one is gone already, by another way, this one must do.
            at_hand = self._newest if self._newest in self._open else at_hand
        self._open.pop(at_hand).file.close()

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
        file = files[path] = self._disk.open(path, write=True, create=create)
        if len(files) > OFF_LOOP_FILES:
            files.popitem(last=False)[1].close()
        return file

    def forget(self, path: str) -> None:
        """Close the file if it is open: its name has moved or gone. Call it behind that, not before: off the loop the
        name may be opened at any moment, and what was opened before this call is not used after it."""
        self.forget_off_loop()
        found = self._open.pop(path, None)
        if found is not None:
            found.file.close()

    def forget_off_loop(self) -> None:
        """The same for all files of other threads, where names of many files moved that the loop has let go of."""
        self._forgotten += 1

    def close(self) -> None:
        """Close all of them. Nothing may be under way off the loop any more."""
        while self._open:
            self._open.popitem()[1].file.close()
        for _, files in self._off_loop.values():
            _close_all(files)


def _close_all(files: OrderedDict[str, File]) -> None:
    while files:
        files.popitem()[1].close()
