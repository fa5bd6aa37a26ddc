"""The files of a segment are named by its base offset, in twenty digits, as Kafka names them."""

from __future__ import annotations

from headrace.ground.disk import Disk

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def segment_path(folder: str, base: int, suffix: str) -> str:
    """Where a file of the segment that begins at `base` stands."""
    return f"{folder}/{base:020d}{suffix}"


def segment_bases(disk: Disk, folder: str, suffix: str = ".log") -> list[int]:
    """The offsets that the files with a suffix are named by, in their order."""
    names = [name.removesuffix(suffix) for name in disk.listdir(folder) if name.endswith(suffix)]
    return [int(name) for name in names if len(name) == 20 and name.isdigit()]
