"""What every history of clients rests on: what they were answered of a partition may never change.

Each record carries a value of its own, so an offset of a partition is known by one value and each value has one offset.
A client that learns of one (a producer by its acknowledgement, a reader by what it got) binds offset and value
together, and from then on no client may see them apart.

Nothing here knows of a simulator, of sockets or of a broker: clients of any broker can write such a history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Place = tuple[str, int]
"""Topic and partition."""
Record = tuple[int, str]
"""An offset and the value that was found there."""


class Violation(AssertionError):
    """A broken promise."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Violation(message)


@dataclass(slots=True, eq=False)
class PartitionView:
    """What clients know of one partition."""

    name: str
    places: dict[int, str] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def bind(self, offset: int, value: str, how: str) -> None:
        there = self.places.setdefault(offset, value)
        require(there == value, f"{self}: {value} was {how} at {offset}, where {there} is")
        where = self.offsets.setdefault(value, offset)
        require(where == offset, f"{self}: {value} was {how} at {offset}, and is at {where} too: a duplicate")

    def check_order(self, records: Iterable[tuple[Record, str, int]]) -> None:
        """Records come with their source and their number there: those of one source stand in its order."""
        last: dict[str, tuple[int, str]] = {}
        for (offset, value), source, number in records:
            before, other = last.get(source, (-1, ""))
            require(before < number, f"{self}: {value} at {offset} stands behind {other}, which was sent after it")
            last[source] = number, value
