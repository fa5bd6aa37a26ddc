"""Producers that are faster than readers, through a socket: what each policy answers, who waits, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields, values
from tests.waiting import SECONDS, until

from headrace.broker.groups import Commit
from headrace.broker.groups.protocol import Problem
from headrace.doors.kafka import produce, produce_wire, room
from headrace.doors.kafka.door import KafkaDoor
from headrace.log.interface import EARLIEST, Topic

VERSIONS = range(produce_wire.OLDEST, produce_wire.NEWEST + 1)
NONE, FULL, LATER = ErrorCode.none, ErrorCode.policy_violation, ErrorCode.request_timed_out


async def guarded(door: KafkaDoor, policy: str, name: str = "rain", partitions: int = 1, **more: str) -> Topic:
    """A topic whose group `readers` may be two messages behind."""
    config = {"overflow": policy, "overflow.group": "readers", "overflow.lag": "2"}
    return await door.broker.topics.create(
        name, partitions, config | {key.replace("_", "."): value for key, value in more.items()}
    )


async def commit(door: KafkaDoor, topic: Topic, offset: int) -> None:
    answer = await door.broker.groups.commit("readers", [Commit(topic.name, topic.id, 0, offset)])
    assert answer == [Problem.NONE]


def waiting(door: KafkaDoor, name: str = "rain") -> int:
    return door.broker.metrics.topic(name).blocked


def send(wire: Wire, topic: Topic, *texts: bytes, timeout: int = 30_000, acks: int = -1) -> int:
    """Send a Produce; its correlation id."""
    wire.send("produce", 9, **produce_fields(topic, batch_of(*texts), acks=acks) | {"timeout": timeout})
    return wire.correlation


async def answer(wire: Wire, correlation: int, seconds: float = 20.0) -> Any:
    reply = await asyncio.wait_for(wire.receive("produce", 9, correlation), seconds)
    return reply.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_reject_answers_with_an_error_that_is_final(tmp_path: Path, version: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "reject")
        for expected in (0, 1):
            assert (await wire.produce(version, topic, batch_of(b"a"))).base_offset == expected
        refused = await wire.produce(version, topic, batch_of(b"b"))
        assert (refused.error_code, refused.base_offset) == (FULL, -1)
        if version >= produce_wire.ERROR_MESSAGES:
            assert "group 'readers' is 2 messages behind" in refused.error_message
        await commit(door, topic, 1)
        assert (await wire.produce(version, topic, batch_of(b"c"))).base_offset == 2
        assert door.produce_metrics.errors == {"policy_violation": 1}


async def test_other_topics_of_the_request_are_taken(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        full, free = await guarded(door, "reject"), await door.broker.topics.create("free", 1)
        await wire.produce(9, full, batch_of(b"a", b"b"))
        fields = produce_fields(full, batch_of(b"c"))
        fields["topic_data"] += produce_fields(free, batch_of(b"c"))["topic_data"]
        reply = await wire.ask("produce", 9, **fields)
        assert [each.partition_responses[0].error_code for each in reply.responses] == [FULL, NONE]


async def test_a_blocked_request_waits_for_readers_and_others_do_not(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await guarded(door, "block")
        free = await door.broker.topics.create("free", 1)
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        numbers = [send(wire, topic, b"c"), send(wire, topic, b"d")]
        # Behind them on the same connection nothing is handled, as replies leave in order.
        wire.send("list_offsets", 7, replica_id=-1, isolation_level=0, topics=[])
        await until(lambda: waiting(door))
        assert (await other.produce(9, free, batch_of(b"x"))).error_code is NONE
        fetched = await other.ask("fetch", 11, **fetch_fields((topic, 0, 0)))
        assert values(fetched) == [b"a", b"b"]
        assert waiting(door) == 1
        await commit(door, topic, 2)
        assert [(await answer(wire, number)).base_offset for number in numbers] == [2, 3]
        await asyncio.wait_for(wire.receive("list_offsets", 7), SECONDS)
        assert waiting(door) == 0


async def test_a_blocked_request_is_answered_in_time(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        short = await guarded(door, "block", "short", overflow_block_ms="300")
        long = await guarded(door, "block", "long", overflow_block_ms="30000")
        for topic in (short, long):
            await wire.produce(9, topic, batch_of(b"a", b"b"))
        loop = asyncio.get_running_loop()
        for topic, timeout, seconds in ((short, 45_000, 0.3), (long, 150, 0.1), (long, 0, 0.0)):
            await asyncio.sleep(2 * room.FRESH_SECONDS)
            began = loop.time()
            refused = await answer(wire, send(wire, topic, b"c", timeout=timeout))
            assert refused.error_code is LATER
            assert "full" in refused.error_message
            assert seconds <= loop.time() - began < 15
            assert topic.partitions[0].end == 2


async def test_requests_in_line_behind_a_blocked_one_are_answered_in_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sent with the first one: by the client's watch they have waited as long."""
    # So long may a busy machine take from one to the next.
    monkeypatch.setattr(room, "FRESH_SECONDS", 60.0)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        numbers = [send(wire, topic, b"%d" % number, timeout=1_500) for number in range(5)]
        assert (await answer(wire, numbers[0])).error_code is LATER
        first = loop.time() - began
        # A loop reads its clock once a turn: on a busy machine a timer is early by as much as that turn took.
        assert first >= 0.8
        for number in numbers[1:]:
            assert (await answer(wire, number)).error_code is LATER
        # One after the other, each would have waited as long as the first.
        assert loop.time() - began < 4 * first
        # The client tries again, and has all its time again.
        monkeypatch.setattr(room, "FRESH_SECONDS", 0.0)
        began = loop.time()
        assert (await answer(wire, send(wire, topic, b"again", timeout=600))).error_code is LATER
        assert loop.time() - began >= 0.39


