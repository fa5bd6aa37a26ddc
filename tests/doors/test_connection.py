"""The connection that doors share, over real sockets, with a protocol of its own: four bytes of length and a payload.

A payload that begins with `wait` is answered when the test lets it go on, `line` puts a reply in line that becomes
ready later, `raise` and `later` fail, and `many` is answered with as many bytes as it names. All else is sent back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.waiting import until

from headrace.broker.metrics import DoorMetrics
from headrace.doors import connection as connections
from headrace.doors.acceptor import SWEEPS, BufferedAcceptor
from headrace.doors.capacity import Capacity
from headrace.doors.connection import BufferedConnection

BUFFER_BYTES = 262_144


class Reply:
    """A reply in line."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.waiting = 1


class Echo(BufferedConnection):
    """A client of the test's door."""

    door: EchoDoor

    def _consume(self, buffer: bytearray, end: int) -> int:
        position = 0
        while not self._held and end - position >= 4:
            stop = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
            if stop > end:
                break
            self._handle(bytes(buffer[position + 4 : stop]))
            position = stop
        return position

    def _needed(self, buffer: bytearray, position: int, left: int) -> int:
        return 4 + int.from_bytes(buffer[position : position + 4], "big") if left >= 4 else 0

    def _handle(self, payload: bytes) -> None:
        self.door.handled.append(payload)
        if payload.startswith(b"wait"):
            self.run(self._answer_later(payload))
        elif payload.startswith(b"line"):
            self.door.line.append(Reply(framed(payload)))
            self.enqueue(self.door.line[-1])
        elif payload == b"later":
            self.run(self._fail())
        elif payload == b"raise":
            raise RuntimeError("no")
        elif payload.startswith(b"many"):
            self.write(bytes(int(payload[4:])))
        else:
            self.write(framed(payload))

    async def _answer_later(self, payload: bytes) -> None:
        await self.door.go_on.wait()
        self.write(framed(payload))

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("no")


class EchoDoor(BufferedAcceptor[Echo]):
    """Listens for them."""

    def __init__(self, connections_max: int, capacity: Capacity | None) -> None:
        super().__init__(
            DoorMetrics("echo"), connections_max, capacity, buffer_bytes=BUFFER_BYTES, spare_bytes_max=1 << 20
        )
        self.handled: list[bytes] = []
        self.line: list[Reply] = []
        self.go_on = asyncio.Event()

    def connect(self) -> Echo:
        return Echo(self)

    @property
    def only(self) -> Echo:
        """The one connection."""
        [connection] = self.connections
        return connection


@asynccontextmanager
async def opened(connections_max: int = 10, capacity: Capacity | None = None) -> AsyncIterator[EchoDoor]:
    door = EchoDoor(connections_max, capacity)
    await door.listen("127.0.0.1", 0)
    try:
        yield door
    finally:
        door.go_on.set()
        await door.close(5)


