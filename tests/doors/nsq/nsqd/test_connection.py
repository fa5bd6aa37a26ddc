"""What a connection is held to: heartbeats, bounds, and an orderly end."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from random import Random

import pytest
from tests.doors.nsq.nsqd.wired import ERROR, OK, Wire, kept, mpub, open_door, pub
from tests.waiting import SECONDS, until

from headrace.doors.nsq.nsqd import connection as module


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"PUB t\n", b"V2  ", b"\0\0\0\0", b" \n"])
async def test_another_protocol_is_refused(tmp_path: Path, magic: bytes) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door, magic=magic) as wire:
        assert await wire.frame() == (ERROR, b"E_BAD_PROTOCOL")
        assert await wire.closed() == b""


async def test_the_magic_may_come_in_parts(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door, magic=b"") as wire:
        for part in (b" ", b" ", b"V", b"2", b"NOP\n"):
            wire.send(part)
            await asyncio.sleep(0.005)
        assert await wire.ask(pub("t", b"x")) == b"OK"


async def test_heartbeats_come_and_their_answers_keep_a_connection(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        # Before the door's own watch begins: on a busy machine the client learns of it late.
        began = asyncio.get_running_loop().time()
        async with await Wire.open(door, heartbeat_interval=1000) as wire:
            for beat in (1, 2, 3):
                assert await wire.frame(heartbeats=True) == (0, b"_heartbeat_")
                assert asyncio.get_running_loop().time() - began > 0.9 * beat
                wire.send(b"NOP\n")
            assert await wire.ask(pub("t", b"x")) == b"OK"


async def test_a_silent_client_is_closed_after_two_intervals(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        began = asyncio.get_running_loop().time()
        async with await Wire.open(door, heartbeat_interval=1000) as wire:
            # The second is due when the time is over; a loop that stood still may have missed the first, too.
            assert (await wire.closed()).count(b"_heartbeat_") <= 2
            assert asyncio.get_running_loop().time() - began > 1.9
            await until(lambda: not door.connections)


async def test_no_heartbeats_where_they_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door, heartbeat_interval=-1) as wire:
        (connection,) = door.connections
        assert connection._heartbeat._timer is None
        # The machine's own way of finding out that nobody is there any more.
        assert connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert await wire.refused(b"SUB t c\n") == "E_INVALID cannot SUB with heartbeats disabled"


async def test_a_client_that_says_nothing_at_all_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.doors.nsq.nsqd.identify import Identity

    monkeypatch.setattr(module, "Identity", lambda: Identity(heartbeat_ms=100))
    async with open_door(tmp_path) as door, await Wire.open(door, magic=b"") as wire:
        # No heartbeat either: it has not said that it speaks this protocol.
        assert await wire.closed() == b""


async def test_a_client_that_reads_nothing_is_closed(tmp_path: Path) -> None:
    async with (
        open_door(tmp_path) as door,
        await Wire.subscribed(door, "t", "c", ready=2500, heartbeat_interval=1000) as wire,
    ):
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with await Wire.open(door) as publisher:
            for _ in range(30):
                await publisher.ask(mpub("t", *[b"x" * 100_000] * 10))

        async def talk() -> None:
            while True:
                wire.send(b"NOP\n")
                await asyncio.sleep(0.2)

        talking = asyncio.create_task(talk())
        queue = door.broker.queues.get("t", "c")
        assert queue is not None
        await until(lambda: not queue.consumers)
        talking.cancel()
        # What it held is there for others.
        assert queue.figures().in_flight == 0


async def test_replies_that_are_not_read_hold_commands_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLIES_MAX", 100_000)
    monkeypatch.setattr(module, "WRITE_BUFFER_BYTES", 10_000)
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = door.connections
        wrong = b"TOUCH zzzzzzzzzzzzzzzz\n" * 1000
        async with asyncio.timeout(SECONDS):
            while connection._reading:
                wire.send(wrong)
                await asyncio.sleep(0.01)
        assert connection.transport.get_write_buffer_size() < 400_000
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        # What a stream has room for is less than what waits.
        async with asyncio.timeout(SECONDS):
            while not connection._reading:
                assert await wire.reader.read(65_536)


async def test_connections_have_a_bound(tmp_path: Path) -> None:
    async with open_door(tmp_path, connections_max=2) as door:
        wires = [await Wire.open(door) for _ in range(2)]
        await wires[1].ask(pub("t", b"x"))
        third = await Wire.open(door)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await third.ask(pub("t", b"x"))
        assert door.broker.metrics.door("nsq").connections_refused == 1
        wires[0].writer.close()
        await until(lambda: len(door.connections) == 1)
        async with await Wire.open(door) as again:
            assert await again.ask(pub("t", b"x")) == b"OK"
        wires[1].writer.close()


async def test_a_stop_answers_what_is_under_way(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door:
        wires = [await Wire.open(door) for _ in range(5)]
        for wire in wires:
            await wire.ask(pub("t", b"x"))
        subscriber = await Wire.subscribed(door, "t", "c")
        await subscriber.message()
        for wire in wires:
            wire.send(pub("t", b"y") * 10)
        await until(lambda: sum(each.published.get("t", 0) for each in door.connections) == 55)
        await door.stop()
        for wire in wires:
            assert await wire.closed() == OK * 10
        await subscriber.closed()
        assert not door.connections
        queue = door.broker.queues.get("t", "c")
        assert queue is not None
        assert queue.figures().in_flight == 0
        with pytest.raises(ConnectionRefusedError):
            await Wire.open(door)


async def test_the_reason_reaches_a_client_that_is_still_sending(tmp_path: Path) -> None:
    """Closing at once would reset the connection, and the reason with it."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        wire.send(b"MPUB t\n" + struct.pack(">i", 50_000_000))
        for _ in range(50):
            wire.send(bytes(100_000))
            await asyncio.sleep(0)
        assert await wire.error() == "E_BAD_BODY MPUB body too big 50000000 > 5242880"
        assert await wire.closed() == b""
        wire.writer.close()
        await until(lambda: not door.connections)


