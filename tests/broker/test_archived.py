"""`retention.archive.group`: retention waits for an archive, or drops what it has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.broker.scrape import render
from headrace.format import records
from headrace.log.interface import Partition, Topic

HOUR = 3_600_000
SEGMENT = 1_048_576
KEPT = {"retention.ms": str(HOUR), "segment.bytes": str(SEGMENT), "retention.archive.group": "archive-a"}


@pytest.fixture
async def broker(start_broker: Any) -> Broker:
    started: Broker = await start_broker(consumed_check_ms=HOUR, consumed_free_bytes=100_000, consumed_quiet_ms=0)
    return started


async def fill(broker: Broker, partition: Partition, count: int, age_ms: int = 2 * HOUR) -> None:
    time = broker.runtime.clock.now_ms() - age_ms
    for _ in range(count):
        partition.append(records.build([(time, None, b"v" * 1_000, [])]))
    while partition.high_watermark < partition.end:
        await asyncio.sleep(0.001)


async def commit(broker: Broker, topic: Topic, offset: int, group: str = "archive-a") -> None:
    await broker.groups.commit(group, [Commit(topic.name, topic.id, 0, offset)])


async def retain(broker: Broker) -> None:
    await broker.log.upkeep.retain()  # type: ignore[attr-defined]


async def test_what_is_too_old_waits_for_the_archive(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, KEPT)
    partition = topic.partitions[0]
    await fill(broker, partition, 3_500)
    await retain(broker)
    assert partition.start == 0
    assert partition.expires_within(0) == 0
    await commit(broker, topic, 3_500, "another")
    await retain(broker)
    assert partition.start == 0
    # Whole segments go, so one that is archived in part stays.
    await commit(broker, topic, 1_500)
    await retain(broker)
    assert 900 < partition.start <= 1_500
    await commit(broker, topic, 3_500)
    await retain(broker)
    assert partition.start == 3_500


async def test_so_does_what_is_too_much_and_nothing_else_is_held_up(broker: Broker) -> None:
    sized = {**KEPT, "retention.ms": "-1", "retention.bytes": str(SEGMENT)}
    topic = await broker.topics.create("t", 1, sized)
    free = await broker.topics.create("u", 1, {**sized, "retention.archive.group": ""})
    for each in (topic, free):
        await fill(broker, each.partitions[0], 3_500)
    await retain(broker)
    assert topic.partitions[0].start == 0
    assert free.partitions[0].start > 0
    # Who deletes records is not asked twice.
    await topic.partitions[0].trim(1_200)
    assert topic.partitions[0].start == 1_200


async def test_what_is_archived_goes_where_the_topic_says_so(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {**KEPT, "retention.ms": "-1", "retention.archive": "drop"})
    partition = topic.partitions[0]
    await fill(broker, partition, 3_500, 0)
    await broker.archived.look()
    assert partition.start == 0
    await commit(broker, topic, 900)
    await broker.archived.look()
    assert partition.start == 0  # no whole segment would go
    await commit(broker, topic, 2_500)
    await broker.archived.look()
    assert partition.start == 2_500


async def test_what_is_consumed_waits_too(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {**KEPT, "retention": "consumed", "retention.archive": "drop"})
    partition = topic.partitions[0]
    await fill(broker, partition, 3_500, 0)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.empty(queue)
    for _ in range(3):
        await broker.consumed.look()
        await broker.archived.look()
    assert partition.start == 0
    await commit(broker, topic, 2_000)
    for _ in range(3):
        await broker.consumed.look()
    assert partition.start == 2_000


async def test_after_a_start_nothing_goes_before_the_group_is_known(start_broker: Any) -> None:
    broker: Broker = await start_broker(consumed_check_ms=HOUR)
    topic = await broker.topics.create("t", 1, KEPT)
    await fill(broker, topic.partitions[0], 3_500)
    await commit(broker, topic, 3_500)
    assert broker.archived.hold(topic.partitions[0]) == 3_500
    cold = type(broker.groups)(broker.runtime, broker.log, broker.topics, broker.config)
    broker.archived._groups = cold
    assert broker.archived.hold(topic.partitions[0]) == 0
    await retain(broker)
    assert topic.partitions[0].start == 0


async def test_the_table_of_a_topic_is_waited_for_like_an_archive(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {**KEPT, "lake": "delta+/srv/t"})
    partition = topic.partitions[0]
    await fill(broker, partition, 3_500)
    await commit(broker, topic, 3_500)
    await retain(broker)
    assert partition.start == 0
    await commit(broker, topic, 1_500, "lake-t")
    await retain(broker)
    assert 900 < partition.start <= 1_500
    # Both are waited for.
    alone = await broker.topics.create("u", 1, {**KEPT, "retention.archive.group": "", "lake": "delta+/srv/u"})
    await fill(broker, alone.partitions[0], 3_500)
    await commit(broker, alone, 3_500, "lake-u")
    await retain(broker)
    assert alone.partitions[0].start == 3_500


async def test_metrics_report_how_far_a_table_is(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await broker.topics.create("t", 1, {"lake": "delta+/srv/t"})
    await broker.topics.create("other", 1, {})
    now = broker.runtime.clock.now_ms()
    monkeypatch.setattr(type(broker.runtime.clock), "now_ms", lambda _: now)

    async def metrics() -> tuple[float, float]:
        await broker.archived.look()
        lines = [line for line in (await render(broker)).decode().splitlines() if line.startswith("headrace_lake")]
        return float(lines[0].split()[1]), float(lines[1].split()[1])

    await topic.partitions[0].load()
    assert await metrics() == (0, 0)
    await fill(broker, topic.partitions[0], 3, 0)
    now += 4_000
    assert await metrics() == (3, 4)
    now += 5_000
    await fill(broker, topic.partitions[0], 2, 0)
    assert await metrics() == (5, 9)
    # What was there at the last look is in the table; what came since is not.
    await commit(broker, topic, 3, "lake-t")
    assert await metrics() == (2, 5)
    await commit(broker, topic, 5, "lake-t")
    now += 1_000
    assert await metrics() == (0, 0)
    await broker.topics.delete("t")
    await broker.archived.look()
    assert not broker.archived.tables
