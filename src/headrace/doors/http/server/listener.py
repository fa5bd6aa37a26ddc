"""A port that speaks HTTP/1.1: listens, counts its connections, and closes them in order.

A door gives it one coroutine function that answers requests. Those of one connection are answered in the order in which
they came, one at a time; those of others meanwhile.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count
from typing import Any

from headrace.broker.metrics import DoorMetrics
from headrace.doors.acceptor import Acceptor
from headrace.doors.capacity import Capacity
from headrace.doors.http.server.authentication import HttpAuthentication
from headrace.doors.http.server.connection import WebConnection
from headrace.doors.http.server.guard import Guard
from headrace.doors.http.server.messages import Answer, HttpError, Request, Response, WriteError, write_plain

# How long a stopping listener waits for requests under way, and for clients to take the answers that they were given.
STOP_SECONDS = 2.0
BODY_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 32 * 1024 * 1024
REQUEST_SECONDS = 30.0
# Of what a client calls itself.
NAME_MAX = 255


class Listener(Acceptor[WebConnection]):
    """Accepts connections and has their requests answered."""

    def __init__(
        self,
        answer: Answer,
        metrics: DoorMetrics,
        *,
        connections_max: int,
        capacity: Capacity | None = None,
        hosts: Iterable[str] = ("localhost",),
        body_max_bytes: int = BODY_MAX_BYTES,
        answer_max_bytes: int = ANSWER_MAX_BYTES,
        request_seconds: float | None = None,
        write_error: WriteError = write_plain,
        authentication: HttpAuthentication | None = None,
    ) -> None:
        """`hosts` are the names by which it may be called; `write_error` answers what never reaches a handler, or fails
        in one. Without `authentication` all clients are anonymous."""
        super().__init__(metrics, connections_max, capacity)
        self.answer = answer
        self.write_error = write_error
        self.body_max_bytes = body_max_bytes
        self._answer_max_bytes = answer_max_bytes
        self.request_seconds = REQUEST_SECONDS if request_seconds is None else request_seconds
        self.guard = Guard(metrics.name, hosts)
        self._authentication = authentication
        self.tls = False
        self._answers: dict[asyncio.Task[None], None] = {}
        # Of requests: those without a key go to the partitions of a topic in turn.
        self._numbers = count()

    def connect(self) -> WebConnection:
        """A connection for a client that has come."""
        return WebConnection(self)

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen; over TLS alone where a context is given. Raises OSError where that cannot be."""
        self.tls = tls is not None
        await super().listen(host, port, tls, sockets)
        addresses = [listening.getsockname()[0] for listening in self.bound_sockets()]
        self.guard.loopback = all(ipaddress.ip_address(each).is_loopback for each in addresses)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        if not self.is_open:
            return
        until = self.loop.time() + STOP_SECONDS
        await self.close(STOP_SECONDS)
        if self._answers:
            # Those whose client is gone already.
            _, late = await asyncio.wait(self._answers, timeout=max(until - self.loop.time(), 0.0))
            for task in late:
                task.cancel()

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Do the work of an answer; a stop waits for it, though its client may be gone."""
        task = asyncio.get_running_loop().create_task(answering)
        self._answers[task] = None
        task.add_done_callback(self._answers.pop)

    async def respond(self, request: Request, client: WebConnection) -> Response:
        """The response to a whole request."""
        session = request.session
        session.number, session.host, session.door = next(self._numbers), client.host, self.metrics.name
        authentication = self._authentication
        seen = client.session
        seen.host, seen.client_id = client.host, request.headers.get("user-agent", "")[:NAME_MAX]
        try:
            self.guard.check(request)
            if authentication is not None:
                await authentication.identify(request, is_encrypted=self.tls, certificate=client.certificate)
        except HttpError as error:
            return self.write_error(error)
        seen.user = session.user
        if session.identity is None or authentication is None:
            response = await self.answer(request)
        else:
            # Whatever takes long ends with the identity: its answer is for a client that is none any more.
            session.on_ended = client.end
            try:
                response = await self.answer(request)
            finally:
                authentication.forget(session)
        if len(response.body) > self._answer_max_bytes:
            return self.write_error(
                HttpError(
                    507,
                    "",
                    f"the answer has {len(response.body)} bytes, and may have {self._answer_max_bytes} "
                    "(http_answer_max_bytes). Ask for less, or raise it",
                )
            )
        return response
