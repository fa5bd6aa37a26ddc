"""A port that speaks HTTP/1.1: listens, counts its connections, and closes them in order.

A door gives it one coroutine function that answers requests. Those of one connection are answered in the order in which
they came, one at a time; those of others meanwhile.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.metrics import DoorMetrics
from headrace.doors.web.connection import WebConnection
from headrace.doors.web.messages import Answer, Refusal, RequestRefused, Response, plain_refusal

# How long a stopping listener waits for requests under way, and for clients to take the answers that they were given.
STOP_SECONDS = 2.0
BODY_MAX_BYTES = 64 * 1024


class Listener:
    """Accepts connections and has their requests answered."""

    def __init__(
        self,
        answer: Answer,
        metrics: DoorMetrics,
        *,
        connections_max: int,
        body_max_bytes: int = BODY_MAX_BYTES,
        refusal: Refusal = plain_refusal,
        too_large: Callable[[str], Response] | None = None,
    ) -> None:
        """`too_large` answers a request to a path whose body is too large, where `refusal` would not do."""
        self.answer = answer
        self.refusal = refusal
        self.body_max_bytes = body_max_bytes
        self._too_large = too_large
        self.tls = False
        self._metrics = metrics
        self._connections_max = connections_max
        # A dict for its order: the same run closes connections in the same order.
        self._connections: dict[WebConnection, None] = {}
        self._answers: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None, "the listener is not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return self._server is not None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; over TLS alone where a context is given. Raises OSError where that cannot be."""
        self.tls = tls is not None
        self._server = await asyncio.get_running_loop().create_server(lambda: WebConnection(self), host, port, ssl=tls)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._connections):
            connection.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._connections:
                    self._empty.clear()
                    await self._empty.wait()
                # Those whose client is gone already.
                if self._answers:
                    await asyncio.wait(self._answers)
        except TimeoutError:
            for task in self._answers:
                task.cancel()
            for connection in list(self._connections):
                connection.abort()

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Do the work of an answer; a stop waits for it, though its client may be gone."""
        task = asyncio.get_running_loop().create_task(answering)
        self._answers[task] = None
        task.add_done_callback(self._answers.pop)

    def refuse(self, refused: RequestRefused) -> Response:
        """The response to what is no request that is served."""
        if refused.path and self._too_large is not None:
            return self._too_large(refused.path)
        return self.refusal(refused.status, str(refused))

    def opened(self, connection: WebConnection) -> bool:
        """Whether there is room for one more connection."""
        if len(self._connections) >= self._connections_max:
            self._metrics.connections_refused += 1
            return False
        self._connections[connection] = None
        self._metrics.connections_accepted += 1
        self._metrics.connections = len(self._connections)
        return True

    def closed(self, connection: WebConnection) -> None:
        self._connections.pop(connection, None)
        self._metrics.connections = len(self._connections)
        if not self._connections:
            self._empty.set()