@pytest.fixture
async def door() -> AsyncIterator[EchoDoor]:
    async with opened() as door:
        yield door


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Peer:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *payloads: bytes) -> None:
        self.writer.write(b"".join(map(framed, payloads)))
        await self.writer.drain()

    async def reply(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait for the end of the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


async def connect(door: EchoDoor, **limits: Any) -> Peer:
    before = len(door.connections)
    peer = Peer(*await asyncio.open_connection(*door.address, **limits))
    await until(lambda: len(door.connections) > before or door.metrics.connections_refused)
    return peer


async def test_requests_are_answered_in_order_however_their_bytes_arrive(door: EchoDoor):
    peer = await connect(door)
    payloads = [b"", b"a", b"b" * 1_000, b"c" * 100_000]
    sent = b"".join(map(framed, payloads))
    ends = list(accumulate(len(framed(payload)) for payload in payloads))
    for cut in (*range(40), 500, 1_100, 50_000):
        door.handled.clear()
        peer.writer.write(sent[:cut])
        await until(lambda cut=cut: len(door.handled) == sum(end <= cut for end in ends))
        await until(lambda cut=cut: (door.only._own is None) == (cut in (0, *ends)))
        peer.writer.write(sent[cut:])
        assert [await peer.reply() for _ in payloads] == payloads
    # An idle connection holds nothing.
    assert door.only._own is None


async def test_a_large_request_has_a_buffer_of_its_own_that_the_next_one_gets(door: EchoDoor):
    peer = await connect(door)
    large = bytes(range(256)) * 2_000
    peer.writer.write(framed(large)[:200_000])
    await until(lambda: door.only._own is not None and door.only._need == 4 + len(large))
    # It grows as bytes arrive, and is never more than twice what is there.
    await until(lambda: door.only._filled == 200_000)
    assert len(door.only._own or b"") <= 400_000
    peer.writer.write(framed(large)[200_000:] + framed(b"behind"))
    assert [await peer.reply(), await peer.reply()] == [large, b"behind"]
    [spare] = door.buffers._spare
    await peer.send(large)
    assert await peer.reply() == large
    assert door.buffers._spare[0] is spare


async def test_a_request_that_awaits_holds_the_ones_behind_it(door: EchoDoor):
    peer, other = await connect(door), await connect(door)
    await peer.send(b"wait", b"behind")
    await until(lambda: door.handled == [b"wait"])
    # The others do not wait for it.
    await other.send(b"beside")
    assert await other.reply() == b"beside"
    assert door.handled == [b"wait", b"beside"]
    door.go_on.set()
    assert [await peer.reply(), await peer.reply()] == [b"wait", b"behind"]


async def test_a_held_client_is_soon_no_longer_read(door: EchoDoor):
    peer = await connect(door)
    await peer.send(b"wait")
    await until(lambda: door.handled == [b"wait"])
    # More than is kept of a held client, and less than the room that there is.
    behind = [b"x" * 50_000] * 3
    peer.writer.write(b"".join(map(framed, behind)))
    await until(lambda: not door.only.transport.is_reading())
    assert len(door.only._own or b"") <= BUFFER_BYTES
    door.go_on.set()
    assert await peer.reply() == b"wait"
    assert [await peer.reply() for _ in behind] == behind
    assert door.only.transport.is_reading()


async def test_replies_go_out_in_the_order_of_their_requests(door: EchoDoor):
    peer = await connect(door)
    await peer.send(b"line 1", b"line 2", b"line 3")
    await until(lambda: len(door.line) == 3)
    for index in (1, 2):
        door.line[index].waiting = 0
        door.only.flush_pending()
    assert door.only.in_line
    door.line[0].waiting = 0
    door.only.flush_pending()
    assert [await peer.reply() for _ in range(3)] == [b"line 1", b"line 2", b"line 3"]
    assert not door.only.in_line


async def test_so_many_replies_in_line_and_no_more(door: EchoDoor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "PIPELINE_MAX", 4)
    peer = await connect(door)
    await peer.send(*(b"line %d" % number for number in range(6)))
    await until(lambda: len(door.line) == 4)
    assert door.only.held
    for entry in door.line:
        entry.waiting = 0
    door.only.flush_pending()
    await until(lambda: len(door.line) == 6)
    for entry in door.line:
        entry.waiting = 0
    door.only.flush_pending()
    assert [await peer.reply() for _ in range(6)] == [b"line %d" % number for number in range(6)]


@pytest.mark.parametrize("payload", [b"raise", b"later"])
async def test_a_request_that_fails_closes_its_connection_alone(door: EchoDoor, payload: bytes):
    peer, other = await connect(door), await connect(door)
    with capture_logs() as logs:
        await peer.send(b"before", payload, b"behind")
        assert await peer.reply() == b"before"
        assert await peer.is_closed()
    assert [each["event"] for each in logs] == ["a request failed"]
    await other.send(b"beside")
    assert await other.reply() == b"beside"
    assert b"behind" not in door.handled


async def test_a_client_that_does_not_read_is_held_and_counted():
    capacity = Capacity()
    async with opened(capacity=capacity) as door:
        peer = await connect(door, limit=1_024)
        size = 30_000_000
        await peer.send(b"many%d" % size, b"behind")
        await until(lambda: door.only.unread)
        await until(lambda: capacity.unread_bytes > 0)
        assert door.handled == [b"many%d" % size]
        await peer.reader.readexactly(size)
        assert await peer.reply() == b"behind"
        assert capacity.unread_bytes == 0


async def test_a_muted_client_is_handled_when_its_time_is_over(door: EchoDoor):
    peer, other = await connect(door), await connect(door)
    muted = next(iter(door.connections))
    muted.mute(3_600)
    await peer.send(b"muted")
    await until(lambda: muted._own is not None)
    await other.send(b"beside")
    assert await other.reply() == b"beside"
    assert door.handled == [b"beside"]
    muted.mute(0)
    assert await peer.reply() == b"muted"


async def test_a_closing_connection_answers_what_is_under_way_and_nothing_else(door: EchoDoor):
    peer, idle = await connect(door), await connect(door)
    await peer.send(b"wait", b"behind")
    await until(lambda: door.handled == [b"wait"])
    for connection in door.connections:
        connection.close_when_idle()
    assert await idle.is_closed()
    door.go_on.set()
    assert await peer.reply() == b"wait"
    assert await peer.is_closed()
    assert door.handled == [b"wait"]


async def test_an_idle_client_is_closed_and_a_busy_one_is_not(door: EchoDoor):
    idle, busy = await connect(door), await connect(door)
    await busy.send(b"wait")
    await until(lambda: door.handled == [b"wait"])
    door.tick += SWEEPS + 1
    for connection in door.connections:
        connection.close_if_idle(SWEEPS)
    assert await idle.is_closed()
    door.go_on.set()
    assert await busy.reply() == b"wait"


async def test_a_client_that_takes_nothing_of_its_reply_is_cut_off(door: EchoDoor):
    peer = await connect(door, limit=1_024)
    await peer.send(b"many30000000")
    await until(lambda: door.only.unread)
    connection = door.only
    # The first look sees that the client has taken something since it asked, the next ones that it takes no more.
    connection.close_if_idle(SWEEPS)
    door.tick += SWEEPS + 1
    connection.close_if_idle(SWEEPS)
    await until(lambda: not len(door.connections))
    assert connection.lost


async def test_one_connection_too_many_is_refused():
    async with opened(connections_max=1) as door:
        first = await connect(door)
        second = await connect(door)
        assert await second.is_closed()
        assert door.metrics.connections_refused == 1
        await first.send(b"still here")
        assert await first.reply() == b"still here"


async def test_a_lost_client_is_forgotten_with_its_replies(door: EchoDoor):
    peer = await connect(door)
    await peer.send(b"line")
    await until(lambda: door.line)
    connection = door.only
    peer.writer.transport.abort()
    await until(lambda: not len(door.connections))
    assert not connection.in_line


@pytest.mark.parametrize("end", [Echo.close, Echo.abort])
async def test_nothing_is_written_to_a_connection_that_is_closed(
    door: EchoDoor, end: Callable[[Echo], None], monkeypatch: pytest.MonkeyPatch
):
    peer = await connect(door)
    await peer.send(b"wait")
    await until(lambda: door.handled)
    connection = door.only
    written: list[bytes] = []
    end(connection)
    monkeypatch.setattr(connection, "transport", SimpleNamespace(write=written.append))
    connection.write(b"late")
    assert written == []
    assert await peer.is_closed()
