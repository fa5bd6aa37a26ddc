"""What clients of a group know, and what may never change of it.

Each frame carries a value of its own. A producer that was acknowledged knows where its value stands, a reader knows
what it found; both hold on every node from then on, for ever.
"""

from __future__ import annotations

from collections import Counter

from headrace.log.group_frames import GroupFrame, Position
from simulation.history import require


class GroupHistory:
    """What was acknowledged and read, whichever node answered."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        """Whether nothing goes wrong any more, and no operator disturbs what settles."""
        self._values = 0
        self._acknowledged: dict[int, bytes] = {}
        self._read: dict[int, tuple[Position, bytes]] = {}
        self._leaders: dict[int, str] = {}

    def next_value(self) -> bytes:
        """A value that no other frame has."""
        self._values += 1
        return b"%d" % self._values

    def acknowledge(self, sequence: int, value: bytes) -> None:
        """A producer was told that its value is committed there."""
        self.counts["acknowledged"] += 1
        other = self._acknowledged.setdefault(sequence, value)
        require(other == value, f"frame {sequence} was acknowledged as {other!r} and as {value!r}")

    def read(self, node: str, frame: GroupFrame, value: bytes) -> None:
        """A reader found this, committed, on a node."""
        self.counts["read"] += 1
        found = frame.position, value
        known = self._read.setdefault(frame.sequence, found)
        require(known == found, f"{node} has {found} where {known} was read")
        wanted = self._acknowledged.get(frame.sequence, value)
        require(wanted == value, f"{node} has {value!r} at {frame.sequence}, where {wanted!r} was acknowledged")

    def lead(self, node: str, epoch: int) -> None:
        """A node leads in an epoch."""
        self.counts["leaderships"] += 1
        leader = self._leaders.setdefault(epoch, node)
        require(leader == node, f"{leader} and {node} both lead in epoch {epoch}")

    def check(self, node: str, log: dict[int, tuple[Position, bytes]]) -> None:
        """A node has everything that clients know of, and where they know it."""
        for sequence, value in self._acknowledged.items():
            found = log.get(sequence)
            require(
                found is not None and found[1] == value, f"{node} lost {value!r}, acknowledged at {sequence}: {found}"
            )
        for sequence, known in self._read.items():
            require(log.get(sequence) == known, f"{node} has {log.get(sequence)} where {known} was read")
