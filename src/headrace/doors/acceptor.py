"""A listening address of a door: it admits connections, and holds what they share."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

from headrace.broker.metrics import DoorMetrics
from headrace.doors.capacity import Capacity
from headrace.doors.connection import BufferedConnection
from headrace.doors.listeners import BACKLOG
from headrace.doors.receiving import Buffers, EndOfTurn
from headrace.doors.roster import Closable, Roster
from headrace.doors.tls import TlsServer

log = structlog.get_logger("headrace.doors")

# How often idle connections are looked for, in parts of the time that they may be idle.
SWEEPS = 10

C = TypeVar("C", bound=Closable)
B = TypeVar("B", bound=BufferedConnection)


class Acceptor(Generic[C]):
    """Listens, and counts connections in and out."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, metrics: DoorMetrics, connections_max: int, capacity: Capacity | None = None) -> None:
        self.metrics = metrics
        self.connections: Roster[C] = Roster(connections_max, metrics, capacity)
        self.address: tuple[str, int] = ("", 0)
        """Where it listens, or did."""
        self._servers: list[asyncio.Server | TlsServer] = []

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return bool(self._servers)

    def connect(self) -> asyncio.BaseProtocol:
        """A connection for a client that has come."""
        raise NotImplementedError

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen, over TLS alone where a context is given; port 0 picks one, which `address` then has. Where there are
        `sockets` that listen there, they are used, and closed at the end. Raises OSError where that cannot be."""
        self.address = await self.listen_too(host, port, self.connect, tls, sockets)

    async def listen_too(
        self,
        host: str,
        port: int,
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        sockets: Sequence[socket.socket],
    ) -> tuple[str, int]:
        """Listen at one address of several, whose connections `connect` makes; the address. As `listen`."""
        self.loop = asyncio.get_running_loop()
        servers: list[asyncio.Server | TlsServer] = []
        if tls is not None:
            server = TlsServer(connect, tls, self.metrics, self.connections.capacity)
            await server.start(host, port, sockets)
            servers = [server]
        elif sockets:
            servers = [await self.loop.create_server(connect, sock=each, backlog=BACKLOG) for each in sockets]
        else:
            servers = [await self.loop.create_server(connect, host, port, backlog=BACKLOG)]
        self._servers += servers
        bound = servers[0].sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def bound_sockets(self) -> list[socket.socket]:
        """Those that it listens on."""
        return [each for server in self._servers for each in server.sockets]

    async def close(self, seconds: float) -> None:
        """Accept no more, let connections answer what is under way, and close them, within some seconds."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if servers:
            await self.connections.close(seconds)


class BufferedAcceptor(Acceptor[B]):
    """One whose connections receive into buffers that it lends them.

    They share one buffer, since a loop fills it and hands it over in the same turn, and a few spare ones for large
    requests; the end of a loop turn, at which replies that became ready during it go out together; and one timer that
    closes idle ones.
    """

    def __init__(
        self,
        metrics: DoorMetrics,
        connections_max: int,
        capacity: Capacity | None = None,
        *,
        buffer_bytes: int,
        spare_bytes_max: int = 0,
    ) -> None:
        """`spare_bytes_max` is the size of the largest buffer of a large request that is kept for the next one."""
        super().__init__(metrics, connections_max, capacity)
        self.buffer = bytearray(buffer_bytes)
        self.view = memoryview(self.buffer)
        self.buffers = Buffers(spare_bytes_max)
        self.soon = EndOfTurn().soon
        self.tick = 0
        """Counts the looks for idle connections; what a connection's `seen` is compared with."""
        self._sweeping: asyncio.TimerHandle | None = None

    def close_idle(self, seconds: float) -> None:
        """Close, from now on, the connections that ask nothing for so long, or take nothing of what they asked for."""
        self.tick += 1
        for connection in self.connections:
            connection.close_if_idle(SWEEPS)
        self._sweeping = self.loop.call_later(seconds / SWEEPS, self.close_idle, seconds)

    def unmute(self) -> None:
        """Quotas have changed: whoever waits goes on, and is held back by those that hold now."""
        for connection in self.connections:
            connection.unmute()

    async def close(self, seconds: float) -> None:
        """Accept no more, let connections answer what is under way, and close them, within some seconds."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await super().close(seconds)
