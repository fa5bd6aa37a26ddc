"""One client's connection to a door whose requests are parsed where they lie: bytes in, replies out in order.

Four ideas. All connections of a door receive into one buffer; only what is left of a cut request is kept per
connection, and a large request has a buffer of its own that grows as its bytes arrive, so an idle connection holds
nothing. Whatever holds a client back (a request under way, replies that it does not read, a quota) is a bit of `_held`:
while one is set no request is handled, and what still arrives is kept up to a bound, then the socket is no longer read.
Replies that are not ready wait in line, and go out in the order of their requests. And a client that takes nothing of
its replies, or asks nothing for long, is cut off.

A door's connection overrides `_consume`, which handles the whole requests at the beginning of a buffer, and `_needed`,
which looks at the one that is cut. Neither is called once for each request, and nothing else here is.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import structlog

if TYPE_CHECKING:
    from headrace.broker.security import Session
    from headrace.doors.acceptor import BufferedAcceptor

log = structlog.get_logger("headrace.doors")

# Why no request is handled just now.
BUSY = 1  # one that awaits something is under way
DRAIN = 2  # the next one must not be answered before all that are in line
FULL = 4  # as many replies are in line as may be
UNREAD = 8  # the client does not read its replies
MUTED = 16  # the client is over its quota
CLOSING = 32  # no further request is handled; replies under way still go out
LOST = 64  # nothing goes out any more
TURN = 128  # it has had much of the loop's time: the others come first

PIPELINE_MAX = 1_000
# What may arrive for a held connection before its socket is no longer read.
HELD_BYTES = 65_536
# The least that the first buffer of a large request has when no spare one is there; it doubles as bytes arrive.
FIRST = 8_192


class Pending(Protocol):
    """A reply in line."""

    reply: bytes

    @property
    def waiting(self) -> int:
        """How much it waits for; 0: it is ready."""


class BufferedConnection(asyncio.BufferedProtocol):
    """A client of a door."""

    __slots__ = (
        "_filled",
        "_held",
        "_muted",
        "_need",
        "_own",
        "_pending",
        "_queued",
        "_reading",
        "_starved",
        "_task",
        "_waiting",
        "address",
        "door",
        "seen",
        "transport",
    )

    large: ClassVar[int] = 131_072
    """A request above this is received into a buffer of its own; at most half of the shared one."""

    door: BufferedAcceptor[Any]
    session: Session
    """Who it is: a door's connection has it."""
    transport: asyncio.Transport

    def __init__(self, door: BufferedAcceptor[Any]) -> None:
        self.door = door
        self.address: tuple[str, int] = ("", 0)
        """The client's host and port."""
        self.seen = door.tick
        # A cut request: exactly its bytes, or for a large one a buffer of which `_filled` bytes are there.
        self._own: bytearray | None = None
        self._filled = 0
        self._need = 0
        self._held = 0
        self._muted: asyncio.TimerHandle | None = None
        self._reading = True
        # A large request waits for the memory to receive it into.
        self._starved = False
        self._pending: list[Any] = []
        # The replies in line are looked at when this turn of the loop ends.
        self._queued = False
        self._task: asyncio.Task[None] | None = None
        # Bytes of replies that the client had not taken when that was last looked at.
        self._waiting = 0

    # --- what a door overrides ----------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """The connection was admitted."""
        if not self.encrypted:
            # Writes go out at once and `pause_writing` comes with the first byte that does not fit: then, and only
            # then, the transport holds anything, which is what sending from a file beside it must know. One with TLS
            # must have room: without any it does not report that the client has read.
            self.transport.set_write_buffer_limits(high=0)

    def _consume(self, buffer: bytearray, end: int) -> int:
        """Handle whole requests until one is cut or must wait; the position of the first byte that is left."""
        raise NotImplementedError

    def _needed(self, buffer: bytearray, position: int, left: int) -> int:
        """How many bytes the request at `position` has, of which so many are there; 0 where that is not known, or where
        it is too large to be read at all."""
        return 0

    def _failed(self, error: Exception) -> None:
        """A request raised: close the connection. Called while the error is handled."""
        log.exception("a request failed", client=self.name)
        self.close()

    def _send_replies(self, replies: list[Any]) -> None:
        """Send replies that were in line."""
        self.write(b"".join([entry.reply for entry in replies]))

    def _ran(self) -> None:
        """The request that awaited is over."""
        self.release(BUSY)

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = (str(peer[0]), int(peer[1]))
        wait = self.door.connections.admit(self, self.address[0])
        if wait is None:
            self._held = LOST
            self.transport.abort()
            return
        if wait:
            self.mute(wait)
        self._opened()

    def connection_lost(self, error: Exception | None) -> None:
        self._held |= LOST
        if self._muted is not None:
            self._muted.cancel()
        self.door.connections.forget(self)
        self._pending.clear()
        self._own = None

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._held |= UNREAD
        self.note_unread()

    def resume_writing(self) -> None:
        self.note_unread()
        self.release(UNREAD)

    def get_buffer(self, sizehint: int) -> memoryview:
        own = self._own
        if own is None:
            return self.door.view
        if self._need > self.large:
            if self._filled == len(own):
                own = self._own = self.door.buffers.grow(own, self._need)
            return memoryview(own)[self._filled : self._need]
        kept = len(own)
        if kept >= len(self.door.view):
            raise BufferError("a held connection was read past its bound")
        self.door.view[:kept] = own
        return self.door.view[kept:]

    def buffer_updated(self, count: int) -> None:
        door = self.door
        self.seen = door.tick
        own = self._own
        if own is not None:
            if self._need > self.large:
                self._filled += count
                if self._filled == self._need:
                    self._receive(own, self._need)
                    self._let_others()
                elif self._filled == len(own) and not self._reserve(self.door.buffers.grown(own, self._need)):
                    self._pause_reading()
                return
            count += len(own)
        self._receive(door.buffer, count)
        if count == len(door.buffer):
            self._let_others()

    def _let_others(self) -> None:
        """End a turn in which all the room was filled. The loop would read on and on, up to 32 times, before it looks
        at another connection."""
        if not self._held & (CLOSING | LOST):
            self._held |= TURN
            self._pause_reading()
            self.door.soon(self._take_turn)

    def _take_turn(self) -> None:
        self.release(TURN)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _receive(self, buffer: bytearray, end: int) -> None:
        """Handle the whole requests that begin `buffer`, and keep what is left."""
        try:
            position = 0 if self._held else self._consume(buffer, end)
        except Exception as error:
            # From here it would reach the loop, which may leave the connection open and deaf.
            self._failed(error)
            return
        left = end - position
        if not left and self._own is None:
            return
        if self._held & (CLOSING | LOST):
            self._own = None
            return
        if left == 0:
            if self._need > self.large:
                self.door.buffers.give_back(buffer)
                self.door.connections.capacity.release(self)
            self._own = None
            self._need = 0
            return
        need = self._needed(buffer, position, left)
        if need > self.large and left <= need:
            if buffer is not self._own or position:
                first = min(max(2 * left, FIRST), need)
                if not self._reserve(first):
                    self._own = buffer[position:end]
                    self._need = 0
                    self._pause_reading()
                    return
                own = self.door.buffers.take(first, need)
                own[:left] = memoryview(buffer)[position:end]
                self._own = own
            self._filled = left
            self._need = need
            if left == need:
                # It is whole and must wait: there is no room to receive into.
                self._pause_reading()
        else:
            self._own = buffer[position:end]
            self._need = 0
            if left >= HELD_BYTES and self._held:
                self._pause_reading()

    def _reserve(self, size: int) -> bool:
        """Have memory for so much of a large request; False: it is received once there is some."""
        door = self.door
        capacity = door.connections.capacity
        self._starved = not capacity.reserve(self, size, self._on_reserved, door.metrics.name, door.loop.time())
        return not self._starved

    def _on_reserved(self) -> None:
        # Not now, within the turn of the connection that gave it back.
        self.door.soon(self._receive_reserved)

    def _receive_reserved(self) -> None:
        """Go on with the large request that waited for memory."""
        self._starved = False
        own = self._own
        if own is not None and self._need <= self.large and not self._held & (CLOSING | LOST):
            self._own = None
            self._receive(own, len(own))
        self._resume_reading()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a request that awaits; the next one is handled after it."""
        self._held |= BUSY
        self._task = self.door.loop.create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failed(error)
        finally:
            self._task = None
            self._ran()

    # --- replies ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes."""
        if not self._held & LOST:
            self.transport.write(data)

    @property
    def in_line(self) -> bool:
        """Replies wait to go out: another may not overtake them."""
        return bool(self._pending)

    def enqueue(self, entry: Pending) -> None:
        """Put a reply in line."""
        self._pending.append(entry)
        if len(self._pending) >= PIPELINE_MAX:
            self._held |= FULL

    def flush_pending(self) -> None:
        """Send the replies at the head of the line that are ready."""
        self._queued = False
        pending = self._pending
        if not pending:
            return
        ready = 0
        for entry in pending:
            if entry.waiting:
                break
            ready += 1
        if ready:
            replies = pending[:ready]
            del pending[:ready]
            self._send_replies(replies)
        if not pending:
            self.release(DRAIN | FULL)
        elif len(pending) < PIPELINE_MAX // 2:
            self.release(FULL)

    def note_unread(self) -> None:
        """Let the doors know what waits for the client to read it."""
        self.door.connections.note_unread(self, self.transport.get_write_buffer_size())

    # --- what holds a client back -------------------------------------------------------------------------------------

    def release(self, reason: int) -> None:
        """Go on with what has arrived meanwhile, unless something else holds."""
        self._held &= ~reason
        if self._held:
            if self._held & CLOSING and not self._held & LOST:
                self._finish_closing()
            return
        own = self._own
        if own is not None:
            if self._need <= self.large:
                self._receive(own, len(own))
            elif self._filled == self._need:
                self._receive(own, self._need)
        self._resume_reading()

    def mute(self, seconds: float) -> None:
        """Hold the client back for as long as its quota asks; its reply has the time."""
        if self._muted is not None:
            self._muted.cancel()
        self._held |= MUTED
        self._muted = self.door.loop.call_later(seconds, self.unmute)

    def unmute(self) -> None:
        """Go on: the time is up, or quotas have changed."""
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self.release(MUTED)

    def _pause_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and not self._held and not self._starved:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    @property
    def name(self) -> str:
        """The client, for the log."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def held(self) -> bool:
        """No request is handled just now."""
        return bool(self._held)

    @property
    def unread(self) -> bool:
        """The transport holds bytes that the client has not taken."""
        return bool(self._held & UNREAD)

    @property
    def closing(self) -> bool:
        """No further request is handled."""
        return bool(self._held & (CLOSING | LOST))

    @property
    def lost(self) -> bool:
        """Nothing goes out any more."""
        return bool(self._held & LOST)

    # --- TLS ----------------------------------------------------------------------------------------------------------

    @property
    def encrypted(self) -> bool:
        """The client speaks TLS."""
        return self.transport.get_extra_info("sslcontext") is not None

    async def start_tls(self, context: ssl.SSLContext, seconds: float) -> None:
        """Speak TLS from here on. Reading must have been stopped before the client is asked to. Raises OSError."""
        transport = await self.door.loop.start_tls(
            self.transport, self, context, server_side=True, ssl_handshake_timeout=seconds
        )
        if transport is None:
            raise ConnectionResetError
        self.transport = transport

    # --- closing ------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No request is under way and no reply in line."""
        return not self._held & (BUSY | MUTED) and not self._pending

    def _unsent(self) -> int:
        """Bytes of replies that wait for the client to take them."""
        return self.transport.get_write_buffer_size() if self._held & UNREAD else 0

    def close_if_idle(self, ticks: int) -> None:
        """Close where for so many ticks the client has asked nothing, or taken nothing of what it asked for."""
        waiting = self._unsent()
        if waiting and waiting != self._waiting:
            self._waiting = waiting
            self.seen = self.door.tick
        if self.door.tick - self.seen <= ticks:
            return
        if waiting:
            log.debug("connection closed: its reply is not read", client=self.name)
            self.abort()
        elif self.idle:
            log.debug("idle connection closed", client=self.name)
            self.close()

    def close(self) -> None:
        """Close at once, after the replies that are written already."""
        self._held |= LOST
        self._own = None
        self.transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._held |= LOST
        self.transport.abort()

    def close_when_idle(self) -> None:
        """Handle no further request, and close once those under way are answered."""
        self._held |= CLOSING
        self._finish_closing()

    def _finish_closing(self) -> None:
        if not self._held & BUSY and not self._pending:
            self.close()
