"""Messages that the broker moves: at the limit of their topic, to targets that do not want them, through crashes.

Every road is tried: dead letters, parking, redrive, the timer, prepared messages.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from tests.broker.queues.simulated import Stage, Taker, play
from tests.broker.timer.stage import read_records

from headrace.broker import move
from headrace.broker.publish import Message
from headrace.broker.queues.dead_letter_mover import STUCK_SECONDS
from headrace.broker.redrive import Order
from headrace.broker.security import Session
from headrace.broker.unpacking import Unpacker
from headrace.errors import AppendOffline, BatchTooLarge, InvalidRecords, StorageFailed, UnknownTopic
from headrace.format import records
from headrace.format.batch import HEADER_BYTES
from headrace.format.compression import GZIP
from headrace.format.partitioning import partition_of
from headrace.log.interface import Topic, Write
from simulation.faults import Killed

LIMIT = 10_000
# More than half of the smallest segment.
HALF = 700_000
DEAD = "t.q.dead"


def largest(key: bytes | None = None, time: int = 0, limit: int = LIMIT) -> bytes:
    """The value with which a message is as large as the topic takes."""
    spare = limit - len(records.build([(time, key, b"x" * (limit - 200), [])]))
    value = b"x" * (limit - 200 + spare)
    assert len(records.build([(time, key, value, [])])) == limit
    return value


async def values(stage: Stage, name: str) -> list[bytes | None]:
    return [value for each in stage.broker.topics.all[name].partitions for value in await _values(stage, each)]


async def _values(stage: Stage, partition: Any) -> list[bytes | None]:
    return [value for _, _, value, _ in await read_records(stage.runtime, partition)]


async def die(stage: Stage, topic: Topic, taker: Taker, *messages: tuple[bytes | None, bytes]) -> None:
    """Publish messages, each in its own batch, and give them up."""
    first = len(taker.got)
    for key, value in messages:
        await stage.send(topic, value, key=key)
    while len(taker.got) < first + len(messages):
        await stage.rest()
    for got in taker.got[first:]:
        assert taker.consumer.requeue(*got, 0, "no")


# --- at the limit ---


def test_the_largest_message_dies_and_those_behind_it_too() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await die(stage, topic, taker, (None, largest()), (None, b"behind"))
        await stage.rest(1)
        assert await values(stage, DEAD) == [largest(), b"behind"]
        assert (queue.unsettled, queue.figures().stuck, queue.figures().move_error) == (0, 0, "")

    play(act, message_max_bytes=LIMIT)


def test_a_letter_may_be_larger_than_a_dead_letter_topic_takes_of_producers() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        dead = await stage.topic(DEAD, **{"max.message.bytes": "300"})
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        small = [(None, b"%d" % number) for number in range(5)]
        await die(stage, topic, taker, *small, (b"k", largest(b"k")), (None, b"behind"))
        await stage.rest(1)
        assert [value for value in await values(stage, DEAD) if value != largest(b"k")] == [
            *(value for _, value in small),
            b"behind",
        ]
        assert largest(b"k") in await values(stage, DEAD)
        with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes"):
            dead.partitions[0].append(records.build([(0, None, largest(), [])]))

    play(act, message_max_bytes=LIMIT)


def test_the_largest_message_goes_to_the_parking_dies_there_and_comes_back() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=2)
        taker = Taker(queue)
        await stage.send(topic, largest())
        await stage.rest()
        assert taker.consumer.requeue(*taker.got[0], 60_000)
        assert await stage.queues.park_below(queue, 0, 1) == 1
        await stage.rest(61)
        assert taker.take() == [largest(), largest()]
        assert taker.consumer.requeue(*taker.got[1], 0)
        await stage.rest(1)
        assert await values(stage, DEAD) == [largest()]
        step = await stage.broker.redrive.step(Order(DEAD))
        assert [result.outcome for result in step.results] == ["redriven"]
        await stage.rest(1)
        assert taker.take() == [largest()]

    play(act, message_max_bytes=LIMIT)


def test_a_time_that_the_parking_would_not_take_does_not_keep_a_message_back() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(**{"message.timestamp.after.max.ms": str(1 << 60)})
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.append(topic.partitions[0], [(stage.now() + (1 << 50), None, b"ahead", [])])
        await stage.rest()
        assert taker.consumer.requeue(*taker.got[0], 60_000)
        assert await stage.queues.park_below(queue, 0, 1) == 1

    play(act)


@pytest.mark.parametrize("road", ["timer", "half"])
def test_what_was_taken_is_delivered_though_its_topic_takes_less_by_then(road: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.topic()
        now = stage.now()
        if road == "timer":
            await stage.broker.publisher.publish(Session(), "t", [Message(None, largest(time=now), [], 0, now + 5_000)])
        else:
            prepared = await stage.broker.prepared.prepare("t", largest(time=now), group="g", partition=0)
        await stage.broker.topics.alter_config("t", lambda old: {**old, "max.message.bytes": "100"})
        if road == "timer":
            await stage.rest(10)
        else:
            await stage.broker.prepared.commit(prepared)
        assert await values(stage, "t") == [largest(time=now)]

    play(act, message_max_bytes=LIMIT)


def test_no_move_writes_what_the_broker_could_not_read() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await topic.partitions[0].load()
        log: Any = stage.broker.queues._log  # the log itself
        readable = 2 * LIMIT + HEADER_BYTES
        fits = move.write(topic.partitions[0], [(0, None, largest(limit=readable), [])])
        log.append([fits])
        with pytest.raises(BatchTooLarge, match="decompressed_max_bytes"):
            log.append([move.write(topic.partitions[0], [(0, None, largest(limit=readable + 1), [])])])
        with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes"):
            log.append([Write(topic.partitions[0], fits.batches)])

    play(act, message_max_bytes=LIMIT, decompressed_max_bytes=2 * LIMIT)


def test_what_moves_add_fits_the_headroom() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic("t" * 249)
        queue = await stage.queue(topic, "q" * 64, max_attempts=1, dead_letter_topic="dead")
        taker = Taker(queue)
        await stage.send(topic, b"v")
        await stage.rest()
        assert taker.consumer.requeue(*taker.got[0], 0, "é" * 5_000)
        await stage.rest(1)
        [(_, _, value, headers)] = await read_records(stage.runtime, stage.broker.topics.all["dead"].partitions[0])
        now = stage.now()
        before, after = (records.build([(now, None, value, each)]) for each in ([], headers))
        assert len(after) - len(before) < move.HEADROOM_BYTES

    play(act)


# --- what cannot move ---

# Larger than the target takes from its producers by the time they move.
FIRST, KEYLESS, LAST = b"1" * 1_000, b"2" * 1_000, b"3" * 1_000
MESSAGES = [(b"a", FIRST), (None, KEYLESS), (b"b", LAST)]


async def tighten(stage: Stage, name: str) -> None:
    """Let a topic take neither messages without a key nor, of its producers, any as large as these."""
    tight = {"cleanup.policy": "compact", "max.message.bytes": "300"}
    await stage.broker.topics.alter_config(name, lambda old: {**old, **tight})


def test_dead_letters_pass_one_that_cannot_move() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD)
        await tighten(stage, DEAD)
        queue = await stage.queue(topic, max_attempts=1)
        await die(stage, topic, Taker(queue), *MESSAGES)
        await stage.rest(1)
        assert await values(stage, DEAD) == [FIRST, LAST]
        assert (queue.figures().stuck, queue.unsettled) == (1, 1)

    play(act)


def test_parking_passes_one_that_cannot_move() -> None:
    """With the header that parking adds, one is more than the broker could read."""

    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic)
        taker = Taker(queue)
        large = b"x" * 19_980
        for value in (FIRST, large, LAST):
            await stage.send(topic, value)
        await stage.rest()
        for got in taker.got:
            assert taker.consumer.requeue(*got, 60_000)
        assert await stage.queues.park_below(queue, 0, 3) == 2
        parked = next(name for name in stage.broker.topics.all if name.startswith("__parked-"))
        assert await values(stage, parked) == [FIRST, LAST]
        await stage.rest(61)
        assert sorted(taker.take()[3:]) == [FIRST, LAST, large]

    play(act, decompressed_max_bytes=20_000, message_max_bytes=100_000)


def test_a_redrive_passes_one_that_cannot_move() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        taker = Taker(await stage.queue(topic, max_attempts=1))
        await die(stage, topic, taker, *MESSAGES)
        await stage.rest(1)
        await tighten(stage, "t")
        step = await stage.broker.redrive.step(Order(DEAD))
        assert [result.outcome for result in step.results] == ["redriven", "failed", "redriven"]
        assert (await values(stage, "t"))[3:] == [FIRST, LAST]

    play(act)


def test_the_timer_passes_one_that_cannot_move() -> None:
    async def act(stage: Stage) -> None:
        await stage.topic()
        due = stage.now() + 5_000
        messages = [Message(key, value, [], 0, due) for key, value in MESSAGES]
        await stage.broker.publisher.publish(Session(), "t", messages)
        await tighten(stage, "t")
        await stage.rest(10)
        assert await values(stage, "t") == [FIRST, LAST]
        assert (stage.broker.timer.dispatcher.refused, stage.broker.timer.pending) == (1, 1)

    play(act)


@pytest.mark.parametrize("by", ["producer", "broker"])
def test_commits_pass_a_prepared_message_that_cannot_move(by: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.topic()
        prepared = stage.broker.prepared
        ids = [await prepared.prepare("t", value, group="g", key=key, partition=0) for key, value in MESSAGES]
        await tighten(stage, "t")
        for id in ids if by == "producer" else ():
            with pytest.raises(InvalidRecords) if id == ids[1] else nullcontext():
                await prepared.commit(id)
        await stage.rest(10)
        assert await values(stage, "t") == [FIRST, LAST]
        assert [each.id for each in await prepared.list()] == [ids[1]]

    lasting = {"half_timeout_ms": 3_600_000} if by == "producer" else {"half_timeout_ms": 1_000}
    play(act, half_give_up="commit", half_checks_max=1, half_check_interval_ms=1_000, **lasting)


def test_a_message_that_cannot_move_holds_up_none_of_its_neighbours_and_is_named() -> None:
    """Also after a start, until its dead-letter topic takes it."""

    async def first(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD, **{"cleanup.policy": "compact"})
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await die(stage, topic, taker, (b"a", b"1"), (None, b"2"), (b"b", b"3"))
        await stage.rest(1)
        assert await values(stage, DEAD) == [b"1", b"3"]
        figures = queue.figures()
        assert (figures.depth, figures.condemned, figures.stuck, figures.dead) == (0, 0, 1, 2)
        assert figures.move_error == f"the topic {DEAD} is compacted, and the message has no key"
        assert queue.unsettled == 1
        await die(stage, topic, taker, (b"c", b"4"))
        await stage.rest(1)
        assert await values(stage, DEAD) == [b"1", b"3", b"4"]

    async def second(stage: Stage) -> None:
        queue = stage.queues.of("t")["q"]
        await stage.rest(1)
        assert (queue.figures().depth, queue.figures().stuck) == (0, 1)
        taker = Taker(queue)
        await stage.queues.configure(queue, {"dead_letter_topic": "other"})
        await stage.rest(1)
        assert await values(stage, "other") == [b"2"]
        assert (queue.unsettled, queue.figures().stuck, queue.figures().move_error) == (0, 0, "")
        assert taker.take() == []

    play(first, second)


def test_a_queue_that_is_emptied_has_nothing_that_is_stuck() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD, **{"cleanup.policy": "compact"})
        queue = await stage.queue(topic, max_attempts=1)
        await die(stage, topic, Taker(queue), (None, b"1"))
        await stage.rest(1)
        assert queue.figures().stuck == 1
        await stage.queues.empty(queue)
        assert (queue.figures().stuck, queue.figures().move_error) == (0, "")

    play(act)


def test_one_that_the_log_refuses_is_found_among_those_that_go_with_it() -> None:
    """With the headers of a letter it is more than the broker could read."""

    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        small = [b"%d" % number for number in range(move.STEP_MESSAGES - 1)]
        large = b"x" * 19_950
        for value in (*small[:40], large, *small[40:]):
            await stage.send(topic, value)
        await stage.rest()
        taker.consumer.close()
        await stage.rest(1)
        assert await values(stage, DEAD) == small
        assert (queue.figures().stuck, queue.unsettled) == (1, 1)
        assert "decompressed_max_bytes" in queue.figures().move_error

    play(act, decompressed_max_bytes=20_000, message_max_bytes=100_000)


def test_what_is_stuck_is_tried_again() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD, **{"cleanup.policy": "compact"})
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await die(stage, topic, taker, (None, b"1"))
        await stage.rest(1)
        await stage.broker.topics.alter_config(DEAD, lambda old: {**old, "cleanup.policy": "delete"})
        assert await values(stage, DEAD) == []
        # What dies meanwhile does not put it off.
        for _ in range(3):
            await die(stage, topic, taker, (b"k", b"2"))
            await stage.rest(STUCK_SECONDS / 3)
        await stage.rest(1)
        assert sorted(map(bytes, await values(stage, DEAD))) == [b"1", b"2", b"2", b"2"]  # type: ignore[arg-type]
        assert queue.figures().stuck == 0

    play(act)


@pytest.mark.parametrize("dead_key", ["release", "park"])
def test_a_message_that_cannot_move_lets_its_key_go(dead_key: str) -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        dead = await stage.topic(DEAD, partitions=2)
        queue = await stage.queue(topic, max_attempts=1, order_by_key=True, dead_key=dead_key)
        taker = Taker(queue)
        for partition in dead.partitions:
            await partition.load()
        key = b"a"
        await stage.send(topic, b"a1", b"a2", key=key)
        other = next(b"%d" % n for n in range(9) if partition_of(b"%d" % n, 2) != partition_of(key, 2))
        await stage.send(topic, b"b1", key=other)
        dead.partitions[partition_of(key, 2)].offline = "unplugged"  # type: ignore[misc]
        await stage.rest()
        for got in list(taker.got):
            assert taker.consumer.requeue(*got, 0)
        await stage.rest(1)
        assert await _values(stage, dead.partitions[partition_of(other, 2)]) == [b"b1"]
        assert taker.take() == ([b"a1", b"b1", b"a2"] if dead_key == "release" else [b"a1", b"b1"])
        taker.finish()
        stuck = [b"a1"] if dead_key == "release" else [b"a1", b"a2"]
        assert queue.figures().stuck == len(stuck)
        assert "unplugged" in queue.figures().move_error
        dead.partitions[partition_of(key, 2)].offline = None  # type: ignore[misc]
        await stage.rest(STUCK_SECONDS)
        assert await _values(stage, dead.partitions[partition_of(key, 2)]) == stuck

    play(act)


def test_a_dead_letter_topic_that_is_offline_or_deleted_is_waited_for() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        dead = await stage.topic(DEAD)
        await dead.partitions[0].load()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        dead.partitions[0].offline = "unplugged"  # type: ignore[misc]
        await die(stage, topic, taker, (None, b"1"), (b"k", b"2"))
        await stage.rest(1)
        figures = queue.figures()
        assert (figures.condemned, figures.stuck) == (2, 0)
        assert "unplugged" in figures.move_error
        await stage.broker.topics.delete(DEAD)
        await stage.rest(3)
        assert await values(stage, DEAD) == [b"1", b"2"]
        assert queue.figures().move_error == ""

    play(act)


def test_a_dead_message_that_cannot_be_read_is_passed_over_and_counted() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await die(stage, topic, taker, *((None, b"%d" % number) for number in range(3)))
        await stage.rest(1)
        # By the time it dies, its batch unpacks to more than the broker reads.
        rows = [(stage.now(), None, value, []) for value in (b"z" * 1_000, b"and another")]
        await stage.append_batch(topic.partitions[0], records.build(rows, compression=GZIP))
        await stage.send(topic, b"4")
        await stage.rest()
        queue.unpacking = Unpacker(stage.runtime.offload, 500)
        for got in taker.got[3:]:
            assert taker.consumer.requeue(*got, 0)
        await stage.rest(1)
        assert await values(stage, DEAD) == [b"0", b"1", b"2", b"4"]
        assert (queue.figures().poisoned, queue.unsettled) == (2, 0)

    play(act)


def test_parked_keys_take_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored with the queue: a key of a megabyte would keep every letter of the queue back."""
    monkeypatch.setattr("headrace.broker.queues.lane.PARKED_BYTES", 2_000)

    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1, order_by_key=True, dead_key="park")
        taker = Taker(queue)
        keys = [b"%d" % number * 900 for number in range(4)]
        for key in keys:
            await stage.send(topic, b"1", b"2", key=key)
        await stage.rest()
        for got in list(taker.got):
            assert taker.consumer.requeue(*got, 0)
        await stage.rest(1)
        assert list(queue.parked[0]) == keys[:2]
        assert len(await values(stage, DEAD)) == 4 + 2
        assert taker.take() == [b"1"] * 4 + [b"2"] * 2

    play(act)


