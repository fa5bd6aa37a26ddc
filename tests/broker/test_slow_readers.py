"""What readers lose: said before and after, whatever takes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.captured_logs import capture_logs
from tests.waiting import SECONDS, until

from headrace.broker import rate_limit
from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.format import records
from headrace.log.interface import Partition, Topic

HOUR = 3_600_000
MINUTE = 60_000


@pytest.fixture
async def broker(start_broker: Any) -> Broker:
    started: Broker = await start_broker(retention_warning_ms=15 * MINUTE)
    return started


async def fill(broker: Broker, partition: Partition, count: int, age_ms: int = 0, size: int = 1_000) -> None:
    """Append so many records of an age, each in a batch of its own."""
    time = broker.runtime.clock.now_ms() - age_ms
    for _ in range(count):
        partition.append(records.build([(time, None, b"v" * size, [])]))
    while partition.high_watermark < partition.end:
        await asyncio.sleep(0.001)


async def commit(broker: Broker, topic: Topic, **offsets: int) -> None:
    for group, offset in offsets.items():
        await broker.groups.commit(group, [Commit(topic.name, topic.id, 0, offset)])


async def warned(broker: Broker) -> list[tuple[str, int]]:
    """Whom a look ahead warns, and of how many records."""
    with capture_logs() as said:
        await broker.slow_readers.look_ahead()
    return [(line["reader"], line["records"]) for line in said]


@pytest.mark.parametrize("age", [44, 46])
async def test_what_will_be_too_old_is_said_in_time(broker: Broker, age: int) -> None:
    """One hour is kept, and a quarter of an hour ahead is looked."""
    topic = await broker.topics.create("t", 1, {"retention.ms": str(HOUR), "segment.bytes": "1048576"})
    partition = topic.partitions[0]
    await fill(broker, partition, 1_500, age * MINUTE)
    await fill(broker, partition, 1_500)
    await commit(broker, topic, first=10, second=900, level=3_000)
    first_segment = partition.expires_within(59 * MINUTE)
    assert 900 < first_segment < 1_500
    await broker.queues.ensure(topic, "q")
    found = await warned(broker)
    if age == 44:
        assert found == []
        return
    assert sorted(found) == [
        ("group first", first_segment - 10),
        ("group second", first_segment - 900),
        ("queue q", first_segment),
    ]
    # Once is enough.
    assert await warned(broker) == []
    await commit(broker, topic, late=5)
    assert await warned(broker) == [("group late", first_segment - 5)]


async def test_the_newest_segment_grows_old_too(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {"retention.ms": str(HOUR)})
    await fill(broker, topic.partitions[0], 10, 50 * MINUTE)
    await topic.partitions[0].trim(2)
    await commit(broker, topic, behind=3, far=0)
    assert sorted(await warned(broker)) == [("group behind", 7), ("group far", 8)]
    await fill(broker, topic.partitions[0], 1)
    assert topic.partitions[0].expires_within(15 * MINUTE) == 2


async def test_what_is_too_much_is_said_before_it_goes(broker: Broker) -> None:
    config = {"retention.bytes": "1048576", "segment.bytes": "1048576"}
    topic = await broker.topics.create("t", 1, config)
    partition = topic.partitions[0]
    await fill(broker, partition, 1_500)
    await commit(broker, topic, behind=0)
    assert await warned(broker) == []
    await fill(broker, partition, 1_500)
    expired = partition.expires_within(0)
    assert await warned(broker) == [("group behind", expired)]
    await broker.log.upkeep.retain()  # type: ignore[attr-defined]
    assert partition.start == expired


async def test_what_has_gone_is_counted_and_said(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await broker.topics.create("t", 1, {"retention.ms": str(HOUR)})
    partition = topic.partitions[0]
    await fill(broker, partition, 10, 61 * MINUTE)
    await commit(broker, topic, behind=3, level=10)
    with capture_logs() as said:
        await broker.log.upkeep.retain()  # type: ignore[attr-defined]
    assert partition.start == 10
    lines = [(line["group"], line["records"]) for line in said if "group" in line]
    assert lines == [("behind", 7)]
    metrics = broker.metrics.topic("t")
    assert metrics.passed_by == 7
    # Deleted by hand: counted too, but not said again so soon.
    await fill(broker, partition, 5)
    with capture_logs() as said:
        await partition.trim(12)
        await partition.trim(14)
    assert [(line["group"], line["records"]) for line in said if "group" in line] == [("level", 2)]
    assert metrics.passed_by == 7 + 2 * 2 + 2 * 2
    monkeypatch.setattr(rate_limit, "INTERVAL_SECONDS", 0.0)
    with capture_logs() as said:
        await partition.trim(15)
    lines = [(line["group"], line["records"]) for line in said if "group" in line]
    assert sorted(lines) == [("behind", 5), ("level", 3)]


async def test_drop_oldest_takes_from_groups_too(broker: Broker) -> None:
    config = {"overflow": "drop-oldest", "overflow.bytes": "65536"}
    topic = await broker.topics.create("t", 1, config)
    await commit(broker, topic, behind=0)
    for _ in range(100):
        room = broker.overflow.admit(topic, [(0, 1_100)])
        if room is not None:
            await room
        await fill(broker, topic.partitions[0], 1)
    metrics = broker.metrics.topic("t")
    await until(lambda: metrics.passed_by == metrics.dropped == topic.partitions[0].start > 0)


async def test_memory_that_is_full(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {"durability": "memory", "retention.bytes": "10000"})
    await commit(broker, topic, behind=5)
    await fill(broker, topic.partitions[0], 50)
    await until(lambda: broker.metrics.topic("t").passed_by == topic.partitions[0].start - 5 > 0)


async def test_a_clock_looks_ahead(start_broker: Any) -> None:
    broker = await start_broker(retention_check_ms=20)
    topic = await broker.topics.create("t", 1, {"retention.ms": str(HOUR)})
    await commit(broker, topic, behind=3)
    with capture_logs() as said:
        await fill(broker, topic.partitions[0], 10, 59 * MINUTE)
        async with asyncio.timeout(SECONDS):
            while not [line for line in said if line.get("reader") == "group behind"]:
                await asyncio.sleep(0.01)