async def test_nothing_follows_the_reason_for_which_a_client_was_refused(tmp_path: Path) -> None:
    """The sending side is closed while the client may still send: another write there would raise."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.refused(b"HELP\n") == "E_INVALID invalid command HELP"
        [connection] = door.connections
        assert not connection.transport.is_closing()
        connection.write(b"a message that was on its way")
        assert await wire.closed() == b""


async def test_a_refused_client_that_does_not_go_is_cut_off(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.refused(b"HELP\n") == "E_INVALID invalid command HELP"
        await until(lambda: not door.connections, seconds=module.LINGER_SECONDS + 2)


async def test_many_small_commands_let_others_have_their_turn(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as busy, await Wire.open(door) as other:
        assert await busy.ask(pub("t", b"x")) == b"OK"
        busy.send(b"NOP\n" * 200_000 + pub("t", b"last"))
        answer = asyncio.create_task(busy.response())
        served = 0
        while not answer.done():
            assert await other.ask(pub("t", b"x")) == b"OK"
            served += 1
        # A few, if each receive buffer were handled whole.
        assert served > 20


async def test_an_idle_connection_holds_nothing(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        wires = [await Wire.open(door) for _ in range(20)]
        for wire in wires:
            assert await wire.ask(mpub("t", b"x" * 200_000)) == b"OK"
        assert [kept(each) for each in door.connections] == [0] * 20
        for wire in wires:
            wire.writer.close()


async def test_what_is_counted(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask(pub("t", b"x"))
        wire.send(pub("t", b"x") * 9)
        for _ in range(9):
            await wire.response()
        await wire.ask(mpub("t", b"x", b"y"))
        assert (door.pub.requests, door.mpub.requests) == (10, 1)
        (connection,) = door.connections
        assert connection.published == {"t": 12}
        await wire.refused(b"HELP\n")
        assert door.broker.metrics.api("nsq", "any").errors == {"E_INVALID": 1}
        topic = door.broker.metrics.topic("t")
        assert 0 < topic.batches_in <= 11
        assert topic.bytes_in > 12 * 60 // 11


@pytest.mark.parametrize("seed", range(5))
async def test_random_bytes_are_refused_and_nothing_breaks(tmp_path: Path, seed: int) -> None:
    async with open_door(tmp_path) as door:
        async with await Wire.open(door) as wire:
            await wire.ask(pub("t", b"kept"))
            wire.send(Random(seed).randbytes(100_000) + b"\n")
            kind, data = await wire.frame()
            assert kind == ERROR
            assert data.startswith(b"E_INVALID")
            await wire.closed()
        async with await Wire.subscribed(door, "t", "c") as wire:
            assert (await wire.message()).body == b"kept"
