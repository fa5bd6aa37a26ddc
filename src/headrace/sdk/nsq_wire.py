"""NSQ's wire, from the client's side: one connection, commands and frames.

With Headrace's extension (docs/nsq.md) a body is the end of a Kafka record, with key and headers. A plain nsqd carries
bytes; where the application asks for it, the same encoding travels in them behind a mark.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

from headrace.addresses import is_loopback
from headrace.client.errors import AuthenticationError
from headrace.format.varint import read_zigzag, zigzag
from headrace.sdk.login import Login

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEAD = Struct(">ii")
SIZE = Struct(">i")
# Nanoseconds, attempts, id.
MESSAGE_HEAD = Struct(">qH16s")
HEARTBEAT = b"_heartbeat_"
# What a client gets that settles or touches a message which is not in flight to it any more; the message's id follows.
# The connection goes on.
TOO_LATE = {b"E_FIN_FAILED FIN ": b"FIN", b"E_REQ_FAILED REQ ": b"REQ", b"E_TOUCH_FAILED TOUCH ": b"TOUCH"}
ID_BYTES = 16
ENVELOPE = b"\x00HR1"
CONNECT_SECONDS = 10.0
READ_BYTES = 262_144


class NsqError(Exception):
    """The server refused a command, or the connection is gone."""


class NsqGone(NsqError):
    """The connection is gone: what was asked may have been done."""


class Received:
    """A message frame."""

    __slots__ = ("attempts", "body", "id", "timestamp_ms")

    def __init__(self, data: bytes) -> None:
        nanoseconds, self.attempts, self.id = MESSAGE_HEAD.unpack_from(data)
        self.timestamp_ms = nanoseconds // 1_000_000
        self.body = data[MESSAGE_HEAD.size :]


class NsqConnection:
    """One connection. `messages` is called with what has come in one read, `lost` once when it is over."""

    def __init__(self, messages: Callable[[list[Received]], None], lost: Callable[[], None]) -> None:
        self.extended = False
        self.on_late: Callable[[bytes, bytes], object] = lambda command, delivery: None
        """Called with FIN, REQ or TOUCH, and the id of the delivery that was over by then."""
        self.limits: Mapping[str, Any] = {}
        self._messages = messages
        self._lost = lost
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def open(self) -> bool:
        """Whether it can be written to."""
        return self._writer is not None

    async def connect(
        self,
        host: str,
        port: int,
        identify: Mapping[str, Any],
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """Connect, identify and authenticate. Raises OSError or NsqError."""
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_SECONDS)
        self._writer = writer
        writer.write(MAGIC)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        features = {**identify, "feature_negotiation": True, "headrace": 1, "tls_v1": tls is not None}
        body = json.dumps(features).encode()
        try:
            answer = await asyncio.wait_for(self.ask(b"IDENTIFY\n" + SIZE.pack(len(body)) + body), CONNECT_SECONDS)
            if tls is not None:
                await asyncio.wait_for(self._secure(writer, host, answer, tls), CONNECT_SECONDS)
            if login is not None:
                await asyncio.wait_for(
                    self._authenticate(login, answer, clear=host if tls is None else ""), CONNECT_SECONDS
                )
        except BaseException:
            await self.close()
            raise
        if answer.startswith(b"{"):
            self.limits = json.loads(answer)
            self.extended = self.limits.get("headrace") == 1

    async def _secure(self, writer: asyncio.StreamWriter, host: str, answer: bytes, tls: ssl.SSLContext) -> None:
        """TLS from here on, which the server confirms inside of it."""
        if not answer.startswith(b"{") or not json.loads(answer).get("tls_v1"):
            raise NsqError("the server does not speak TLS")
        confirmed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(confirmed)
        await writer.start_tls(tls, server_hostname=host)
        await confirmed

    async def _authenticate(self, login: Login, answer: bytes, clear: str) -> None:
        """AUTH, where the server asks for it or is a Headrace. `clear`: the host, where others can read along."""
        said = json.loads(answer) if answer.startswith(b"{") else {}
        if not said.get("auth_required") and said.get("headrace") != 1:
            return
        if clear and not is_loopback(clear):
            raise NsqError(f"AUTH would send the secret in the clear to {clear}. Use TLS: tls=1 or tls_ca=FILE")
        try:
            secret = login.nsq_secret()
        except AuthenticationError as error:
            raise NsqError(str(error)) from None
        await self.ask(b"AUTH\n" + SIZE.pack(len(secret)) + secret)

    def ask(self, command: bytes) -> asyncio.Future[bytes]:
        """Write a command that is answered. The future raises NsqError."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._writer is None:
            answer.set_exception(NsqGone("the connection is gone"))
            return answer
        self._waiting.append(answer)
        self._writer.write(command)
        return answer

    def tell(self, command: bytes) -> None:
        """Write a command that is not answered."""
        if self._writer is not None:
            self._writer.write(command)

    async def wait_drained(self) -> None:
        """Wait until the write buffer has room."""
        if self._writer is not None:
            try:
                await self._writer.drain()
            except OSError:
                pass

    async def close(self) -> None:
        """Close the connection behind what was written."""
        writer, reading = self._writer, self._reading
        self._end(NsqError("the connection was closed"))
        if writer is not None:
            writer.close()
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        why: Exception = NsqError("the server closed the connection")
        try:
            while data := await reader.read(READ_BYTES):
                buffer += data
                self._take(buffer)
        except (OSError, NsqError) as error:
            why = error
        writer, self._reading = self._writer, None
        if writer is not None:
            self._end(why)
            writer.close()
            self._lost()

    def _take(self, buffer: bytearray) -> None:
        """The whole frames that begin the buffer."""
        at = 0
        messages = []
        while len(buffer) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(buffer, at)
            if size < 4:
                raise NsqError(f"a frame of {size} bytes")
            end = at + 4 + size
            if len(buffer) < end:
                break
            data = bytes(memoryview(buffer)[at + HEAD.size : end])
            at = end
            if kind == MESSAGE:
                messages.append(Received(data))
            elif kind == RESPONSE and data == HEARTBEAT:
                self.tell(b"NOP\n")
            elif kind == RESPONSE:
                self._answered(data)
            elif late := next((words for words in TOO_LATE if data.startswith(words)), b""):
                self.on_late(TOO_LATE[late], data[len(late) : len(late) + ID_BYTES])
            else:
                self._answered(NsqError(data.decode(errors="replace")))
        del buffer[:at]
        if messages:
            self._messages(messages)

    def _answered(self, answer: bytes | NsqError) -> None:
        if not self._waiting:
            if isinstance(answer, NsqError):
                raise answer
            return
        waiting = self._waiting.popleft()
        if waiting.done():
            return
        if isinstance(answer, bytes):
            waiting.set_result(answer)
        else:
            waiting.set_exception(answer)

    def _end(self, why: Exception) -> None:
        self._writer = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(NsqGone(str(why)))


