"""The door that forwards: bytes both ways, bounds, ends of one direction, and what happens when the leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.doors.group import FakeMembership
from tests.waiting import SECONDS, until

from headrace.broker.membership import NodeView
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.doors.door import DoorContext
from headrace.doors.forwarding import BUFFER_BYTES, ForwardingDoor
from headrace.doors.nsq.settings import NsqSettings
from headrace.doors.settings import SharedSettings

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Setup:
    """Node 1 follows node 2, whose door is in the test."""

    def __init__(self, door: ForwardingDoor, group: FakeMembership, context: DoorContext[Any]) -> None:
        self.door = door
        self.group = group
        self.context = context
        self.metrics = context.broker.metrics.door("nsq")

    async def connect(self) -> Streams:
        host, port = self.door.addresses["nsq"].split(":")
        return await asyncio.open_connection(host, int(port))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"END")
    writer.close()


@asynccontextmanager
async def opened(
    data: Path, serve: Serve = echo, descriptors: int = 1_000, connections_max: int = 100
) -> AsyncIterator[Setup]:
    leader = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = leader.sockets[0].getsockname()[1]
    group = FakeMembership(leader=2)
    group.nodes[2] = NodeView(2, "", {"nsq": f"127.0.0.1:{port}"})
    config = Config(
        data=str(data), nsq="127.0.0.1:0", nsq_http="off", lookup="off", lookup_http="off",
        connections_max=connections_max,
    )  # fmt: skip
    async with brokers.running(data, group) as broker:
        shared = config.part(SharedSettings)
        context = DoorContext(broker, config.part(NsqSettings), shared, Capacity(descriptors=descriptors))
        door = ForwardingDoor(context)
        await door.start()
        try:
            yield Setup(door, group, context)
        finally:
            await door.stop()
            leader.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    except ConnectionResetError:
        return b""


async def test_bytes_go_both_ways_until_one_side_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        assert list(setup.door.addresses) == ["nsq"]
        reader, writer = await setup.connect()
        for text in (b"one", b"two", bytes(range(256)) * 4_000):
            writer.write(text)
            assert await asyncio.wait_for(reader.readexactly(len(text)), SECONDS) == text
        writer.write(b"last")
        writer.write_eof()
        assert await rest(reader) == b"lastEND", "what comes after the client has ended its direction arrives"
        writer.close()
        await until(lambda: setup.metrics.connections == 0)
        assert setup.context.capacity.descriptors_left == 1_000
        assert setup.metrics.connections_accepted == 1


async def test_a_side_that_does_not_read_holds_the_other_back(tmp_path: Path) -> None:
    taken: list[asyncio.StreamReader] = []
    go = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(reader)
        await go.wait()
        size = 0
        while data := await reader.read(1 << 20):
            size += len(data)
        writer.write(b"%d" % size)
        writer.close()

    async with opened(tmp_path, deaf) as setup:
        reader, writer = await setup.connect()
        sent = 0
        # Socket buffers take some megabytes; then nothing moves any more.
        while True:
            writer.write(bytes(1 << 20))
            sent += 1 << 20
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                break
            assert sent < 100 << 20, "nothing holds the client back"
        (client,) = next(iter(setup.door._forwarders.values())).connections
        assert client.other is not None
        assert client.other.transport.get_write_buffer_size() <= 2 * BUFFER_BYTES
        go.set()
        writer.write_eof()
        assert await rest(reader) == b"%d" % sent
        writer.close()


async def test_connections_end_when_another_node_leads(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        for change in ({"leader": 3}, {"leader": None}, {"nodes": {}}):
            before = {"leader": setup.group.leader, "nodes": setup.group.nodes}
            reader, writer = await setup.connect()
            writer.write(b"one")
            assert await asyncio.wait_for(reader.readexactly(3), SECONDS) == b"one"
            setup.group.change(epoch=9)
            writer.write(b"two")
            assert await asyncio.wait_for(reader.readexactly(3), SECONDS) == b"two", "the same leader again"
            setup.group.change(**change)
            assert await rest(reader) == b""
            writer.close()
            # While nobody leads, those that come are closed.
            refused = setup.metrics.connections_refused
            reader, writer = await setup.connect()
            assert await rest(reader) == b""
            writer.close()
            assert setup.metrics.connections_refused == refused + 1
            setup.group.change(**before)
        await until(lambda: setup.metrics.connections == 0)
        assert setup.context.capacity.descriptors_left == 1_000


async def test_a_leader_that_does_not_answer_closes_the_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        setup.group.nodes[2] = NodeView(2, "", {"nsq": "127.0.0.1:1"})
        reader, writer = await setup.connect()
        assert await rest(reader) == b""
        writer.close()


@pytest.mark.parametrize("limits", [{"descriptors": 3}, {"connections_max": 1}])
async def test_connections_are_limited(tmp_path: Path, limits: dict[str, int]) -> None:
    async with opened(tmp_path, **limits) as setup:
        reader, writer = await setup.connect()
        writer.write(b"one")
        assert await asyncio.wait_for(reader.readexactly(3), SECONDS) == b"one"
        other, writer_of_other = await setup.connect()
        assert await rest(other) == b""
        writer_of_other.close()
        assert setup.metrics.connections_refused >= 1
        writer.write(b"two")
        assert await asyncio.wait_for(reader.readexactly(3), SECONDS) == b"two"
        writer.close()


async def test_a_door_that_stops_closes_all(tmp_path: Path) -> None:
    async with opened(tmp_path) as setup:
        reader, writer = await setup.connect()
        writer.write(b"one")
        await asyncio.wait_for(reader.readexactly(3), SECONDS)
        await setup.door.stop()
        assert await rest(reader) == b""
        assert setup.group.on_change == []
        assert setup.door.addresses == {}
        writer.close()
