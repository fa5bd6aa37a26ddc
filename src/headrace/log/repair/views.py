"""Disks that are not quite as they are, for looking at a damaged directory without changing it.

Both have of a `Disk` what reading needs: the names in a folder, and files.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log import swap
from headrace.log.journal import FOLDER
from headrace.log.swap import CLEANED, LIST_NAME, Group
from headrace.runtime.disk import Disk, File


class AsideJournal:
    """A disk on which a journal that was set aside is the journal."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(self._at(path))

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        assert not write
        assert not create
        return self._disk.open(self._at(path))

    def _at(self, path: str) -> str:
        return self._folder + path.removeprefix(FOLDER)


class Swapped:
    """A disk on which a compaction that was decided, and cut short, is complete."""

    def __init__(self, disk: Disk, folder: str, groups: Sequence[Group]) -> None:
        self._disk = disk
        self._folder = folder
        there = set(disk.listdir(folder))
        # The names that are to be seen, and the files that they mean.
        self._files = {name: name for name in there if not name.endswith((CLEANED, swap.DELETED)) and name != LIST_NAME}
        for group in groups:
            for base in group.bases:
                for name in (f"{base:020d}{suffix}" for suffix in swap.FILES):
                    fresh = base == group.base and name + CLEANED in there
                    if fresh or base != group.base:
                        self._files.pop(name, None)
                    if fresh:
                        self._files[name] = name + CLEANED

    def listdir(self, path: str) -> list[str]:
        return sorted(self._files) if path == self._folder else self._disk.listdir(path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        assert not write
        assert not create
        folder, _, name = path.rpartition("/")
        if folder == self._folder and name not in self._files:
            raise FileNotFoundError(path)
        return self._disk.open(f"{folder}/{self._files[name]}" if folder == self._folder else path)
