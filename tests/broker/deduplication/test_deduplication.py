from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.deduplication.stage import Life, duplicates, play

from headrace.broker.deduplication.log import TOPIC
from headrace.broker.durable import durable
from headrace.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidDelay,
    InvalidRecords,
    OutOfOrderSequence,
    StorageFailed,
)
from headrace.format.batch import batches_in
from headrace.log.interface import Topic
from simulation.faults import Plan
from simulation.machine import flip_in
from simulation.world import World


def test_a_repeated_id_is_stored_once_whatever_its_partition():
    async def act(life: Life) -> None:
        topic = await life.topic(partitions=2)
        first = await life.publish(topic.partitions[1], (b"0", None), (b"1", b"a"))
        assert (first.base_offset, duplicates(first)) == (0, [])
        again = await life.publish(topic.partitions[0], (b"2", b"a"))
        assert (again.base_offset, duplicates(again)) == (-1, [(0, 1, 1)])
        again = await life.publish(topic.partitions[1], (b"2", b"a"))
        assert (again.base_offset, duplicates(again)) == (1, [(0, 1, 1)])
        assert await life.values(topic) == [b"0", b"1"]
        assert life.broker.metrics.topic("t").duplicates == 2
        other = await life.topic("u")
        assert not (await life.publish(other.partitions[0], (b"3", b"a"))).duplicates

    play(act)


def test_some_of_a_batch():
    async def act(life: Life) -> None:
        partition = (await life.topic()).partitions[0]
        await life.publish(partition, (b"0", b"a"))
        some = await life.publish(partition, (b"1", b"b"), (b"x", b"a"), (b"2", None), (b"x", b"b"), (b"3", b"c"))
        assert (some.base_offset, duplicates(some)) == (1, [(1, 0, 0), (3, 0, 1)])
        assert await life.read(partition) == [(0, b"0"), (1, b"1"), (3, b"2"), (5, b"3")]
        assert not duplicates(await life.publish(partition, (b"4", b"d")))
        assert duplicates(await life.publish(partition, (b"x", b"c"))) == [(0, 0, 5)]

    play(act)