# --- retention ---


def test_retention_by_time_does_not_take_what_is_dead_and_has_not_moved() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic(**{"retention.ms": "60000", "segment.bytes": str(1 << 20)})
        dead = await stage.topic(DEAD, **{"cleanup.policy": "compact"})
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await stage.send(topic, b"0" * HALF)
        await stage.rest()
        taker.finish()
        await stage.rest(2)
        await die(stage, topic, taker, (None, b"1" * HALF))
        await stage.rest(2)
        await stage.send(topic, b"2" * HALF)
        await stage.rest()
        taker.finish(2)
        await stage.rest(300)
        assert topic.partitions[0].start == 1
        assert (queue.figures().stuck, queue.figures().lost) == (1, 0)
        assert dead.partitions[0].end == 0

    async def second(stage: Stage) -> None:
        # Nobody has touched the queue, nor its partition.
        await stage.rest(300)
        queue = stage.queues.of("t")["q"]
        assert stage.broker.topics.all["t"].partitions[0].start == 1
        await stage.broker.topics.alter_config(DEAD, lambda old: {**old, "cleanup.policy": "delete"})
        await stage.rest(STUCK_SECONDS + 300)
        assert await values(stage, DEAD) == [b"1" * HALF]
        assert stage.broker.topics.all["t"].partitions[0].start == 3
        assert queue.figures().stuck == 0

    play(first, second, retention_check_ms=10_000, queue_flush_ms=100)


