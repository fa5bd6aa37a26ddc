"""One client's connection: bytes in, frames in order, replies out in the same order.

Three ideas. All connections receive into one buffer of the door, since a loop fills it and hands it over in the same
turn; only what is left of a cut frame is kept per connection, so an idle one holds nothing. Whole frames are parsed
where they lie. And a connection handles one request at a time, like Kafka, except that Produce requests which follow
each other are all appended at once: their replies wait in line until each is durable.

Whatever must hold a client back (a request under way, a reply that the client does not read, a quota) is a bit of
`_held`. While one is set no frame is handled, and what still arrives is kept up to a bound, then the socket is no
longer read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

import structlog

from headrace.broker.publish import Session
from headrace.doors.kafka import fetch, produce
from headrace.doors.kafka.dispatch import dispatch
from headrace.doors.kafka.errors import Malformed, Unanswerable
from headrace.doors.kafka.file_replies import Outbox, Part, release_parts
from headrace.doors.kafka.produce import CORRELATION_END, again
from headrace.doors.kafka.registry import FETCH, PRODUCE
from headrace.doors.kafka.wire import HEAD, INT32
from headrace.runtime.disk import FileRange
from headrace.runtime.sendfile import is_same_machine, without_pacing

if TYPE_CHECKING:
    from headrace.broker.transactions import Holder
    from headrace.doors.kafka.door import KafkaDoor
    from headrace.doors.kafka.fetch import FetchCall
    from headrace.doors.kafka.produce import Pending, Target
    from headrace.doors.kafka.room import Stall

log = structlog.get_logger("headrace.kafka")

# Why no frame is handled just now.
BUSY = 1  # a request that is not a Produce is under way
DRAIN = 2  # one is next in line, and Produce replies are still out
FULL = 4  # as many Produce replies are out as may be
UNREAD = 8  # the client does not read its replies
MUTED = 16  # the client is over its quota
CLOSING = 32  # no further frame is handled; replies under way still go out
LOST = 64  # nothing goes out any more
TURN = 128  # it has had much of the loop's time: the others come first

PIPELINE_MAX = 1_000
# What all connections receive into, one after the other. The more of a bulk producer's requests one system call brings,
# the less each of them costs: a megabyte takes a fifth less CPU time than a quarter of it.
BUFFER_BYTES = 1_048_576
# What may arrive for a held connection before its socket is no longer read.
HELD_BYTES = 65_536
# A frame above this is received into a buffer of its own.
LARGE = 262_144
# The least that the first buffer of a large frame has when no spare one is there; it doubles as bytes arrive.
FIRST = 8_192
# API key, version, correlation id and an empty client id.
SMALLEST = 10


class Connection(asyncio.BufferedProtocol):
    """A client of the Kafka door."""

    __slots__ = (
        "_client_id",
        "_client_raw",
        "_filled",
        "_held",
        "_need",
        "_outbox",
        "_own",
        "_pending",
        "_queued",
        "_reading",
        "_room",
        "_task",
        "_waiting",
        "blocked",
        "client_host",
        "door",
        "entry",
        "fetching",
        "holder",
        "seen",
        "session",
        "stall",
        "target",
        "tls",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, door: KafkaDoor) -> None:
        self.door = door
        self.client_host = ""
        self.tls = False
        self.seen = door.tick
        self.session = Session()
        # The Produce request that this client sends again and again, and the long poll that it waits in.
        self.target: Target | None = None
        self.entry: produce.PendingAgain | None = None
        self.fetching: FetchCall | None = None
        # Transactional ids that this client took.
        self.holder: Holder | None = None
        # A Produce that waits for room in a topic, and how long such ones have waited.
        self.blocked: asyncio.Future[None] | None = None
        self.stall: Stall | None = None
        # A cut frame: exactly its bytes, or for a large one a buffer of which `_filled` bytes are there.
        self._own: bytearray | None = None
        self._filled = 0
        self._need = 0
        self._held = 0
        self._reading = True
        self._queued = False
        self._pending: list[Pending] | None = None
        self._task: asyncio.Task[None] | None = None
        self._outbox: Outbox | None = None
        # Waited on by whoever sends more than the client reads.
        self._room: asyncio.Future[None] | None = None
        # Bytes of replies that the client had not taken when that was last looked at.
        self._waiting = 0
        self._client_raw = b""
        self._client_id: str | None = None

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self.door.connections.admit(self):
            self._held = LOST
            self.transport.abort()
            return
        self.tls = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        if not self.tls:
            # Writes go out at once and `pause_writing` comes with the first byte that does not fit: then, and only
            # then, the transport holds anything, which is what sending from a file beside it must know.
            self.transport.set_write_buffer_limits(high=0)
        if is_same_machine(self.client_host) and (socket := transport.get_extra_info("socket")) is not None:
            without_pacing(socket)

    def connection_lost(self, error: Exception | None) -> None:
        self._held |= LOST
        self.door.connections.forget(self)
        if self.holder is not None:
            self.holder.is_open = False
        if self.fetching is not None:
            self.fetching.cancel()
            self.fetching = None
        if self.blocked is not None:
            self.blocked.cancel()
        if self._outbox is not None:
            self._outbox.cancel()
        if self._room is not None and not self._room.done():
            self._room.set_exception(ConnectionResetError())
            self._room.exception()
        self._pending = None
        self._own = None
        self.target = None
        self.entry = None

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._held |= UNREAD
        self.note_unread()

    def resume_writing(self) -> None:
        self.note_unread()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self.release(UNREAD)

    def get_buffer(self, sizehint: int) -> memoryview:
        own = self._own
        if own is None:
            return self.door.view
        if self._need > LARGE:
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
            if self._need > LARGE:
                self._filled += count
                if self._filled == self._need:
                    self._receive(own, self._need)
                    self._let_others()
                return
            count += len(own)
        self._receive(door.buffer, count)
        if count == BUFFER_BYTES:
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

    # --- frames -------------------------------------------------------------------------------------------------------

    def _receive(self, buffer: bytearray, end: int) -> None:
        """Handle the whole frames that begin `buffer`, and keep what is left."""
        try:
            position = self._consume(buffer, end)
        except Malformed as error:
            log.debug("malformed request", client=self.client_host, reason=str(error))
            self.close()
            return
        except Unanswerable as error:
            log.debug("request refused", client=self.client_host, reason=str(error))
            self.close()
            return
        except Exception:
            # From here it would reach the loop, which may leave the connection open and deaf.
            log.exception("a request failed", client=self.client_host)
            self.close()
            return
        left = end - position
        if not left and self._own is None:
            return
        if self._held & (CLOSING | LOST):
            self._own = None
            return
        if left == 0:
            if self._need > LARGE:
                self.door.buffers.give_back(buffer)
            self._own = None
            self._need = 0
            return
        need = INT32.unpack_from(buffer, position)[0] + 4 if left >= 4 else 4
        if LARGE < need <= self.door.request_max + 4 and left <= need:
            if buffer is not self._own or position:
                own = self.door.buffers.take(max(2 * left, FIRST), need)
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

    def _consume(self, buffer: bytearray, end: int) -> int:
        """Handle whole frames until one is cut or must wait; the position of the first byte that is left."""
        door = self.door
        position = 0
        out: list[bytes] = []
        started = door.loop.time()
        view = door.view if buffer is door.buffer else memoryview(buffer)
        produced = 0
        try:
            while position < end and not self._held:
                target = self.target
                if target is not None:
                    found = target.find(buffer, position, end)
                    if found is not None:
                        at, until, stop, correlation = found
                        if again(self, target, view[at:until], stop - position, correlation, out, started):
                            produced += 1
                            position = stop
                            continue
                if end - position < HEAD.size:
                    if end - position >= INT32.size:
                        self._check_size(INT32.unpack_from(buffer, position)[0])
                    break
                size, key, version, correlation, client = HEAD.unpack_from(buffer, position)
                if not SMALLEST <= size <= door.request_max:
                    self._check_size(size)
                stop = position + 4 + size
                if stop > end:
                    break
                if key == PRODUCE:
                    produced += 1
                    if target is not None:
                        # The next partition of the same topic, most likely: its bytes are as many.
                        start = position + CORRELATION_END
                        prefix = bytes(view[start : start + len(target.prefix)])
                        other = door.targets.get((self.session.user, version, prefix))
                        if other is not None and other is not target:
                            found = other.find(buffer, position, end)
                            if found is not None:
                                batch = view[found[0] : found[1]]
                                if again(self, other, batch, stop - position, correlation, out, started):
                                    position = stop
                                    continue
                body = position + 14 + (client if client > 0 else 0)
                if body > stop or client < -1:
                    raise Malformed(f"a client id of {client} bytes in a request of {size}")
                if key == PRODUCE:
                    produce.handle(self, buffer, position, body, stop, version, correlation, out, started)
                elif self._pending:
                    self._held |= DRAIN
                    break
                elif key == FETCH:
                    parts = fetch.begin(self, buffer, position, body, stop, version, correlation, started)
                    if parts is not None:
                        self.flush(out)
                        self.send(parts)
                else:
                    dispatch(self, buffer, position, body, stop, key, version, correlation, started)
                position = stop
        finally:
            if out:
                self.flush(out)
            door.produce_metrics.requests += produced
        return position

    def _check_size(self, size: int) -> None:
        if not SMALLEST <= size <= self.door.request_max:
            raise Malformed(f"a request of {size} bytes; at most {self.door.request_max} are read (request_max_bytes)")

    def flush(self, out: list[bytes]) -> None:
        """Write the replies that are ready, as one."""
        if out and not self._held & LOST:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def client_id(self, buffer: bytearray, position: int, body: int) -> str | None:
        """The client id of the frame at `position`, decoded once for as long as it stays the same."""
        start = position + 14
        if body == start:
            return None
        raw = bytes(buffer[start:body])
        if raw != self._client_raw:
            self._client_raw = raw
            self._client_id = raw.decode("utf-8", "replace")
        return self._client_id

    # --- replies ------------------------------------------------------------------------------------------------------

    @property
    def in_line(self) -> bool:
        """Produce replies wait to go out: another may not overtake them."""
        return self._pending is not None

    def enqueue(self, entry: Pending) -> None:
        """Put a Produce reply in line."""
        if self._pending is None:
            self._pending = [entry]
            return
        self._pending.append(entry)
        if len(self._pending) >= PIPELINE_MAX:
            self._held |= FULL

    def settled(self, entry: Pending) -> bool:
        """A reply in line is ready: all that are ready by the end of this turn go out in one write. One that is alone
        in line, with nothing held back by it, goes at once; whether it did."""
        if self._queued or self._held & LOST:
            return False
        pending = self._pending
        if not self._held and pending is not None and len(pending) == 1 and pending[0] is entry:
            self._pending = None
            self.transport.write(entry.reply)
            door = self.door
            door.produce_metrics.latency.observe(door.loop.time() - entry.started)
            return True
        self._queued = True
        self.door.soon(self.flush_pending)
        return False

    def flush_pending(self) -> None:
        """Send the replies at the head of the line that are ready."""
        self._queued = False
        pending = self._pending
        if not pending:
            return
        out: list[bytes] = []
        now = self.door.loop.time()
        observe = self.door.produce_metrics.latency.observe
        for entry in pending:
            if entry.waiting:
                break
            out.append(entry.reply)
            observe(now - entry.started)
        del pending[: len(out)]
        left = len(pending)
        self.flush(out)
        if not left:
            self._pending = None
            self.release(DRAIN | FULL)
        elif left < PIPELINE_MAX // 2:
            self.release(FULL)

    def send(self, parts: list[Part]) -> None:
        """Send a Fetch reply; where it does not go out at once, the connection is busy until it has."""
        if self._held & LOST:
            release_parts(parts)
        elif not any(isinstance(part, FileRange) for part in parts):
            self.transport.writelines(cast(list[bytes], parts))
        else:
            if self._outbox is None:
                self._outbox = Outbox(self)
            if not self._outbox.send(parts):
                self._held |= BUSY
                self.note_unread()

    def answer(self, parts: list[Part]) -> None:
        """Send the reply of the Fetch under way and go on with the next request."""
        self._held &= ~BUSY
        self.send(parts)
        if not self._held & BUSY:
            self.release(BUSY)

    def sent(self) -> None:
        """The outbox is through with the reply."""
        self.note_unread()
        self.release(BUSY)

    def hold_for(self, call: FetchCall) -> None:
        """Handle no frame until a long poll is over."""
        self._held |= BUSY
        self.fetching = call

    def release(self, reason: int) -> None:
        """Go on with what has arrived meanwhile, unless something else holds."""
        self._held &= ~reason
        if self._held:
            if self._held & CLOSING and not self._held & LOST:
                self._finish_closing()
            return
        own = self._own
        if own is not None:
            if self._need <= LARGE:
                self._receive(own, len(own))
            elif self._filled == self._need:
                self._receive(own, self._need)
        if not self._reading and not self._held:
            self._reading = True
            self.transport.resume_reading()

    @property
    def lost(self) -> bool:
        """Nothing goes out any more."""
        return bool(self._held & LOST)

    @property
    def closing(self) -> bool:
        """No further frame is handled."""
        return bool(self._held & CLOSING)

    @property
    def unread(self) -> bool:
        """The transport holds bytes that the client has not taken."""
        return bool(self._held & UNREAD)

    def note_unread(self) -> None:
        """Let the doors know what waits for the client to read it."""
        waiting, files = (0, 0) if self._outbox is None else self._outbox.held
        self.door.connections.note_unread(self, self.transport.get_write_buffer_size() + waiting, files)

    async def room(self) -> None:
        """Wait until the client has taken everything. Raises ConnectionResetError."""
        while self._held & UNREAD:
            if self.transport.is_closing():
                raise ConnectionResetError
            self._room = self.door.loop.create_future()
            try:
                await self._room
            finally:
                self._room = None

    def mute(self, seconds: float) -> None:
        """Hold the client back for as long as its quota asks; its reply said so."""
        self._held |= MUTED
        self.door.loop.call_later(seconds, self.release, MUTED)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    # --- closing ------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No request is under way and no reply in line."""
        return not self._held & (BUSY | MUTED) and not self._pending

    def stuck(self) -> bool:
        """Whether a reply waits for the client. One that takes some of it between two calls counts as seen."""
        if self._held & UNREAD:
            waiting = self.transport.get_write_buffer_size()
        elif self._outbox is not None and self._outbox.sending:
            waiting = self._outbox.left
        else:
            return False
        if waiting != self._waiting:
            self._waiting = waiting
            self.seen = self.door.tick
        return True

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
        """Handle no further frame, and close once the requests under way are answered."""
        self._held |= CLOSING
        if self.fetching is not None:
            self.fetching.finish_now()
        self._finish_closing()

    def _finish_closing(self) -> None:
        if not self._held & BUSY and not self._pending:
            self.close()

    # --- requests that await -----------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a request that awaits; the next one is handled after it."""
        self._held |= BUSY
        self._task = self.door.loop.create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Malformed, Unanswerable) as error:
            log.debug("request refused", client=self.client_host, reason=str(error))
            self.close()
        except Exception:
            log.exception("a request failed", client=self.client_host)
            self.close()
        finally:
            self._task = None
            # A Fetch may have warmed its partitions only to wait for records, or for the client to take them.
            if self.fetching is None and (self._outbox is None or not self._outbox.sending):
                self.release(BUSY)