def test_over_a_restart():
    async def first(life: Life) -> None:
        topic = await life.topic(partitions=3)
        for index in range(30):
            await life.publish(topic.partitions[index % 3], (b"%d" % index, b"%d" % index), (b"-", None))

    async def second(life: Life) -> None:
        topic = await life.topic()
        assert life.deduplication.count == 30
        for index in range(30):
            stored = await life.publish(topic.partitions[0], (b"x", b"%d" % index))
            assert duplicates(stored) == [(0, index % 3, index // 3 * 2)]
        assert b"x" not in await life.values(topic)

    play(first, second)


def test_ids_outlive_their_records():
    """A queue that has settled everything lets it go; a retry must still be known."""

    async def first(life: Life) -> None:
        topic = await life.topic()
        await life.publish(topic.partitions[0], (b"0", b"a"))
        await topic.partitions[0].trim(1)

    async def second(life: Life) -> None:
        topic = await life.topic()
        assert duplicates(await life.publish(topic.partitions[0], (b"x", b"a"))) == [(0, 0, 0)]
        assert await life.values(topic) == []

    play(first, second)


@pytest.mark.parametrize("again", [599, 601])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_window_ends(again: int, restarted: bool):
    async def first(life: Life) -> None:
        partition = (await life.topic()).partitions[0]
        await life.publish(partition, (b"0", b"a"))
        if not restarted:
            await second(life)

    async def second(life: Life) -> None:
        topic = await life.topic()
        # A new start takes a second.
        await asyncio.sleep(again - restarted)
        stored = await life.publish(topic.partitions[0], (b"1", b"a"))
        assert bool(stored.duplicates) == (again < 600)

    play(*([first, second] if restarted else [first]))


def test_what_grew_old_is_freed_and_trimmed():
    async def act(life: Life) -> None:
        topic = await life.topic(deduplication_window_ms="60000")
        longer = await life.topic("u")
        for index in range(2_000):
            await life.publish(topic.partitions[0], (b"", b"%d" % index))
        await life.publish(longer.partitions[0], (b"", b"a"))
        assert life.deduplication.count == 2_001
        await asyncio.sleep(100)
        assert life.deduplication.count == 1
        kept = [each.high_watermark - each.start for each in life.log.topics[TOPIC].partitions]
        assert sorted(kept)[-2:] == [0, 1] or sum(kept) > 2_000, "the two topics may share a partition"
        await asyncio.sleep(600)
        assert life.deduplication.count == 0
        assert all(each.high_watermark == each.start for each in life.log.topics[TOPIC].partitions)

    play(act)


def test_the_limit():
    async def act(life: Life) -> None:
        topic = await life.topic()
        partition = topic.partitions[0]
        for index in range(100):
            await life.publish(partition, (b"", b"%d" % index))
        assert (life.deduplication.count, life.deduplication.evicted) == (100, 0)
        assert (await life.publish(partition, (b"", b"0"))).duplicates, "the last that has room"
        await life.publish(partition, (b"", b"100"))
        assert (life.deduplication.count, life.deduplication.evicted) == (100, 1)
        assert (await life.publish(partition, (b"", b"1"))).duplicates
        assert not (await life.publish(partition, (b"", b"0"))).duplicates, "the oldest had to go"
        other = await life.topic("u")
        await life.publish(other.partitions[0], (b"", b"a"))
        assert (await life.publish(other.partitions[0], (b"", b"a"))).duplicates, "the largest topic pays"
        assert life.deduplication.evicted == 3

    play(act, deduplication_max_ids=100)


def test_the_limit_over_a_restart():
    async def first(life: Life) -> None:
        for index in range(150):
            await life.publish((await life.topic()).partitions[0], (b"", b"%d" % index))

    async def second(life: Life) -> None:
        partition = (await life.topic()).partitions[0]
        assert life.deduplication.count == 100
        assert (await life.publish(partition, (b"", b"50"))).duplicates
        assert not (await life.publish(partition, (b"", b"49"))).duplicates

    play(first, second, deduplication_max_ids=100)


# --- what is on its way -----------------------------------------------------------------------------------------------


def test_a_retry_waits_for_the_first():
    async def act(life: Life) -> None:
        partition = (await life.topic()).partitions[0]
        order: list[str] = []
        life.deduplication.publish([(partition, life.batch((b"0", b"a")))], lambda error: order.append(f"1 {error}"))
        (again,) = life.deduplication.publish(
            [(partition, life.batch((b"x", b"a")))], lambda error: order.append(f"2 {error}")
        )
        assert duplicates(again) == [(0, 0, 0)]
        assert (order, partition.high_watermark) == ([], 0)
        while len(order) < 2:
            await asyncio.sleep(0.0001)
            assert not order or partition.high_watermark == 1
        assert sorted(order) == ["1 None", "2 None"]

    play(act)


def test_a_flush_that_fails_frees_its_ids():
    world = World(3)
    plan = Plan()
    errors: list[Exception | None] = []

    async def prepare(runtime: Any) -> None:
        life = Life(runtime)
        await life.start()
        await life.publish((await life.topic()).partitions[0], (b"0", b"0"))
        await life.stop()

    async def fail(runtime: Any) -> None:
        life = Life(runtime)
        await life.start()
        topic = await life.topic()
        partition = topic.partitions[0]
        plan.sync_error_chance = 1.0
        life.deduplication.publish([(partition, life.batch((b"lost", b"a")))], errors.append)
        life.deduplication.publish([(partition, life.batch((b"x", b"a"), (b"x", b"0")))], errors.append)
        while len(errors) < 2:
            await asyncio.sleep(0.001)
        assert all(isinstance(each, StorageFailed) for each in errors), "the retry was answered by nothing"
        assert life.deduplication.count == 1
        plan.sync_error_chance = 0.0
        stored = await life.publish(partition, (b"1", b"a"))
        assert not stored.duplicates
        assert await life.values(topic) == [b"0", b"1"]
        await life.stop()

    world.run(prepare)
    world.run(fail, plan)


def test_what_is_refused_frees_its_ids():
    async def act(life: Life) -> None:
        topic = await life.topic(partitions=2, max_message_bytes="300")
        partition = topic.partitions[0]

        def refused(error: type[Exception], *parts: Any) -> None:
            with pytest.raises(error):
                life.deduplication.publish([*parts], lambda error: None)

        refused(Exception, (partition, life.batch((b"x" * 400, b"a"))))
        good, bad = (b"", b"a"), (b"", b"")
        refused(InvalidRecords, (topic.partitions[1], life.batch(good)), (partition, life.batch(good, bad)))
        assert life.deduplication.count == 0
        assert not (await life.publish(partition, good)).duplicates

    play(act)


def test_several_partitions_all_or_nothing():
    async def act(life: Life) -> None:
        topic = await life.topic(partitions=3)
        waiter, done = durable(None)
        stored = life.deduplication.publish(
            [(topic.partitions[index], life.batch((b"%d" % index, b"a%d" % (index % 2)))) for index in range(3)], done
        )
        await waiter
        assert [each.base_offset for each in stored] == [0, 0, -1]
        assert duplicates(stored[2]) == [(0, 0, 0)]
        assert await life.values(topic) == [b"0", b"1"]

    play(act)


# --- Kafka's producers ------------------------------------------------------------------------------------------------


async def produce(life: Life, topic: Topic, batch: bytearray) -> int:
    waiter, done = durable(None)
    appended = life.deduplication.produce(topic.partitions[0], batch, done)
    if not appended.durable:
        await waiter
    return appended.base_offset


def test_sequence_numbers_go_on_over_duplicates():
    async def act(life: Life) -> None:
        topic = await life.topic()
        await life.publish(topic.partitions[0], (b"0", b"a"), (b"1", b"b"))

        def numbered(sequence: int, *rows: Any) -> bytearray:
            return life.batch(*rows, producer_id=7, producer_epoch=0, base_sequence=sequence)

        assert await produce(life, topic, numbered(0, (b"2", b"c"), (b"x", b"a"))) == 2
        assert await produce(life, topic, numbered(2, (b"x", b"a"), (b"x", b"b"))) == 0, "all of it was there"
        assert await produce(life, topic, numbered(4, (b"3", None))) == 6
        # Sent again by the client itself: recognised by its numbers, whatever became of the ids.
        count = life.deduplication.count
        assert await produce(life, topic, numbered(0, (b"2", b"c"), (b"x", b"a"))) == 2
        await asyncio.sleep(700)
        assert await produce(life, topic, numbered(0, (b"2", b"c"), (b"x", b"a"))) == 2
        assert life.deduplication.count <= count
        assert not (await life.publish(topic.partitions[0], (b"4", b"c"))).duplicates
        with pytest.raises(OutOfOrderSequence):
            life.deduplication.produce(topic.partitions[0], numbered(99, (b"x", b"e")), None)
        assert not (await life.publish(topic.partitions[0], (b"5", b"e"))).duplicates
        assert await life.values(topic) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    play(act)


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
def test_every_durability(durability: str):
    async def act(life: Life) -> None:
        topic = await life.topic(durability=durability)
        assert await produce(life, topic, life.batch((b"0", b"a"), (b"1", None))) == 0
        assert await produce(life, topic, life.batch((b"x", b"a"))) == 0
        assert await produce(life, topic, life.batch((b"2", None))) == 2
        assert await life.values(topic) == [b"0", b"1", b"2"]
        assert (TOPIC in life.log.topics) == (durability != "memory")

    play(act)


def test_compacted_topics_still_want_keys():
    async def act(life: Life) -> None:
        topic = await life.topic(cleanup_policy="compact")
        for rows in [((b"0", b"a"),), ((b"0", b"a"), (b"1", b"a"))]:
            with pytest.raises(InvalidRecords):
                life.deduplication.produce(topic.partitions[0], life.batch(*rows), None)
        assert life.deduplication.count == 0

    play(act)


# --- delayed messages -------------------------------------------------------------------------------------------------


def test_for_now_and_for_later_all_or_nothing():
    async def act(life: Life) -> None:
        topic = await life.topic(partitions=2)
        await life.broker.timer.load()
        first, second = topic.partitions
        due = life.now() + 1_000
        waiter, done = durable(None)
        now = [(first, life.batch((b"0", b"a"), (b"1", None)))]
        later = [
            (first, life.batch((b"2", b"a"), (b"3", b"b")), due),
            (second, life.batch((b"4", None), (b"5", b"c")), due + 7),
            (second, life.batch((b"6", b"c")), due + 9),
        ]
        stored = life.deduplication.publish_timed(now, later, done)
        await waiter
        assert [duplicates(each) for each in stored] == [[], [(0, 0, 0)], [], [(0, 1, -1)]]
        assert [each.base_offset for each in stored] == [0, -1, -1, -1]
        assert [len(each.timers) for each in stored] == [0, 1, 2, 0]
        waits = {each.id: each.due_ms for each in await life.broker.timer.list()}
        assert waits == {id: due + (0, 7)[index] for index, each in enumerate(stored[1:3]) for id in each.timers}

        # Refused whole: nothing is stored, and the ids are free.
        large = life.batch((b"x" * 2_000_000, b"e"))
        with pytest.raises(BatchTooLarge):
            life.deduplication.publish_timed([(first, life.batch((b"7", b"d")))], [(second, large, due)], done)
        far = [(second, life.batch((b"8", None)), due + 10**12)]
        with pytest.raises(InvalidDelay):
            life.deduplication.publish_timed([(first, life.batch((b"7", b"d")))], far, done)
        assert not (await life.publish(first, (b"7", b"d"))).duplicates
        await asyncio.sleep(2)
        assert sorted(await life.values(topic)) == [b"0", b"1", b"3", b"4", b"5", b"7"]
        # All of it again.
        waiter, done = durable(None)
        again = life.deduplication.publish_timed(now[:0], [(second, life.batch((b"x", b"a"), (b"y", b"c")), due)], done)
        await waiter
        assert [duplicates(each) for each in again] == [[(0, 0, 0), (1, 1, -1)]]

    play(act)


def test_a_delayed_message_is_scheduled_once():
    async def first(life: Life) -> None:
        topic = await life.topic()
        partition = topic.partitions[0]
        due = life.now() + 60_000
        await life.broker.timer.load()
        for _ in range(2):
            waiter, done = durable(None)
            life.deduplication.publish_timed([], [(partition, life.batch((b"0", b"a")), due)], done)
            await waiter
        assert life.broker.timer.pending == 1
        assert duplicates(await life.publish(partition, (b"x", b"a"))) == [(0, 0, -1)]

    async def second(life: Life) -> None:
        topic = await life.topic()
        assert (await life.publish(topic.partitions[0], (b"x", b"a"))).duplicates
        await asyncio.sleep(70)
        assert await life.values(topic) == [b"0"]
        assert (await life.publish(topic.partitions[0], (b"x", b"a"))).duplicates

    play(first, second)


def test_a_topic_that_delays():
    async def act(life: Life) -> None:
        topic = await life.topic(delay="true")
        await life.broker.timer.load()
        partition = topic.partitions[0]
        later = life.now() + 5_000
        for producer in ({}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}):
            rows = [(b"0", b"a"), (b"1", b"b", later), (b"x", b"a", later), (b"x", b"b"), (b"2", None, later)]
            if producer:
                rows = [(b"x", b"a"), (b"3", b"c", later), (b"x", b"b", later), (b"4", None)]
            await produce(life, topic, life.batch(*rows, **producer))
        await produce(life, topic, life.batch((b"x", b"a"), (b"x", b"b", later)))
        await produce(
            life, topic, life.batch((b"x", b"a"), (b"x", b"b"), producer_id=7, producer_epoch=0, base_sequence=4)
        )
        await produce(life, topic, life.batch((b"5", None), producer_id=7, producer_epoch=0, base_sequence=6))
        await life.publish(partition, (b"6", b"d", later), (b"x", b"c"))
        await life.publish(partition, (b"x", b"d"))
        await life.publish(partition, (b"7", None))
        assert await life.values(topic) == [b"0", b"4", b"5", b"7"]
        await asyncio.sleep(10)
        assert sorted(await life.values(topic)) == [b"%d" % each for each in range(8)]

    play(act)


# --- turning it on and off --------------------------------------------------------------------------------------------


def test_the_first_id_sets_the_window():
    async def first(life: Life) -> None:
        topic = await life.broker.topics.create("t", 1, {})
        assert life.deduplication.counts_ids(topic)
        assert not life.deduplication.ready(topic)
        await asyncio.gather(*(life.deduplication.loader(topic).load() for _ in range(3)))
        assert topic.config["deduplication.window.ms"] == "5000"
        await life.publish(topic.partitions[0], (b"0", b"a"))
        off = await life.broker.topics.create("off", 1, {"deduplication.window.ms": "0"})
        assert not life.deduplication.counts_ids(off)
        await life.deduplication.loader(off).load()
        assert not life.deduplication.ready(off)
        with pytest.raises(StorageFailed, match="not loaded"):
            life.deduplication.produce(off.partitions[0], life.batch((b"", None)), None)

    async def second(life: Life) -> None:
        assert life.log.topics["t"].config["deduplication.window.ms"] == "5000"

    play(first, second, deduplication_window_ms=5_000)


def test_no_topic_before_the_first_id():
    async def act(life: Life) -> None:
        await life.broker.topics.create("t", 1, {})
        assert TOPIC not in life.log.topics

    play(act)


def test_off_and_on_again():
    async def act(life: Life) -> None:
        topic = await life.topic()
        partition = topic.partitions[0]
        errors: list[Exception | None] = []
        life.deduplication.publish([(partition, life.batch((b"0", b"a")))], errors.append)

        async def window(ms: int) -> None:
            await life.broker.topics.alter_config("t", lambda given: {**given, "deduplication.window.ms": str(ms)})

        await window(0)
        assert not life.deduplication.ready(topic)
        assert life.deduplication.count == 0
        await window(60_000)
        await life.deduplication.loader(topic).load()
        assert (errors, life.deduplication.count) == ([None], 1)
        assert (await life.publish(partition, (b"x", b"a"))).duplicates
        await window(1_000)
        await asyncio.sleep(2)
        assert not (await life.publish(partition, (b"1", b"a"))).duplicates
        await life.broker.topics.delete("t")
        assert life.deduplication.count == 0

    play(act)


def test_a_new_topic_of_an_old_name_knows_no_ids():
    async def act(life: Life) -> None:
        await life.publish((await life.topic()).partitions[0], (b"0", b"a"))
        await life.broker.topics.delete("t")
        assert not (await life.publish((await life.topic()).partitions[0], (b"0", b"a"))).duplicates

    play(act)


def test_ids_are_written_with_their_messages():
    """One record of the ids' log for a batch, however many ids that has."""

    async def act(life: Life) -> None:
        topic = await life.topic()
        await life.publish(topic.partitions[0], *((b"", b"%d" % each) for each in range(100)))
        await life.publish(topic.partitions[0], (b"", None))
        await life.publish(topic.partitions[0], (b"", b"1"))
        ids = life.log.topics[TOPIC].partitions
        assert sum(each.high_watermark for each in ids) == 1
        (one,) = [each for each in ids if each.high_watermark]
        chunk = b"".join(part for part in one.read(0, 1 << 20).parts if isinstance(part, bytes))
        assert len(list(batches_in(chunk))) == 1
        assert len(chunk) < 61 + 100 * 20 + 64

    play(act)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_log_of_ids(seed: int):
    """Better to refuse than to store twice; but not for longer than the window."""
    world = World(seed)

    async def first(runtime: Any) -> None:
        life = Life(runtime)
        await life.start()
        await life.publish((await life.topic()).partitions[0], *((b"0", b"%d" % each) for each in range(100)))
        await life.stop()

    async def second(runtime: Any) -> None:
        life = Life(runtime)
        await life.start()
        topic = life.log.topics["t"]
        with pytest.raises(HeadraceError):
            await life.deduplication.loader(topic).load()
        with pytest.raises(StorageFailed, match="not loaded"):
            life.deduplication.produce(topic.partitions[0], life.batch((b"1", b"1")), None)
        await asyncio.sleep(700)
        await topic.partitions[0].load()
        await life.deduplication.loader(topic).load()
        assert not (await life.publish(topic.partitions[0], (b"1", b"1"))).duplicates
        assert life.deduplication.count == 1
        await life.stop()

    world.run(first)
    rng = world.stream("damage")
    # Among the ids themselves, behind the headers of batch and record.
    (node,) = [
        each
        for path, each in world.machine.storage.files()
        if path.startswith(TOPIC) and path.endswith("0.log") and each.volatile
    ]
    flip_in(node, rng.randrange(120, 2_000), 1 << rng.randrange(8))
    world.run(second)
