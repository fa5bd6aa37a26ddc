"""Messages that move to their queue's parking, and keys that are parked by a dead message: what the simulator found."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.broker.queues.simulated import Stage, Taker, play
from tests.broker.timer.stage import read_records

from headrace.broker.queues.parking import PARKING, SOON_MS
from headrace.format.headers import ORIGIN_OFFSET, ORIGIN_PARTITION, PARKED_FROM
from simulation.faults import Killed


def test_a_message_that_is_moved_keeps_its_attempts_and_its_time() -> None:
    """Also if a consumer is waiting for what comes to the parking: the append wakes it before the mover."""

    async def act(stage: Stage) -> None:
        topic = await stage.topic(durability="sync")
        queue = await stage.queue(topic)
        taker = Taker(queue)
        for number, value in enumerate((b"a", b"b", b"c")):
            await stage.send(topic, value)
            await stage.rest()
            assert taker.take() == [value]
            assert taker.consumer.requeue(0, number, 1, 60_000)
            assert await stage.queues.park_below(queue, 0, number + 1) == 1
            await stage.rest(1)
            assert taker.take() == []
        assert queue.figures().deferred == 3
        await stage.rest(60)
        assert taker.take() == [b"a", b"b", b"c"]
        assert taker.got[3:] == [(PARKING, number, 2) for number in range(3)]

    play(act)


def test_a_message_is_not_handed_out_while_it_is_moved() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(durability="sync")
        queue = await stage.queue(topic)
        first = Taker(queue)
        await stage.send(topic, b"a", b"b")
        await stage.rest()
        first.consumer.close()
        moving = asyncio.ensure_future(stage.queues.park_below(queue, 0, 2))
        while not queue.lanes[0].settling:
            await stage.rest(0.000_01)
        taker = Taker(queue)
        assert await moving == 2
        await stage.rest(1)
        assert taker.values == [b"a", b"b"]
        assert taker.got == [(PARKING, 0, 2), (PARKING, 1, 2)]

    play(act)


def test_a_message_that_is_due_soon_stays() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(durability="sync")
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.send(topic, b"soon", b"later")
        await stage.rest()
        assert taker.consumer.requeue(0, 0, 1, SOON_MS)
        assert taker.consumer.requeue(0, 1, 1, SOON_MS + 1_000)
        assert await stage.queues.park_below(queue, 0, 2) == 1
        await stage.rest(20)
        assert taker.got[2:] == [(0, 0, 2), (PARKING, 0, 2)]

    play(act)


def test_a_header_that_a_producer_forged_does_not_keep_a_parked_message_from_dying() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(durability="sync")
        queue = await stage.queue(topic, max_attempts=2)
        taker = Taker(queue)
        await stage.append(topic.partitions[0], [(stage.now(), None, b"a", [(PARKED_FROM, b"\xff")])])
        await stage.rest()
        assert taker.consumer.requeue(0, 0, 1, 60_000)
        assert await stage.queues.park_below(queue, 0, 1) == 1
        await stage.rest(61)
        assert taker.got[-1] == (PARKING, 0, 2)
        assert taker.consumer.requeue(PARKING, 0, 2, 0)
        await stage.rest(1)
        [(value, headers)] = await stage.letters()
        assert (value, headers[ORIGIN_PARTITION], headers[ORIGIN_OFFSET]) == (b"a", b"0", b"0")

    play(act)


def test_what_follows_a_dead_message_does_so_after_a_crash_too() -> None:
    """The letter and the parked key are written at once, that others follow a little later."""

    async def first(stage: Stage) -> None:
        topic = await stage.topic(durability="sync")
        queue = await stage.queue(topic, order_by_key=True, max_attempts=1, dead_key="park")
        taker = Taker(queue)
        await stage.send(topic, b"a1", b"a2", b"a3", key=b"a")
        await stage.rest()
        assert taker.take() == [b"a1"]
        # The cursor is written down: the others lie below it.
        await stage.rest(2)
        bury, buried = queue.bury, asyncio.Event()

        async def once(*what: Any) -> bool:
            if buried.is_set():
                await asyncio.sleep(60)
            await bury(*what)
            buried.set()
            return True

        queue.bury = once  # type: ignore[method-assign]
        assert taker.consumer.requeue(0, 0, 1, 0)
        await buried.wait()
        raise Killed("after the letter")

    async def second(stage: Stage) -> None:
        queue = await stage.queue(stage.broker.topics.all["t"])
        taker = Taker(queue)
        await stage.send(stage.broker.topics.all["t"], b"b1", key=b"b")
        await stage.rest(1)
        assert taker.take() == [b"b1"]
        letters = await read_records(stage.runtime, stage.broker.topics.all["t.q.dead"].partitions[0])
        assert [value for _, _, value, _ in letters] == [b"a1", b"a2", b"a3"]

    play(first, second, queue_flush_ms=1_000)
