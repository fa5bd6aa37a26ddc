"""What a queue does with messages, through the engine alone."""

from __future__ import annotations

import asyncio

import pytest
from tests import brokers
from tests.broker.conftest import Starting
from tests.broker.queues.stage import consume, publish, publish_keyed, settled
from tests.broker.timer.stage import read_records
from tests.device import Device
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.errors import InvalidQueue, InvalidQueueSetting, UnknownQueue
from headrace.log.interface import EARLIEST, LATEST


async def test_each_message_goes_to_one_consumer_and_every_queue_gets_all(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    first = await broker.queues.ensure(topic, "first")
    second = await broker.queues.ensure(topic, "second")
    ones = [consume(first), consume(first)]
    other = consume(second)
    await publish(topic, *(b"%d" % number for number in range(100)))
    await until(lambda: len(other.got) == 100 and sum(len(each.got) for each in ones) == 100)
    assert sorted(ones[0].values + ones[1].values) == sorted(other.values)
    assert all(each.got for each in ones)


async def test_the_first_queue_gets_what_the_topic_held_and_a_later_one_what_comes(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    await publish(topic, b"old")
    first = consume(await broker.queues.ensure(topic, "first"))
    later = consume(await broker.queues.ensure(topic, "later"))
    told = consume(await broker.queues.ensure(topic, "told", EARLIEST))
    end = consume(await broker.queues.ensure(topic, "end", LATEST))
    await publish(topic, b"new")
    await until(lambda: len(first.got) == len(told.got) == 2 and later.got and end.got)
    assert (later.values, end.values) == ([b"new"], [b"new"])


@pytest.mark.parametrize("flushes", range(4))
async def test_a_caller_that_gives_up_leaves_a_whole_queue(device: Device, flushes: int) -> None:
    async with brokers.running(device) as broker:
        topic = await broker.topics.create("t", 3)
        device.hold()
        making = asyncio.ensure_future(broker.queues.ensure(topic, "q"))
        for _ in range(flushes):
            await until(lambda: device.waiting or making.done())
            if device.waiting:
                device.release(1)
        await until(lambda: device.waiting or making.done())
        making.cancel()
        await asyncio.sleep(0)
        device.release()
        await asyncio.wait((making,))
        made = broker.queues.get("t", "q")
        assert made is not None
        assert await broker.queues.ensure(topic, "q") is made
    async with brokers.running(device) as broker:
        assert [each.id for each in broker.queues.all()] == [made.id]


async def test_an_ephemeral_queue_whose_first_client_gives_up_is_gone(device: Device) -> None:
    async with brokers.running(device) as broker:
        await broker.topics.create("t", 3)
    async with brokers.running(device) as broker:
        topic = broker.topics.all["t"]
        device.hold_loads()
        making = asyncio.ensure_future(broker.queues.ensure(topic, "q#ephemeral"))
        await until(lambda: device.waiting)
        making.cancel()
        await asyncio.sleep(0)
        # Another that waits for its turn gets a queue of its own.
        other = asyncio.ensure_future(broker.queues.ensure(topic, "q#ephemeral"))
        device.release()
        with pytest.raises(asyncio.CancelledError):
            await making
        queue = await other
        assert not queue.gone
        assert broker.queues.get("t", "q#ephemeral") is queue
        consume(queue).consumer.close()
        assert broker.queues.get("t", "q#ephemeral") is None


async def test_credit_is_a_ceiling_on_what_is_in_flight(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue, credit=3)
    await publish(topic, *(b"%d" % number for number in range(10)))
    await until(lambda: len(keeper.got) == 3)
    keeper.finish(b"1")
    await until(lambda: len(keeper.got) == 4)
    keeper.consumer.ready(1)
    keeper.finish(b"0", b"2")
    await settled(broker)
    assert len(keeper.got) == 4
    assert (queue.figures().in_flight, queue.figures().depth) == (1, 6)


async def test_an_answer_that_comes_too_late_is_refused(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    slow, other = consume(queue, timeout_ms=30), consume(queue, credit=0)
    await publish(topic, b"x")
    await until(lambda: slow.got)
    slow.consumer.ready(0)
    other.consumer.ready(1)
    await until(lambda: other.got)
    assert not slow.consumer.finish(0, 0, 1)
    assert not slow.consumer.requeue(0, 0, 1, 0)
    assert not slow.consumer.touch(0, 0, 1)
    assert (slow.consumer.timed_out, slow.consumer.in_flight, other.got[0][2]) == (1, 0, 2)
    assert not other.consumer.finish(0, 0, 1)
    assert not other.consumer.finish(9, 0, 2)
    other.finish(b"x")
    assert queue.figures().in_flight == queue.figures().depth == 0


async def test_a_touch_gives_more_time_up_to_a_limit(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"timeout_ms": 100, "timeout_max_ms": 250})
    keeper = consume(queue)
    await publish(topic, b"x")
    await until(lambda: keeper.got)
    begun = broker.runtime.clock.now_ms()

    def alive() -> bool:
        return keeper.consumer.touch(0, 0, 1) and len(keeper.got) == 1

    await until(lambda: not alive())
    assert 200 <= broker.runtime.clock.now_ms() - begun < 2_000
    await until(lambda: len(keeper.got) == 2)


async def test_what_comes_back_takes_turns_with_what_is_new(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue, credit=1)
    await publish(topic, *(b"%d" % number for number in range(5)))
    for count in range(1, 9):
        await until(lambda count=count: len(keeper.got) == count)
        # The first message always comes back, at once.
        if keeper.values[-1] == b"0":
            keeper.requeue(b"0")
        else:
            keeper.finish(keeper.values[-1])
    assert {b"1", b"2", b"3"} <= set(keeper.values)
    assert keeper.values.count(b"0") >= 3


async def test_a_delay_and_the_retry_ladder(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"backoff_ms": [20, 40]})
    keeper = consume(queue)
    await publish(topic, b"x")
    await until(lambda: keeper.got)
    for attempt, delay in ((1, 20), (2, 40), (3, 40)):
        begun = broker.runtime.clock.now_ms()
        keeper.requeue(b"x")
        assert queue.figures().deferred == 1
        due = queue.lanes[0].ledger.state_of(0)[2]
        assert begun + delay <= due <= broker.runtime.clock.now_ms() + delay
        await until(lambda attempt=attempt: len(keeper.got) == attempt + 1)
        assert broker.runtime.clock.now_ms() >= due
    begun = broker.runtime.clock.now_ms()
    keeper.requeue(b"x", delay_ms=5)
    await until(lambda: len(keeper.got) == 5)
    assert keeper.got[-1][2] == 5


async def test_messages_of_a_consumer_that_goes_are_others(broker: Broker) -> None:
    topic = await broker.topics.create("t", 2)
    queue = await broker.queues.ensure(topic, "q")
    gone = consume(queue)
    await publish(topic, b"a", b"b")
    await publish(topic, b"c", partition=1)
    await until(lambda: len(gone.got) == 3)
    gone.finish(b"b")
    gone.consumer.close()
    left = consume(queue)
    await until(lambda: len(left.got) == 2)
    assert sorted(left.values) == [b"a", b"c"]
    assert {each[2] for each in left.got} == {2}


async def test_a_dead_message_says_where_it_came_from(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"max_attempts": 2})
    keeper = consume(queue)
    await publish(topic, b"x", key=b"k", headers=[("h", b"1")])
    for count in (1, 2):
        await until(lambda count=count: len(keeper.got) == count)
        keeper.requeue(b"x", error="no such customer")
    await until(lambda: queue.figures().dead == 1)
    [(_, key, value, headers)] = await read_records(broker.runtime, broker.topics.all["t.q.dead"].partitions[0])
    said = dict(headers)
    assert (key, value, said.pop("headrace-dead-at").isdigit()) == (b"k", b"x", True)
    assert said == {
        "h": b"1",
        "headrace-origin-topic": b"t",
        "headrace-origin-partition": b"0",
        "headrace-origin-offset": b"0",
        "headrace-origin-queue": b"q",
        "headrace-attempts": b"2",
        "headrace-error": b"no such customer",
    }
    assert (queue.figures().depth, queue.lanes[0].ledger.floor) == (0, 1)