# --- starts ---


async def _condemn_and_crash(stage: Stage, count: int, clean: bool) -> None:
    topic = await stage.topic()
    queue = await stage.queue(topic, max_attempts=1)
    taker = Taker(queue)

    async def never(*_: Any) -> bool:
        await asyncio.sleep(3_600)
        return False

    queue.bury = never  # type: ignore[method-assign]
    await die(stage, topic, taker, *((None, b"%d" % number) for number in range(count)))
    await stage.rest(2)
    if not clean:
        raise Killed("before any of them is buried")


@pytest.mark.parametrize("clean", [True, False])
def test_dead_messages_are_buried_after_a_start_though_nobody_asks_for_their_queue(clean: bool) -> None:
    async def first(stage: Stage) -> None:
        await _condemn_and_crash(stage, 100, clean)

    async def second(stage: Stage) -> None:
        queue = stage.queues.of("t")["q"]
        figures = queue.figures()
        assert (figures.depth, figures.condemned + figures.dead) == (0, 100)
        await stage.rest(5)
        assert sorted(await values(stage, DEAD)) == sorted(b"%d" % number for number in range(100))

    play(first, second, queue_flush_ms=100)


def test_a_redrive_waits_for_messages_that_are_just_dying() -> None:
    async def first(stage: Stage) -> None:
        await stage.topic(DEAD)
        await _condemn_and_crash(stage, 300, False)

    async def second(stage: Stage) -> None:
        step = await stage.broker.redrive.step(Order(DEAD))
        assert [result.outcome for result in step.results] == ["redriven"] * 300
        assert step.next is None

    play(first, second, queue_flush_ms=100)


