"""A queue on a topic with `delay=true`: batches that lost some of their messages, or all, to the timer."""

from __future__ import annotations

import asyncio

from tests.broker.conftest import Starting
from tests.broker.queues.stage import Keeper, consume, publish
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.durable import durable
from headrace.broker.queues import Queue
from headrace.format import records
from headrace.log.interface import EARLIEST, Topic


async def produce(broker: Broker, topic: Topic, sequence: int, delays: list[int | None], codec: int = 0) -> None:
    """One batch of an idempotent producer; each message is for now (None) or for so many milliseconds later."""
    partition = topic.partitions[0]
    await partition.load()
    await broker.timer.load()
    now = broker.runtime.clock.now_ms()
    rows = []
    for number, delay in enumerate(delays, sequence):
        headers = [] if delay is None else [("headrace-deliver-at", b"%d" % (now + delay))]
        rows.append((now, b"k", b"%d" % number, headers))
    batch = records.build(rows, compression=codec, producer_id=7, producer_epoch=0, base_sequence=sequence)
    waiter, done = durable(None)
    if not broker.timer.produce(partition, batch, done).durable:
        await waiter


async def drained(queue: Queue, keeper: Keeper, expected: list[int]) -> None:
    await until(lambda: len(keeper.got) >= len(expected))
    assert sorted(int(value or b"") for value in keeper.values) == expected
    keeper.finish()
    await until(lambda: not queue.unsettled)
    (lane,) = queue.lanes.values()
    assert lane.ledger.floor == lane.partition.high_watermark
    assert (lane.lost, lane.poisoned) == (0, 0)


async def test_gaps_and_empty_batches_are_passed(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 1, {"delay": "true"})
    queue = await broker.queues.ensure(topic, "q", EARLIEST)
    keeper = consume(queue)
    # All for later: an empty batch stands in the log. Then gaps at the beginning, in the middle and at the end.
    await produce(broker, topic, 0, [300, 300, 300])
    await produce(broker, topic, 3, [300, None, 300, None, 300], codec=4)
    await produce(broker, topic, 8, [300])
    await until(lambda: len(keeper.got) == 2)
    assert keeper.values == [b"4", b"6"]
    assert [message.value for message in (await queue.peek(10)).messages] == []
    await drained(queue, keeper, list(range(9)))


async def test_an_empty_batch_at_the_end_does_not_hold_the_floor(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 1, {"delay": "true"})
    queue = await broker.queues.ensure(topic, "q", EARLIEST)
    keeper = consume(queue)
    await publish(topic, b"now")
    await produce(broker, topic, 0, [60_000, 60_000])
    await until(lambda: keeper.got)
    keeper.finish()
    await until(lambda: not queue.unsettled)
    assert queue.figures().depth == 0
    (lane,) = queue.lanes.values()
    assert lane.ledger.floor == lane.partition.high_watermark == 3
    assert await queue.age_ms() == 0


async def test_order_by_key_across_gaps_and_a_restart(start_broker: Starting) -> None:
    broker = await start_broker(durability="sync")
    topic = await broker.topics.create("t", 1, {"delay": "true"})
    queue = await broker.queues.ensure(topic, "q", EARLIEST)
    await broker.queues.configure(queue, {"order_by_key": True})
    await produce(broker, topic, 0, [3_000, None, 3_000, None])
    await produce(broker, topic, 4, [3_000, 3_000])
    keeper = consume(queue)
    await until(lambda: keeper.got)
    await asyncio.sleep(0.05)
    assert keeper.values == [b"1"]
    broker = await start_broker(durability="sync")
    queue = await broker.queues.ensure(broker.topics.all["t"], "q")
    keeper = consume(queue)
    order = []
    for count in range(1, 7):
        await until(lambda count=count: len(keeper.got) == count)
        order.append(int(keeper.values[-1] or b""))
        keeper.finish(keeper.values[-1])
    assert order[:2] == [1, 3]
    assert sorted(order[2:]) == [0, 2, 4, 5]
    await until(lambda: not queue.unsettled)
