"""Queues on topics with many partitions: a bound that says so, and a state that takes more than one batch."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.conftest import Starting
from tests.broker.queues.stage import consume
from tests.waiting import SECONDS

from headrace.broker import store
from headrace.broker.queues.state_writer import STEP_LANES
from headrace.errors import InvalidPartitions, InvalidQueue
from headrace.format import records


async def test_the_state_of_a_queue_takes_many_batches(start_broker: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    # As with half a megabyte and tens of thousands of partitions.
    monkeypatch.setattr(store, "BATCH_BYTES", 1_000)
    broker = await start_broker(durability="sync")
    topic = await broker.topics.create("t", 300)
    for partition in topic.partitions:
        await partition.load()
        partition.append(records.build([(0, None, b"old", [])]))
    queue = await broker.queues.ensure(topic, "q", -1)
    assert [lane.ledger.cursor for lane in queue.lanes.values()] == [1] * 300
    await broker.queues.empty(queue)
    broker = await start_broker(durability="sync")
    queue = broker.queues.get("t", "q")
    assert [lane.ledger.cursor for lane in queue.lanes.values()] == [1] * 300
    topic = broker.topics.get("t")
    await broker.queues.open(queue)
    topic.partitions[299].append(records.build([(0, None, b"new", [])]))
    keeper = consume(queue)
    async with asyncio.timeout(SECONDS):
        while not keeper.got:
            await asyncio.sleep(0.001)
    assert keeper.values == [b"new"]


async def test_a_queue_looks_after_so_many_partitions(start_broker: Starting) -> None:
    broker = await start_broker(queue_partitions_max=3)
    small, large = await broker.topics.create("small", 2), await broker.topics.create("large", 4)
    with pytest.raises(InvalidQueue, match="has 4 partitions, and a queue can look after 3"):
        await broker.queues.ensure(large, "q")
    await broker.queues.ensure(small, "q")
    with pytest.raises(InvalidPartitions, match="has queues, and 4 partitions are more than the 3"):
        await broker.topics.grow("small", 4)
    await broker.topics.grow("small", 3)
    await broker.queues.delete("small", "q")
    await broker.topics.grow("small", 4)
    await broker.topics.grow("large", 5)


async def test_a_queue_is_made_in_small_steps(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 640)
    turns, stopping = 0, False

    async def others() -> None:
        nonlocal turns
        while not stopping:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    queue = await broker.queues.ensure(topic, "q")
    # Loading, gathering and opening each take their steps.
    assert turns >= 3 * 640 // STEP_LANES
    turns = 0
    await broker.queues.empty(queue)
    assert turns >= 640 // STEP_LANES
    stopping = True
    await counting