def test_a_redrive_that_has_waited_long_enough_says_so_and_begins_later() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD)
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        bury, may = queue.bury, asyncio.Event()

        async def later(*what: Any) -> bool:
            await may.wait()
            return await bury(*what)

        queue.bury = later  # type: ignore[method-assign]
        await die(stage, topic, taker, (None, b"1"), (None, b"2"))
        step = await stage.broker.redrive.step(Order(DEAD))
        assert (step.waiting, step.results) == ("2 messages are just being written to t.q.dead", [])
        assert step.next is not None
        may.set()
        step = await stage.broker.redrive.step(Order(DEAD, place=step.next))
        assert (len(step.results), step.waiting, step.next) == (2, "", None)

    play(act)


def test_a_redrive_does_not_wait_for_what_cannot_move() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.topic(DEAD)
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue)
        await die(stage, topic, taker, (None, b"1"))
        await stage.rest(1)
        bury = queue.bury

        async def full(*_: Any) -> bool:
            raise StorageFailed("the disk is full")

        queue.bury = full  # type: ignore[method-assign]
        await die(stage, topic, taker, (None, b"2"))
        step = await stage.broker.redrive.step(Order(DEAD))
        assert ([result.letter.value for result in step.results], step.waiting) == ([b"1"], "")
        assert (queue.figures().condemned, queue.figures().move_error) == (1, "the disk is full")
        queue.bury = bury  # type: ignore[method-assign]
        await stage.rest(2)
        assert (queue.figures().condemned, queue.figures().move_error) == (0, "")

    play(act)


