"""The queue engine: deliveries, settlements, timeouts, order by key, dead letters, broken batches, lives."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from crc32c import crc32c
from tests.broker.queues.simulated import Stage, Taker, play

from headrace.broker.queues.ledger import DONE
from headrace.errors import StorageFailed
from headrace.format import records


def test_what_was_settled_stays_so_and_the_rest_comes_again() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic(partitions=2)
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.send(topic, b"a", b"b", b"c")
        await stage.send(topic, b"x", partition=1)
        await stage.rest()
        assert sorted(taker.take()) == [b"a", b"b", b"c", b"x"]
        assert taker.consumer.finish(0, 1, 1)
        assert not taker.consumer.finish(0, 1, 1)
        assert not taker.consumer.finish(0, 0, 2)
        assert taker.consumer.requeue(0, 2, 1, 5_000)
        taker.consumer.close()

    async def second(stage: Stage) -> None:
        queue = await stage.queue(stage.broker.topics.all["t"])
        taker = Taker(queue)
        await stage.rest()
        assert sorted(zip(taker.values, taker.got, strict=True)) == [(b"a", (0, 0, 2)), (b"x", (1, 0, 2))]
        await stage.rest(5)
        assert (taker.values[-1], taker.got[-1]) == (b"c", (0, 2, 2))

    play(first, second)


def test_a_timeout_gives_back_and_a_touch_extends() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, timeout_ms=1_000, timeout_max_ms=2_500)
        taker = Taker(queue)
        await stage.send(topic, b"a")
        await stage.rest(0.9)
        assert taker.consumer.touch(0, 0, 1)
        await stage.rest(0.9)
        assert taker.consumer.touch(0, 0, 1)
        assert len(taker.got) == 1
        await stage.rest(0.9)
        # However often it is touched, it times out in the end.
        assert taker.got == [(0, 0, 1), (0, 0, 2)]
        assert not taker.consumer.finish(0, 0, 1)
        assert taker.consumer.finish(0, 0, 2)
        assert queue.figures().timed_out == 1
        assert taker.consumer.in_flight == 0

    play(act)


def broken(good: int, bad: int) -> bytearray:
    """A batch whose records can be read up to a place, with a right checksum."""
    batch = records.build([(0, b"k", b"good-%d" % number, []) for number in range(good + bad)])
    at = bytes(batch).index(b"good-%d" % good) - 6
    batch[at:] = b"\xff" * (len(batch) - at)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def test_a_batch_that_breaks_in_its_middle_gives_what_can_be_read() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, timeout_ms=1_000)
        taker = Taker(queue)
        await stage.send(topic, b"before-0", b"before-1")
        await stage.append_batch(topic.partitions[0], broken(3, 4))
        await stage.send(topic, b"after")
        await stage.rest()
        assert taker.take() == [b"before-0", b"before-1", b"good-0", b"good-1", b"good-2", b"after"]
        assert queue.figures().poisoned == 4
        assert taker.consumer.in_flight == 6
        # They come again like all others, and those before the broken batch are not given up with it.
        await stage.rest(1.1)
        assert sorted(taker.take()) == [b"after", b"before-0", b"before-1", b"good-0", b"good-1", b"good-2"]
        assert taker.consumer.in_flight == 6
        assert queue.figures().poisoned == 4
        taker.finish()
        assert queue.unsettled == 0

    play(act)


def test_a_batch_that_breaks_is_no_end_of_a_queue_that_keeps_its_keys_in_order() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        await stage.append_batch(topic.partitions[0], broken(2, 2))
        taker = Taker(queue)
        await stage.rest()
        await stage.queues.configure(queue, {"order_by_key": True})
        assert taker.consumer.requeue(0, 0, 1, 0, "no")
        await stage.rest(1)
        assert [value for value, _ in await stage.letters()] == [b"good-0"]

    async def second(stage: Stage) -> None:
        taker = Taker(await stage.queue(stage.broker.topics.all["t"]))
        await stage.rest()
        assert taker.values == [b"good-1"]

    play(first, second)


def test_a_dead_message_that_the_log_dropped_frees_its_key() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, order_by_key=True, max_attempts=1)
        taker = Taker(queue)
        await stage.send(topic, b"a1", key=b"a")
        await stage.send(topic, b"a2", key=b"a")
        await stage.rest()
        assert taker.take() == [b"a1"]
        # It is dead now; before it is read for its letter, retention takes it.
        assert taker.consumer.requeue(0, 0, 1, 0, "no")
        await topic.partitions[0].trim(1)
        await stage.rest(1)
        assert await stage.letters() == []
        assert queue.figures().lost == 1
        assert taker.take() == [b"a2"]

    play(act)


def test_messages_that_the_log_drops_free_their_consumers_and_their_keys() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, order_by_key=True)
        taker = Taker(queue, credit=2)
        await stage.send(topic, b"a1", b"a2", key=b"a")
        await stage.send(topic, b"b1", key=b"b")
        await stage.send(topic, b"a3", key=b"a")
        await stage.rest()
        assert taker.take() == [b"a1", b"b1"]
        await topic.partitions[0].trim(3)
        await stage.send(topic, b"c1", key=b"c")
        await stage.rest()
        # The lane hears of it when it next reads.
        queue.lanes[0].skip_lost()
        await stage.rest()
        assert taker.take() == [b"a3", b"c1"]
        assert queue.figures().lost == 3
        assert taker.consumer.in_flight == 2

    play(act)


def test_order_that_is_asked_for_while_messages_are_in_flight() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.send(topic, b"k1", b"k2", b"k3", key=b"k")
        await stage.rest()
        await stage.queues.configure(queue, {"order_by_key": True})
        await stage.send(topic, b"k4", key=b"k")
        taker.take()
        # One that waits is given back: it comes in its turn. One is settled before its turn.
        assert taker.consumer.requeue(0, 1, 1, 0)
        assert taker.consumer.finish(0, 2, 1)
        await stage.rest()
        assert taker.take() == []
        assert taker.consumer.finish(0, 0, 1)
        await stage.rest()
        assert taker.take() == [b"k2"]
        assert taker.consumer.finish(0, 1, 2)
        await stage.rest()
        assert taker.take() == [b"k4"]

    play(act)


def test_one_that_times_out_waits_for_its_key_once_order_is_asked_for() -> None:
    """Two of a key are in flight when order is switched on: the second times out, and must not come before the first
    is settled."""

    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, timeout_ms=10_000)
        taker = Taker(queue)
        await stage.send(topic, b"k1", b"k2", key=b"k")
        await stage.rest()
        assert taker.take() == [b"k1", b"k2"]
        await stage.queues.configure(queue, {"order_by_key": True})
        await stage.rest(9)
        assert taker.consumer.touch(*taker.got[0])
        await stage.rest(5)
        assert (queue.timed_out, queue.figures().blocked, taker.take()) == (1, 1, [])
        assert taker.consumer.finish(*taker.got[0])
        await stage.rest()
        assert taker.take() == [b"k2"]

    play(act)


def test_dead_letters_say_where_they_come_from_and_release_their_key() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=2, order_by_key=True)
        taker = Taker(queue)
        await stage.send(topic, b"k1", b"k2", key=b"k")
        await stage.rest()
        assert taker.consumer.requeue(0, 0, 1, 0, "first")
        await stage.rest()
        assert taker.consumer.requeue(0, 0, 2, 100, "second")
        await stage.rest(1)
        [(value, headers)] = await stage.letters()
        assert value == b"k1"
        assert headers["headrace-origin-topic"] == b"t"
        assert headers["headrace-origin-partition"] == b"0"
        assert headers["headrace-origin-offset"] == b"0"
        assert headers["headrace-origin-queue"] == b"q"
        assert headers["headrace-attempts"] == b"2"
        assert headers["headrace-error"] == b"second"
        assert taker.values == [b"k1", b"k1", b"k2"]
        assert queue.lanes[0].ledger.state_of(0)[0] == DONE
        assert queue.figures().dead == 1

    play(act)


def test_letters_are_no_larger_than_their_topic_takes() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        for number in range(40):
            await stage.send(topic, b"%03d" % number + b"." * 3_000)
        await stage.rest()
        taker.consumer.close()
        await stage.rest(1)
        assert len(await stage.letters()) == 40
        assert queue.unsettled == 0

    play(act, message_max_bytes=16_384)


def test_a_lane_that_cannot_be_read_does_not_keep_the_loop() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await stage.send(topic, b"a")
        await stage.rest()
        queue.lanes[0].stall(OSError("the disk is gone"))
        assert taker.consumer.requeue(0, 0, 1, 0)
        await stage.rest(1)
        await stage.queues.open(queue)
        await stage.rest(1)
        assert len(await stage.letters()) == 1

    play(act)


def test_what_a_memory_topic_lost_is_not_taken_for_settled() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic(durability="memory")
        taker = Taker(await stage.queue(topic))
        await stage.send(topic, b"a", b"b", b"c")
        await stage.rest()
        taker.finish()

    async def second(stage: Stage) -> None:
        topic = stage.broker.topics.all["t"]
        await stage.send(topic, b"d", b"e", b"f", b"g")
        taker = Taker(await stage.queue(topic))
        await stage.rest()
        assert taker.values == [b"d", b"e", b"f", b"g"]

    play(first, second)


def test_partitions_that_a_topic_gets_are_served_too() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        taker = Taker(await stage.queue(topic))
        await stage.broker.topics.grow("t", 3)
        await stage.send(topic, b"new", partition=2)
        await stage.rest()
        assert taker.values == [b"new"]
        taker.finish()

    async def second(stage: Stage) -> None:
        taker = Taker(await stage.queue(stage.broker.topics.all["t"]))
        await stage.rest()
        assert taker.values == []

    play(first, second)


def fail_once(stage: Stage) -> None:
    """Let the next writing of what queues know fail."""
    for shard in stage.queues.state_writer.shards:

        def fail(changes: Any, shard: Any = shard) -> asyncio.Future[None]:
            del shard.write
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(StorageFailed("the disk is full"))
            return refused

        shard.write = fail  # type: ignore[method-assign]


def write_no_more(stage: Stage) -> None:
    """What is on the disk is what a crash would leave: the stop adds nothing."""

    async def flush() -> None:
        pass

    stage.queues.state_writer.flush = flush  # type: ignore[method-assign]


def test_what_was_emptied_stays_so_after_a_crash() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic)
        await stage.send(topic, b"a", b"b")
        await stage.queues.empty(queue)
        write_no_more(stage)

    async def second(stage: Stage) -> None:
        taker = Taker(await stage.queue(stage.broker.topics.all["t"]))
        await stage.send(stage.broker.topics.all["t"], b"c")
        await stage.rest()
        assert taker.values == [b"c"]

    play(first, second)


def test_a_flush_does_not_undo_what_is_being_settled_with_something_else() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.send(topic, b"a", b"b", b"c")
        await stage.rest()
        settling = asyncio.ensure_future(queue.settle_with(0, [1], []))
        while not queue.lanes[0].settling:
            await asyncio.sleep(0)
        assert taker.consumer.requeue(0, 1, 1, 5_000)
        await stage.queues.state_writer.flush()
        await settling
        write_no_more(stage)

    async def second(stage: Stage) -> None:
        taker = Taker(await stage.queue(stage.broker.topics.all["t"]))
        await stage.rest()
        await stage.rest(6)
        assert taker.values == [b"a", b"c"]

    play(first, second)


@pytest.mark.parametrize("how", ["flush", "prepare"])
def test_what_could_not_be_written_down_is_written_later(how: str) -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.send(topic, b"a", b"b", b"c")
        await stage.rest()
        await stage.queues.state_writer.flush()
        assert taker.consumer.finish(0, 1, 1)
        fail_once(stage)
        if how == "flush":
            with pytest.raises(StorageFailed):
                await stage.queues.state_writer.flush()
        else:
            await queue.settle_with(0, [2], [])
            await stage.rest()
        await stage.queues.state_writer.flush()
        write_no_more(stage)

    async def second(stage: Stage) -> None:
        taker = Taker(await stage.queue(stage.broker.topics.all["t"]))
        await stage.rest()
        assert taker.values == ([b"a", b"c"] if how == "flush" else [b"a"])

    play(first, second)


def test_partitions_that_come_while_the_disk_is_full_are_served_when_it_is_not() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        taker = Taker(await stage.queue(topic))
        write, refused = stage.queues.state_writer.write, 3

        async def full(*what: Any) -> None:
            nonlocal refused
            if refused:
                refused -= 1
                raise StorageFailed("the disk is full")
            await write(*what)

        stage.queues.state_writer.write = full  # type: ignore[method-assign]
        await stage.broker.topics.grow("t", 2)
        await stage.rest(1)
        await topic.partitions[1].load()
        await stage.send(topic, b"new", partition=1)
        await stage.rest(2)
        assert taker.values == [b"new"]

    play(act)


def test_a_filter_a_pause_and_emptying() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, filter="region = eu")
        taker = Taker(queue)
        rows = [
            (stage.now(), None, b"%d" % number, [("region", b"eu" if number % 2 else b"us")]) for number in range(6)
        ]
        await stage.append(topic.partitions[0], rows)
        await stage.rest()
        assert taker.take() == [b"1", b"3", b"5"]
        await stage.queues.pause(queue, True)
        await stage.queues.configure(queue, {"filter": ""})
        await stage.send(topic, b"7", b"8")
        await stage.rest()
        assert taker.take() == []
        await stage.queues.empty(queue)
        await stage.queues.pause(queue, False)
        await stage.send(topic, b"9")
        await stage.rest()
        assert taker.take() == [b"9"]
        assert not taker.consumer.finish(0, 1, 1)
        assert (queue.unsettled, taker.consumer.in_flight) == (1, 1)

    play(act)


def test_the_end_of_a_queue_reaches_its_consumers() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        taker, other = Taker(await stage.queue(topic)), Taker(await stage.queue(topic, "other#ephemeral"))
        await stage.queues.delete("t", "q")
        assert taker.gone_because is not None
        other.consumer.close()
        assert stage.queues.of("t") == {}

    async def second(stage: Stage) -> None:
        assert stage.queues.all() == []

    play(first, second)
