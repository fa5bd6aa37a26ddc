"""Produce through a socket: every version, the fast way and the general one, errors, order, durability."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.device import Device
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields
from tests.waiting import SECONDS, until

from headrace.doors.kafka import produce, produce_wire

VERSIONS = range(produce_wire.OLDEST, produce_wire.NEWEST + 1)


@pytest.mark.parametrize("durability", ["async", "sync", "memory"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_offsets_follow_each_other_in_every_version(tmp_path: Path, version: int, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2)
        for expected in (0, 2, 4):
            answer = await wire.produce(version, topic, batch_of(b"a", b"b"), index=1)
            assert (answer.error_code, answer.index, answer.base_offset) == (ErrorCode.none, 1, expected)
            assert getattr(answer, "log_start_offset", 0) == 0
        assert topic.partitions[1].high_watermark == 6


async def test_the_fast_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        for version in (3, 8, 9, 13):
            await wire.produce(version, topic, batch_of(b"a"))
            with monkeypatch.context() as patched:
                patched.setattr(produce, "parse", None)
                answer = await wire.produce(version, topic, batch_of(b"b"))
            assert answer.error_code is ErrorCode.none
        assert topic.partitions[0].high_watermark == 8


async def test_a_reply_that_waited_serves_the_next_request(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(b"a"))
        [connection] = door.connections
        served = []
        for expected in range(1, 4):
            assert (await wire.produce(9, topic, batch_of(b"b"))).base_offset == expected
            served.append(connection.entry)
        assert served[0] is not None
        assert served == [served[0]] * 3

        with device.fail():
            answer = await wire.produce(9, topic, batch_of(b"c"))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.kafka_storage_error, -1)
        assert connection.entry is served[0]


async def test_a_reply_waits_for_the_one_before_it(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.open(door) as wire:
        slow = await door.broker.topics.create("rain", 1)
        quick = await door.broker.topics.create("snow", 1, {"durability": "async"})
        for topic in (slow, quick):
            await wire.produce(9, topic, batch_of(b"a"))
        device.hold()
        for topic in (slow, quick):
            wire.send("produce", 9, **produce_fields(topic, batch_of(b"b")))
        await until(lambda: device.waiting and quick.partitions[0].high_watermark == 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wire.reader.readexactly(1), 0.05)
        device.release()
        for number, topic in enumerate((slow, quick), wire.correlation - 1):
            reply = await asyncio.wait_for(wire.receive("produce", 9, number), SECONDS)
            assert reply.responses[0].name == topic.name
            assert reply.responses[0].partition_responses[0].base_offset == 1


async def test_log_append_time_is_answered(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        stamped = await door.broker.topics.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        kept = await door.broker.topics.create("kept", 1)
        for _ in range(2):
            assert (await wire.produce(9, stamped, batch_of(b"a"))).log_append_time is not None
        for _ in range(2):
            assert (await wire.produce(9, kept, batch_of(b"a"))).log_append_time is None


@pytest.mark.parametrize("durability", ["async", "sync"])
async def test_pipelined_requests_are_answered_in_order(tmp_path: Path, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        first = await door.broker.topics.create("first", 1)
        second = await door.broker.topics.create("second", 1, {"durability": "async"})
        expected = []
        for turn in range(300):
            topic = second if turn % 7 == 0 else first
            if turn % 50 == 10:
                wire.send("list_offsets", 7, replica_id=-1, isolation_level=0, topics=[])
                expected.append("list_offsets")
            else:
                wire.send("produce", 9, **produce_fields(topic, batch_of(b"%d" % turn)))
                expected.append("produce")
        for number, api in enumerate(expected):
            reply = await asyncio.wait_for(wire.receive(api, 9 if api == "produce" else 7, number + 1), SECONDS)
            if api == "produce":
                assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert first.partitions[0].high_watermark + second.partitions[0].high_watermark == expected.count("produce")


async def test_a_reply_waits_until_the_batch_is_durable(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2)
        both = produce_fields(topic, batch_of(b"a"))
        both["topic_data"][0]["partition_data"].append({"index": 1, "records": batch_of(b"b")})
        for fields in (produce_fields(topic, batch_of(b"a")), both) * 2:
            await wire.ask("produce", 9, **fields)
            device.hold()
            wire.send("produce", 9, **fields)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wire.reader.readexactly(1), 0.05)
            assert topic.partitions[0].high_watermark < topic.partitions[0].end
            device.release()
            await asyncio.wait_for(wire.receive("produce", 9), SECONDS)
            assert topic.partitions[0].high_watermark == topic.partitions[0].end


async def test_several_partitions_in_one_request(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        rain = await door.broker.topics.create("rain", 3)
        snow = await door.broker.topics.create("snow", 1, {"durability": "async"})
        fields = produce_fields(rain, batch_of(b"a"))
        fields["topic_data"][0]["partition_data"] += [
            {"index": 2, "records": batch_of(b"b")},
            {"index": 9, "records": batch_of(b"c")},
        ]
        fields["topic_data"] += produce_fields(snow, batch_of(b"d", b"e"))["topic_data"]
        for version in VERSIONS:
            reply = await wire.ask("produce", version, **fields)
            answers = [each for topic in reply.responses for each in topic.partition_responses]
            assert [each.index for each in answers] == [0, 2, 9, 0]
            assert [each.error_code for each in answers] == [
                ErrorCode.none,
                ErrorCode.none,
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.none,
            ]
        assert snow.partitions[0].high_watermark == 2 * len(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_refused_says_why(tmp_path: Path, version: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"max.message.bytes": "1000"})
        good = batch_of(b"a")
        corrupt = bytearray(good)
        corrupt[-1] ^= 1
        old = bytearray(good)
        old[16] = 1
        cases = [
            (bytes(corrupt), ErrorCode.corrupt_message),
            (good[:40], ErrorCode.corrupt_message),
            (good[:-1], ErrorCode.corrupt_message),
            (bytes(old), ErrorCode.invalid_record),
            (good + good, ErrorCode.invalid_record),
            (b"", ErrorCode.invalid_record),
            (None, ErrorCode.invalid_record),
            (batch_of(b"a" * 2000), ErrorCode.message_too_large),
            (batch_of(b"a", attributes=0x20), ErrorCode.invalid_record),
            (batch_of(b"a", attributes=0x10, producer_id=1, producer_epoch=0), ErrorCode.invalid_record),
            (batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.invalid_record),
            (
                batch_of(b"a", attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
                ErrorCode.invalid_txn_state,
            ),
        ]
        await wire.produce(version, topic, good)
        for batch, code in cases:
            answer = await wire.produce(version, topic, batch)
            assert (answer.error_code, answer.base_offset) == (code, -1)
            if version >= produce_wire.ERROR_MESSAGES:
                assert answer.error_message
        answer = await wire.produce(version, topic, good, acks=2)
        assert answer.error_code is ErrorCode.invalid_required_acks
        assert topic.partitions[0].end == 1
        await door.broker.topics.delete("rain")
        answer = await wire.produce(version, topic, good)
        unknown = ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition
        assert answer.error_code is unknown
        assert not door.broker.topics.all


async def test_zstd_needs_version_7(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        batch = batch_of(b"a" * 100, compression=4)
        for _ in range(2):
            answer = await wire.produce(6, topic, batch)
            assert answer.error_code is ErrorCode.unsupported_compression_type
            assert (await wire.produce(7, topic, batch)).error_code is ErrorCode.none
            assert (await wire.produce(6, topic, batch_of(b"a"))).error_code is ErrorCode.none


async def test_acks_0_has_no_reply_and_closes_when_it_fails(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        for _ in range(3):
            wire.send("produce", 9, **produce_fields(topic, batch_of(b"a"), acks=0))
        answer = await wire.produce(9, topic, batch_of(b"a"))
        assert answer.base_offset == 3
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"a")[:-1], acks=0))
        assert await wire.closed() == b""


async def test_an_idempotent_producer(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        given = await wire.ask("init_producer_id", 4, transactional_id=None, transaction_timeout=0)
        other = await wire.ask("init_producer_id", 1, transactional_id=None, transaction_timeout=0)
        assert given.producer_id != other.producer_id
        who = {"producer_id": given.producer_id, "producer_epoch": 0}
        first = batch_of(b"a", b"b", base_sequence=0, **who)
        for _ in range(3):
            answer = await wire.produce(9, topic, first)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        answer = await wire.produce(9, topic, batch_of(b"c", base_sequence=7, **who))
        assert answer.error_code is ErrorCode.out_of_order_sequence_number
        answer = await wire.produce(9, topic, batch_of(b"c", base_sequence=2, **who))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2)
        described = await wire.ask("describe_producers", 0, topics=[{"name": "rain", "partition_indexes": [0, 4]}])
        [known, unknown] = described.topics[0].partitions
        assert [each.producer_id for each in known.active_producers] == [given.producer_id]
        assert known.active_producers[0].last_sequence == 2
        assert unknown.error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("durability", ["async", "sync"])
async def test_a_cold_partition_is_loaded(tmp_path: Path, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(b"a"))
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        assert not topic.partitions[0].loaded
        for _ in range(20):
            wire.send("produce", 9, **produce_fields(topic, batch_of(b"b")))
        offsets = []
        for number in range(20):
            reply = await wire.receive("produce", 9, number + 1)
            offsets.append(reply.responses[0].partition_responses[0].base_offset)
        assert offsets == list(range(1, 21))


async def test_large_requests_arrive_whole(tmp_path: Path) -> None:
    async with open_door(tmp_path, message_max_bytes=20 << 20) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        sizes = [100, 130_000, 131_072, 270_000, 1 << 20, 5 << 20, 12 << 20, 300_000, 10]
        for size in sizes * 2:
            wire.send("produce", 9, **produce_fields(topic, batch_of(bytes(size))))
        for number in range(2 * len(sizes)):
            reply = await asyncio.wait_for(wire.receive("produce", 9, number + 1), SECONDS)
            assert reply.responses[0].partition_responses[0].base_offset == number
        reply = await wire.ask("fetch", 11, **fetch_fields((topic, 0, 6)))
        assert len(reply.responses[0].partitions[0].records) > 12 << 20


async def test_a_quota_throttles(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_produce_bytes=100_000) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        loop = asyncio.get_running_loop()
        before = loop.time()
        reply = await wire.ask("produce", 9, **produce_fields(topic, batch_of(bytes(50_000))))
        assert not reply.throttle_time
        reply = await wire.ask("produce", 9, **produce_fields(topic, batch_of(bytes(200_000))))
        throttled = reply.throttle_time.total_seconds()
        # However slow this was, no more than the first of them has drained meanwhile.
        assert 0.99 < throttled < 1.6
        assert loop.time() - before < throttled
        await wire.ask("produce", 9, **produce_fields(topic, batch_of(b"a")))
        assert loop.time() - before >= throttled


async def test_the_brokers_own_topics_take_nothing_from_clients(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        own = await door.broker.topics.create("__consumer_offsets", 1, internal=True)
        for version in (9, 13, 13):
            assert (await wire.produce(version, own, batch_of(b"a"))).error_code is ErrorCode.invalid_topic_exception
        assert own.partitions[0].end == 0
