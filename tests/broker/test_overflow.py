"""Gates before topics: each policy at each edge of its bound, without a door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any
from uuid import UUID

import pytest
from tests.captured_logs import capture_logs
from tests.waiting import SECONDS, until

from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.broker.groups.protocol import Problem
from headrace.broker.overflow import Overflow
from headrace.broker.scrape import render
from headrace.errors import InvalidTopicConfig, TopicBlocked, TopicFull, UnknownTopic
from headrace.format import records
from headrace.log.interface import Partition, Topic


class Queue:
    """A topic's slowest queue, as far as a gate knows one."""

    def __init__(self) -> None:
        self.topic: Topic | None = None
        self.settled = 0
        self.asked = 0

    def lag(self, topic: str) -> int:
        self.asked += 1
        assert self.topic is not None
        assert self.topic.name == topic
        return sum(partition.high_watermark for partition in self.topic.partitions) - self.settled


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
async def overflow(broker: Broker, queue: Queue) -> Any:
    made = Overflow(broker.log, broker.topics, broker.groups, broker.metrics, broker.config, queue.lag)
    yield made
    await made.stop()


@pytest.fixture
def topic(broker: Broker, queue: Queue) -> Callable[..., Any]:
    async def make(partitions: int = 1, **config: str) -> Topic:
        given = {name.replace("_", "."): value for name, value in config.items()}
        queue.topic = await broker.topics.create("t", partitions, given)
        return queue.topic

    return make


def batch(count: int = 1, size: int = 10) -> bytearray:
    return records.build([(1_000, None, b"v" * size, [])] * count)


def produce(topic: Topic, count: int = 1, size: int = 10, partition: int = 0) -> int:
    """Append as a door would; the bytes."""
    data = batch(count, size)
    topic.partitions[partition].append(data)
    return len(data)


async def durable(partition: Partition) -> None:
    while partition.high_watermark < partition.end:
        await asyncio.sleep(0.001)


async def alter(broker: Broker, **config: str | None) -> None:
    changes = {name.replace("_", "."): value for name, value in config.items()}

    def change(own: Any) -> dict[str, str]:
        return {name: value for name, value in {**own, **changes}.items() if value is not None}

    await broker.topics.alter_config("t", change)


