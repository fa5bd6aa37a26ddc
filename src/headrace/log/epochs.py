"""The leader epochs of a partition: which epoch began at which offset.

An offset that was lost in a crash is given out again in a higher epoch, so (epoch, offset) names a record for ever
where the offset alone does not. The file, `leader-epoch-checkpoint`, is text in Kafka's format: a version, a count,
and one line an epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

FILE_NAME = "leader-epoch-checkpoint"
VERSION = 0
UNKNOWN = (-1, -1)


class LeaderEpochs:
    """Epochs and their first offsets, both growing."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries = entries or []

    @property
    def latest(self) -> int:
        """The last epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else -1

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Epoch and first offset of each."""
        return list(self._entries)

    def assign(self, epoch: int, offset: int) -> bool:
        """Say that `epoch` begins at `offset`; False if it, or a later one, is known."""
        if epoch <= self.latest:
            return False
        # An epoch that no record was written in leaves no trace.
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        self._entries.append((epoch, offset))
        return True

    def epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was written, -1 where unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else -1

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset at which it ended; (-1, -1) where unknown."""
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return epoch, log_end
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        # Below the first known epoch, all that can be said is that it ended before that one began.
        return self._entries[index - 1][0] if index else epoch, self._entries[index][1]

    def truncate_end(self, offset: int) -> bool:
        """The log ends before `offset` now; whether that changed anything."""
        count = len(self._entries)
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        return len(self._entries) != count

    def dump(self) -> bytes:
        """The contents of the file."""
        lines = [str(VERSION), str(len(self._entries)), *(f"{epoch} {offset}" for epoch, offset in self._entries)]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def load(cls, contents: bytes) -> LeaderEpochs:
        """The epochs that a file holds; none of an empty one. Raises ValueError."""
        if not contents:
            return cls()
        if not contents.endswith(b"\n"):
            raise ValueError(f"the leader epochs are cut off after {len(contents)} bytes")
        version, count, *lines = contents.decode("ascii").splitlines()
        entries = []
        for line in lines:
            epoch, offset = line.split()
            entries.append((int(epoch), int(offset)))
        if int(version) != VERSION or int(count) != len(entries):
            raise ValueError(
                f"the leader epochs (version {version}) announce {count} entries, and {len(entries)} were found"
            )
        for before, after in pairwise(entries):
            if before[0] >= after[0] or before[1] > after[1]:
                raise ValueError(f"the leader epoch {after[0]} ({after[1]}) stands behind {before[0]} ({before[1]})")
        return cls(entries)
