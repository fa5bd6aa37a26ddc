"""What is known of half messages in memory: which are undecided, when each is looked at next, and what became of the
last ones that were decided.

Bodies stay in the log; an undecided message takes about half a kilobyte here, whatever its size. The undecided stand in
the order of their places in the log, so that the first one bounds how far the log can be forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from sys import intern
from typing import TYPE_CHECKING

from headrace.broker.prepared.entries import NEVER, Checked, Decided, Entry, Parked, Prepared

if TYPE_CHECKING:
    from headrace.broker.prepared.check_back import Listener

# Pairs of the heap that speak of nothing any more, beyond as many as there are messages.
SPARE_PAIRS = 1_024


class Pending:
    """An undecided message."""

    __slots__ = (
        *("asked", "checks", "deciding", "group", "next_check_ms", "number", "parked", "partition", "place"),
        *("prepared_ms", "size", "timeout_ms", "topic"),
    )

    def __init__(self, prepared: Prepared, place: int, size: int) -> None:
        message = prepared.message
        self.number = prepared.number
        """Its id's."""
        self.place = place
        """The offset at which it stands now."""
        self.size = size
        """Bytes of its record in the log, about."""
        self.topic = intern(message.topic)
        self.partition = message.partition
        self.group = intern(message.group)
        self.prepared_ms = message.prepared_ms
        self.timeout_ms = message.timeout_ms
        self.checks = prepared.checks
        self.next_check_ms = NEVER if prepared.parked else prepared.next_check_ms
        self.parked = prepared.parked
        self.deciding: asyncio.Future[None] | None = None
        """While it is being decided: done when it is, or could not be."""
        self.asked: Listener | None = None
        """The listener that was asked in this round."""


class Table:
    """The undecided messages, and the outcomes that are remembered."""

    def __init__(self, decided_max: int, check_interval_ms: int) -> None:
        self.pending: OrderedDict[int, Pending] = OrderedDict()
        """By number, in the order of their places."""
        self.decided: OrderedDict[int, Decided] = OrderedDict()
        """By number, in the order in which they were decided."""
        self.parked = 0
        self.bytes = 0
        """Of the undecided messages in the log."""
        self._decided_max = decided_max
        self._check_interval_ms = check_interval_ms
        # Times and numbers; a pair counts if the message is looked at next at that time.
        self._checks: list[tuple[int, int]] = []

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry, offset: int, size: int, now: int) -> None:
        """Take one record of the log, after a start."""
        if isinstance(entry, Prepared):
            known = self.pending.get(entry.number)
            if known is not None:
                self.moved(known, offset)
            elif entry.number not in self.decided:
                pending = Pending(entry, offset, size)
                pending.next_check_ms = self._at_most(pending, now)
                self.add(pending)
        elif isinstance(entry, Decided):
            if entry.number in self.pending:
                self.remove(self.pending[entry.number])
            self.remember(entry)
        elif isinstance(entry, Parked):
            if entry.number in self.pending:
                self.park(self.pending[entry.number])
        elif isinstance(entry, Checked):
            for number, count in entry.checks:
                checked = self.pending.get(number)
                if checked is not None and not checked.parked:
                    checked.checks = count
                    self.check_at(checked, min(entry.at_ms, now) + self._check_interval_ms)

    def add(self, entry: Pending) -> None:
        self.pending[entry.number] = entry
        self.bytes += entry.size
        self.parked += entry.parked
        self._push(entry)

    def moved(self, entry: Pending, place: int) -> None:
        """A message stands at the end of the log now."""
        entry.place = place
        self.pending.move_to_end(entry.number)

    def park(self, entry: Pending) -> None:
        """No producer is asked about it any more."""
        self.parked += not entry.parked
        entry.parked = True
        entry.next_check_ms = NEVER

    def check_at(self, entry: Pending, at_ms: int) -> None:
        """Look at a message at that time."""
        entry.next_check_ms = at_ms
        self._push(entry)

    def remove(self, entry: Pending) -> None:
        del self.pending[entry.number]
        self.bytes -= entry.size
        self.parked -= entry.parked

    def remember(self, decided: Decided) -> None:
        """Keep an outcome, and forget the oldest one if there are too many."""
        self.decided[decided.number] = decided
        if len(self.decided) > self._decided_max:
            self.decided.popitem(last=False)

    def clock_set_back(self, now: int) -> None:
        """No message waits longer than it would from now on."""
        for entry in self.pending.values():
            entry.next_check_ms = self._at_most(entry, now)
        self._rebuild()

    def _at_most(self, entry: Pending, now: int) -> int:
        if entry.next_check_ms == NEVER:
            return NEVER
        return min(entry.next_check_ms, now + max(entry.timeout_ms, self._check_interval_ms))

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def next_check_ms(self) -> int:
        """When a message must be looked at next, or earlier; NEVER."""
        return self._checks[0][0] if self._checks else NEVER

    def due(self, now: int, limit: int) -> Iterator[Pending]:
        """Up to `limit` messages whose time has come; each must get another."""
        while limit and self._checks and self._checks[0][0] <= now:
            at, number = heappop(self._checks)
            entry = self.pending.get(number)
            if entry is not None and entry.next_check_ms == at:
                limit -= 1
                yield entry

    def oldest(self, end: int) -> int:
        """The offset below which nothing in the log is needed; `end` where nothing is at all."""
        pending = next(iter(self.pending.values()), None)
        decided = next(iter(self.decided.values()), None)
        return min(end if pending is None else pending.place, end if decided is None else decided.place)

    def _push(self, entry: Pending) -> None:
        if entry.next_check_ms == NEVER:
            return
        heappush(self._checks, (entry.next_check_ms, entry.number))
        if len(self._checks) > 2 * len(self.pending) + SPARE_PAIRS:
            self._rebuild()

    def _rebuild(self) -> None:
        self._checks = [
            (entry.next_check_ms, entry.number) for entry in self.pending.values() if entry.next_check_ms != NEVER
        ]
        heapify(self._checks)
