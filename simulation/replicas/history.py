"""What clients of a replicated log know, and what may never change of it.

Each batch carries a value of its own. A producer that was acknowledged knows the offsets of its values; a reader knows
what it found, on whichever replica. Both hold on every replica from then on. An append to two partitions has the same
value in both: where one is seen at the end, the other is too.
"""

from __future__ import annotations

from collections import Counter

from simulation.history import require

# Topic, partition and offset.
Place = tuple[str, int, int]


class LogHistory:
    """What was acknowledged and read, whichever replica answered."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        """Whether nothing goes wrong any more, and no operator disturbs what settles."""
        self._values = 0
        self._acknowledged: dict[Place, bytes] = {}
        self._read: dict[Place, bytes] = {}
        self._leaders: dict[int, str] = {}
        self.pairs: dict[bytes, tuple[tuple[str, int], tuple[str, int]]] = {}
        """The two partitions of each value that was appended to two."""
        self.is_over = False
        """Whether nothing more is to be changed."""
        self.inspected_from: int | None = None
        """The frame that a replica must have applied before all that it has is read; None: it is not read yet."""
        self.starts: Counter[tuple[str, int]] = Counter()
        """The greatest start that a trim of a partition asked for."""

    def next_value(self) -> bytes:
        """A value that no other batch has."""
        self._values += 1
        return b"%d" % self._values

    def acknowledge(self, place: Place, value: bytes) -> None:
        """A producer was told that its value is committed there."""
        self.counts["acknowledged"] += 1
        self._agree(self._acknowledged, place, value, "acknowledged")
        self._agree(self._read, place, value, "acknowledged, and read")

    def read(self, node: str, place: Place, value: bytes) -> None:
        """A reader found this below the high watermark of a replica."""
        self.counts["read"] += 1
        self._agree(self._read, place, value, f"read on {node}")
        known = self._acknowledged.get(place, value)
        require(known == value, f"{node} has {value!r} at {place}, where {known!r} was acknowledged")

    @staticmethod
    def _agree(known: dict[Place, bytes], place: Place, value: bytes, what: str) -> None:
        other = known.setdefault(place, value)
        require(other == value, f"{place} was {what} as {other!r} and as {value!r}")

    def lead(self, node: str, epoch: int) -> None:
        """A replica leads in an epoch."""
        self.counts["leaderships"] += 1
        leader = self._leaders.setdefault(epoch, node)
        require(leader == node, f"{leader} and {node} both lead in epoch {epoch}")

    def check(self, node: str, topic: str, partition: int, start: int, values: dict[int, bytes]) -> None:
        """A replica has all of a partition that clients know of, where they know it, and `values` are all of it."""
        for known in (self._acknowledged, self._read):
            for (name, index, offset), value in known.items():
                if (name, index) == (topic, partition) and offset >= start:
                    found = values.get(offset)
                    require(found == value, f"{node}: {topic}-{partition} has {found!r} at {offset}, not {value!r}")

    def check_pairs(self, node: str, have: dict[tuple[str, int], tuple[int, dict[int, bytes]]]) -> None:
        """Appends to two partitions are whole on a replica."""
        found = {place: set(values.values()) for place, (_, values) in have.items()}
        for value, places in self.pairs.items():
            if any(have[place][0] > 0 for place in places if place in have):
                continue  # Trimmed: one of them may be gone.
            seen = [value in found.get(place, ()) for place in places]
            require(len(set(seen)) == 1, f"{node} has {value!r} in one of {places} only")
