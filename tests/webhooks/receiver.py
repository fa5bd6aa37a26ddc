"""Somebody who receives webhooks: an HTTP server that behaves as a test says, and remembers what came."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Got:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    peer: Any

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


Behaviour = Callable[[Got], Awaitable[web.StreamResponse | int] | web.StreamResponse | int]


@dataclass
class Receiver:
    """Answers 200 unless told otherwise."""

    behave: Behaviour = lambda got: 200
    got: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    """What was answered with 2xx."""
    port: int = 0
    scheme: str = "http"
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; on the port of before, if there was one."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self.scheme = "http" if tls is None else "https"
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Got(request.path_qs, headers, body, asyncio.get_running_loop().time(), peer)
        self.got.append(got)
        said = self.behave(got)
        if isinstance(said, Awaitable):
            said = await said
        response = web.Response(status=said) if isinstance(said, int) else said
        if 200 <= response.status < 300:
            self.taken.append(got)
        return response


@asynccontextmanager
async def receiving(behave: Behaviour = lambda got: 200, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(behave)
    await receiver.start(tls)
    try:
        yield receiver
    finally:
        await receiver.stop()