async def test_a_limit_that_is_set_later_holds_for_what_is_there(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue, credit=1)
    await publish(topic, b"x")
    for count in (1, 2, 3):
        await until(lambda count=count: len(keeper.got) == count)
        keeper.consumer.ready(0 if count == 3 else 1)
        keeper.requeue(b"x")
    await broker.queues.configure(queue, {"max_attempts": "3", "dead_letter_topic": "graveyard"})
    await until(lambda: queue.figures().dead == 1)
    assert "graveyard" in broker.topics.all


async def test_a_filter_settles_what_it_does_not_take(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"filter": 'region in (eu, us) and not has test and $key != "k2"'})
    keeper = consume(queue)
    await publish(topic, b"1", headers=[("region", b"eu")])
    await publish(topic, b"2", headers=[("region", b"asia")])
    await publish(topic, b"3", headers=[("region", b"us"), ("test", None)])
    await publish(topic, b"4", key=b"k2", headers=[("region", b"us")])
    await publish(topic, b"5", key=b"k3", headers=[("region", b"us")])
    await publish(topic, b"6")
    await until(lambda: len(keeper.got) == 2)
    await settled(broker)
    assert keeper.values == [b"1", b"5"]
    keeper.finish()
    assert queue.lanes[0].ledger.floor == 6
    await broker.queues.configure(queue, {"filter": ""})
    await publish(topic, b"7")
    await until(lambda: keeper.values == [b"1", b"5", b"7"])


