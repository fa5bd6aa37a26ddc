"""ListOffsets and OffsetForLeaderEpoch, in every version."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests import brokers
from tests.device import Device
from tests.doors.kafka.local_client import LocalClient
from tests.waiting import until

from headrace.format import records
from headrace.log.interface import Partition

NOW = 1_700_000_000_000


async def three_batches(ask: LocalClient) -> Partition:
    """Two records a batch, a second apart; the largest time is in the second batch."""
    settings = {"message.timestamp.before.max.ms": str((1 << 63) - 1), "segment.ms": str((1 << 63) - 1)}
    topic = await ask.broker.topics.create("rain", 2, settings | {"retention.ms": "-1"})
    partition = topic.partitions[0]
    for start in (0, 9, 4):
        pair = [(NOW + 1000 * (start + each), None, b"v", []) for each in range(2)]
        partition.append(records.build(pair))
    await until(lambda: partition.high_watermark == 6)
    return partition


async def find(ask: LocalClient, version: int, timestamp: int, index: int = 0, name: str = "rain", **more: Any) -> Any:
    partition = {"partition_index": index, "timestamp": timestamp} | more
    topics = [{"name": name, "partitions": [partition]}]
    reply = await ask("list_offsets", version, replica_id=-1, isolation_level=0, topics=topics, timeout=0)
    return reply.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
async def test_start_end_and_times(ask: LocalClient, version: int) -> None:
    partition = await three_batches(ask)
    assert (await find(ask, version, -2)).offset == 0
    assert (await find(ask, version, -1)).offset == 6
    for time, offset, found in (
        (NOW - 5, 0, NOW),
        (NOW + 1, 1, NOW + 1000),
        (NOW + 1000, 1, NOW + 1000),
        (NOW + 4000, 2, NOW + 9000),
        (NOW + 10_000, 3, NOW + 10_000),
        (NOW + 10_001, -1, -1),
    ):
        answer = await find(ask, version, time)
        assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.none, offset, found)
    latest = await find(ask, version, -3)
    if version < 7:
        assert latest.error_code is ErrorCode.unsupported_version
    else:
        assert (latest.offset, latest.timestamp) == (3, NOW + 10_000)
    assert (await find(ask, version, -4)).offset == (0 if version >= 8 else -1)
    assert (await find(ask, version, -99)).error_code is ErrorCode.unsupported_version
    await partition.trim(3)
    assert (await find(ask, version, -2)).offset == 3


async def test_what_cannot_be_found(ask: LocalClient) -> None:
    partition = await three_batches(ask)
    assert (await find(ask, 7, -1, index=5)).error_code is ErrorCode.unknown_topic_or_partition
    assert (await find(ask, 7, -1, name="snow")).error_code is ErrorCode.unknown_topic_or_partition
    newer = await find(ask, 7, -1, current_leader_epoch=partition.epoch + 1)
    assert newer.error_code is ErrorCode.unknown_leader_epoch
    twice = [{"partition_index": 0, "timestamp": -1}] * 2
    reply = await ask(
        "list_offsets", 7, replica_id=-1, isolation_level=0, topics=[{"name": "rain", "partitions": twice}]
    )
    assert {each.error_code for each in reply.topics[0].partitions} == {ErrorCode.invalid_request}


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_end_of_an_epoch(ask: LocalClient, version: int) -> None:
    partition = await three_batches(ask)

    async def end(epoch: int, current: int = -1, index: int = 0) -> Any:
        asked = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": "rain", "partitions": [asked]}]
        return (await ask("offset_for_leader_epoch", version, replica_id=-1, topics=topics)).topics[0].partitions[0]

    found = await end(partition.epoch)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.none, partition.epoch, 6)
    assert (await end(partition.epoch, current=partition.epoch + 1)).error_code is ErrorCode.unknown_leader_epoch
    assert (await end(0, index=9)).error_code is ErrorCode.unknown_topic_or_partition
    # One that nothing was ever written to, as Kafka answers.
    unused = await end(partition.epoch, index=1)
    assert (unused.leader_epoch, unused.end_offset) == (partition.epoch, 0)


async def test_a_segment_that_goes_while_it_is_searched(device: Device) -> None:
    async with brokers.running(device, node_id=1, durability="async", tail_bytes=1) as broker:
        ask = LocalClient(broker)
        await three_batches(ask)
        with device.fail_at("rain-0/", errno.ENOENT):
            assert (await find(ask, 11, NOW)).error_code is ErrorCode.kafka_storage_error
