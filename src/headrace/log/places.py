"""Where readers go on.

A reader that follows a partition asks next for the offset behind what it got. So a read looks once at the batch behind
its last, and what it saw there is kept for the next one, which then finds its place without a look at any file. A place
holds for as long as nothing but appends happens to its segment: compaction makes segments anew, and one that is cut
gets another number.

One table serves all partitions, so its bound is the process's. A reader whose place was evicted looks it up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

# With the entries of an index that a place may have (`index.py`), 16 MiB at most.
PLACES_KEPT = 1_024

NONE_BEFORE = -1


class Place(NamedTuple):
    """A batch from which a reader goes on."""

    position: int
    size: int
    """Of the batch there; 0 where the segment's batches end."""
    entries: bytes = b""
    """Of the segment's offset index, from the batch on, as many as were read; none while that is in memory."""
    before: int = NONE_BEFORE
    """The offset of the place that the reader had before."""


class Places:
    """The places of all readers, by the number of their segment (`Segment.number`) and their offset."""

    __slots__ = ("_kept", "_limit")

    def __init__(self, limit: int = PLACES_KEPT) -> None:
        self._limit = limit
        # By a segment's number, not its base: a place that was looked up while compaction replaced the segment is not
        # one of the new file. Nor by the segment itself, whose index would stay as long as a place.
        self._kept: OrderedDict[tuple[int, int], Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, segment: int, offset: int) -> Place | None:
        """The place of an offset. The reader has left the one before."""
        place = self._kept.get((segment, offset))
        if place is not None and place.before != NONE_BEFORE:
            self._kept.pop((segment, place.before), None)
        return place

    def keep(self, segment: int, offset: int, place: Place) -> None:
        """Keep a place; may be called in any thread."""
        self._kept[segment, offset] = place
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
