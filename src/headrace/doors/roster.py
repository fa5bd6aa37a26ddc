"""Who is at a door: connections are counted in and out, refused when there are too many, and waited for at a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from headrace.broker.metrics import DoorMetrics


class Abortable(Protocol):
    """What is asked of a connection."""

    def abort(self) -> None: ...


C = TypeVar("C", bound=Abortable)


class Roster(Generic[C]):
    """The connections of one door, in the order in which they came: the same run closes them in the same order."""

    def __init__(self, most: int, metrics: DoorMetrics) -> None:
        self._most = most
        self._metrics = metrics
        self._connections: dict[C, None] = {}
        self._closed = False
        # Done when a stopping door has no connection left.
        self._emptied: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: C) -> bool:
        """Count a new connection in, unless there are too many, or the door is closing."""
        if len(self._connections) >= self._most or self._closed:
            self._metrics.connections_refused += 1
            return False
        self._connections[connection] = None
        self._metrics.connections_accepted += 1
        self._metrics.connections = len(self._connections)
        return True

    def forget(self, connection: C) -> None:
        """Count a lost connection out."""
        self._connections.pop(connection, None)
        self._metrics.connections = len(self._connections)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    async def close(self, ask: Callable[[C], None], seconds: float) -> None:
        """Admit nobody any more, ask everybody to go, and abort who has not gone after some seconds."""
        self._closed = True
        for connection in self:
            ask(connection)
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=seconds)
        for connection in self:
            connection.abort()