# --- bodies -----------------------------------------------------------------------------------------------------------


def write_body(key: bytes | None, value: bytes, headers: Mapping[str, bytes]) -> bytes:
    """Key, value and headers as the end of a Kafka record."""
    parts = [_field(key), _field(value), zigzag(len(headers))]
    for name, each in headers.items():
        parts += (_field(name.encode()), _field(each))
    return b"".join(parts)


def read_body(body: bytes) -> tuple[bytes | None, bytes, dict[str, bytes]]:
    """The same back. Raises ValueError."""
    key, at = _read_field(body, 0)
    value, at = _read_field(body, at)
    count, at = read_zigzag(body, at)
    headers: dict[str, bytes] = {}
    for _ in range(count):
        name, at = _read_field(body, at)
        each, at = _read_field(body, at)
        headers[(name or b"").decode(errors="replace")] = each or b""
    return key, value or b"", headers


def multi(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB."""
    content = b"".join((SIZE.pack(len(bodies)), *(SIZE.pack(len(body)) + body for body in bodies)))
    return b"MPUB %s\n" % topic.encode() + SIZE.pack(len(content)) + content


def encode_deferred(topic: str, delay_ms: int, body: bytes) -> bytes:
    """DPUB."""
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + SIZE.pack(len(body)) + body


def _field(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def _read_field(raw: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_zigzag(raw, at)
    if size < 0:
        return None, at
    if at + size > len(raw):
        raise ValueError("a message's body is cut off")
    return raw[at : at + size], at + size