async def test_order_by_key(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"order_by_key": True})
    keepers = [consume(queue), consume(queue)]

    def values() -> list[bytes | None]:
        return sorted(keepers[0].values + keepers[1].values)

    def whose(value: bytes) -> int:
        return 0 if value in keepers[0].values else 1

    await publish_keyed(
        topic, [(b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1"), (None, b"n1"), (b"a", b"a3"), (None, b"n2")]
    )
    await until(lambda: len(values()) == 4)
    await settled(broker)
    assert values() == [b"a1", b"b1", b"n1", b"n2"]
    assert queue.figures().blocked == 2
    # A message that waits for its delay holds its key.
    keepers[whose(b"a1")].requeue(b"a1", delay_ms=30)
    await settled(broker)
    assert len(values()) == 4
    await until(lambda: values().count(b"a1") == 2)
    last = next(each for each in keepers if each.values and each.values[-1] == b"a1")
    last.finish(b"a1")
    await until(lambda: b"a2" in values())
    assert b"a3" not in values()
    keepers[whose(b"a2")].finish(b"a2")
    await until(lambda: b"a3" in values())
    # Off again: nobody waits.
    await publish_keyed(topic, [(b"a", b"a4")])
    await settled(broker)
    assert b"a4" not in values()
    await broker.queues.configure(queue, {"order_by_key": False})
    await until(lambda: b"a4" in values())


async def test_look_ahead_past_held_keys_is_bounded(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"order_by_key": True, "lookahead_max": 3})
    keeper = consume(queue)
    await publish_keyed(topic, [(b"a", b"%d" % number) for number in range(6)])
    await publish_keyed(topic, [(b"b", b"other")])
    await until(lambda: queue.figures().lookahead_hits)
    assert (keeper.values, queue.figures().blocked) == ([b"0"], 3)
    for number in range(6):
        await until(lambda number=number: b"%d" % number in keeper.values)
        keeper.finish(b"%d" % number)
    await until(lambda: b"other" in keeper.values)


@pytest.mark.parametrize("dead_key", ["release", "park"])
async def test_what_a_dead_message_does_to_its_key(start_broker: Starting, dead_key: str) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"order_by_key": True, "max_attempts": 1, "dead_key": dead_key})
    keeper = consume(queue)
    await publish_keyed(topic, [(b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1")])
    await until(lambda: len(keeper.got) == 2)
    keeper.requeue(b"a1")
    if dead_key == "release":
        await until(lambda: b"a2" in keeper.values)
        assert queue.figures().dead == 1
        return
    await until(lambda: queue.figures().dead == 2)
    await publish_keyed(topic, [(b"a", b"a3")])
    await until(lambda: queue.figures().dead == 3)
    # The key stays parked over a restart, until it is said to be released.
    broker = await start_broker()
    topic = broker.topics.all["t"]
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue)
    await publish_keyed(topic, [(b"a", b"a4"), (b"c", b"c1")])
    await until(lambda: queue.figures().dead == 1)
    letters = await read_records(broker.runtime, broker.topics.all["t.q.dead"].partitions[0])
    assert [value for _, _, value, _ in letters] == [b"a1", b"a2", b"a3", b"a4"]
    await broker.queues.configure(queue, {"dead_key": "release"})
    await publish_keyed(topic, [(b"a", b"a5")])
    await until(lambda: b"a5" in keeper.values)


async def test_pause_and_empty(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue)
    await broker.queues.pause(queue, True)
    await publish(topic, b"1", b"2")
    await settled(broker)
    assert keeper.got == []
    assert [message.value for message in (await queue.peek(5)).messages] == [b"1", b"2"]
    await broker.queues.pause(queue, False)
    await until(lambda: len(keeper.got) == 2)
    await broker.queues.pause_topic("t", True)
    assert broker.queues.topic_paused("t")
    await publish(topic, b"3")
    await settled(broker)
    assert len(keeper.got) == 2
    await broker.queues.empty(queue)
    assert (queue.figures().depth, queue.figures().in_flight, keeper.consumer.in_flight) == (0, 0, 0)
    assert not keeper.consumer.finish(0, 0, 1)
    await broker.queues.pause_topic("t", False)
    await publish(topic, b"4")
    await until(lambda: keeper.values[-1] == b"4")
    assert len(keeper.got) == 3


async def test_state_outlives_a_clean_stop_exactly(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 2)
    queue = await broker.queues.ensure(topic, "q")
    await broker.queues.configure(queue, {"timeout_ms": 5_000, "backoff_ms": "1,2"})
    keeper = consume(queue)
    await publish(topic, *(b"%d" % number for number in range(20)))
    await publish(topic, b"other", partition=1)
    await until(lambda: len(keeper.got) == 21)
    keeper.finish(*(b"%d" % number for number in range(0, 20, 2)))
    keeper.requeue(b"7", delay_ms=3_600_000)
    broker = await start_broker()
    queue = broker.queues.get("t", "q")
    assert queue is not None
    assert (queue.settings.timeout_ms, queue.settings.backoff_ms) == (5_000, (1, 2))
    assert (queue.figures().deferred, queue.figures().depth) == (1, 10)
    again = consume(await broker.queues.ensure(broker.topics.all["t"], "q"))
    await until(lambda: len(again.got) == 10)
    await settled(broker)
    assert sorted(again.values) == sorted([b"other", *(b"%d" % number for number in range(1, 20, 2) if number != 7)])


async def test_a_topic_that_grows_or_goes(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue)
    await broker.topics.grow("t", 3)
    await publish(topic, b"new", partition=2)
    await until(lambda: keeper.values == [b"new"])
    await broker.topics.delete("t")
    assert keeper.ended == "the topic t was deleted"
    assert broker.queues.all() == []
    assert broker.queues.get("t", "q") is None


async def test_deleting_a_queue_ends_its_consumers_and_leaves_the_log(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 1)
    keeper = consume(await broker.queues.ensure(topic, "q"))
    await publish(topic, b"x")
    await until(lambda: keeper.got)
    await broker.queues.delete("t", "q")
    assert keeper.ended is not None
    with pytest.raises(UnknownQueue, match="no queue 'q' on the topic 't'"):
        await broker.queues.delete("t", "q")
    broker = await start_broker()
    assert broker.queues.all() == []
    anew = consume(await broker.queues.ensure(broker.topics.all["t"], "q"))
    await until(lambda: anew.values == [b"x"])


async def test_an_ephemeral_queue_goes_with_its_last_consumer(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q#ephemeral")
    one, two = consume(queue), consume(queue)
    one.consumer.close()
    assert broker.queues.of("t")
    two.consumer.close()
    assert not broker.queues.of("t")
    assert "__queues" not in broker.topics.all


async def test_what_the_log_gave_up_is_counted_and_passed_over(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    await publish(topic, *(b"%d" % number for number in range(10)))
    await topic.partitions[0].trim(4)
    keeper = consume(queue)
    await until(lambda: len(keeper.got) == 6)
    assert (keeper.values[0], queue.figures().lost) == (b"4", 4)


async def test_compressed_batches_are_read(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    keeper = consume(await broker.queues.ensure(topic, "q"))
    for codec in (1, 2, 3, 4):
        await publish(topic, b"%d" % codec, codec=codec)
    await until(lambda: keeper.values == [b"1", b"2", b"3", b"4"])


async def test_a_straggler_is_moved_and_keeps_its_delay_and_attempts(start_broker: Starting) -> None:
    broker = await start_broker()
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    keeper = consume(queue)
    await publish(topic, *(b"%d" % number for number in range(5)))
    await until(lambda: len(keeper.got) == 5)
    keeper.requeue(b"0", delay_ms=60_000)
    keeper.finish(b"1", b"2", b"3", b"4")
    assert queue.lanes[0].ledger.floor == 0
    assert await broker.queues.park_below(queue, 0, 5) == 1
    assert (queue.lanes[0].ledger.floor, queue.figures().deferred) == (5, 1)
    broker = await start_broker()
    queue = broker.queues.get("t", "q")
    assert queue is not None
    assert (queue.lanes[0].ledger.floor, queue.figures().deferred) == (5, 1)


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "#ephemeral", "a#other", "ü"])
async def test_names_that_cannot_be(broker: Broker, name: str) -> None:
    topic = await broker.topics.create("t", 1)
    with pytest.raises(InvalidQueue):
        await broker.queues.ensure(topic, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout": 5},
        {"timeout_ms": 0},
        {"timeout_ms": 86_400_001},
        {"timeout_ms": 950_000},
        {"timeout_ms": "soon"},
        {"timeout_ms": True},
        {"timeout_ms": 1.5},
        {"max_attempts": 65_536},
        {"max_attempts": -1},
        {"backoff_ms": "1,x"},
        {"backoff_ms": 5},
        {"backoff_ms": [1] * 101},
        {"backoff_ms": [-1]},
        {"order_by_key": "maybe"},
        {"dead_key": "bury"},
        {"deliveries": 1.5},
        {"lookahead_max": 0},
        {"filter": "region"},
        {"filter": "region = "},
        {"filter": "region in eu"},
        {"filter": "a = 1 or b = 2"},
        {"filter": 'a = "1'},
        {"filter": "x" * 5_000},
    ],
)
async def test_settings_that_make_no_sense_change_nothing(broker: Broker, changes: dict[str, object]) -> None:
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    before = queue.settings
    with pytest.raises(InvalidQueueSetting):
        await broker.queues.configure(queue, changes)
    assert queue.settings == before