async def test_a_slow_reader_does_not_use_up_the_time_of_later_requests(tmp_path: Path) -> None:
    """Each waits less than it may, all of them together far longer."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        # Four seconds for each of five, of which a busy machine may take most; and five for all.
        in_line = [send(wire, topic, b"first", timeout=6_000) for _ in range(5)]
        for committed in range(1, 21):
            await until(lambda: waiting(door))
            await asyncio.sleep(0.25)
            await commit(door, topic, committed)
            assert (await answer(wire, in_line.pop(0))).error_code is NONE
            in_line.append(send(wire, topic, b"next", timeout=6_000))


async def test_a_client_that_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        gone = await Wire.open(door)
        send(gone, topic, b"never")
        await until(lambda: waiting(door))
        assert door.broker.overflow.held_bytes > 0
        gone.writer.close()
        await until(lambda: not waiting(door))
        assert door.broker.overflow.held_bytes == 0
        await commit(door, topic, 2)
        assert (await wire.produce(9, topic, batch_of(b"c"))).base_offset == 2


async def test_a_blocked_connection_is_not_read(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        for _ in range(400):
            send(wire, topic, b"x" * 100_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.writer.drain(), 0.3)
        assert waiting(door) == 1
        assert door.broker.overflow.held_bytes < 101_000
        # A request that must not be read leaves the rest with the client: what the two sockets hold is all that left.
        assert wire.writer.transport.get_write_buffer_size() > 20_000_000


async def test_acks_0_waits_as_long_as_it_takes(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block", overflow_block_ms="50")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        send(wire, topic, b"c", acks=0, timeout=50)
        await asyncio.sleep(0.3)
        assert waiting(door) == 1
        await commit(door, topic, 2)
        assert (await wire.produce(9, topic, batch_of(b"d"))).base_offset == 3


async def test_acks_0_that_is_refused_closes_the_connection(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "reject")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        send(wire, topic, b"c", acks=0)
        assert await wire.closed() == b""


async def test_what_is_remembered_of_a_topic_is_forgotten_when_it_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await door.broker.topics.create("rain", 1)
        for client in (wire, other):
            await client.produce(9, topic, batch_of(b"a"))
        assert any(cached.admission.valid for cached in door.produce_cache.values())
        config = {"overflow": "reject", "overflow.group": "readers", "overflow.lag": "2"}
        await door.broker.topics.alter_config("rain", lambda _: config)
        assert not any(cached.admission.valid for cached in door.produce_cache.values())
        for client in (wire, other, wire):
            assert (await client.produce(9, topic, batch_of(b"b"))).error_code is FULL
        await door.broker.topics.alter_config("rain", lambda _: {})
        await wire.produce(9, topic, batch_of(b"c"))
        with monkeypatch.context() as patched:
            patched.setattr(produce, "parse", None)
            assert (await wire.produce(9, topic, batch_of(b"d"))).base_offset == 3


async def test_the_slowest_queue_counts(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        config = {"overflow": "block", "overflow.lag": "3"}
        topic = await door.broker.topics.create("rain", 1, config)
        # Without a queue nobody is behind.
        for number in range(5):
            assert (await wire.produce(9, topic, batch_of(b"a"))).base_offset == number
        fast, slow = [await door.broker.queues.ensure(topic, name, EARLIEST) for name in ("fast", "slow")]
        await door.broker.queues.empty(fast)
        await asyncio.sleep(0.15)
        number = send(wire, topic, b"b")
        await until(lambda: waiting(door))
        await door.broker.queues.empty(slow)
        assert (await answer(wire, number)).base_offset == 5
        # A queue that is deleted holds nobody back.
        for _ in range(2):
            await wire.produce(9, topic, batch_of(b"c"))
        number = send(wire, topic, b"d")
        await until(lambda: waiting(door))
        await door.broker.queues.empty(fast)
        await asyncio.sleep(0.05)
        assert waiting(door) == 1
        await door.broker.queues.delete("rain", "slow")
        assert (await answer(wire, number)).base_offset == 8


async def test_a_topic_that_is_deleted_under_a_blocked_request(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        number = send(wire, topic, b"c")
        await until(lambda: waiting(door))
        await door.broker.topics.delete("rain")
        assert (await answer(wire, number)).error_code is ErrorCode.unknown_topic_or_partition


async def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await guarded(door, "block")
        await wire.produce(9, topic, batch_of(b"a", b"b"))
        number = send(wire, topic, b"c")
        await until(lambda: waiting(door))
        await door.broker.overflow.stop()
        refused = await answer(wire, number)
        assert (refused.error_code, refused.error_message) == (LATER, "the broker is stopping. Try again.")


async def test_drop_oldest_drops_what_readers_have_not_read(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"overflow": "drop-oldest", "overflow.bytes": "65536"})
        partition = topic.partitions[0]
        for number in range(100):
            assert (await wire.produce(9, topic, batch_of(b"%d" % number * 1_000))).base_offset == number
            assert partition.size() <= 65_536
        assert partition.start > 0
        fetched = await wire.ask("fetch", 11, **fetch_fields((topic, 0, 0)))
        assert fetched.responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range
        # The last records are dropped beside this.
        error = ErrorCode.offset_out_of_range
        while error is ErrorCode.offset_out_of_range:
            start = partition.start
            fetched = await wire.ask("fetch", 11, **fetch_fields((topic, 0, start)))
            error = fetched.responses[0].partitions[0].error_code
        assert values(fetched)[0] == b"%d" % start * 1_000
        # A batch that could not be kept is refused, as any that is too large.
        refused = await wire.produce(9, topic, batch_of(b"x" * 33_000))
        assert refused.error_code is ErrorCode.message_too_large
