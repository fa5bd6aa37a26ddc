"""One connection: frames cut anywhere, answers out of size, out of turn or out of time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from headrace.client.connection import RECEIVE_BYTES, Connection
from headrace.client.errors import ConnectionLost, InvalidResponse, RequestTimeout, UnsupportedApi

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(serve: Serve, timeout: float = 5.0) -> tuple[Connection, asyncio.Server]:
    """A connection (without negotiation) to a server that does what the test says."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(f"127.0.0.1:{port}", "test", timeout), "127.0.0.1", port
    )
    return connection, server


async def request_of(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    frame = await reader.readexactly(size)
    key, version, correlation = struct.unpack_from(">hhi", frame)
    return key, version, correlation, frame[8:]


def answer(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation) + body


@pytest.mark.parametrize("step", [1, 3, 7, 65_536])
async def test_frames_cut_anywhere(step: int) -> None:
    bodies = [b"", b"x", b"y" * 300, bytes(range(256)) * 20]
    if step > 7:
        bodies += [b"z" * (RECEIVE_BYTES - 8), b"z" * (RECEIVE_BYTES - 7), b"w" * (3 * RECEIVE_BYTES), b"end"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out = b""
        for body in bodies:
            key, version, correlation, rest = await request_of(reader)
            assert (key, version, rest) == (3, 9, b"\x00\x04testhello")
            out += answer(correlation, body)
        for start in range(0, len(out), step):
            writer.write(out[start : start + step])
            await writer.drain()
            if step < 65_536:
                await asyncio.sleep(0)

    connection, server = await connected(serve)
    futures = [connection.send(3, 9, (b"hel", b"lo"), bytes) for _ in bodies]
    assert await asyncio.gather(*futures) == bodies
    assert connection.in_flight == 0
    connection.close()
    server.close()


async def test_a_broken_connection_fails_what_is_in_flight() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, _, correlation, _ = await request_of(reader)
        await request_of(reader)
        writer.write(answer(correlation, b"ok"))
        await writer.drain()
        writer.close()

    connection, server = await connected(serve)
    first, second = connection.send(3, 9, (), bytes), connection.send(3, 9, (), bytes)
    assert await first == b"ok"
    with pytest.raises(ConnectionLost, match="the broker closed it"):
        await second
    assert connection.closed
    with pytest.raises(ConnectionLost):
        await connection.send(3, 9, (), bytes)
    with pytest.raises(ConnectionLost):
        await connection.wait_drained()
    server.close()


async def test_an_answer_that_does_not_come_in_time() -> None:
    stop = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.close()

    connection, server = await connected(serve)
    long = connection.send(3, 9, (), bytes, 60)
    short = connection.send(3, 9, (), bytes, 0.05)
    with pytest.raises(RequestTimeout, match="did not answer in time"):
        await short
    with pytest.raises(ConnectionLost):
        await long
    stop.set()
    server.close()


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x02xx", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"HTTP/1.1 400", answer(99, b"who?")]
)
async def test_nonsense_closes(data: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await reader.read()
        writer.close()

    connection, server = await connected(serve)
    with pytest.raises(InvalidResponse):
        await connection.send(3, 9, (), bytes)
    assert connection.closed
    server.close()


async def test_an_answer_that_cannot_be_read_fails_alone() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in (b"bad", b"good"):
            _, _, correlation, _ = await request_of(reader)
            writer.write(answer(correlation, body))

    connection, server = await connected(serve)
    first = connection.send(3, 9, (), lambda payload: struct.unpack(">q", payload))
    second = connection.send(3, 9, (), bytes)
    with pytest.raises(InvalidResponse, match="cannot be read"):
        await first
    assert await second == b"good"
    connection.versions = {3: (0, 8)}
    with pytest.raises(UnsupportedApi, match="has versions 0 to 8"):
        connection.require(3, 9)
    with pytest.raises(UnsupportedApi, match="does not have it"):
        connection.require(4, 0)
    connection.close()
    server.close()
