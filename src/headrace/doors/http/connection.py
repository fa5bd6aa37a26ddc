"""One connection of the HTTP door: feeds the codec and writes what it gives.

A client has `REQUEST_SECONDS` for each request and for taking its answer; whoever is slower is cut off, so a trickle of
bytes cannot hold a connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import structlog

from headrace.doors.http.codec import Codec, RequestRefused, Response
from headrace.doors.http.handlers import answer

if TYPE_CHECKING:
    from headrace.doors.http.door import HttpDoor

REQUEST_SECONDS = 30.0

log = structlog.get_logger("headrace.http")


class HttpConnection(asyncio.Protocol):
    """The asyncio side of a connection. The door knows which connections are open."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._codec = Codec()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._blocked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._door.opened(self):
            self._transport.abort()
            return
        self._restart_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._door.closed(self)

    def data_received(self, data: bytes) -> None:
        self._codec.feed(data)
        self._serve()

    def eof_received(self) -> bool:
        self._codec.feed(b"")
        self._serve()
        return False

    def pause_writing(self) -> None:
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._restart_deadline()
            self._serve()

    def close(self) -> None:
        """Close once what was answered has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _serve(self) -> None:
        """Answer the requests that are whole, as long as the client takes the answers."""
        transport = self._transport
        assert transport is not None
        while not self._blocked and not transport.is_closing():
            try:
                request = self._codec.next_request()
            except RequestRefused as refused:
                transport.write(self._codec.respond(Response(f"{refused}\n".encode(), status=refused.status)))
                transport.close()
                return
            if request is None:
                if waiting := self._codec.continues():
                    transport.write(waiting)
                return
            try:
                response = answer(self._door.context, request)
            except Exception:
                # The next request may well succeed, and a broker does not die of a page.
                log.exception("a request failed", path=request.path)
                response = Response(b"the request failed; the broker's log says why\n", status=500)
            transport.write(self._codec.respond(response))
            if self._codec.closing:
                transport.close()
                return
            self._restart_deadline()

    def _restart_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._expired)

    def _expired(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._blocked:
            transport.abort()
            return
        if not self._codec.idle and not transport.is_closing():
            late = Response(f"the request took longer than {REQUEST_SECONDS:g} seconds\n".encode(), status=408)
            transport.write(self._codec.respond(late))
        transport.close()
