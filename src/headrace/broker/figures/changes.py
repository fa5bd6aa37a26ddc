"""Rows in the order in which they last changed, so that a reader asks for what changed since it asked before.

Each change takes the next number. A reader brings the last number that it has seen and gets the rows behind it, some at
a time: to page through all of them and to follow their changes is the same. A row that is gone stays as a mark until
the order is compacted; a reader that was away for longer starts anew.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

Key = tuple[str, ...]
"""The kind of a row, and its names."""
Row = tuple[object, ...]

# Entries that are passed over or copied between two turns of the loop: about a quarter of a millisecond.
STEP_ENTRIES = 1_024
# Stale entries that the order may have beside as many as there are rows.
SLACK = 1_024


class Place(NamedTuple):
    """How far a reader has come."""

    number: int
    """Of the last change that it has seen."""
    round: int
    """Of forgetting marks: those that it has not seen are there while no other has begun."""


START = Place(0, 0)


class Changed(NamedTuple):
    """A part of the rows."""

    rows: list[tuple[Key, Row | None]]
    """None: gone."""
    place: Place
    """Go on from here."""
    more: bool
    full: bool
    """The reader knows nothing that still counts: these are the first of all rows."""


class Changes:
    """Rows by key."""

    def __init__(self) -> None:
        self.number = 0
        """Of the last change."""
        self._rows: dict[Key, tuple[int, Row | None]] = {}
        self._order: list[tuple[int, Key]] = []
        # Marks of rows that are gone, and the last number of one that may have been forgotten.
        self._marks = 0
        self._last_mark = 0
        self._forgotten = 0
        self._round = 0

    def get(self, key: Key) -> Row | None:
        """The row as it is."""
        return self._rows.get(key, (0, None))[1]

    def put(self, key: Key, row: Row) -> None:
        """A row as it is now."""
        known = self._rows.get(key)
        if known is None or known[1] != row:
            self._marks -= known is not None and known[1] is None
            self._set(key, row)

    def drop(self, key: Key) -> None:
        """A row is gone."""
        if self.get(key) is not None:
            self._set(key, None)
            self._marks += 1
            self._last_mark = self.number

    def _set(self, key: Key, row: Row | None) -> None:
        self.number += 1
        self._rows[key] = self.number, row
        self._order.append((self.number, key))

    def after(self, place: Place, limit: int, wanted: Callable[[Key], bool] = lambda key: True) -> Changed:
        """At most `limit` of the wanted rows behind a place."""
        number = place.number
        missed = place.round != self._round and number < self._forgotten
        full = number == 0 or missed or number > self.number
        number = 0 if full else number
        round = self._round if full or number >= self._forgotten else place.round
        at = bisect_right(self._order, number, key=_number_of)
        stop = min(at + STEP_ENTRIES, len(self._order))
        found: list[tuple[Key, Row | None]] = []
        while at < stop and len(found) < limit:
            number, key = self._order[at]
            at += 1
            current, row = self._rows.get(key, (0, None))
            if current == number and wanted(key):
                found.append((key, row))
        return Changed(found, Place(number, round), at < len(self._order), full)

    async def compact(self) -> None:
        """Forget old entries, if there are many. The one who changes rows calls it, and changes none meanwhile."""
        if len(self._order) <= 2 * (len(self._rows) - self._marks) + SLACK:
            return
        if self._marks:
            self._forgotten = self._last_mark
            self._round += 1
            self._marks = 0
        order: list[tuple[int, Key]] = []
        for first in range(0, len(self._order), STEP_ENTRIES):
            for entry in self._order[first : first + STEP_ENTRIES]:
                number, row = self._rows.get(entry[1], (0, None))
                if number != entry[0]:
                    continue
                if row is None:
                    del self._rows[entry[1]]
                else:
                    order.append(entry)
            await asyncio.sleep(0)
        self._order = order


def _number_of(entry: tuple[int, Key]) -> int:
    return entry[0]
