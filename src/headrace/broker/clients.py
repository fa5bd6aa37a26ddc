"""Who is connected, through whichever door: what operators see of a connection, and how they cut it off.

Doors say when a connection comes and goes; what it is, is looked at when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple, Protocol

from headrace.broker.security import Session


class Connected(Protocol):
    """What is asked of a connection."""

    session: Session

    @property
    def name(self) -> str:
        """The client's HOST:PORT."""

    @property
    def encrypted(self) -> bool:
        """It speaks TLS."""

    def abort(self) -> None:
        """Close it at once."""


class Client(NamedTuple):
    """A connection."""

    id: int
    door: str
    since: float
    """By the time of the loop."""
    connection: Connected


class Clients:
    """The connections of all doors, in the order in which they came."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._by_connection: dict[Connected, Client] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_connection.values()))

    def __len__(self) -> int:
        return len(self._by_connection)

    def enter(self, connection: Connected, door: str) -> None:
        """A connection has come."""
        now = asyncio.get_running_loop().time()
        self._by_connection[connection] = Client(next(self._ids), door, now, connection)

    def leave(self, connection: Connected) -> None:
        """It has gone."""
        self._by_connection.pop(connection, None)

    def find(self, id: int) -> Client | None:
        """The one with that id."""
        return next((each for each in self._by_connection.values() if each.id == id), None)
