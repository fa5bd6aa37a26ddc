"""Putting compacted segments in the place of the old: a crash at any moment leaves all of the old or all of the new.

Compaction writes beside the old files, under names that end in `.cleaned`, and syncs them. One small file,
`compaction-swap`, then names the segments that change places; the moment it is durable decides. Everything behind it
(old files renamed to `.deleted`, new ones to their final names, the list removed) can be done again from the list, in
any state that a power cut leaves behind. Without a list, what ends in `.cleaned` never happened.

The three steps are apart because only the middle one must be on the loop, where it takes no more than some renames:
between two reads the old segments have gone and the new ones are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CorruptLog
from headrace.log.names import INDEX_SUFFIXES, SEARCH_SUFFIX, segment_path
from headrace.runtime.disk import Disk, read_whole, replace_whole

LIST_NAME = "compaction-swap"
CHECKPOINT_NAME = "cleaner-offset-checkpoint"
CLEANED = ".cleaned"
DELETED = ".deleted"
VERSION = 1
# What the file of the checkpoint says where that is not to change.
UNCHANGED = -1

FILES = (*INDEX_SUFFIXES, ".log")


@dataclass(frozen=True, slots=True)
class Group:
    """Segments that became one."""

    bases: tuple[int, ...]
    """The old ones; the new one begins where the first did."""

    @property
    def base(self) -> int:
        return self.bases[0]


def commit(disk: Disk, folder: str, groups: Sequence[Group], clean_up_to: int = UNCHANGED) -> None:
    """Decide: from here on the new segments count, and the log is clean up to that offset. Blocks."""
    lines = [str(VERSION), str(clean_up_to), str(len(groups)), *(" ".join(map(str, group.bases)) for group in groups)]
    replace_whole(disk, f"{folder}/{LIST_NAME}", ("\n".join(lines) + "\n").encode("ascii"))


def install(disk: Disk, folder: str, groups: Sequence[Group]) -> None:
    """Rename what is to be renamed. Nothing here waits for the device."""
    for group in groups:
        for base in group.bases:
            # It is made anew, from the new segment.
            disk.remove(segment_path(folder, base, SEARCH_SUFFIX))
            for suffix in FILES:
                path = segment_path(folder, base, suffix)
                fresh = base == group.base and disk.exists(path + CLEANED)
                # Without a fresh file beside it, what has the name of the new segment is the new segment.
                if (base != group.base or fresh) and disk.exists(path):
                    disk.rename(path, path + DELETED)
                if fresh:
                    disk.rename(path + CLEANED, path)


def settle(disk: Disk, folder: str, clean_up_to: int = UNCHANGED) -> None:
    """Make the names durable, note how far the log is clean, and let the old files go. Blocks."""
    disk.sync_dir(folder)
    if clean_up_to != UNCHANGED:
        write_checkpoint(disk, folder, clean_up_to)
    disk.remove(f"{folder}/{LIST_NAME}")
    disk.sync_dir(folder)
    _remove_all(disk, folder, DELETED)


def finish_swaps(disk: Disk, folder: str) -> None:
    """Complete the swap that a crash cut short, if one was decided, and clear away what it left. Blocks."""
    names = disk.listdir(folder)
    if LIST_NAME in names:
        groups, clean_up_to = read_list(disk, folder)
        install(disk, folder, groups)
        settle(disk, folder, clean_up_to)
    for name in names:
        if name.endswith((CLEANED, DELETED)) or name in (f"{LIST_NAME}.tmp", f"{CHECKPOINT_NAME}.tmp"):
            disk.remove(f"{folder}/{name}")


def read_list(disk: Disk, folder: str) -> tuple[list[Group], int]:
    """The groups of the swap that was decided, and up to where the log is clean with it. Raises CorruptLog."""
    path = f"{folder}/{LIST_NAME}"
    contents = read_whole(disk, path) or b""
    try:
        version, clean_up_to, count, *lines = contents.decode("ascii").splitlines()
        groups = [Group(tuple(map(int, line.split()))) for line in lines]
        if int(version) != VERSION or int(count) != len(groups) or not all(group.bases for group in groups):
            raise ValueError(f"version {version}, {count} groups announced, {len(groups)} found")
        return groups, int(clean_up_to)
    except ValueError as error:
        raise CorruptLog(f"{path}, which lists segments that change places, cannot be read: {error}") from error


def read_checkpoint(disk: Disk, folder: str) -> int:
    """Up to where the partition is compacted; 0 where that is not known, which costs a compaction of all of it."""
    contents = read_whole(disk, f"{folder}/{CHECKPOINT_NAME}") or b""
    try:
        return int(contents.decode("ascii").splitlines()[2].split()[2])
    except (ValueError, IndexError):
        return 0


def write_checkpoint(disk: Disk, folder: str, offset: int) -> None:
    """Note up to where the partition is compacted, in the format of Kafka's file of this name. Blocks."""
    topic, _, partition = folder.rpartition("/")[2].rpartition("-")
    contents = f"0\n1\n{topic or '-'} {partition or 0} {offset}\n"
    replace_whole(disk, f"{folder}/{CHECKPOINT_NAME}", contents.encode("utf-8"))


def discard(disk: Disk, folder: str) -> None:
    """Remove what a run has written that was not put in place."""
    _remove_all(disk, folder, CLEANED)


def _remove_all(disk: Disk, folder: str, ending: str) -> None:
    for name in disk.listdir(folder):
        if name.endswith(ending):
            disk.remove(f"{folder}/{name}")
