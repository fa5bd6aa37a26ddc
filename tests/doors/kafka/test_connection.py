"""Connections: garbage, limits, TLS, idleness, stopping, and memory, on both event loops."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kio.schema.errors import ErrorCode
from tests.certificates import Authority
from tests.device import Device
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, frame, open_door, produce_fields, values
from tests.waiting import SECONDS, until

from headrace.doors.kafka import door as door_module
from headrace.doors.kafka import produce
from headrace.doors.kafka.connection import BUFFER_BYTES, LARGE
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.registry import APIS
from headrace.runtime.sendfile import is_same_machine

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[KafkaDoor]:
    async with open_door(tmp_path) as opened:
        yield opened


# --- negotiation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions(door: KafkaDoor, version: int) -> None:
    async with await Wire.open(door) as wire:
        reply = await wire.ask("api_versions", version, client_software_name="test", client_software_version="1.0")
        assert reply.error_code is ErrorCode.none
        ranges = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
        assert ranges[0] == (0, 13)
        assert ranges[1] == (4, 18)
        assert ranges[18] == (0, 4)
        assert set(ranges) == set(APIS)


async def test_api_versions_of_the_future_are_answered_in_version_0(door: KafkaDoor) -> None:
    async with await Wire.open(door) as wire:
        wire.writer.write(frame(18, 77, 1, b"whatever"))
        reply = await asyncio.wait_for(wire.receive("api_versions", 0, 1), SECONDS)
        assert reply.error_code is ErrorCode.unsupported_version
        assert {each.api_key for each in reply.api_keys} == set(APIS)
        assert (await wire.ask("api_versions", 0)).error_code is ErrorCode.none


async def test_the_name_of_the_software_is_checked(door: KafkaDoor) -> None:
    async with await Wire.open(door) as wire:
        reply = await wire.ask("api_versions", 3, client_software_name="-x", client_software_version="1")
        assert reply.error_code is ErrorCode.invalid_request


# --- what cannot be answered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        frame(999, 0, 1, b""),
        frame(4, 0, 1, b""),
        frame(0, 2, 1, b""),
        frame(0, 14, 1, b""),
        frame(1, 3, 1, b""),
        frame(1, 19, 1, b""),
        frame(3, 14, 1, b""),
        frame(3, -1, 1, b""),
        frame(-1, 0, 1, b""),
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x09" + bytes(9),
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\x0a\0\x03\0\x01\0\0\0\1\x7f\xff",
        frame(3, 1, 1, b"\x7f\xff\xff\xff"),
        frame(3, 12, 1, b"\xff\xff\xff\xff\x0f"),
        frame(0, 9, 1, b"\xff\xff\xff\xff\x0f"),
        frame(1, 12, 1, b"\xff" * 40),
    ],
)
async def test_is_a_closed_connection(door: KafkaDoor, raw: bytes) -> None:
    async with await Wire.open(door) as wire, await Wire.open(door) as other:
        wire.send("api_versions", 0)
        wire.writer.write(raw)
        await wire.receive("api_versions", 0)
        assert await wire.closed() == b""
        assert (await other.ask("api_versions", 0)).error_code is ErrorCode.none


async def test_a_length_prefix_costs_nothing_until_the_bytes_come(door: KafkaDoor) -> None:
    held = []
    for _ in range(20):
        wire = await Wire.open(door)
        wire.writer.write((100 << 20).to_bytes(4, "big") + bytes(200_000))
        held.append(wire)
    await until(lambda: sum(each._filled for each in door.connections) == 20 * 200_004)
    assert sum(len(each._own or b"") for each in door.connections) <= 20 * 524_288
    for wire in held:
        wire.writer.close()


async def test_bytes_may_come_one_at_a_time(door: KafkaDoor) -> None:
    async with await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        raw = wire.frame("api_versions", 0) + wire.frame("produce", 9, **produce_fields(topic, batch_of(b"a")))
        for at in range(len(raw)):
            wire.writer.write(raw[at : at + 1])
            await asyncio.sleep(0)
        await wire.receive("api_versions", 0, 1)
        reply = await wire.receive("produce", 9, 2)
        assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none


async def test_frames_cut_anywhere(door: KafkaDoor) -> None:
    chance = random.Random(3)
    async with await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        sizes = [chance.choice([1, 50, 5_000, 140_000, 300_000]) for _ in range(60)]
        raw = b"".join(wire.frame("produce", 9, **produce_fields(topic, batch_of(bytes(size)))) for size in sizes)

        async def send() -> None:
            at = 0
            while at < len(raw):
                step = chance.choice([1, 3, 1_000, 70_000, 400_000])
                wire.writer.write(raw[at : at + step])
                at += step
                await wire.writer.drain()
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(send())
        for number in range(len(sizes)):
            reply = await asyncio.wait_for(wire.receive("produce", 9, number + 1), SECONDS)
            assert reply.responses[0].partition_responses[0].base_offset == number
        await sending


@pytest.mark.parametrize("secure", [False, True])
async def test_the_frames_of_many_clients_do_not_mix(tmp_path: Path, secure: bool) -> None:
    """All connections receive into one buffer: each must find its own bytes there."""
    server, client = contexts(tmp_path) if secure else (None, None)
    async with open_door(tmp_path, server) as door:

        async def one(number: int) -> None:
            chance = random.Random(number)
            topic = await door.broker.topics.create(f"rain-{number}", 1)
            sizes = [chance.choice([1, 300, 20_000, 140_000, 280_000]) for _ in range(15)]
            async with await Wire.open(door, client) as wire:
                raw = b"".join(
                    wire.frame("produce", 9, **produce_fields(topic, batch_of(bytes([number]) * size)))
                    for size in sizes
                )
                at = 0
                while at < len(raw):
                    step = chance.choice([1, 700, 50_000, 200_000])
                    wire.writer.write(raw[at : at + step])
                    at += step
                    await wire.writer.drain()
                    await asyncio.sleep(chance.choice([0, 0, 0.001]))
                for turn in range(len(sizes)):
                    reply = await asyncio.wait_for(wire.receive("produce", 9, turn + 1), SECONDS)
                    assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none
                got = []
                while len(got) < len(sizes):
                    reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, len(got))))
                    found = values(reply)
                    assert found
                    got += found
                assert got == [bytes([number]) * size for size in sizes]

        await asyncio.gather(*map(one, range(8)))


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with open_door(tmp_path, connections_max=2) as door:
        async with await Wire.open(door) as first, await Wire.open(door) as second:
            await first.ask("api_versions", 0)
            await second.ask("api_versions", 0)
            third = await Wire.open(door)
            try:
                assert await third.closed() == b""
            except ConnectionResetError:
                pass
            assert door.metrics.connections_refused == 1
            await first.ask("api_versions", 0)
        await until(lambda: not door.connections)
        async with await Wire.open(door) as fourth:
            await fourth.ask("api_versions", 0)


async def test_idle_connections_are_closed_and_busy_ones_are_not(tmp_path: Path) -> None:
    async with open_door(tmp_path, connections_idle_ms=500) as door:
        topic = await door.broker.topics.create("rain", 1)
        async with await Wire.open(door) as idle, await Wire.open(door) as polling:
            polling.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=1_500))
            assert await idle.closed() == b""
            await asyncio.wait_for(polling.receive("fetch", 12), SECONDS)


async def test_replies_that_nobody_reads_hold_the_client_back(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        lazy = await Wire.open(door)
        one = lazy.frame("api_versions", 0)
        lazy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            lazy.writer.write(one * 1000)
        [connection] = await _connections(door, 1)
        # Its socket takes megabytes of replies before it is full.
        await until(lambda: connection.unread and not connection._reading, seconds=60)
        await asyncio.sleep(0.1)
        assert connection.transport.get_write_buffer_size() < 1 << 20
        assert len(connection._own or b"") <= BUFFER_BYTES
        lazy.writer.transport.abort()
        await until(lambda: not door.connections)


@pytest.mark.parametrize("size", [1_000, LARGE])
async def test_a_client_that_fills_all_the_room_lets_others_go_first(door: KafkaDoor, size: int) -> None:
    topic = await door.broker.topics.create("rain", 1)
    async with await Wire.open(door) as wire:
        await wire.produce(9, topic, batch_of(b"a"))
        [connection] = await _connections(door, 1)
        one = wire.frame("produce", 9, **produce_fields(topic, batch_of(b"a" * size)))
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        flood = memoryview(one * (2 * BUFFER_BYTES // len(one) + 1))
        before = topic.partitions[0].end
        # As a loop does it that finds more in the socket after every read.
        while flood and connection.transport.is_reading():
            view = connection.get_buffer(-1)
            count = min(len(view), len(flood))
            view[:count], flood = flood[:count], flood[count:]
            connection.buffer_updated(count)
        assert flood
        assert before < topic.partitions[0].end <= before + BUFFER_BYTES // len(one)
        await until(connection.transport.is_reading)
        assert not connection._held


async def test_a_client_on_the_same_machine_is_not_paced(door: KafkaDoor) -> None:
    async with await Wire.open(door):
        [connection] = await _connections(door, 1)
        server_side = connection.transport.get_extra_info("socket")
        assert server_side.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
    assert is_same_machine("127.1.2.3")
    assert is_same_machine("::1")
    assert not is_same_machine("12.7.0.1")
    assert not is_same_machine("")


async def _connections(door: KafkaDoor, count: int) -> list[Any]:
    await until(lambda: len(door.connections) == count)
    return list(door.connections)


async def test_a_thousand_idle_connections_hold_no_buffer(door: KafkaDoor) -> None:
    topic = await door.broker.topics.create("rain", 1)
    wires = [await Wire.open(door) for _ in range(100)]
    for wire in wires:
        await wire.produce(9, topic, batch_of(b"a"))
    for connection in door.connections:
        assert connection._own is None
        assert not connection._pending
        assert connection._task is None
    for wire in wires:
        wire.writer.close()


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "STOP_SECONDS", 60.0)
    async with open_door(tmp_path) as door:
        topic = await door.broker.topics.create("rain", 1)
        polling, idle = await Wire.open(door), await Wire.open(door)
        await idle.ask("api_versions", 0)
        polling.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=60_000))
        await until(lambda: any(each.fetching for each in door.connections))
        await asyncio.wait_for(door.stop(), SECONDS)
        await asyncio.wait_for(polling.receive("fetch", 12), SECONDS)
        assert await polling.closed() == b""
        assert await idle.closed() == b""


async def test_a_stop_does_not_wait_for_a_poll_that_was_about_to_begin(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(device) as door:
        await door.broker.topics.create("rain", 1)
    async with open_door(device) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        device.hold_loads()
        monkeypatch.setattr(door_module, "STOP_SECONDS", 60.0)
        wire.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=60_000))
        await until(lambda: device.waiting)
        stopping = asyncio.create_task(door.stop())
        await asyncio.sleep(0)
        device.release()
        await asyncio.wait_for(stopping, SECONDS)
        assert not (await asyncio.wait_for(wire.receive("fetch", 12), SECONDS)).error_code
        assert await wire.closed() == b""


async def test_a_request_that_fails_unforeseen_closes_its_connection(
    door: KafkaDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await door.broker.topics.create("rain", 1)
    async with await Wire.open(door) as wire:
        wire.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=60_000))
        # It waits behind the long poll, and is handled from a timer of the loop.
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"a")))
        await until(lambda: any(each._own for each in door.connections))
        monkeypatch.setattr(produce, "parse", None)
        next(each.fetching for each in door.connections if each.fetching).finish_now()
        assert await wire.closed()


# --- TLS --------------------------------------------------------------------------------------------------------------


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server and its client need."""
    authority = Authority(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("127.0.0.1"))
    return server, ssl.create_default_context(cafile=authority.path)


async def test_tls(tmp_path: Path) -> None:
    server, client = contexts(tmp_path)
    async with open_door(tmp_path, server, message_max_bytes=8 << 20) as door, await Wire.open(door, client) as wire:
        topic = await door.broker.topics.create("rain", 1)
        sizes = (10, 100_000, 3 << 20, 500_000)
        for number, size in enumerate(sizes):
            answer = await wire.produce(9, topic, batch_of(bytes(size)))
            assert answer.base_offset == number
        got: list[bytes | None] = []
        while len(got) < len(sizes):
            reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, len(got))))
            assert values(reply)
            got += values(reply)
        assert got == [bytes(size) for size in sizes]
