"""What a copy is made of: values that travel, and how two replicas see that they have the same file.

A segment below the position that is being copied changes no more but by compaction. So two files of one base and one
size are the same file if they end alike: the last batches name their epoch and their offsets, which only one leader
ever gave, and what compaction takes out of a segment only grows. It is compared by its beginning, and by an end that is
longer than a batch is by default, so that a replica which is merely behind need not read all that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from headrace.runtime.disk import File

HEAD_BYTES = 64 << 10
TAIL_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a partition's folder, up to `size`."""

    name: str
    size: int
    digest: int


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A partition at the position that is being copied."""

    topic: str
    """The topic's id, in hex."""
    index: int
    start: int
    end: int
    epoch: int
    epochs: tuple[tuple[int, int], ...]
    """The leader epochs of its batches, and where each begins."""
    cleaned: int
    """Up to where it is compacted."""
    files: tuple[CopiedFile, ...]
    """Segments, with the indexes of those that are closed, and producer snapshots."""
    aborted: tuple[tuple[int, tuple[int, int, int, int]], ...]
    """Aborted transactions, each with the base of the segment that has its marker."""

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.index

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)


@dataclass(frozen=True, slots=True)
class CopyHead:
    """What a replica has at one position of the journal, apart from its partitions."""

    sequence: int
    """The frame up to which everything is in the copy, and no batch behind it."""
    history: tuple[tuple[int, int], ...]
    """Each epoch of the journal up to there, and the sequence of the first frame in it."""
    counters: dict[str, int]
    topics: tuple[dict[str, Any], ...]
    """As checkpoints have them."""


def digest_of(file: File, size: int) -> int:
    """What tells the first `size` bytes of a file from those of another replica's. Blocks."""
    digest = crc32c(file.read(0, min(size, HEAD_BYTES)))
    tail = max(size - TAIL_BYTES, min(size, HEAD_BYTES))
    return crc32c(file.read(tail, size - tail), digest)


def digest_cost(size: int) -> int:
    """How many bytes that reads."""
    return min(size, HEAD_BYTES + TAIL_BYTES)
