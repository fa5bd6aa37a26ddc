"""The ids of one topic that count at the moment, and those publishes of it that are on their way.

An id is taken when its message is given to the log, not when that is durable: a second message with it must not be
stored in between. But no publish is acknowledged while a power cut could still take its message back. So a
publish that repeats an id of a *flight* (an append that is not durable yet) waits for that flight, and fails with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.deduplication import ids as kernel
from headrace.broker.deduplication.ids import Claim, Table
from headrace.log.interface import Done, Partition, Topic


@dataclass(slots=True, eq=False)
class Flight:
    """One append that is not durable yet, and the callbacks that wait for it."""

    first: int
    """Its entries in the table are from here ..."""
    last: int
    """... to before this."""
    waiters: list[Done] = field(default_factory=list)


class Joint:
    """Calls `done` once, when the last of several things has come or failed: flights, and so many others."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, done: Done | None, flights: Sequence[Flight], others: int) -> None:
        self._done = done
        self._left = len(flights) + others
        self._error: Exception | None = None
        for flight in flights:
            flight.waiters.append(self.on_durable)
        if not self._left:
            self._left = 1
            asyncio.get_running_loop().call_soon(self.on_durable, None)

    def on_durable(self, error: Exception | None) -> None:
        """One of them has."""
        self._left -= 1
        self._error = self._error or error
        if not self._left and self._done is not None:
            self._done(self._error)


class Window:
    """What is known of the ids of one topic."""

    __slots__ = ("counted", "dropped", "flights", "log", "span_ms", "table", "topic")

    def __init__(self, topic: Topic, span_ms: int, log: Partition | None) -> None:
        self.topic = topic
        self.span_ms = span_ms
        self.log = log
        """Where its ids are written down; None for a topic that is in memory only, as they are then."""
        # The topic's own id as the key: the hashes of one topic's ids mean nothing for another's.
        self.table = Table(topic.id.bytes)
        self.flights: dict[int, Flight] = {}
        """By the first of their entries; the oldest is the first."""
        self.counted = 0
        """Of the table's ids, how many the broker has counted."""
        self.dropped = False
        """The topic is gone, or wants no window any more; only its last flights know of this one."""

    def pending(self, claims: Sequence[Claim | None]) -> list[Flight]:
        """The flights with ids that these claims repeat."""
        oldest = next(iter(self.flights), None)
        if oldest is None:
            return []
        repeated = [
            claim.duplicates for claim in claims if claim is not None and kernel.newest(claim.duplicates) >= oldest
        ]
        # There may be thousands of flights: none is looked at for claims that repeat nothing new.
        if not repeated:
            return []
        return [
            flight
            for flight in self.flights.values()
            if any(kernel.within(each, flight.first, flight.last) for each in repeated)
        ]

    def take_back(self, claims: Sequence[Claim | None]) -> None:
        """The log did not take what these claimed."""
        for claim in claims:
            if claim is not None:
                self.flights.pop(claim.first, None)
                self.table.forget(claim.first, claim.last)
