"""What comes before every request and every socket of the console: whose page asks, and how many there are.

Browsers send cookies along whatever page asks. So a request that changes something, and each socket, must come from the
console's own pages (`Origin` is `Host`), and `Host` must be a name of the console, which keeps DNS rebinding out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_MAX_BYTES = 1 << 20
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (
        b"content-security-policy",
        # NiceGUI writes its program into the page, and Vue compiles templates there.
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws: wss:; frame-ancestors 'none'; "
        b"base-uri 'self'; form-action 'self'; object-src 'none'",
    ),
]


class Guard:
    """ASGI around the console."""

    def __init__(self, app: App, hosts: set[str], sockets_max: int) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._sockets_max = sockets_max
        self.sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal(scope, headers)
        if scope["type"] == "websocket":
            if not refusal and self.sockets >= self._sockets_max:
                refusal = f"{self._sockets_max} pages are open already"
            if refusal:
                await send({"type": "websocket.close", "code": 1008, "reason": refusal})
                return
            self.sockets += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self.sockets -= 1
            return
        if refusal:
            await _refuse(send, refusal)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self._app(scope, receive, send_guarded)

    def refusal(self, scope: Scope, headers: dict[str, str]) -> str:
        """Why a request is refused; empty: it is not."""
        host = headers.get("host", "")
        if not self.is_own(urlsplit(f"//{host}").hostname or ""):
            return "the console is not known by this name. Start it with --hosts NAME to be reached by it."
        origin = headers.get("origin")
        if scope["type"] == "websocket" or scope.get("method") not in SAFE or "/_nicegui_ws/" in scope.get("path", ""):
            site = headers.get("sec-fetch-site", "same-origin")
            if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc != host):
                return "this was asked for by a page of another site"
            if origin is None and (scope["type"] == "websocket" or scope.get("method") not in SAFE):
                return "the request does not say which page asks (Origin)"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_MAX_BYTES:
            return f"a request has at most {BODY_MAX_BYTES} bytes"
        return ""

    def is_own(self, host: str) -> bool:
        """Whether a name is the console's: an address, localhost, or one that it was given."""
        host = host.lower().rstrip(".")
        if host == "localhost" or host in self._hosts:
            return True
        try:
            ip_address(host)
        except ValueError:
            return False
        return True


async def _refuse(send: Send, why: str) -> None:
    body = why.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
