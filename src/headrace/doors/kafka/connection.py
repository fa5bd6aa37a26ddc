"""One client of the Kafka door: frames in order, replies out in the same order.

Whole frames are parsed where they lie in the receive buffer. A connection handles one request at a time, like Kafka,
except that Produce requests which follow each other are all appended at once: their replies wait in line until each is
durable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import structlog

from headrace.broker.quotas import Meter
from headrace.broker.quotas.bucket import Bucket
from headrace.broker.security import Identity, Session
from headrace.doors.connection import BUSY, CLOSING, DRAIN, LOST, UNREAD, BufferedConnection
from headrace.doors.kafka import fetch, produce
from headrace.doors.kafka.dispatch import dispatch
from headrace.doors.kafka.errors import Malformed, Unanswerable
from headrace.doors.kafka.file_replies import Outbox, Part, release_parts
from headrace.doors.kafka.memberships import Memberships
from headrace.doors.kafka.produce import CORRELATION_END, append_cached
from headrace.doors.kafka.registry import FETCH, PRODUCE
from headrace.doors.kafka.sasl import Sasl
from headrace.doors.kafka.settings import Protocol
from headrace.doors.kafka.wire import HEAD, INT32
from headrace.errors import AuthenticationFailed
from headrace.runtime.disk import FileRange
from headrace.runtime.sendfile import is_same_machine, without_pacing

if TYPE_CHECKING:
    from headrace.broker.transactions import Holder
    from headrace.doors.kafka.door import KafkaDoor, OpenListener
    from headrace.doors.kafka.fetch import FetchCall
    from headrace.doors.kafka.produce_replies import CachedProduce, Pending, PendingCached
    from headrace.doors.kafka.readable import Readable
    from headrace.doors.kafka.room import Stall

log = structlog.get_logger("headrace.kafka")

# What all connections receive into, one after the other. The more of a bulk producer's requests one system call brings,
# the less each of them costs: a megabyte takes a fifth less CPU time than a quarter of it.
BUFFER_BYTES = 1_048_576
# A frame above this is received into a buffer of its own.
LARGE = 262_144
# API key, version, correlation id and an empty client id.
SMALLEST = 10


class Connection(BufferedConnection):
    """A client of the Kafka door."""

    __slots__ = (
        "_client_id",
        "_client_raw",
        "_meter",
        "_metered",
        "_outbox",
        "_room",
        "blocked",
        "cached",
        "entry",
        "fetching",
        "gate",
        "holder",
        "listener",
        "memberships",
        "readable",
        "sasl",
        "session",
        "stall",
        "timed",
        "tls",
    )

    large = LARGE
    door: KafkaDoor

    def __init__(self, door: KafkaDoor, listener: OpenListener) -> None:
        super().__init__(door)
        self.listener = listener
        self.tls = False
        self.session = Session(door=door.name)
        # What this client's requests take of the loop is counted here, where that is limited.
        self.timed: Bucket | None = None
        # How the client authenticates, where it has to; the gate is there while it has not, or does so again.
        self.sasl: Sasl | None = None
        self.gate: Sasl | None = None
        # The last hit in the request cache of Produce, its reply, and the long poll that the client waits in.
        self.cached: CachedProduce | None = None
        self.entry: PendingCached | None = None
        self.fetching: FetchCall | None = None
        # Transactional ids that this client took.
        self.holder: Holder | None = None
        # The groups that the client is a member of, where rights are asked for.
        self.memberships: Memberships | None = None
        # What the client may read, as far as it has asked.
        self.readable: Readable | None = None
        # A Produce that waits for room in a topic, and how long such ones have waited.
        self.blocked: asyncio.Future[None] | None = None
        self.stall: Stall | None = None
        self._outbox: Outbox | None = None
        # Awaited by a reply that is larger than what the client reads.
        self._room: asyncio.Future[None] | None = None
        self._client_raw = b""
        self._client_id: str | None = None
        # The last meter that was asked for, and for what.
        self._meter: Meter | None = None
        self._metered: tuple[str, int] | None = None

    @property
    def client_host(self) -> str:
        """Where the client is."""
        return self.address[0]

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def _opened(self) -> None:
        super()._opened()
        self.tls = self.encrypted
        if is_same_machine(self.client_host) and (socket := self.transport.get_extra_info("socket")) is not None:
            without_pacing(socket)
        self.session.host = self.client_host
        if self.listener.protocol.has_sasl:
            self.sasl = self.gate = Sasl(self)
        elif self.listener.protocol is Protocol.SSL:
            self._login_by_certificate()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
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
        self.cached = None
        self.entry = None
        if self.sasl is not None:
            self.sasl.close()
        if self.memberships is not None:
            self.memberships.end()
        if self.session.identity is not None:
            self.session.on_ended = None
            self.door.broker.security.logout(self.session)

    def resume_writing(self) -> None:
        self.note_unread()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self.release(UNREAD)

    # --- who the client is --------------------------------------------------------------------------------------------

    def login(self, identity: Identity) -> None:
        """The client is authenticated, for the first time or again."""
        self.session.on_ended = self._ended
        self.cached = self.readable = self._metered = None
        self.door.broker.security.login(self.session, identity)

    def _login_by_certificate(self) -> None:
        """A client that has shown a certificate in its TLS handshake is whom that one names."""
        certificate = self.transport.get_extra_info("peercert")
        if not certificate:
            return
        try:
            self.login(self.door.broker.security.authenticator.certificate(certificate, self.session))
        except AuthenticationFailed as error:
            self._held |= BUSY
            self.door.loop.call_later(error.delay_ms / 1000, self.close)

    def _ended(self, reason: str) -> None:
        log.debug("connection closed", client=self.name, reason=reason)
        self.close()

    def watched(self) -> Memberships:
        """The groups that the client is a member of."""
        if self.memberships is None:
            self.memberships = Memberships(self)
        return self.memberships

    def readable_now(self) -> Readable:
        """What is known of what the client may read."""
        known = self.readable
        if known is None or not known.valid:
            known = self.readable = self.door.readable.of(self.session)
        return known

    # --- frames -------------------------------------------------------------------------------------------------------

    def _needed(self, buffer: bytearray, position: int, left: int) -> int:
        need = int(INT32.unpack_from(buffer, position)[0]) + 4 if left >= 4 else 0
        return need if need <= self.door.request_max + 4 else 0

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Malformed | Unanswerable):
            log.debug("request refused", client=self.client_host, reason=str(error))
        else:
            log.exception("a request failed", client=self.client_host)
        self.close()

    def _consume(self, buffer: bytearray, end: int) -> int:
        """Handle whole frames until one is cut or must wait; the position of the first byte that is left."""
        if self.gate is not None:
            return self._consume_gated(self.gate, buffer, end)
        door = self.door
        position = 0
        out: list[bytes] = []
        started = door.loop.time()
        timed = self.timed
        began = 0.0 if timed is None else door.seconds()
        view = door.view if buffer is door.buffer else memoryview(buffer)
        produced = 0
        try:
            while position < end and not self._held:
                cached = self.cached
                if cached is not None:
                    found = cached.match(buffer, position, end)
                    if found is not None:
                        at, until, stop, correlation = found
                        if append_cached(self, cached, view[at:until], stop - position, correlation, out, started):
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
                if key == PRODUCE and not door.follows:
                    produced += 1
                    if cached is not None:
                        # The next partition of the same topic, most likely: its bytes are as many.
                        start = position + CORRELATION_END
                        prefix = bytes(view[start : start + len(cached.prefix)])
                        other = door.produce_cache.get((self.session.subject, version, prefix))
                        if other is not None and other is not cached:
                            found = other.match(buffer, position, end)
                            if found is not None:
                                batch = view[found[0] : found[1]]
                                if append_cached(self, other, batch, stop - position, correlation, out, started):
                                    position = stop
                                    continue
                body = position + 14 + (client if client > 0 else 0)
                if body > stop or client < -1:
                    raise Malformed(f"a client id of {client} bytes in a request of {size}")
                if key == PRODUCE and not door.follows:
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
            if timed is not None:
                timed.count(door.seconds() - began, started)
        return position

    def _consume_gated(self, gate: Sasl, buffer: bytearray, end: int) -> int:
        """Handle the frame of a client that is not authenticated, if it is whole. What it leads to is awaited, so it is
        the only one for now."""
        if end < INT32.size:
            return 0
        size = int(INT32.unpack_from(buffer)[0])
        gate.check_size(size)
        stop = INT32.size + size
        if stop > end:
            return 0
        if gate.takes_tokens:
            self.run(gate.take(bytes(buffer[INT32.size : stop])))
            return stop
        self._check_size(size)
        _, key, version, correlation, client = HEAD.unpack_from(buffer)
        gate.check_api(key)
        body = HEAD.size + max(client, 0)
        if body > stop or client < -1:
            raise Malformed(f"a client id of {client} bytes in a request of {size}")
        dispatch(self, buffer, 0, body, stop, key, version, correlation, self.door.loop.time())
        return stop

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
        raw = buffer[start:body]
        if raw != self._client_raw:
            self._client_raw = bytes(raw)
            self._client_id = self.session.client_id = raw.decode("utf-8", "replace")
        return self._client_id

    def meter(self, buffer: bytearray, position: int, body: int) -> Meter | None:
        """The quotas of the client that sent the frame at `position`."""
        return self.meter_of(self.client_id(buffer, position, body) or "")

    def meter_of(self, client_id: str) -> Meter | None:
        """The quotas of this connection's user and a client id."""
        quotas = self.door.quotas
        asked = self._metered
        if asked is None or asked[0] != client_id or asked[1] != quotas.version:
            self._meter = quotas.meter(self.session, client_id)
            self._metered = client_id, quotas.version
        meter = self._meter
        self.timed = None if meter is None else meter.request
        return meter

    # --- replies ------------------------------------------------------------------------------------------------------

    def settled(self, entry: Pending) -> bool:
        """A reply in line is ready: all that are ready by the end of this turn go out in one write. One that is alone
        in line, with nothing held back by it, goes at once; whether it did."""
        if self._queued or self._held & LOST:
            return False
        pending = self._pending
        if not self._held and len(pending) == 1 and pending[0] is entry:
            pending.clear()
            self.transport.write(entry.reply)
            door = self.door
            door.produce_metrics.latency.observe(door.loop.time() - entry.started)
            return True
        self._queued = True
        self.door.soon(self.flush_pending)
        return False

    def expire_replies(self, now: float) -> None:
        """Answer those in line that have waited for their commit for longer than their clients allow."""
        for entry in list(self._pending):
            if entry.waiting and now - entry.started >= entry.timeout_ms / 1000:
                entry.expire(self.door.too_late())

    def _send_replies(self, replies: list[Pending]) -> None:
        now = self.door.loop.time()
        observe = self.door.produce_metrics.latency.observe
        for entry in replies:
            observe(now - entry.started)
        self.flush([entry.reply for entry in replies])

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

    # --- closing ------------------------------------------------------------------------------------------------------

    def _unsent(self) -> int:
        if self._held & UNREAD or self._outbox is None or not self._outbox.sending:
            return super()._unsent()
        return self._outbox.left

    def close_when_idle(self) -> None:
        """Handle no further frame, and close once the requests under way are answered."""
        self._held |= CLOSING
        if self.fetching is not None:
            self.fetching.finish_now()
        self._finish_closing()

    def _ran(self) -> None:
        # A Fetch may have warmed its partitions only to wait for records, or for the client to take them.
        if self.fetching is None and (self._outbox is None or not self._outbox.sending):
            self.release(BUSY)
