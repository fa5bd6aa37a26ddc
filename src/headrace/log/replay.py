"""What journal and spool have of one partition since the checkpoint: the entries, folded in their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.log.frames import Entry, Kind


class Promised(NamedTuple):
    """A batch that is not in its segment, or need not be."""

    entry: Entry
    journalled: bool
    """Whether everything before it was safe when it was written. What is from the spool is not used behind a gap."""


@dataclass(slots=True)
class Replay:
    """The entries of one partition. A number is -1 where no entry has it."""

    start: int = -1
    epoch: int = -1
    cut: int = -1
    """The end that a truncation gave the log, until a point says that its files have it too."""
    batches: list[Entry] = field(default_factory=list)
    spooled: list[Entry] = field(default_factory=list)
    _point: int = -1
    _lowest: int = -1
    """The lowest end that a truncation gave the log: all of them came after the checkpoint."""

    def add(self, entry: Entry) -> None:
        """Take the next entry of the journal."""
        if entry.kind is Kind.POINT:
            self._point, self.cut = max(self._point, entry.offset), -1
        elif entry.kind is Kind.START:
            self.start = max(self.start, entry.offset)
        elif entry.kind is Kind.EPOCH:
            self.epoch = max(self.epoch, entry.epoch)
        else:
            # A later entry at the same offset means that the earlier one's flush had failed, or that it was cut off.
            while self.batches and self.batches[-1].offset >= entry.offset:
                self.batches.pop()
            if entry.kind is Kind.DATA:
                self.batches.append(entry)
            else:
                self.cut = entry.offset
                self._lowest = entry.offset if self._lowest < 0 else min(self._lowest, entry.offset)
                self._point = min(self._point, entry.offset)

    def point(self, saved: int) -> int:
        """The recovery point, if the checkpoint has `saved`."""
        return max(saved if self._lowest < 0 else min(saved, self._lowest), self._point)

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(len(entry.data) for entry in [*self.batches, *self.spooled])

    def promised(self) -> list[Promised]:
        """The batches in the order of their offsets."""
        batches = [Promised(entry, True) for entry in self.batches] + [Promised(entry, False) for entry in self.spooled]
        return sorted(batches, key=lambda each: each.entry.offset)


def read_replays(journal: Iterable[Entry], spool: Iterable[Entry]) -> dict[tuple[bytes, int], Replay]:
    """What each partition has in them, by topic id and index."""
    replays: dict[tuple[bytes, int], Replay] = defaultdict(Replay)
    for entry in journal:
        if entry.kind is not Kind.CATALOGUE:
            replays[entry.topic, entry.partition].add(entry)
    for entry in spool:
        replays[entry.topic, entry.partition].spooled.append(entry)
    return replays
