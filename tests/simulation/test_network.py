"""Transports in memory: the stream arrives whole, in order, in any pieces; or the connection breaks and both sides
know."""

from __future__ import annotations

import asyncio

import pytest

from simulation.connection import WINDOW_BYTES
from simulation.world import Ending, World


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.pieces: list[int] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.paused = 0
        self.resumed = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        self.pieces.append(len(data))

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.resumed += 1

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Buffered(asyncio.BufferedProtocol):
    """A protocol with a buffer of ten bytes, echoing in upper case."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]).upper())


def in_world(main, seed: int = 1) -> World:
    world = World(seed)
    assert world.run(lambda runtime: main()) is Ending.DONE
    return world


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_arrives_whole_and_in_order(seed):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Buffered, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        transport, client = await loop.create_connection(Collector, host, port)
        assert transport.get_extra_info("peername") == (host, port)
        assert transport.get_extra_info("socket") is None
        sent = bytes(range(97, 123)) * 200
        for start in range(0, len(sent), 700):
            transport.writelines([sent[start : start + 300], memoryview(sent)[start + 300 : start + 700]])
            await asyncio.sleep(0.001)
        await asyncio.sleep(1000)
        assert client.data == sent.upper()
        transport.close()
        assert await client.lost is None
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Collector, host, port)

    in_world(main, seed)


def test_a_reader_that_pauses_holds_back_the_writer():
    async def main():
        loop = asyncio.get_running_loop()
        accepted: list[Collector] = []

        def factory():
            accepted.append(Collector())
            return accepted[-1]

        await loop.create_server(factory, "127.0.0.1", 9092)
        transport, client = await loop.create_connection(Collector, "127.0.0.1", 9092)
        (far,) = accepted
        far.transport.pause_reading()
        transport.write(bytes(4 * WINDOW_BYTES))
        await asyncio.sleep(100)
        assert far.data == b""
        assert client.paused == 1
        assert transport.get_write_buffer_size() == 3 * WINDOW_BYTES
        far.transport.resume_reading()
        await asyncio.sleep(100)
        assert len(far.data) == 4 * WINDOW_BYTES
        assert client.resumed == 1
        assert transport.get_write_buffer_size() == 0

    in_world(main)


def test_close_sends_what_was_written_and_eof_ends_the_other_side():
    async def main():
        loop = asyncio.get_running_loop()
        accepted: list[Collector] = []
        await loop.create_server(lambda: accepted.append(Collector()) or accepted[-1], "127.0.0.1", 9092)
        transport, client = await loop.create_connection(Collector, "127.0.0.1", 9092)
        transport.write(b"x" * 1000)
        transport.close()
        transport.write(b"dropped")
        assert await client.lost is None
        assert await accepted[0].lost is None
        assert accepted[0].data == b"x" * 1000

    in_world(main)


def test_a_cut_is_an_error_on_both_sides():
    async def main():
        loop = asyncio.get_running_loop()
        accepted: list[Collector] = []
        await loop.create_server(lambda: accepted.append(Collector()) or accepted[-1], "127.0.0.1", 9092)
        loop.host.network.cut_chance = 1.0
        transport, client = await loop.create_connection(Collector, "127.0.0.1", 9092)
        transport.write(b"x")
        assert isinstance(await client.lost, ConnectionResetError)
        await accepted[0].lost

    in_world(main)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_is_written_after_a_cut_arrives_behind_the_gap(seed: int):
    async def main():
        loop = asyncio.get_running_loop()
        accepted: list[Collector] = []
        await loop.create_server(lambda: accepted.append(Collector()) or accepted[-1], "127.0.0.1", 9092)
        transport, client = await loop.create_connection(Collector, "127.0.0.1", 9092)
        transport.write(b"x" * 100)
        transport.cut()
        while not client.lost.done():
            transport.write(b"y")
            await asyncio.sleep(0)
            if not client.lost.done():
                await asyncio.sleep(1e-6)
        await accepted[0].lost
        assert b"y" not in accepted[0].data

    in_world(main, seed)


def test_streams_work_on_it():
    async def main():
        async def serve(reader, writer):
            writer.write(await reader.readexactly(3) + b"!")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"abc")
        assert await reader.read() == b"abc!"
        writer.close()

    in_world(main)


def test_the_same_seed_gives_the_same_trace():
    async def main():
        loop = asyncio.get_running_loop()
        await loop.create_server(Buffered, "127.0.0.1", 9092)
        transport, _ = await loop.create_connection(Collector, "127.0.0.1", 9092)
        transport.write(b"x" * 10_000)
        await asyncio.sleep(1000)

    digests = {seed: in_world(main, seed).trace.digest() for seed in (1, 2)}
    assert digests == {seed: in_world(main, seed).trace.digest() for seed in (1, 2)}
    assert digests[1] != digests[2]
