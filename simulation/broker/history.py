"""What clients of a broker requested, were answered and saw of each partition, held against what is there.

What a broker may forget after a crash is the promise of the topic's durability, and only that is forgiven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from simulation.history import PartitionView, Record, Violation, require


class State(Enum):
    """What its producer knows of a record."""

    OPEN = "open"
    """Sent, and not answered: it may be there or not."""
    ACKNOWLEDGED = "acknowledged"
    SETTLED = "settled"
    """Never answered (acks=0), but something behind it on the same connection was: it is there."""
    REFUSED = "refused"
    LOST = "lost"
    """A crash took it, as the durability of its topic allows."""


class Survived(Enum):
    """How a broker ended."""

    EVERYTHING = "clean stop"
    CACHE = "kill"
    DEVICE = "power cut"


@dataclass(slots=True, eq=False)
class Sent:
    """One record, sent once, or again and again by an idempotent producer: it may be there once at most."""

    value: str
    source: str
    """Whose order counts: an idempotent producer, or one connection of another."""
    number: int
    """The record's place in that order."""
    state: State = State.OPEN


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was known of a partition at one moment: a look that begins then must find at least this."""

    places: dict[int, str]
    settled: tuple[Sent, ...]
    high: int


@dataclass(slots=True, eq=False)
class PartitionHistory(PartitionView):
    """All that clients know of one partition, and did to it."""

    durability: str = "sync"
    sent: dict[str, Sent] = field(default_factory=dict)
    high: int = 0
    """The largest high watermark in any answer."""
    losses: int = 0
    """How often a crash was allowed to take something."""
    forgiving: bool = False
    """The next read may find less than was answered."""

    def __str__(self) -> str:
        return f"{self.name} ({self.durability})"

    @property
    def trims(self) -> bool:
        """Whether the oldest records may go: a topic in memory keeps what fits there."""
        return self.durability == "memory"

    # --- producers ---

    def send(self, record: Sent) -> None:
        """A record leaves its producer for the first time."""
        self._require(record.value not in self.sent, f"{record.value} is sent by two producers: the history is wrong")
        self.sent[record.value] = record

    def acknowledge(self, record: Sent, offset: int) -> None:
        """The broker answered with the offset of a record."""
        self._require(record.state is not State.REFUSED, f"{record.value} was refused and then acknowledged")
        self.bind(offset, record.value, "acknowledged")
        record.state = State.ACKNOWLEDGED
        self.high = max(self.high, offset + 1)

    def settle(self, record: Sent) -> None:
        """Something behind an unanswered record was acknowledged."""
        if record.state is State.OPEN:
            record.state = State.SETTLED

    def refuse(self, record: Sent) -> None:
        """The broker answered that it has not taken the record."""
        self._require(record.value not in self.offsets, f"{record.value} was refused, yet a reader saw it")
        record.state = State.REFUSED

    # --- what readers see ---

    def read(self, asked: int, records: Sequence[Record], high: int) -> int:
        """A reader asked from an offset and got these. Where it goes on."""
        for offset, value in records:
            self._require(offset >= asked, f"a reader at {asked} got the record of {offset}")
            self._require(offset == asked, f"a reader went from {asked} to {offset}: a hole")
            self._require(offset < high, f"a reader got {value} at {offset}, and the high watermark was {high}")
            self._check_answer(offset, value)
            asked = offset + 1
        self._require(high >= asked, f"a reader at {asked} got the high watermark {high}")
        self.high = max(self.high, high)
        return asked

    def _check_answer(self, offset: int, value: str) -> None:
        record = self.sent.get(value)
        self._require(record is not None, f"{value} at {offset} was never sent")
        assert record is not None
        self._require(record.state is not State.REFUSED, f"{value} was refused, yet it is there at {offset}")
        self._require(record.state is not State.LOST, f"{value} was gone after a crash and came back at {offset}")
        self.bind(offset, value, "read")

    # --- restarts ---

    def end_life(self, survived: Survived) -> None:
        """The broker ended."""
        lossy = {"sync": False, "async": survived is Survived.DEVICE, "memory": True}[self.durability]
        if lossy:
            self.forgiving = True
            self.losses += 1

    def snapshot(self) -> Snapshot:
        """What a look that begins now must find."""
        settled = tuple(each for each in self.sent.values() if each.state is State.SETTLED)
        return Snapshot(dict(self.places), settled, self.high)

    def check(self, known: Snapshot, start: int, records: Sequence[Record], end: int) -> None:
        """All of the partition was read, from its start to its end, since the snapshot was taken."""
        values: dict[str, int] = {}
        for expected, (offset, value) in enumerate(records, start):
            self._require(offset == expected, f"{offset} follows {expected - 1}: a hole")
            self._require(value not in values, f"{value} is at {values.get(value)} and at {offset}: a duplicate")
            values[value] = offset
        self._require(start + len(records) == end, f"the records end at {start + len(records)}, the partition at {end}")
        if self.forgiving:
            self._forgive(end, values)
        else:
            self._require(end >= known.high, f"the end was {known.high}, and is {end}")
            for offset, value in known.places.items():
                kept = offset < end and (offset >= start or self.trims)
                self._require(kept, f"{value} at {offset} is lost: the partition is {start} to {end}")
            for record in known.settled:
                kept = record.value in values or self.trims
                self._require(kept, f"{record.value} was taken with acks=0 and is lost")
        for offset, value in records:
            self._check_answer(offset, value)
        self.check_order((each, self.sent[each[1]].source, self.sent[each[1]].number) for each in records)

    def _forgive(self, end: int, values: dict[str, int]) -> None:
        """What lay at the end may be gone; what is left must be what was there."""
        self.forgiving = False
        for offset in [offset for offset in self.places if offset >= end]:
            value = self.places.pop(offset)
            del self.offsets[value]
            # One that was read but never acknowledged may still be sent again.
            if self.sent[value].state is not State.OPEN:
                self.sent[value].state = State.LOST
        for record in self.sent.values():
            if record.state is State.SETTLED and record.value not in values:
                record.state = State.LOST
        self.high = end

    def _require(self, holds: bool, message: str) -> None:
        require(holds, f"{self}: {message}")


@dataclass(slots=True, eq=False)
class CommitHistory:
    """The offsets that one group commits on one partition; they only rise."""

    name: str
    acknowledged: int = -1
    asked: list[int] = field(default_factory=list)
    """Commits since the last one that is known to hold, which may hold or not."""

    @property
    def last(self) -> int:
        """The largest offset that was ever asked for."""
        return max(self.asked, default=self.acknowledged)

    def start_commit(self, offset: int) -> None:
        self.asked.append(offset)

    def commit(self, offset: int) -> None:
        self.acknowledged = offset
        self.asked = [each for each in self.asked if each > offset]

    def observe(self, offset: int) -> None:
        """A client asked where the group stands."""
        if offset == self.acknowledged:
            return
        if offset < self.acknowledged:
            raise Violation(f"{self.name}: {self.acknowledged} was committed, and went back to {offset}")
        if offset not in self.asked:
            raise Violation(f"{self.name}: {offset} is committed, which no client asked for")
        self.commit(offset)
