"""PUB, MPUB and DPUB over a socket: what is answered, when, and what the log holds then."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.device import Device
from tests.doors.nsq.nsqd.wired import OK, Wire, dpub, kept, mpub, open_door, pub
from tests.waiting import SECONDS, until

from headrace.doors.nsq.nsqd import listener as door_module
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.format import records
from headrace.log.interface import Durability, Topic


def stored(topic: Topic | None, partition: int = 0) -> list[tuple[bytes | None, bytes | None, Any]]:
    """Key, value and headers of what a partition holds."""
    assert topic is not None
    place = topic.partitions[partition]
    found = []
    while len(found) < place.high_watermark:
        chunk = place.read(len(found), 1 << 25)
        raw = chunk.read()
        chunk.release()
        while raw:
            size = 12 + int.from_bytes(raw[8:12], "big")
            found += [record[2:] for record in records.parse(raw[:size], 1 << 24)]
            raw = raw[size:]
    return found


def values(topic: Topic | None) -> list[bytes | None]:
    return [value for _, value, _ in stored(topic)]


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_an_ok_means_that_it_can_be_read(tmp_path: Path, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        assert await wire.ask(pub("t", b"one")) == b"OK"
        assert values(door.topics.get("t")) == [b"one"]
        assert await wire.ask(mpub("t", b"two", b"three")) == b"OK"
        assert values(door.topics.get("t")) == [b"one", b"two", b"three"]


async def test_how_a_topic_is_born(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask(pub("born", b"x"))
        topic = door.topics.get("born")
        assert topic is not None
        assert topic.config["retention"] == "consumed"
        assert topic.settings.segment_bytes == 64 << 20
        assert len(topic.partitions) == 1
        # The largest message that NSQ allows fits.
        assert await wire.ask(pub("born", bytes(1 << 20))) == b"OK"


async def test_an_ephemeral_topic_is_in_memory(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask(pub("brief#ephemeral", b"x"))
        topic = door.broker.topics.get("brief.ephemeral")
        assert topic is not None
        assert topic.settings.durability is Durability.MEMORY


async def test_topics_are_not_made_where_that_is_off(tmp_path: Path) -> None:
    async with open_door(tmp_path, auto_create_topics=False) as door:
        for command in (pub("t", b"x"), mpub("t", b"x"), dpub("t", 0, b"x")):
            name = command.split()[0].decode()
            async with await Wire.open(door) as wire:
                assert (await wire.refused(command)).startswith(f"E_{name}_FAILED {name} failed there is no topic 't'")
                assert await wire.closed() == b""
        async with await Wire.open(door) as wire:
            assert (await wire.refused(b"SUB t c\n")).startswith("E_SUB_FAILED SUB failed there is no topic 't'")


async def test_a_name_that_collides_with_another(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.ask(pub("a.b", b"x")) == b"OK"
        assert (await wire.refused(pub("a_b", b"x"))).startswith("E_BAD_TOPIC PUB 'a_b' differs from the topic 'a.b'")


async def test_runs_of_publishes_are_answered_each_in_order(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        parts = []
        expected: dict[str, list[bytes]] = {"a": [], "b": []}
        for number in range(500):
            topic = "a" if number % 7 else "b"
            body = b"%d" % number
            if number % 50 == 0:
                parts.append(mpub(topic, body, body + b"!"))
                expected[topic] += [body, body + b"!"]
            else:
                parts.append(pub(topic, body))
                expected[topic].append(body)
        wire.send(b"".join(parts))
        for _ in range(500):
            assert await wire.response() == b"OK"
        assert values(door.topics.get("a")) == expected["a"]
        assert values(door.topics.get("b")) == expected["b"]


async def test_a_run_becomes_few_batches(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask(pub("t", b"first"))
        wire.send(pub("t", b"x" * 50) * 1000)
        for _ in range(1000):
            assert await wire.response() == b"OK"
        assert door.broker.metrics.topic("t").batches_in < 20
        assert len(values(door.topics.get("t"))) == 1001


async def test_bytes_may_come_in_any_parts(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        data = pub("t", b"one") + mpub("t", b"two", b"three") + b"NOP\n" + pub("t", b"four")
        for byte in data:
            wire.send(bytes((byte,)))
            await asyncio.sleep(0)
        for _ in range(3):
            assert await wire.response() == b"OK"
        assert values(door.topics.get("t")) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("size", [100, 131_050, 131_072, 262_144, 1_000_000])
async def test_large_commands(tmp_path: Path, size: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        wire.send(pub("t", b"a" * size) * 3 + mpub("t", *[b"b" * size] * 4) + pub("t", b"end"))
        for _ in range(5):
            assert await wire.response() == b"OK"
        assert values(door.topics.get("t")) == [b"a" * size] * 3 + [b"b" * size] * 4 + [b"end"]


async def test_a_mpub_larger_than_a_batch_may_be(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        await door.broker.topics.create("small", config={"max.message.bytes": "2000"})
        assert await wire.ask(mpub("small", *[b"x" * 100] * 100)) == b"OK"
        assert values(door.topics.get("small")) == [b"x" * 100] * 100
        error = await wire.refused(mpub("small", b"x", b"y" * 2000))
        assert error.startswith("E_BAD_MESSAGE MPUB the batch has ")
        # All or nothing.
        assert len(values(door.topics.get("small"))) == 100


async def test_one_message_too_large_for_its_topic_spares_those_before_it(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await door.broker.topics.create("small", config={"max.message.bytes": "2000"})
        wire.send(pub("small", b"x") * 3 + pub("small", b"y" * 2000) + pub("small", b"z"))
        for _ in range(3):
            assert await wire.response() == b"OK"
        assert (await wire.error()).startswith("E_BAD_MESSAGE PUB the batch has ")
        assert await wire.closed() == b""
        assert values(door.topics.get("small")) == [b"x"] * 3


async def test_a_refused_publish_behind_others_waits_for_their_answers(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        await wire.ask(pub("t", b"0"))
        wire.send(pub("t", b"1") + pub("t", b"2") + b"PUB t\n\0\0\0\0" + pub("t", b"never"))
        assert await wire.response() == b"OK"
        assert await wire.response() == b"OK"
        assert await wire.error() == "E_BAD_MESSAGE PUB invalid message body size 0"
        assert await wire.closed() == b""
        assert values(door.topics.get("t")) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("command", [pub("t", b"x"), mpub("t", b"x"), dpub("t", 0, b"x")])
async def test_an_append_that_fails_is_told(device: Device, command: bytes) -> None:
    name = command.split()[0].decode()
    async with open_door(device) as door, await Wire.open(door) as wire:
        assert await wire.ask(pub("t", b"before")) == b"OK"
        async with device.full(door.broker):
            assert (await wire.refused(command)).startswith(f"E_{name}_FAILED {name} failed the disk is full")
            assert await wire.closed() == b""


async def test_a_flush_that_fails_is_told_in_order(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.open(door) as wire:
        await door.broker.topics.create("quick", 1, {"durability": "async"})
        for topic in ("t", "quick"):
            await wire.ask(pub(topic, b"0"))
        device.hold()
        wire.send(pub("t", b"1"))
        await until(lambda: device.waiting)
        wire.send(mpub("t", b"2") + b"NOP\n" + pub("quick", b"3"))
        await until(lambda: len(values(door.topics.get("quick"))) == 2)
        device.release(1)
        await until(lambda: device.waiting)
        assert await wire.response() == b"OK"
        with device.fail():
            device.release()
            # The last was ready first, and is not answered behind an error.
            assert (await wire.error()).startswith("E_MPUB_FAILED MPUB failed the log could not be flushed")
            assert await wire.closed() == b""


async def test_a_client_that_closes_its_side_is_still_answered(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        wire.send(pub("new", b"x") * 10)
        wire.writer.write_eof()
        assert await wire.closed() == OK * 10


async def test_commands_are_read_while_publishes_wait(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.subscribed(door, "t", "c") as wire:
        wire.send(pub("t", b"first"))
        # The message may overtake the answer.
        (_, message), _ = sorted([await wire.frame(), await wire.frame()], reverse=True)
        device.hold()
        wire.send(pub("t", b"second") + 2 * (b"FIN " + message[10:26] + b"\n"))
        await until(lambda: device.waiting)
        queue = door.broker.queues.get("t", "c")
        assert queue is not None
        await until(lambda: queue.figures().finished == 1)
        device.release()
        kinds = sorted([await wire.frame() for _ in range(3)])
        assert [kind for kind, _ in kinds] == [0, 1, 2]
        assert kinds[1][1].startswith(b"E_FIN_FAILED")


# --- partitions ---


async def test_a_connection_writes_to_one_partition(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        topic = await door.broker.topics.create("wide", 3)
        for _ in range(3):
            async with await Wire.open(door) as wire:
                wire.send(pub("wide", b"x") * 5 + mpub("wide", b"x", b"x"))
                for _ in range(6):
                    await wire.response()
        assert [len(stored(topic, index)) for index in range(3)] == [7, 7, 7]


# --- DPUB ---


async def test_a_delay_of_nothing_is_none(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.ask(dpub("t", 0, b"now")) == b"OK"
        assert values(door.topics.get("t")) == [b"now"]


async def test_a_delayed_message_comes_when_it_is_due(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        wire.send(dpub("t", 2_000, b"later") + pub("t", b"now"))
        assert [await wire.frame() for _ in range(2)].count((0, b"OK")) >= 1
        found = await wire.frame()
        assert values(door.topics.get("t")) == [b"now"]
        while found[0] != 2 or not found[1].endswith(b"later"):
            found = await wire.frame()
        assert values(door.topics.get("t")) == [b"now", b"later"]


# --- the extension ---


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else -2 * value - 1
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def extended(key: bytes | None, value: bytes | None, *headers: tuple[bytes, bytes | None]) -> bytes:
    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    return field(key) + field(value) + varint(len(headers)) + b"".join(field(a) + field(b) for a, b in headers)


async def extended_wire(door: Nsqd) -> Wire:
    wire = await Wire.open(door, headrace=1)
    assert wire.told["headrace"] == 1
    return wire


async def test_key_and_headers_are_stored(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await extended_wire(door) as wire:
        one = extended(b"key", b"value", (b"name", b"text"), (b"none", None))
        assert await wire.ask(pub("t", one)) == b"OK"
        assert await wire.ask(mpub("t", extended(None, None), one)) == b"OK"
        assert await wire.ask(dpub("t", 0, one)) == b"OK"
        whole = (b"key", b"value", [("name", b"text"), ("none", None)])
        assert stored(door.topics.get("t")) == [whole, (None, None, []), whole, whole]


async def test_a_delay_of_years_is_answered_with_the_id_that_cancels_it(tmp_path: Path) -> None:
    from headrace.format.delay import MAX_DELAY_MS

    async with open_door(tmp_path) as door, await extended_wire(door) as wire:
        for delay in (3_600_001, 20 * 365 * 86_400_000):
            word, _, timer = (await wire.ask(dpub("t", delay, extended(None, b"later")))).partition(b" ")
            assert word == b"OK"
            assert await door.broker.timer.cancel(timer.decode())
            assert not await door.broker.timer.cancel(timer.decode())
        beyond = MAX_DELAY_MS + 1
        assert await wire.refused(dpub("t", beyond, extended(None, b"x"))) == (
            f"E_INVALID DPUB timeout {beyond} out of range 0-{MAX_DELAY_MS}"
        )


@pytest.mark.parametrize("name", ["PUB", "MPUB", "DPUB"])
async def test_what_is_no_extended_message_is_refused(tmp_path: Path, name: str) -> None:
    async with open_door(tmp_path) as door, await extended_wire(door) as wire:
        await wire.ask(pub("t", extended(None, b"fine")))
        bad = extended(b"k", b"v")[:-1]
        command = {"PUB": pub("t", bad), "MPUB": mpub("t", bad), "DPUB": dpub("t", 10, bad)}[name]
        assert (await wire.refused(command)).startswith(f"E_BAD_MESSAGE {name} message")
        assert await wire.closed() == b""
        assert values(door.topics.get("t")) == [b"fine"]


async def test_keys_keep_to_their_partitions(tmp_path: Path) -> None:
    """As a Kafka producer would have it: the same key, the same partition, whoever publishes."""
    from headrace.format.partitioning import partition_of

    async with open_door(tmp_path, durability="sync") as door:
        topic = await door.broker.topics.create("wide", 4)
        keys = [b"k%d" % number for number in range(40)]
        async with await extended_wire(door) as wire:
            wire.send(b"".join(pub("wide", extended(key, b"pub")) for key in keys))
            wire.send(mpub("wide", *[extended(key, b"mpub") for key in keys], extended(None, b"anywhere")))
            wire.send(b"".join(dpub("wide", 0, extended(key, b"dpub")) for key in keys))
            for _ in range(81):
                assert await wire.response() == b"OK"
        for index in range(4):
            found = stored(topic, index)
            assert {partition_of(key, 4) for key, _, _ in found if key is not None} == {index}
            for how in (b"pub", b"mpub", b"dpub"):
                assert [key for key, value, _ in found if value == how] == [
                    key for key in keys if partition_of(key, 4) == index
                ]
        assert sum(value == b"anywhere" for index in range(4) for _, value, _ in stored(topic, index)) == 1


async def test_a_header_says_when_a_message_is_due(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        for name, partitions in (("narrow", 1), ("wide", 3)):
            await door.broker.topics.create(name, partitions, {"delay": "true"})
            due = door.clock.now_ms() + 2_500
            later = extended(b"k", b"later", (b"headrace-deliver-at", b"%d" % due))
            async with await extended_wire(door) as wire, await Wire.subscribed(door, name, "c") as reader:
                wire.send(pub(name, later) + mpub(name, later, extended(b"k", b"now")))
                for _ in range(2):
                    assert await wire.response() == b"OK"
                assert (await reader.message()).body == b"now"
                assert [(await reader.message()).body for _ in range(2)] == [b"later", b"later"]
                assert door.clock.now_ms() >= due


# --- limits ---


async def test_the_limits_are_the_configuration(tmp_path: Path) -> None:
    async with open_door(
        tmp_path, nsq_max_msg_size=10, nsq_max_body_size=100, nsq_max_req_timeout_ms=50, nsq_max_rdy_count=3
    ) as door:
        for command, error in (
            (pub("t", b"x" * 11), "E_BAD_MESSAGE PUB message too big 11 > 10"),
            (mpub("t", b"x" * 11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
            (mpub("t", *[b"x" * 10] * 10), "E_BAD_BODY MPUB body too big 144 > 100"),
            (dpub("t", 51, b"x"), "E_INVALID DPUB timeout 51 out of range 0-50"),
        ):
            async with await Wire.open(door) as wire:
                assert await wire.refused(command) == error
                assert await wire.closed() == b""
        async with await Wire.open(door) as wire:
            assert await wire.ask(b"SUB t c\n") == b"OK"
            assert await wire.refused(b"RDY 4\n") == "E_INVALID RDY count 4 out of range 0-3"


async def test_a_size_alone_takes_no_memory(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        wires = [await Wire.open(door) for _ in range(50)]
        for wire in wires:
            wire.send(b"MPUB t\n" + struct.pack(">i", 5_000_000) + b"x")
        await until(lambda: sum(kept(each) for each in door.connections) > 0)
        assert sum(kept(each) for each in door.connections) < 50 * 300_000
        for wire in wires:
            wire.writer.close()


# --- topics that are full ---


async def fill(door: Nsqd, overflow: str) -> Wire:
    await door.broker.topics.create("t", config={"overflow": overflow, "overflow.lag": "5"})
    topic = door.topics.get("t")
    assert topic is not None
    await door.broker.queues.ensure(topic, "c")
    wire = await Wire.open(door)
    assert await wire.ask(mpub("t", *[b"x"] * 5)) == b"OK"
    return wire


@pytest.mark.parametrize("name", ["PUB", "MPUB", "DPUB"])
async def test_a_full_topic_rejects(tmp_path: Path, name: str) -> None:
    async with open_door(tmp_path) as door, await fill(door, "reject") as wire:
        command = {"PUB": pub("t", b"y"), "MPUB": mpub("t", b"y"), "DPUB": dpub("t", 0, b"y")}[name]
        assert (await wire.refused(command)).startswith(f"E_{name}_FAILED {name} failed topic 't' is full")
        assert await wire.closed() == b""
        assert len(values(door.topics.get("t"))) == 5


async def test_a_full_topic_blocks_until_its_readers_have_caught_up(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await fill(door, "block") as wire:
        wire.send(pub("t", b"y") + b"NOP\n" + pub("t", b"z"))
        await asyncio.sleep(0.1)
        assert len(values(door.topics.get("t"))) == 5
        async with await Wire.subscribed(door, "t", "c") as reader:
            for _ in range(7):
                message = await reader.message()
                reader.send(b"FIN " + message.id + b"\n")
        assert await wire.response() == b"OK"
        assert await wire.response() == b"OK"
        assert values(door.topics.get("t"))[5:] == [b"y", b"z"]


async def test_whoever_has_waited_does_not_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(tmp_path) as door, await fill(door, "block") as wire:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked: list[object] = []

        def admit(topic: Topic, **_: object) -> asyncio.Future[None]:
            asked.append(topic)
            return room

        monkeypatch.setattr(door.broker.overflow, "admit", admit)
        wire.send(mpub("t", b"y"))
        await until(lambda: asked)
        room.set_result(None)
        assert await wire.response() == b"OK"
        assert len(asked) == 1


async def test_a_blocked_client_is_not_read_and_does_not_hold_up_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "STOP_SECONDS", 60.0)
    async with open_door(tmp_path) as door:
        wire = await fill(door, "block")
        wire.send(pub("t", b"y" * 1000) * 20_000)
        (connection,) = door.connections
        await until(lambda: not connection._reading)
        async with asyncio.timeout(SECONDS):
            await door.stop()
        assert len(values(door.topics.get("t"))) == 5
