"""One connection to one broker: frames, correlation ids, and what is in flight.

Any number of requests may be under way; each has a future, found again by its correlation id. Small frames are cut out
of one receive buffer, a frame larger than that is received straight into its own (`frames`). A request that is not
answered in time takes the connection with it, because nothing behind it can be trusted to arrive either.

Where the broker bounds a session, the client authenticates again before its end, on the same connection. Requests that
come meanwhile are held back, in their order: the broker takes nothing else until it knows who asks.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeVar

from headrace.client import lookups, sasl
from headrace.client.credentials import Credentials
from headrace.client.errors import (
    ClientError,
    ConnectionLost,
    InvalidResponse,
    NotKafka,
    RequestTimeout,
    UnsupportedApi,
)
from headrace.client.frames import LargeFrames
from headrace.client.messages import Request
from headrace.version import VERSION

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

# Of a session's length, after which the client authenticates again.
RENEW_AT = 0.8
RECEIVE_BYTES = 262_144
RESPONSE_MAX_BYTES = 1 << 30
SIZE = Struct(">i")
HEADER = Struct(">ihhi")
NULL_CLIENT = b"\xff\xff"
# How the answers of other protocols begin; NSQ's behind its own size and the number of an error, which is that of a
# first request here.
HTTP, NSQ_ERROR = b"HTTP/", b"E_BAD_"


class Connection(asyncio.BufferedProtocol):
    """A connected, negotiated connection. Make one with `connect`."""

    def __init__(self, address: str, client_id: str | None, timeout: float) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        """Per API key the lowest and highest version that the broker speaks."""
        self.features: dict[str, int] = {}
        """The levels of the features that the cluster has agreed on."""
        self._timeout = timeout
        self._client = NULL_CLIENT if client_id is None else _string(client_id)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._lost: Exception | None = None
        self._correlation = 0
        # In the order of sending, so the first is the oldest.
        self._in_flight: dict[int, tuple[asyncio.Future[Any], Callable[[memoryview], Any], float]] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        # What waits until the client has authenticated again; None while it does not.
        self._held: list[Buffer] | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._large = LargeFrames()

    # --- requests ---

    @property
    def closed(self) -> bool:
        return self._lost is not None

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._in_flight)

    async def call(self, request: Request, *, timeout: float | None = None) -> Any:
        """Send a request; its reply, as an entity of kio."""
        if self.versions:
            self.require(request.key, request.version)
        return await self.send(request.key, request.version, (request.encode(),), request.decode, timeout)

    def speaks(self, key: int, version: int) -> bool:
        """Whether the broker has `version` of an API."""
        lowest, highest = self.versions.get(key, (0, -1))
        return lowest <= version <= highest

    def require(self, key: int, version: int) -> None:
        """Raise UnsupportedApi unless the broker speaks `version` of an API."""
        if not self.speaks(key, version):
            lowest, highest = self.versions.get(key, (0, -1))
            has = f"has versions {lowest} to {highest}" if highest >= 0 else "does not have it"
            raise UnsupportedApi(f"this client needs API {key} in version {version}, but {self.address} {has}")

    def send(
        self,
        key: int,
        version: int,
        parts: Sequence[Buffer],
        decode: Callable[[memoryview], T],
        timeout: float | None = None,
        *,
        urgent: bool = False,
    ) -> asyncio.Future[T]:
        """Send a request whose body is packed already. `decode` gets what follows the correlation id. `urgent`: it is
        part of an authentication, for which others are held back."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        correlation = self._write(key, version, parts, urgent)
        deadline = self._loop.time() + (self._timeout if timeout is None else timeout)
        self._in_flight[correlation] = (future, decode, deadline)
        if self._watch is None or self._watch.when() > deadline:
            self._watch_until(deadline)
        return future

    def send_unanswered(self, key: int, version: int, parts: Sequence[Buffer]) -> None:
        """Send a request that has no answer: Produce with acks=0."""
        if self._lost is not None:
            raise self._lost
        self._write(key, version, parts)

    async def wait_drained(self) -> None:
        """Return once the transport takes more. Ask this before sending much."""
        while self._writable is not None:
            await asyncio.shield(self._writable)
        if self._lost is not None:
            raise self._lost

    def _write(self, key: int, version: int, parts: Sequence[Buffer], urgent: bool = False) -> int:
        assert self._transport is not None
        self._correlation = correlation = (self._correlation + 1) & 0x7FFFFFFF
        size = HEADER.size - SIZE.size + len(self._client) + sum(map(len, parts))
        frame = (HEADER.pack(size, key, version, correlation) + self._client, *parts)
        if self._held is None or urgent:
            self._transport.writelines(frame)
        else:
            self._held += frame
        return correlation

    def _watch_until(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_at(deadline, self._overdue)

    def _overdue(self) -> None:
        self._watch = None
        if not self._in_flight:
            return
        deadline = min(entry[2] for entry in self._in_flight.values())
        if deadline > self._loop.time():
            self._watch_until(deadline)
        else:
            self._fail(RequestTimeout(f"{self.address} did not answer in time. Is it overloaded, or cut off?"))

    # --- authentication ---

    async def authenticate(self, credentials: Credentials) -> None:
        """Show the broker who the client is, and again before that ends. Raises AuthenticationError."""
        lifetime_ms = await sasl.authenticate(self, credentials)
        if lifetime_ms > 0 and self._lost is None:
            self._renewal = self._loop.call_later(lifetime_ms / 1000 * RENEW_AT, self._begin_renewal, credentials)

    def _begin_renewal(self, credentials: Credentials) -> None:
        self._held = []
        self._renewing = self._loop.create_task(self._renew(credentials))

    async def _renew(self, credentials: Credentials) -> None:
        try:
            await self.authenticate(credentials)
        except ClientError as error:
            # Another connection is told for good what is wrong, if it still is.
            self._fail(ConnectionLost(f"the session at {self.address} could not be renewed: {error}"))
            return
        held, self._held = self._held, None
        if held and self._transport is not None:
            self._transport.writelines(held)

    # --- responses ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._large.arrive_by(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionLost(f"the connection to {self.address} broke: {exc or 'the broker closed it'}"))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._large.rest if self._large.left else self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large.left:
            if (frame := self._large.fill(nbytes)) is not None:
                self._answer(frame)
            return
        self._end += nbytes
        start, end, view = self._start, self._end, self._view
        while end - start >= SIZE.size:
            size: int = SIZE.unpack_from(view, start)[0]
            if not SIZE.size <= size <= RESPONSE_MAX_BYTES:
                self._fail(self._foreign(bytes(view[start : start + len(HTTP)]), size))
                return
            if size + SIZE.size > RECEIVE_BYTES:
                self._large.begin(size, view[start + SIZE.size : end])
                start = end
                break
            if end - start - SIZE.size < size:
                break
            start += SIZE.size
            self._answer(memoryview(bytes(view[start : start + size])))
            start += size
        if start == end:
            start = end = 0
        elif start > 0:
            rest = bytes(view[start:end])
            view[: len(rest)] = rest
            start, end = 0, len(rest)
        self._start, self._end = start, end

    def _answer(self, frame: memoryview) -> None:
        correlation = SIZE.unpack_from(frame)[0]
        entry = self._in_flight.pop(correlation, None)
        if entry is None:
            self._fail(InvalidResponse(f"{self.address} answered a request that was never sent ({correlation})"))
            return
        future, decode, _ = entry
        if future.done():
            return
        try:
            future.set_result(decode(frame[SIZE.size :]))
        except ClientError as error:
            future.set_exception(error)
        except Exception as error:
            future.set_exception(InvalidResponse(f"an answer of {self.address} cannot be read: {error!r}"))

    def _foreign(self, first: bytes, size: int) -> InvalidResponse:
        """The error for an answer that does not begin with the size of a frame."""
        if first == HTTP:
            return NotKafka(self.address, "HTTP")
        return InvalidResponse(f"{self.address} announced an answer of {size} bytes. Is that a Kafka broker?")

    # --- ending ---

    def _fail(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._renewal is not None:
            self._renewal.cancel()
        for future, _, _ in self._in_flight.values():
            if not future.done():
                future.set_exception(error)
        self._in_flight.clear()
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close at once. What is in flight fails."""
        self._fail(ConnectionLost(f"the connection to {self.address} was closed"))


async def connect(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
    client_id: str | None = "headrace",
    timeout: float = 30.0,
    connect_timeout: float = 10.0,
) -> Connection:
    """Connect, negotiate and authenticate. Raises ConnectionLost or AuthenticationError where that fails."""
    if credentials is not None:
        credentials.check_way(encrypted=tls is not None)
    loop = asyncio.get_running_loop()
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection: Connection | None = None
    try:
        async with asyncio.timeout(connect_timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(address, client_id, timeout),
                host,
                port,
                ssl=tls,
                server_hostname=host if tls is not None else None,
            )
            try:
                await _negotiate(connection)
                if credentials is not None:
                    await connection.authenticate(credentials)
            except BaseException:
                connection.close()
                raise
    except TimeoutError:
        if connection is not None:
            raise ConnectionLost(
                f"{address} accepted a connection and did not answer within {connect_timeout:g} s. Is that a Kafka "
                "broker?"
            ) from None
        raise ConnectionLost(f"{address} did not accept a connection within {connect_timeout:g} s") from None
    except UnicodeError:
        raise ConnectionLost(f"cannot reach {address}: {host!r} is not a host name") from None
    except OSError as error:
        # asyncio puts the address into the text once more; a name that is not known, and TLS, have no errno.
        plain = type(error) is OSError or isinstance(error, ConnectionError)
        reason = os.strerror(error.errno) if plain and error.errno else error.strerror or str(error)
        # A server that does not speak TLS closes the connection, for which asyncio has an empty text.
        reason = reason or "it hung up during the TLS handshake: it may not speak TLS"
        raise ConnectionLost(f"cannot reach {address}: {reason}") from None
    return connection


async def _negotiate(connection: Connection) -> None:
    def decode(payload: memoryview) -> lookups.ApiVersions:
        if bytes(payload[: len(NSQ_ERROR)]) == NSQ_ERROR:
            raise NotKafka(connection.address, "NSQ")
        return lookups.decode_api_versions(payload)

    spoken = await connection.send(
        lookups.API_VERSIONS,
        lookups.API_VERSIONS_VERSION,
        lookups.encode_api_versions("headrace", VERSION),
        decode,
    )
    connection.versions, connection.features = spoken.versions, spoken.features


def _string(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded
