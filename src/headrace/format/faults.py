"""Which records of a batch are refused, and why: gathered over the whole batch, so that its producer can tell the bad
records from the good ones that came with them."""

from __future__ import annotations

from headrace.errors import InvalidRecords, InvalidTimestamp, RecordsRefused

# Of a batch with more bad records than this, only so many are named: a producer that sends the others again learns of
# the next ones.
NAMED_MAX: int = 4_096


class Faults:
    """The bad records of one batch."""

    def __init__(self) -> None:
        self.count = 0
        self.kind: type[RecordsRefused] = InvalidRecords
        self.named: list[tuple[int, str]] = []

    def note(self, index: int, reason: str, kind: type[RecordsRefused] = InvalidRecords) -> None:
        """A record is refused. As in Kafka a wrong time gives its name to the whole; else the first one's kind does."""
        if kind is InvalidTimestamp or not self.count:
            self.kind = kind
        self.count += 1
        if len(self.named) < NAMED_MAX:
            self.named.append((index, reason))

    def check(self) -> None:
        """Raise what was noted, if anything was."""
        if self.count == 1:
            raise self.kind(self.named[0][1], self.named)
        if self.count:
            first = "; ".join(reason for _, reason in self.named[:3])
            raise self.kind(
                f"{self.count} records of the batch are refused, of which the first are: {first}", self.named
            )
