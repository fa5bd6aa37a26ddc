"""Who is at a door: connections are counted in and out, refused when there are too many, and waited for at a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from headrace.broker.clients import Connected
from headrace.broker.metrics import DoorMetrics
from headrace.doors.capacity import Capacity


class Closable(Connected, Protocol):
    """What is asked of a connection."""

    def close_when_idle(self) -> None:
        """Handle no further request, and close once those under way are answered."""


C = TypeVar("C", bound=Closable)


class Roster(Generic[C]):
    """The connections of one door, in the order in which they came: the same run closes them in the same order."""

    def __init__(self, most: int, metrics: DoorMetrics, capacity: Capacity | None = None) -> None:
        self._most = most
        self._metrics = metrics
        self.capacity = capacity or Capacity()
        """What this door shares with the others."""
        # With the addresses from which they came.
        self._connections: dict[C, str] = {}
        self._limits = self.capacity.limits
        self._clients = self.capacity.clients
        self._closed = False
        # Done when a stopping door has no connection left.
        self._emptied: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: C, host: str) -> float | None:
        """Count a new connection from an address in; the seconds for which it is not read. None: it is refused, because
        there are too many, or the door is closing."""
        wait = 0.0
        room = len(self._connections) < self._most and not self._closed
        if not room or not self.capacity.take():
            self._metrics.connections_refused += 1
            if room:
                self.capacity.refused(self._metrics.name, asyncio.get_running_loop().time())
            return None
        if self._limits is not None:
            admitted = self._limits.admit(host)
            if admitted is None:
                self.capacity.give_back()
                self._metrics.connections_refused += 1
                return None
            wait = admitted
        self._connections[connection] = host
        self._clients.enter(connection, self._metrics.name)
        self._metrics.connections_accepted += 1
        self._metrics.connections = len(self._connections)
        return wait

    def forget(self, connection: C) -> None:
        """Count a lost connection out."""
        if connection in self._connections:
            host = self._connections.pop(connection)
            self._clients.leave(connection)
            if self._limits is not None:
                self._limits.forget(host)
            self.note_unread(connection, 0)
            self.capacity.release(connection)
            self.capacity.give_back()
        self._metrics.connections = len(self._connections)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def note_unread(self, connection: C, size: int, files: int = 0) -> None:
        """What waits for a client to be read is now `size` bytes, sent from so many files. Where the doors hold too
        much, the connections that have waited the longest are aborted, this one too."""
        now = asyncio.get_running_loop().time()
        aborted = self.capacity.note_unread(connection, size, files, self._metrics.name, now)
        self._metrics.connections_unread += aborted

    async def close(self, seconds: float) -> None:
        """Admit no connection any more, close all, and abort those that are still there after some seconds."""
        self._closed = True
        for connection in self:
            connection.close_when_idle()
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=seconds)
        for connection in self:
            connection.abort()
