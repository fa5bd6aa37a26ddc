"""`retention=consumed`: what all queues have settled goes, and nothing else."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from tests.captured_logs import capture_logs
from tests.shifted import Shifted
from tests.waiting import SECONDS

from headrace.broker.broker import Broker
from headrace.broker.consumed import Consumed
from headrace.broker.groups import Commit
from headrace.broker.queues import Queue
from headrace.broker.scrape import render
from headrace.errors import StorageFailed
from headrace.format import records
from headrace.log.interface import EARLIEST, Partition, Topic

SEGMENT = 1_048_576
CONSUMED = {"retention": "consumed", "segment.bytes": str(SEGMENT)}


class Queues:
    """Floors as a test says."""

    def __init__(self) -> None:
        self.floors: dict[int, int] = {}

    def of(self, topic: str) -> dict[str, Any]:
        return {}

    def floor(self, topic: Topic, partition: int) -> int | None:
        return self.floors.get(partition)


@pytest.fixture
def queues() -> Queues:
    return Queues()


@pytest.fixture
async def broker(start_broker: Any) -> Broker:
    started: Broker = await start_broker(consumed_check_ms=3_600_000, consumed_free_bytes=100_000, consumed_quiet_ms=0)
    return started


@pytest.fixture
def consumed(broker: Broker, queues: Queues) -> Consumed:
    return watching(broker, queues)


def watching(broker: Broker, queues: Queues) -> Consumed:
    return Consumed(broker.log, queues, broker.slow_readers, broker.config)  # type: ignore[arg-type]


async def fill(partition: Partition, count: int, size: int = 1_000) -> None:
    """Append so many records, each in a batch of its own."""
    for _ in range(count):
        partition.append(records.build([(1_000, None, b"v" * size, [])]))
    while partition.high_watermark < partition.end:
        await asyncio.sleep(0.001)


async def test_without_a_queue_nothing_goes(broker: Broker, consumed: Consumed) -> None:
    topic = await broker.topics.create("t", 1, CONSUMED)
    await fill(topic.partitions[0], 500)
    for _ in range(3):
        await consumed.look()
    assert topic.partitions[0].start == 0


async def test_a_topic_kept_by_time_is_left_alone(broker: Broker, consumed: Consumed, queues: Queues) -> None:
    topic = await broker.topics.create("t", 1)
    await fill(topic.partitions[0], 500)
    queues.floors[0] = 500
    for _ in range(3):
        await consumed.look()
    assert topic.partitions[0].start == 0
    await broker.topics.alter_config("t", lambda _: CONSUMED)
    for _ in range(2):
        await consumed.look()
    assert topic.partitions[0].start == 500


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_everything_settled_leaves_no_bytes(
    broker: Broker, consumed: Consumed, queues: Queues, durability: str
) -> None:
    topic = await broker.topics.create("t", 2, {**CONSUMED, "durability": durability})
    first, second = topic.partitions
    await fill(first, 10)
    await fill(second, 10)
    queues.floors = {0: 10, 1: 0}
    await consumed.look()
    # A crash could still take this floor back.
    assert first.start == 0
    await consumed.look()
    assert (first.start, first.size()) == (10, 0)
    assert (second.start, second.size() > 0) == (0, True)


async def test_the_floor_of_the_look_before_counts(broker: Broker, consumed: Consumed, queues: Queues) -> None:
    partition = (await broker.topics.create("t", 1, {**CONSUMED, "durability": "memory"})).partitions[0]
    await fill(partition, 1_000)
    queues.floors[0] = 300
    await consumed.look()
    queues.floors[0] = 700
    await consumed.look()
    assert partition.start == 300
    await consumed.look()
    assert partition.start == 700
    # A queue was set back: what it still wants stays.
    queues.floors[0] = 900
    await consumed.look()
    queues.floors[0] = 800
    await consumed.look()
    assert partition.start == 800


async def test_a_trim_must_be_worth_it_unless_nothing_happens(broker: Broker, queues: Queues) -> None:
    partition = (await broker.topics.create("t", 1, {**CONSUMED, "durability": "memory"})).partitions[0]
    await fill(partition, 200, 900)
    needed = 100
    broker.config = replace(broker.config, consumed_free_bytes=partition.size() // 200 * needed)
    consumed = watching(broker, queues)
    queues.floors[0] = needed - 1
    await consumed.look()
    queues.floors[0] = needed
    await consumed.look()
    # One record less than what is worth it, and the floor moves.
    assert partition.start == 0
    queues.floors[0] = needed + 1
    await consumed.look()
    assert partition.start == needed
    await consumed.look()
    # Now it stands still.
    assert partition.start == needed + 1


async def test_little_goes_once_it_was_quiet_for_long_enough(
    broker: Broker, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = (await broker.topics.create("t", 1, {**CONSUMED, "durability": "memory"})).partitions[0]
    broker.config = replace(broker.config, consumed_quiet_ms=60_000)
    consumed = watching(broker, queues)
    await fill(partition, 10)
    clock = Shifted(monkeypatch)
    for floor in (9, 10):
        # What is settled meanwhile begins it anew.
        queues.floors[0] = floor
        await consumed.look()
        for _ in range(4):
            clock.forward(10)
            await consumed.look()
        assert partition.start == 0
    clock.forward(20)
    await consumed.look()
    assert (partition.start, partition.size()) == (10, 0)


async def test_whole_segments_go_while_the_rest_is_in_use(broker: Broker, consumed: Consumed, queues: Queues) -> None:
    partition = (await broker.topics.create("t", 1, CONSUMED)).partitions[0]
    await fill(partition, 3_000)
    queues.floors[0] = 2_500
    await consumed.look()
    before = partition.size()
    await consumed.look()
    assert partition.start == 2_500
    assert before - partition.size() > 2 * (SEGMENT - 2_000)
    assert partition.size() < 2 * SEGMENT
    # Nothing more would be freed: the start stays where it is, and no journal entry is written for it.
    queues.floors[0] = 2_600
    for _ in range(3):
        await consumed.look()
    assert partition.start == 2_500


async def test_a_group_that_is_behind_is_told_of(broker: Broker, consumed: Consumed, queues: Queues) -> None:
    topic = await broker.topics.create("t", 2, CONSUMED)
    partition = topic.partitions[0]
    await fill(partition, 10)
    for group, offset in (("behind", 4), ("level", 10)):
        await broker.groups.commit(group, [Commit("t", topic.id, 0, offset), Commit("t", topic.id, 1, 0)])
    queues.floors[0] = 10
    await consumed.look()
    with capture_logs() as said:
        await consumed.look()
    before, after = [line for line in said if line["log_level"] == "warning"]
    assert (before["event"][:21], before["reader"], before["records"]) == ("records are about to ", "group behind", 6)
    assert (after["event"][:21], after["group"], after["records"]) == ("records have gone tha", "behind", 6)
    assert broker.metrics.topic("t").passed_by == 6
    assert 'headrace_topic_passed_by_records_total{topic="t"} 6.0' in (await render(broker)).decode()
    # The same records are not taken from it twice.
    await fill(partition, 10)
    queues.floors[0] = 20
    for _ in range(2):
        await consumed.look()
    assert broker.metrics.topic("t").passed_by == 6 + 10 + 10


async def test_state_that_is_ahead_of_the_log(broker: Broker, consumed: Consumed, queues: Queues) -> None:
    partition = (await broker.topics.create("t", 1, CONSUMED)).partitions[0]
    await fill(partition, 10)
    queues.floors[0] = 15
    for _ in range(2):
        await consumed.look()
    assert partition.start == 10


async def test_a_failure_of_one_topic_is_not_that_of_others(
    broker: Broker, consumed: Consumed, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await broker.topics.create("a", 1, CONSUMED)).partitions[0]
    second = (await broker.topics.create("b", 1, CONSUMED)).partitions[0]
    real = type(first).trim

    async def failing(self: Partition, before: int) -> int:
        if self is first:
            raise StorageFailed("the disk is full")
        return await real(self, before)  # type: ignore[arg-type]

    monkeypatch.setattr(type(first), "trim", failing)
    for partition in (first, second):
        await fill(partition, 10)
    queues.floors[0] = 10
    for _ in range(2):
        await consumed.look()
    assert (first.start, second.start) == (0, 10)


async def test_a_cold_partition_is_loaded_when_something_can_go(start_broker: Any, queues: Queues) -> None:
    broker = await start_broker(consumed_check_ms=3_600_000, consumed_quiet_ms=0)
    topic = await broker.topics.create("t", 2, CONSUMED)
    for partition in topic.partitions:
        await fill(partition, 10)
    broker = await start_broker(consumed_check_ms=3_600_000, consumed_quiet_ms=0)
    consumed = watching(broker, queues)
    queues.floors = {0: 10, 1: 0}
    for _ in range(2):
        await consumed.look()
    first, second = broker.topics.get("t").partitions
    assert (first.start, first.size()) == (10, 0)
    assert not second.loaded


async def test_an_idle_topic_is_looked_at_less_often(
    broker: Broker, consumed: Consumed, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = (await broker.topics.create("t", 1, CONSUMED)).partitions[0]
    await fill(partition, 10)
    queues.floors[0] = 0
    asked = 0
    real = queues.floor

    def counted(topic: Topic, index: int) -> int | None:
        nonlocal asked
        asked += 1
        return real(topic, index)

    monkeypatch.setattr(queues, "floor", counted)
    for _ in range(5_000):
        await consumed.look()
    assert asked < 120
    # It is not forgotten.
    queues.floors[0] = 10
    for _ in range(62):
        await consumed.look()
    assert partition.start == 10


class StubConsumer:
    """A consumer that finishes what it is given, but puts some off for an hour, and keeps some."""

    def __init__(self, put_off: Collection[int] = (), kept: Collection[int] = ()) -> None:
        self.offsets: list[int] = []
        self.consumer: Any = None
        self._put_off = put_off
        self._kept = kept

    def deliver(self, claimed: Any) -> None:
        asyncio.get_running_loop().call_soon(self._settle, claimed.lane, claimed.messages())

    def _settle(self, lane: int, messages: list[Any]) -> None:
        ids = array("q")
        for offset, attempt, *_ in messages:
            self.offsets.append(offset)
            if offset in self._put_off:
                assert self.consumer.requeue(lane, offset, attempt, 3_600_000)
            elif offset not in self._kept:
                ids.extend((lane, offset, attempt))
        assert self.consumer.finish_many(ids) == []

    def gone(self, reason: str) -> None:
        raise AssertionError(reason)


async def test_with_queues_and_a_clock(start_broker: Any) -> None:
    broker = await start_broker(consumed_check_ms=20, consumed_quiet_ms=0)
    topic = await broker.topics.create("t", 1, CONSUMED)
    partition = topic.partitions[0]
    await fill(partition, 50)
    sinks = []
    for name in ("first", "second"):
        queue = await broker.queues.ensure(topic, name, EARLIEST)
        sink = StubConsumer()
        sink.consumer = queue.subscribe(sink)
        sinks.append(sink)
    sinks[0].consumer.ready(100)
    async with asyncio.timeout(SECONDS):
        while len(sinks[0].offsets) < 50:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        # The other queue has seen nothing yet.
        assert partition.start == 0
        sinks[1].consumer.ready(100)
        while partition.start < 50:
            await asyncio.sleep(0.005)
    assert partition.size() == 0
    assert sinks[1].offsets == list(range(50))
    # A queue that comes later sees what is still there.
    await fill(partition, 5)
    late = await broker.queues.ensure(topic, "late", EARLIEST)
    assert [message.offset for message in (await late.peek(10)).messages] == list(range(50, 55))


async def consume(queue: Queue, count: int, sink: StubConsumer) -> None:
    """Let a consumer take so many messages."""
    sink.consumer = queue.subscribe(sink)
    sink.consumer.ready(2_500)
    async with asyncio.timeout(SECONDS):
        while len(sink.offsets) < count:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)


async def looked_at(broker: Broker, times: int = 3) -> None:
    for _ in range(times):
        await broker.consumed.look()


@pytest.mark.parametrize(
    ("segments", "moved"), [("-1", False), ("3", False), ("2", True)], ids=["never", "at the bound", "above it"]
)
async def test_a_straggler_does_not_keep_more_than_its_bound(broker: Broker, segments: str, moved: bool) -> None:
    """From the straggler on there are three whole segments before the one that the queue is in."""
    topic = await broker.topics.create("t", 1, {**CONSUMED, "consumed.pinned.segments": segments})
    partition = topic.partitions[0]
    await fill(partition, 4_200)
    queue = await broker.queues.ensure(topic, "q")
    sink = StubConsumer(put_off=[990])
    await consume(queue, 4_200, sink)
    # Two more that nobody takes: the newest segment is still in use.
    sink.consumer.close()
    await fill(partition, 2)
    assert 2 * SEGMENT < partition.freed_by(4_200) - partition.freed_by(990) <= 3 * SEGMENT
    with capture_logs() as said:
        await looked_at(broker)
    assert not [line for line in said if line["log_level"] == "warning"]
    assert (partition.start > 990) is moved
    assert queue.figures().deferred == 1
    if moved:
        assert partition.start == 4_200
        assert partition.size() < SEGMENT


async def test_only_what_is_far_behind_is_moved(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {**CONSUMED, "consumed.pinned.segments": "2"})
    partition = topic.partitions[0]
    await fill(partition, 5_000)
    queue = await broker.queues.ensure(topic, "q")
    await consume(queue, 5_000, StubConsumer(put_off=[5, 600, 4_500], kept=[4_600]))
    await looked_at(broker)
    # What is near stays where it is, and so does what a consumer holds.
    assert partition.start == 4_500
    assert [queue.settled(0, offset) for offset in (5, 600, 4_500, 4_600)] == [True, True, False, False]
    assert (queue.figures().deferred, queue.figures().in_flight) == (3, 1)


async def test_what_cannot_be_moved_is_said(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1, {**CONSUMED, "consumed.pinned.segments": "1"})
    partition = topic.partitions[0]
    await fill(partition, 5_000)
    queue = await broker.queues.ensure(topic, "q")
    await consume(queue, 5_000, StubConsumer(kept=[5]))
    with capture_logs() as said:
        await looked_at(broker)
    lines = [line for line in said if line["event"].startswith("unsettled messages keep settled ones")]
    assert [(line["queue"], line["floor"]) for line in lines] == [("q", 5)]
    assert partition.start <= 5


async def test_many_stragglers_are_moved_in_steps(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.consumed.PARKED_AT_ONCE", 10)
    topic = await broker.topics.create("t", 1, {**CONSUMED, "consumed.pinned.segments": "1"})
    await fill(topic.partitions[0], 5_000)
    queue = await broker.queues.ensure(topic, "q")
    await consume(queue, 5_000, StubConsumer(put_off=range(0, 500, 20)))
    for moved in (10, 20, 25, 25):
        await broker.consumed.look()
        assert sum(queue.settled(0, offset) for offset in range(0, 500, 20)) == moved
    assert queue.figures().deferred == 25