async def test_a_topic_that_spills_has_no_gate(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic()
    assert not overflow.guards(made)
    for _ in range(100):
        assert overflow.admit(made) is None
        produce(made)
    assert not queue.asked


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_reject_at_the_edge(overflow: Overflow, topic: Any, queue: Queue, durability: str) -> None:
    made = await topic(overflow="reject", overflow_lag="10", durability=durability)
    assert overflow.guards(made)
    for _ in range(10):
        assert overflow.admit(made) is None
        produce(made)
    # Not all of them are durable yet; they count all the same.
    with pytest.raises(TopicFull, match=r"10 messages behind, and overflow\.lag allows 10"):
        overflow.admit(made)
    await durable(made.partitions[0])
    with pytest.raises(TopicFull):
        overflow.admit(made)
    queue.settled = 1
    assert overflow.admit(made) is None
    produce(made)
    with pytest.raises(TopicFull):
        overflow.admit(made)


async def test_the_bound_is_exceeded_by_one_request_at_most(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(partitions=3, overflow="reject", overflow_lag="10")
    produce(made, 4, partition=0)
    produce(made, 5, partition=1)
    assert overflow.admit(made) is None
    produce(made, 7, partition=2)
    with pytest.raises(TopicFull, match="16 messages behind"):
        overflow.admit(made)


async def test_the_lag_is_not_looked_up_for_every_request(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(overflow="reject", overflow_lag="10000")
    for _ in range(1_000):
        assert overflow.admit(made) is None
        produce(made)
    assert queue.asked < 100


async def test_a_lag_that_no_append_tells_is_noticed(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(overflow="reject", overflow_lag="10")
    queue.settled = 20
    for _ in range(20):
        assert overflow.admit(made) is None
        produce(made)
    # The queue is set back, or another one begins at the start.
    queue.settled = 0
    await asyncio.sleep(0.15)
    with pytest.raises(TopicFull, match="20 messages behind"):
        overflow.admit(made)


async def test_blocked_producers_go_on_in_order_and_one_at_a_time(
    overflow: Overflow, topic: Any, queue: Queue, broker: Broker
) -> None:
    made = await topic(overflow="block", overflow_lag="10")
    produce(made, 10)
    went: list[int] = []

    async def client(number: int) -> None:
        room = overflow.admit(made, [(0, 100)])
        assert room is not None
        await room
        went.append(number)
        produce(made, 4)

    clients = [asyncio.create_task(client(number)) for number in range(6)]
    await asyncio.sleep(0.05)
    assert not went
    metrics = broker.metrics.topic("t")
    assert metrics.blocked == 6
    assert overflow.held_bytes == 600
    # Room for one message: one request goes, and overfills by its own size only.
    queue.settled = 1
    await asyncio.wait_for(clients[0], SECONDS)
    await asyncio.sleep(0.05)
    assert went == [0]
    assert queue.lag("t") == 13
    # Room for five: two requests of four.
    queue.settled = 9
    await asyncio.wait_for(clients[2], SECONDS)
    await asyncio.sleep(0.05)
    assert went == [0, 1, 2]
    assert queue.lag("t") == 13
    queue.settled = 1_000
    await asyncio.wait_for(asyncio.gather(*clients), SECONDS)
    assert went == list(range(6))
    await asyncio.sleep(0)
    assert (metrics.blocked, overflow.held_bytes) == (0, 0)
    assert overflow.admit(made) is None


async def test_nobody_overtakes_those_who_wait(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(overflow="block", overflow_lag="1")
    produce(made)
    first = overflow.admit(made)
    assert first is not None
    queue.settled = 1
    late = overflow.admit(made)
    assert late is not None
    await asyncio.wait_for(first, SECONDS)
    produce(made)
    await asyncio.sleep(0.05)
    assert not late.done()
    queue.settled = 2
    await asyncio.wait_for(late, SECONDS)


async def test_a_wait_ends_in_time(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(overflow="block", overflow_lag="1", overflow_block_ms="80")
    produce(made)
    loop = asyncio.get_running_loop()
    for limit, seconds in ((None, 0.08), (0.02, 0.02), (30.0, 0.08)):
        began = loop.time()
        room = overflow.admit(made, [(0, 10)], limit)
        assert room is not None
        with pytest.raises(TopicBlocked, match="still full: its slowest queue is 1 messages behind"):
            await room
        assert seconds <= loop.time() - began < 15
    with pytest.raises(TopicBlocked):
        overflow.admit(made, [(0, 10)], 0)
    patient = overflow.admit(made, [(0, 10)], inf)
    assert patient is not None
    await asyncio.sleep(0.15)
    assert not patient.done()
    queue.settled = 1
    await asyncio.wait_for(patient, SECONDS)
    await asyncio.sleep(0)
    assert overflow.held_bytes == 0


async def test_what_waits_is_bounded(topic: Any, queue: Queue, start_broker: Any) -> None:
    broker = await start_broker(overflow_held_bytes=1_000)
    overflow = Overflow(broker.log, broker.topics, broker.groups, broker.metrics, broker.config, queue.lag)
    made = queue.topic = await broker.topics.create("t", 1, {"overflow": "block", "overflow.lag": "1"})
    produce(made)
    rooms = [overflow.admit(made, [(0, 500)]) for _ in range(2)]
    with pytest.raises(TopicBlocked, match="overflow_held_bytes"):
        overflow.admit(made, [(0, 1)])
    rooms[0].cancel()
    await asyncio.sleep(0)
    assert overflow.admit(made, [(0, 500)]) is not None
    await overflow.stop()
    for room in rooms[1:]:
        with pytest.raises(TopicBlocked, match="stopping"):
            await room


async def test_a_client_that_is_gone_leaves_the_line(overflow: Overflow, topic: Any, queue: Queue) -> None:
    made = await topic(overflow="block", overflow_lag="1")
    produce(made)
    rooms = [overflow.admit(made) for _ in range(3)]
    rooms[0].cancel()
    queue.settled = 1
    await asyncio.wait_for(rooms[1], SECONDS)


async def test_a_line_outlives_a_failure(
    overflow: Overflow, topic: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await topic(overflow="block", overflow_lag="1")
    produce(made)
    room = overflow.admit(made, limit_seconds=inf)
    assert room is not None
    with capture_logs() as said, monkeypatch.context() as patched:
        patched.setattr(type(made.partitions[0]), "high_watermark", property(lambda _: 1 // 0))
        while not said:
            await asyncio.sleep(0.001)
    assert said[-1]["log_level"] == "error"
    queue.settled = 1
    await asyncio.wait_for(room, SECONDS)


async def test_a_named_group_counts(overflow: Overflow, topic: Any, broker: Broker) -> None:
    made = await topic(partitions=2, overflow="reject", overflow_lag="5", overflow_group="readers")

    refusals: list[str] = []

    async def admitted() -> bool:
        try:
            room = overflow.admit(made)
            if room is not None:
                await asyncio.wait_for(room, SECONDS)
            return True
        except TopicFull as error:
            refusals.append(str(error))
            return False

    async def commit(partition: int, offset: int, topic_id: UUID = made.id) -> None:
        answer = await broker.groups.commit("readers", [Commit("t", topic_id, partition, offset)])
        assert answer == [Problem.NONE]

    assert await admitted()
    produce(made, 3)
    produce(made, 1, partition=1)
    assert await admitted()
    produce(made, 1, partition=1)
    # A group that has committed nothing has everything to read.
    assert not await admitted()
    await commit(0, 1)
    assert await admitted()
    produce(made)
    assert not await admitted()
    await commit(1, 2)
    assert await admitted()
    # What is gone need not be read.
    produce(made, 10)
    assert not await admitted()
    await durable(made.partitions[0])
    await made.partitions[0].trim(10)
    assert await admitted()
    assert refusals[0] == "topic 't' is full: group 'readers' is 5 messages behind, and overflow.lag allows 5"


async def test_a_group_is_known_after_a_start(start_broker: Any, queue: Queue) -> None:
    config = {"overflow": "reject", "overflow.lag": "5", "overflow.group": "readers"}
    broker = await start_broker()
    made = await broker.topics.create("t", 2, config)
    produce(made, 10)
    produce(made, 2, partition=1)
    await broker.groups.commit("readers", [Commit("t", made.id, 0, 8), Commit("t", made.id, 1, 0)])
    for committed, fits in ((8, True), (7, False)):
        if not fits:
            await broker.groups.commit("readers", [Commit("t", made.id, 0, committed)])
        broker = await start_broker()
        made = broker.topics.get("t")
        assert not all(partition.loaded for partition in made.partitions)
        room = broker.overflow.admit(made)
        assert room is not None
        if fits:
            await asyncio.wait_for(room, SECONDS)
        else:
            with pytest.raises(TopicFull, match="5 messages behind"):
                await asyncio.wait_for(room, SECONDS)
        # After a crash only a loaded partition knows its end.
        assert all(partition.loaded for partition in made.partitions)


async def test_settings_change_while_producers_wait(
    overflow: Overflow, topic: Any, queue: Queue, broker: Broker
) -> None:
    made = await topic(overflow="block", overflow_lag="2")
    produce(made, 5)
    room = overflow.admit(made)
    assert room is not None
    await alter(broker, overflow_lag="5")
    await asyncio.sleep(0.03)
    assert not room.done()
    await alter(broker, overflow_lag="6")
    await asyncio.wait_for(room, SECONDS)
    produce(made)

    room = overflow.admit(made)
    assert room is not None
    await alter(broker, overflow="reject")
    with pytest.raises(TopicFull):
        await asyncio.wait_for(room, SECONDS)
    with pytest.raises(TopicFull):
        overflow.admit(made)

    await alter(broker, overflow="block")
    room = overflow.admit(made)
    assert room is not None
    await alter(broker, overflow=None)
    await asyncio.wait_for(room, SECONDS)
    assert overflow.admit(made) is None
    assert not overflow.guards(made)
    with pytest.raises(InvalidTopicConfig):
        await alter(broker, overflow="block", overflow_lag=None)


async def test_a_deleted_topic_lets_nobody_wait(overflow: Overflow, topic: Any, broker: Broker) -> None:
    made = await topic(overflow="block", overflow_lag="1")
    produce(made)
    room = overflow.admit(made)
    assert room is not None
    await broker.topics.delete("t")
    with pytest.raises(UnknownTopic):
        await asyncio.wait_for(room, SECONDS)


@pytest.mark.parametrize("told", [True, False], ids=["size told", "size not told"])
@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_drop_oldest_keeps_under_its_bound(
    overflow: Overflow, topic: Any, broker: Broker, durability: str, told: bool
) -> None:
    bound = 65_536
    made = await topic(partitions=2, overflow="drop-oldest", overflow_bytes=str(bound), durability=durability)
    partition = made.partitions[0]
    largest = 0
    for number in range(300):
        size = 100 if number % 3 else 3_000
        data = batch(1, size)
        room = overflow.admit(made, [(0, len(data))] if told else ())
        if room is not None:
            await asyncio.wait_for(room, SECONDS)
        partition.append(data)
        largest = max(largest, partition.size())
        if number % 50 == 0:
            await durable(partition)
    await durable(partition)
    await until(lambda: broker.metrics.topic("t").dropped == partition.start > 0)
    assert largest <= bound + (0 if told else 3_100)
    # Not much more goes than must, and the other partition has nothing to do with it.
    assert partition.size() > bound // 2
    assert made.partitions[1].start == 0
    text = (await render(broker)).decode()
    assert f'headrace_topic_dropped_records_total{{topic="t"}} {float(partition.start)}' in text


async def test_drop_oldest_without_waiting_for_the_device(overflow: Overflow, topic: Any) -> None:
    """One turn of the loop brings more than the bound: it is held back until the first of it is durable and gone."""
    made = await topic(overflow="drop-oldest", overflow_bytes="16384", durability="sync")
    partition = made.partitions[0]
    waited = 0
    for _ in range(40):
        room = overflow.admit(made, [(0, 2_100)])
        if room is not None:
            waited += 1
            await asyncio.wait_for(room, SECONDS)
        produce(made, 1, 2_000)
        assert partition.size() <= 16_384
    assert waited


async def test_drop_oldest_makes_room_for_the_largest_batch(overflow: Overflow, topic: Any) -> None:
    made = await topic(overflow="drop-oldest", overflow_bytes="65536")
    partition = made.partitions[0]
    for _ in range(6):
        while partition.size() < 48_000:
            produce(made, 1, 1_000)
            await durable(partition)
        room = overflow.admit(made, [(0, 32_768)])
        assert room is not None
        await asyncio.wait_for(room, SECONDS)
        produce(made, 1, 32_600)
        assert 32_600 < partition.size() <= 65_536
        await durable(partition)


async def test_drop_oldest_says_what_it_dropped(overflow: Overflow, topic: Any) -> None:
    made = await topic(overflow="drop-oldest", overflow_bytes="16384")
    with capture_logs() as said:
        for _ in range(50):
            room = overflow.admit(made, [(0, 1_100)])
            if room is not None:
                await room
            produce(made, 1, 1_000)
            await durable(made.partitions[0])
        await until(lambda: said)
    lines = [line for line in said if line["event"] == "oldest records dropped"]
    assert len(lines) == 1
    assert lines[0]["topic"] == "t"
    assert lines[0]["records"] > 0


async def test_rejections_are_counted_and_said_once(overflow: Overflow, topic: Any, broker: Broker) -> None:
    made = await topic(overflow="reject", overflow_lag="1")
    produce(made)
    with capture_logs() as said:
        for _ in range(5):
            with pytest.raises(TopicFull):
                overflow.admit(made)
    assert [line["event"] for line in said] == ["producers refused"]
    assert broker.metrics.topic("t").rejected == 5
    assert 'headrace_topic_rejected_requests_total{topic="t"} 5.0' in (await render(broker)).decode()


async def test_nothing_is_admitted_after_a_stop(overflow: Overflow, topic: Any) -> None:
    made = await topic(overflow="block", overflow_lag="1")
    produce(made)
    room = overflow.admit(made)
    assert room is not None
    await overflow.stop()
    with pytest.raises(TopicBlocked, match="stopping"):
        await room
    with pytest.raises(TopicBlocked, match="stopping"):
        overflow.admit(made)
