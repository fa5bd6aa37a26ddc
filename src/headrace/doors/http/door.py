"""The HTTP door: listens, counts its connections, and closes them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.doors.http.connection import HttpConnection
from headrace.doors.http.handlers import Context

# How long a stopping door waits for clients to take the answers that they were given.
STOP_SECONDS = 2.0


class HttpDoor:
    """Serves HTTP/1.1 over a broker."""

    def __init__(self, broker: Broker, config: Config, ready: Callable[[], bool]) -> None:
        self.context = Context(broker, ready)
        self._metrics = broker.metrics.door("http")
        self._connections_max = config.connections_max
        # A dict for its order: the same run closes connections in the same order.
        self._connections: dict[HttpConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Where the door listens."""
        assert self._server is not None, "the door is not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError where that cannot be."""
        self._server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(self), host, port)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._connections):
            connection.close()
        try:
            if self._connections:
                self._empty.clear()
                await asyncio.wait_for(self._empty.wait(), STOP_SECONDS)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def opened(self, connection: HttpConnection) -> bool:
        """Whether there is room for one more connection."""
        if len(self._connections) >= self._connections_max:
            self._metrics.connections_refused += 1
            return False
        self._connections[connection] = None
        self._metrics.connections_accepted += 1
        self._metrics.connections = len(self._connections)
        return True

    def closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)
        self._metrics.connections = len(self._connections)
        if not self._connections:
            self._empty.set()
