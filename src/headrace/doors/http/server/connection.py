"""One HTTP connection: feeds the codec, has each request answered in turn, and writes what the codec gives.

A client has `http_request_ms` to send each request and to take its answer, and longer where the listener takes large
bodies; a slower client is cut off, so a trickle of bytes cannot hold a connection for ever. The time that the handler
takes is not the client's and does not count; what a client sends meanwhile is left in the socket, as it is until the
client has taken nearly all of an answer: no more than one ever waits. Between requests a connection holds neither codec
nor buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import structlog

from headrace.broker.security import Session
from headrace.doors.http.server.codec import Codec
from headrace.doors.http.server.messages import HttpError, Request, Response

if TYPE_CHECKING:
    from headrace.doors.http.server.listener import Listener

# By this rate a large body may take longer.
SLOWEST_BYTES_PER_SECOND = 65_536
# How long a refused client may go on sending before it is cut off. Closed at once, it would often see a reset in place
# of the answer, because what it still sends would meet a closed socket.
LINGER_SECONDS = 2.0
# What a client may leave unread without being held back or counted. Not 0: a connection that has just come to speak TLS
# has some bytes of its own to send.
UNSEEN_BYTES = 16_384

log = structlog.get_logger("headrace.web")


class WebConnection(asyncio.Protocol):
    """The asyncio side of a connection. The listener knows which connections are open."""

    __slots__ = (
        "_answering",
        "_blocked",
        "_codec",
        "_deadline",
        "_ended",
        "_last",
        "_lingering",
        "_listener",
        "_transport",
        "host",
        "name",
        "session",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._codec: Codec | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        # A handler is at work.
        self._answering = False
        self._blocked = False
        # The client sends no more.
        self._ended = False
        # The answer under way is the last.
        self._last = False
        self._lingering = False
        self.session = Session(door=listener.metrics.name)
        """Who has asked last."""
        self.name = ""
        """The client's HOST:PORT."""
        self.host = ""
        """The address from which the client came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = str(peer[0])
            self.name = f"{peer[0]}:{peer[1]}"
        wait = self._listener.connections.admit(self, self.host)
        if wait is None:
            self._transport.abort()
            return
        if wait:
            # Any other reason to go on reading comes with something that it has sent.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(wait, self._begin)
        self._transport.set_write_buffer_limits(high=UNSEEN_BYTES, low=0)
        self._restart_deadline(self._patience + wait)

    def _begin(self) -> None:
        """Read, at last, what the client has to say."""
        if self._transport is not None and not self._transport.is_closing():
            self._restart_deadline(self._patience)
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # A handler goes on without its client: half a change is worse than one whose answer is not read.
        self._stop_deadline()
        self._codec = None
        self._listener.connections.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._codec is None:
            self._codec = Codec(self._listener.body_max_bytes)
        self._codec.feed(data)
        if self._answering:
            assert self._transport is not None
            self._transport.pause_reading()
        else:
            self._next()

    def eof_received(self) -> bool:
        self._ended = True
        if self._codec is not None and not self._lingering:
            self._codec.feed(b"")
            if not self._answering:
                self._next()
        # TLS has no half-open connections.
        return self._answering and not self._listener.tls

    def pause_writing(self) -> None:
        self._blocked = True
        if self._transport is not None:
            self._listener.connections.note_unread(self, self._transport.get_write_buffer_size())
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._listener.connections.note_unread(self, 0)
        if self._transport is not None and not self._transport.is_closing() and not self._answering:
            self._restart_deadline(self._patience)
            self._next()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's, which was verified; None: it showed none."""
        if not self._listener.tls or self._transport is None:
            return None
        return self._transport.get_extra_info("peercert") or None

    def close_when_idle(self) -> None:
        """Close once the request under way is answered and the answer sent."""
        self._last = True
        if not self._answering and self._transport is not None:
            self._transport.close()

    def end(self, reason: str) -> None:
        """The client's identity has ended while it was being answered."""
        log.debug("a client's identity has ended", client=self.host, reason=reason)
        self.abort()

    @property
    def encrypted(self) -> bool:
        """It speaks TLS."""
        return self._listener.tls

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        """Have the next request answered if it is whole and the client has taken the last answer."""
        transport, codec = self._transport, self._codec
        assert transport is not None
        if self._blocked or transport.is_closing():
            return
        request = None
        if codec is not None:
            try:
                request = codec.next_request()
            except HttpError as error:
                self._refuse(codec, self._listener.write_error(error))
                return
            if request is None and (waiting := codec.continues()):
                transport.write(waiting)
        if request is not None:
            self._stop_deadline()
            self._answering = True
            self._listener.run(self._answer(request))
        elif self._ended:
            transport.close()
        else:
            if codec is not None and codec.idle:
                self._codec = None
            transport.resume_reading()

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._listener.respond(request, self)
        except Exception:
            # The next request may well succeed, and a broker does not die of a page.
            log.exception("a request failed", path=request.path)
            response = self._listener.write_error(HttpError(500, "", "the request failed; see the broker's log"))
        self._answering = False
        transport, codec = self._transport, self._codec
        if codec is None or transport is None or transport.is_closing():
            return
        self._restart_deadline(self._patience)
        try:
            answer = codec.respond(response)
        except Exception:
            log.exception("a response cannot be sent", path=request.path)
            transport.abort()
            return
        transport.write(answer)
        if self._last or codec.closing:
            transport.close()
        else:
            self._next()

    def _refuse(self, codec: Codec, response: Response) -> None:
        """Answer, and take what else comes for a moment without looking at it."""
        assert self._transport is not None
        self._transport.write(codec.respond(response))
        if self._ended:
            self._transport.close()
            return
        self._lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._restart_deadline(LINGER_SECONDS)

    @property
    def _patience(self) -> float:
        return self._listener.request_seconds + self._listener.body_max_bytes / SLOWEST_BYTES_PER_SECOND

    def _restart_deadline(self, seconds: float) -> None:
        self._stop_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._expired)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._blocked:
            transport.abort()
            return
        if self._codec is not None and not self._codec.idle and not self._lingering and not transport.is_closing():
            late = HttpError(408, "", f"the request took longer than {self._patience:.0f} seconds")
            transport.write(self._codec.respond(self._listener.write_error(late)))
        transport.close()