# --- large batches ---


def test_the_dead_of_one_batch_are_found_in_one_walk_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    class Counted:
        def __init__(self, *given: Any) -> None:
            nonlocal opened
            opened += 1
            self._picker = records.Picker(*given)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._picker, name)

    class Kernel:
        Picker = Counted

        def __getattr__(self, name: str) -> Any:
            return getattr(records, name)

    monkeypatch.setattr("headrace.broker.reading.records", Kernel())

    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        taker = Taker(queue, credit=2_000)
        await stage.send(topic, *(b"%d" % number for number in range(2_000)))
        while len(taker.got) < 2_000:
            await stage.rest()
        taker.consumer.close()
        while queue.unsettled:
            await stage.rest()
        assert len(await values(stage, DEAD)) == 2_000
        assert opened == 1

    play(act)


# --- the parts ---


async def test_move_each_finds_those_that_cannot_move_and_keeps_the_order() -> None:
    moved: list[int] = []

    async def attempt(part: Any) -> None:
        if any(number in (3, 17) for number in part):
            raise BatchTooLarge("large")
        moved.extend(part)

    refused = await move.move_each(range(20), attempt)
    assert [(number, str(error)) for number, error in refused] == [(3, "large"), (17, "large")]
    assert moved == [number for number in range(20) if number not in (3, 17)]


async def test_move_each_stops_where_nothing_can_move() -> None:
    calls: list[list[int]] = []

    async def attempt(part: Any) -> None:
        calls.append(list(part))
        if 2 in part and len(part) > 1:
            raise BatchTooLarge("large")
        if 1 in part:
            raise StorageFailed("full")

    refused = await move.move_each(range(4), attempt)
    assert [(number, str(error)) for number, error in refused] == [(number, "full") for number in range(4)]
    assert calls == [[0, 1, 2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("error", "general"),
    [
        (BatchTooLarge(""), False),
        (AppendOffline(""), False),
        (StorageFailed(""), True),
        (UnknownTopic(""), True),
        (OSError(), True),
    ],
)
def test_what_concerns_all(error: Exception, general: bool) -> None:
    assert move.is_general(error) == general
