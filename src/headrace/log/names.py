"""The files of a segment are named by its base offset, in twenty digits, as Kafka names them."""

from __future__ import annotations

from headrace.runtime.disk import Disk

INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
SEARCH_SUFFIX = ".search"
SUFFIXES = (".log", *INDEX_SUFFIXES, SEARCH_SUFFIX, ".snapshot")


def segment_path(folder: str, base: int, suffix: str) -> str:
    """Where a file of the segment that begins at `base` stands."""
    return f"{folder}/{base:020d}{suffix}"


def segment_bases(disk: Disk, folder: str, suffix: str = ".log") -> list[int]:
    """The offsets that the files with a suffix are named by, in their order."""
    names = [name.removesuffix(suffix) for name in disk.listdir(folder) if name.endswith(suffix)]
    return [int(name) for name in names if len(name) == 20 and name.isdigit()]


def orphans(disk: Disk, folder: str) -> list[str]:
    """The paths of indexes whose segment is gone."""
    names = disk.listdir(folder)
    there = {name.removesuffix(".log") for name in names if name.endswith(".log")}
    suffixes = (*INDEX_SUFFIXES, SEARCH_SUFFIX)
    return [f"{folder}/{name}" for name in names if name.endswith(suffixes) and name.partition(".")[0] not in there]
