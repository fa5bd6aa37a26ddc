"""Looking into a queue: what `peek` shows is what would be handed out, and how many messages came to it."""

from __future__ import annotations

import pytest
from tests.broker.conftest import Starting
from tests.broker.queues.stage import consume, publish, publish_keyed, settled
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.queues import Queue, peek
from headrace.log.interface import EARLIEST


async def peeked(queue: Queue, limit: int = 100) -> list[bytes | None]:
    return [message.value for message in (await queue.peek(limit)).messages]


async def test_only_what_the_filter_lets_through(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"filter": "region = eu"})
    for number in range(10):
        region = b"eu" if number % 2 else b"us"
        await publish(topic, b"%d" % number, headers=[("region", region)])
    assert await peeked(queue) == [b"1", b"3", b"5", b"7", b"9"]
    assert await peeked(queue, 2) == [b"1", b"3"]
    keeper = consume(queue, credit=2)
    await until(lambda: len(keeper.got) == 2)
    assert await peeked(queue) == [b"5", b"7", b"9"]
    # What was handed out under the old filter comes again whatever the new one says.
    keeper.consumer.ready(0)
    keeper.requeue(b"1", b"3")
    await broker.queues.configure(queue, {"filter": "region = us"})
    assert await peeked(queue) == [b"1", b"3", b"4", b"6", b"8"]
    keeper.consumer.ready(10)
    await until(lambda: len(keeper.got) == 7)
    assert sorted(keeper.values[2:], key=str) == [b"1", b"3", b"4", b"6", b"8"]


async def test_a_filter_that_nothing_meets_does_not_read_the_whole_log(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"filter": "$key = wanted"})
    for _ in range(8):
        await publish(topic, bytes(100_000))
    await publish(topic, b"found", key=b"wanted")
    assert await peeked(queue) == [b"found"]
    monkeypatch.setattr(peek, "SCAN_BYTES", 300_000)
    assert await peeked(queue) == []


async def test_one_message_of_a_key(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"order_by_key": True})
    await publish_keyed(topic, [(b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1"), (None, b"x"), (None, b"y"), (b"b", b"b2")])
    assert await peeked(queue) == [b"a1", b"b1", b"x", b"y"]
    keeper = consume(queue, credit=1)
    await until(lambda: keeper.got)
    assert await peeked(queue) == [b"b1", b"x", b"y"]
    keeper.consumer.ready(0)
    keeper.finish(b"a1")
    assert await peeked(queue) == [b"a2", b"b1", b"x", b"y"]


async def test_the_age_is_that_of_a_message_that_is_wanted(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"filter": "region = eu"})
    await publish(topic, b"1", headers=[("region", b"us")])
    assert await queue.age_ms() == 0
    await publish(topic, b"2", headers=[("region", b"eu")])
    assert await queue.age_ms() > 1_000


async def test_what_came_to_a_queue(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 2)
    await publish(topic, b"1", b"2", b"3")
    all_of_it = await broker.queues.ensure(topic, "all", EARLIEST)
    later = await broker.queues.ensure(topic, "later")
    assert (all_of_it.received, later.received) == (3, 0)
    await publish(topic, b"4", partition=1)
    assert (all_of_it.received, later.received) == (4, 1)
    keeper = consume(later)
    await until(lambda: keeper.got)
    keeper.finish()
    await settled(broker)
    assert later.received == 1
    # After a start it counts from what was not settled.
    again = await start_broker()
    found = [again.queues.get("t", name).received for name in ("all", "later")]
    assert found == [4, 0]
