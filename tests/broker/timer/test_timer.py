"""The timer over the native log on virtual time: what it does, and what it does when something is in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.broker.timer.stage import DAY, HOUR, MINUTE, Life, read_records

from headrace.broker.durable import durable
from headrace.broker.timer import TOPIC, Pending, buckets
from headrace.broker.timer import timer as timer_module
from headrace.broker.timer.bucket import OPEN_AHEAD_MS, State
from headrace.broker.timer.chunks import read_all
from headrace.errors import BatchTooLarge, InvalidDelay, InvalidRecords, OutOfOrderSequence, StorageFailed
from headrace.format import records
from headrace.format.delay import MAX_DELAY_MS
from headrace.log.interface import Appended, Chunk, Topic
from headrace.runtime import Runtime
from simulation.disk import SimulatedDisk
from simulation.world import Ending, World


def on_virtual_time(main: Callable[[Life], Awaitable[None]], world: World | None = None, **settings: object) -> World:
    world = world or World(1)

    async def live(runtime: Runtime) -> None:
        life = Life(runtime, **settings)
        await life.start()
        await main(life)
        await life.stop()

    assert world.run(live) is Ending.DONE
    return world


async def values_of(life: Life, topic: Topic, partition: int = 0) -> list[bytes | None]:
    return [value for _, _, value, _ in await read_records(life.runtime, topic.partitions[partition])]


def test_each_delay_fires_at_its_time() -> None:
    delays = [1, 10, 999, 1_000, 30_000, MINUTE, 61 * MINUTE, 63 * MINUTE, 5 * HOUR, 70 * HOUR, 9 * DAY]

    async def main(life: Life) -> None:
        topic = await life.topic()
        start = life.now()
        for delay in delays:
            assert len(await life.schedule(topic, 0, [b"%d" % delay], start + delay)) <= 1
        assert life.timer.pending >= len(delays) - 3
        for delay in delays:
            await asyncio.sleep(max(start + delay - life.now(), 0) / 1_000 + 0.02)
            assert b"%d" % delay in await values_of(life, topic)
        fired = await life.fired(topic)
        for delay in delays:
            (at,) = fired[b"%d" % delay]
            assert 0 <= at - start - delay <= 10
        assert life.timer.pending == 0
        await asyncio.sleep(120)
        assert all(part.start == part.end for part in life.log.topics[TOPIC].partitions), "a bucket was not emptied"
        assert all(bucket.state is State.FAR for bucket in life.timer.buckets.all)

    on_virtual_time(main)


def test_nobody_pays_who_delays_nothing() -> None:
    async def main(life: Life) -> None:
        await life.topic()
        assert await life.timer.list() == []
        assert not await life.timer.cancel("0" * 32)
        assert TOPIC not in life.log.topics

    on_virtual_time(main)


def test_a_time_that_has_passed_is_now() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        for due in (0, life.now() - 1, life.now()):
            assert await life.schedule(topic, 0, [b"%d" % due], due) == []
        assert len(await values_of(life, topic)) == 3
        assert TOPIC not in life.log.topics

    on_virtual_time(main)


def test_several_batches_share_a_time() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        await life.timer.load()
        batches = records.build([(0, None, b"1", []), (0, None, b"2", [])]) + records.build([(0, None, b"3", [])])
        waiter, done = durable(None)
        (ids,), _ = life.timer.schedule([(topic.partitions[0], batches, life.now() + 500)], done, [])
        await waiter
        assert [each.id for each in await life.timer.list()] == ids
        assert len(set(ids)) == 3
        await asyncio.sleep(1)
        assert await values_of(life, topic) == [b"1", b"2", b"3"]

    on_virtual_time(main)


def test_a_cold_target_is_warmed() -> None:
    async def make(life: Life) -> None:
        topic = await life.topic()
        await life.schedule(topic, 0, [b"x"], 0)
        await life.schedule(topic, 0, [b"y"], life.now() + 1_000)

    async def main(life: Life) -> None:
        topic = life.log.topics["t"]
        assert not topic.partitions[0].loaded
        await asyncio.sleep(2)
        assert topic.partitions[0].loaded
        assert await values_of(life, topic) == [b"x", b"y"]

    on_virtual_time(main, on_virtual_time(make))


def test_what_the_topic_would_refuse_is_refused_at_once() -> None:
    async def main(life: Life) -> None:
        compacted = await life.topic("c", **{"cleanup.policy": "compact"})
        small = await life.topic("s", **{"max.message.bytes": "500"})
        due = life.now() + 1_000
        with pytest.raises(InvalidRecords):
            await life.schedule(compacted, 0, [b""], due, keyed=False)
        with pytest.raises(BatchTooLarge):
            await life.schedule(small, 0, [b"x" * 500], due)
        with pytest.raises(InvalidDelay):
            await life.schedule(small, 0, [b"x"], life.now() + 2 * MAX_DELAY_MS)

    on_virtual_time(main)


def test_listing_page_by_page() -> None:
    async def main(life: Life) -> None:
        one, two = await life.topic("one"), await life.topic("two", 3)
        now = life.now()
        expected: list[tuple[int, str]] = []
        for index, delay in enumerate([HOUR, 5, 3 * DAY, 90 * MINUTE, 400 * DAY, 5, 20_000, 2 * HOUR] * 3):
            topic = (one, two)[index % 2]
            ids = await life.schedule(topic, index % len(topic.partitions), [b"a", b"b"], now + delay + 30_000)
            expected += [(now + delay + 30_000, id) for id in ids]
        expected.sort()
        everything = await life.timer.list(limit=1_000)
        assert [(each.due_ms, each.id) for each in everything] == expected
        pages: list[Pending] = []
        while page := await life.timer.list(limit=7, after=pages[-1].id if pages else ""):
            assert len(page) <= 7
            pages += page
        assert pages == everything
        assert await life.timer.list("two", limit=1_000) == [each for each in everything if each.topic == "two"]
        assert (await life.timer.list("one", limit=1))[0].topic == "one"
        assert await life.timer.list("three") == []
        assert everything[0].key == b"key of a"
        assert everything[0].value_bytes == 1
        assert now <= everything[0].scheduled_ms <= life.now()
        await life.topics.delete("two")
        assert {each.topic for each in await life.timer.list(limit=1_000)} == {"one", ""}

    on_virtual_time(main)


@pytest.mark.parametrize("delay", [500, 5_000, 30 * MINUTE, 5 * HOUR, 100 * DAY, 3_000 * DAY])
def test_cancelling(delay: int) -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + delay
        first, second, third = await life.schedule(topic, 0, [b"1", b"2", b"3"], due)
        assert await life.timer.cancel(second)
        assert not await life.timer.cancel(second)
        for wrong in ("", "x", second[:-1], "0" * 32, second.upper() + "0", second[:16] + "f" * 16):
            assert not await life.timer.cancel(wrong)
        assert [each.id for each in await life.timer.list()] == [first, third]
        assert life.timer.pending == 2
        await life.stop()
        await life.start_again()
        assert [each.id for each in await life.timer.list()] == [first, third]
        if delay <= 5 * HOUR:
            await asyncio.sleep(delay / 1_000 + 1)
            assert await values_of(life, life.log.topics["t"]) == [b"1", b"3"]
            assert not await life.timer.cancel(first)

    on_virtual_time(main)


def test_many_cancellations_while_firing() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        start = life.now()
        ids: dict[bytes, str] = {}
        for index in range(200):
            value = b"%d" % index
            (ids[value],) = await life.schedule(topic, 0, [value], start + 1_500 + index)
        cancelled = set()
        await asyncio.sleep((start + 1_500 - life.now()) / 1_000)
        for value, id in list(ids.items())[::3]:
            if await life.timer.cancel(id):
                cancelled.add(value)
        await asyncio.sleep(2)
        fired = set(await values_of(life, topic))
        assert cancelled
        assert fired == set(ids) - cancelled

    on_virtual_time(main)


def test_a_deleted_topic_gets_nothing() -> None:
    async def main(life: Life) -> None:
        gone, kept = await life.topic("gone"), await life.topic("kept")
        due = life.now() + 2_000
        await life.schedule(gone, 0, [b"1", b"2"], due)
        await life.schedule(kept, 0, [b"3"], due)
        await life.topics.delete("gone")
        again = await life.topic("gone")
        await asyncio.sleep(3)
        assert await values_of(life, again) == []
        assert await values_of(life, kept) == [b"3"]
        assert life.timer.dispatcher.dropped == 2
        assert life.timer.dispatcher.fired == 1
        assert life.timer.pending == 0

    on_virtual_time(main)


def test_one_refused_message_does_not_hold_up_the_others() -> None:
    async def main(life: Life) -> None:
        topic, other = await life.topic("t"), await life.topic("other")
        due = life.now() + 2_000
        await life.schedule(topic, 0, [b"1"], due)
        await life.schedule(topic, 0, [b"2"], due, keyed=False)
        await life.schedule(topic, 0, [b"3"], due)
        await life.schedule(other, 0, [b"x"], due)
        # By then it takes no message without a key.
        await life.topics.alter_config("t", lambda config: {**config, "cleanup.policy": "compact"})
        await asyncio.sleep(3)
        assert await values_of(life, topic) == [b"1", b"3"]
        assert await values_of(life, other) == [b"x"]
        assert life.timer.dispatcher.refused == 1
        assert life.timer.pending == 1
        await life.topics.alter_config("t", lambda config: {})
        await asyncio.sleep(61)
        assert (await values_of(life, topic))[-1] == b"2"
        assert life.timer.pending == 0

    on_virtual_time(main)


def test_refused_messages_do_not_keep_the_wheel_from_turning(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many buckets have some: only so many are near at a time, not counting these."""
    monkeypatch.setattr("headrace.broker.timer.buckets.NEAR_BUCKETS", 1)
    monkeypatch.setattr("headrace.broker.timer.buckets.SMALL_BUCKET", 0)

    async def main(life: Life) -> None:
        topic, other = await life.topic("t"), await life.topic("other")
        await life.schedule(topic, 0, [b"refused"], life.now() + 2_000, keyed=False)
        (waiting,) = await life.timer.list()
        await life.schedule(other, 0, [b"x"], life.now() + 10 * MINUTE)
        await life.topics.alter_config("t", lambda config: {**config, "cleanup.policy": "compact"})
        await asyncio.sleep(11 * 60)
        assert await values_of(life, other) == [b"x"]
        assert life.timer.dispatcher.refused > 1
        # It can be cancelled meanwhile.
        assert await life.timer.cancel(waiting.id)
        assert life.timer.pending == 0

    on_virtual_time(main)


def test_a_full_disk_loses_nothing() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + 2_000
        await life.schedule(topic, 0, [b"1", b"2"], due)
        life.log.full = True
        with pytest.raises(StorageFailed):
            await life.schedule(topic, 0, [b"3"], life.now() + 1_000)
        await asyncio.sleep(10)
        assert await values_of(life, topic) == []
        assert life.timer.pending == 2
        life.log.full = False
        await asyncio.sleep(2)
        assert await values_of(life, topic) == [b"1", b"2"]

    on_virtual_time(main)


def test_a_restart_fires_what_came_due_meanwhile() -> None:
    delays = [100, 30_000, 10 * MINUTE, 3 * HOUR, 30 * HOUR, 4 * DAY, 40 * DAY]

    async def fill(life: Life) -> None:
        topic = await life.topic()
        start = life.now()
        for delay in delays:
            await life.schedule(topic, 0, [b"%d" % delay], start + delay)

    async def look(life: Life) -> None:
        topic = await life.topic()
        await asyncio.sleep(1)
        assert set(await values_of(life, topic)) == {b"%d" % delay for delay in delays[:-1]}
        assert life.timer.pending == 1

    async def look_again(life: Life) -> None:
        topic = await life.topic()
        await asyncio.sleep(1)
        assert (await values_of(life, topic))[-1] == b"%d" % delays[-1]

    world = on_virtual_time(fill)
    world.time += 5 * DAY / 1_000
    on_virtual_time(look, world)
    world.time += 35 * DAY / 1_000
    on_virtual_time(look_again, world)


def test_a_start_does_not_read_far_buckets() -> None:
    async def fill(life: Life) -> None:
        topic = await life.topic()
        for hours in range(1, 200, 9):
            await life.schedule(topic, 0, [b"x" * 1_000] * 50, life.now() + hours * HOUR)

    async def look(life: Life) -> None:
        await life.timer.load()
        assert life.timer.pending == 23 * 50
        assert sum(bucket.state is State.FAR for bucket in life.timer.buckets.all) >= 255
        assert all(bucket.near is None for bucket in life.timer.buckets.all)

    look_world = on_virtual_time(fill)
    on_virtual_time(look, look_world)


def test_the_calendar_may_be_set() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + 30 * MINUTE
        await life.schedule(topic, 0, [b"x"], due)
        before = life.runtime.clock.now_ms
        life.runtime.clock.now_ms = lambda: before() + 40 * MINUTE  # type: ignore[method-assign]
        await asyncio.sleep(31)
        assert await values_of(life, topic) == [b"x"]

    on_virtual_time(main)


def test_the_calendar_may_be_set_back() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        await life.schedule(topic, 0, [b"x"], life.now() + 1_000)
        await asyncio.sleep(1.001)
        # One turn of the wheel: into the same bucket.
        before, back = life.runtime.clock.now_ms, 64 * MINUTE
        life.runtime.clock.now_ms = lambda: before() - back  # type: ignore[method-assign]
        await life.schedule(topic, 0, [b"y"], life.now() + 1_000)
        await asyncio.sleep(2.1)
        assert await values_of(life, topic) == [b"x", b"y"]

    on_virtual_time(main)


def test_a_damaged_bucket_does_not_hold_up_the_others() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        now = life.now()
        minute = now - now % MINUTE + 2 * MINUTE
        await life.schedule(topic, 0, [b"unlucky"], minute)
        await life.schedule(topic, 0, [b"lucky"], minute + MINUTE)
        (bucket,) = [each for each in life.timer.buckets.all if each.earliest == minute]
        read = bucket.partition.read

        def damaged(*args: Any, **options: Any) -> Chunk:
            chunk = read(*args, **options)
            chunk.parts = [bytes(part)[:-1] + b"?" if isinstance(part, bytes) else part for part in chunk.parts]
            return chunk

        type(bucket.partition).read, kept = (  # type: ignore[method-assign]
            lambda self, *args, **options: (
                damaged(*args, **options) if self is bucket.partition else kept(self, *args, **options)
            ),
            type(bucket.partition).read,
        )
        try:
            await asyncio.sleep((minute + MINUTE - life.now()) / 1_000 + 1)
            assert await values_of(life, topic) == [b"lucky"]
        finally:
            type(bucket.partition).read = kept  # type: ignore[method-assign]
        await asyncio.sleep(61)
        assert await values_of(life, topic) == [b"lucky", b"unlucky"]

    on_virtual_time(main)


def test_memory_topics_and_several_partitions() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic("m", 3, durability="memory")
        relaxed = await life.topic("a", 2, durability="async")
        due = life.now() + 1_500
        for partition in range(3):
            await life.schedule(topic, partition, [b"%d" % partition], due)
        for partition in range(2):
            await life.schedule(relaxed, partition, [b"%d" % partition], due)
        await asyncio.sleep(2)
        for partition in range(3):
            assert await values_of(life, topic, partition) == [b"%d" % partition]
        for partition in range(2):
            assert await values_of(life, relaxed, partition) == [b"%d" % partition]

    on_virtual_time(main)


@pytest.mark.parametrize("durability", ["async", "memory"])
def test_buckets_that_are_durable_at_once(durability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log does not call back then: scheduling, moving down, firing, cancelling and listing must not wait for it."""
    monkeypatch.setitem(timer_module.TOPIC_CONFIG, "durability", durability)

    async def main(life: Life) -> None:
        topic = await life.topic("m", durability=durability)
        started = life.now()
        ids = []
        for number in range(100):
            # Alone in their turns: only so are some of an `async` topic durable at once.
            await asyncio.sleep(0.01)
            ids += await life.schedule(topic, 0, [b"%d" % number], started + 10_000)
        (far,) = await life.schedule(topic, 0, [b"far"], started + 3 * HOUR)
        for each in ids[::2]:
            await asyncio.sleep(0.01)
            assert await life.timer.cancel(each)
        assert life.timer.pending == 51
        await life.schedule(topic, 0, [b"now"], 0)
        await asyncio.sleep(12)
        kept = [b"now", *(b"%d" % number for number in range(1, 100, 2))]
        assert await values_of(life, topic) == kept
        assert [each.id for each in await life.timer.list()] == [far]
        await asyncio.sleep(3 * HOUR / 1_000)
        assert await values_of(life, topic) == [*kept, b"far"]
        assert life.timer.pending == 0

    on_virtual_time(main)


# --- what producers send ----------------------------------------------------------------------------------------------


async def produce(life: Life, topic: Topic, batch: bytearray) -> Appended:
    waiter, done = durable(None)
    await life.timer.load()
    appended = life.timer.produce(topic.partitions[0], batch, done)
    if not appended.durable:
        await waiter
    return appended


def delayed(now: int, delays: list[int | None], sequence: int) -> bytearray:
    given = []
    for index, delay in enumerate(delays):
        headers = [] if delay is None else [("headrace-deliver-at", b"%d" % (now + delay))]
        given.append((now, None, b"%d" % (sequence + index), headers))
    return records.build(given, producer_id=7, producer_epoch=0, base_sequence=sequence)


def test_a_batch_that_is_sent_again_is_not_scheduled_again() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        now = life.now()
        first = await produce(life, topic, delayed(now, [None, 1_000, None, 2_000], 0))
        second = await produce(life, topic, delayed(now, [1_000, 1_000], 4))
        for again, delays, sequence in ((first, [None, 1_000, None, 2_000], 0), (second, [1_000, 1_000], 4)):
            answer = await produce(life, topic, delayed(now, delays, sequence))
            assert answer.duplicate
            assert answer.base_offset == again.base_offset
        with pytest.raises(OutOfOrderSequence):
            await produce(life, topic, delayed(now, [1_000], 9))
        assert (first.base_offset, second.base_offset) == (0, 4)
        assert life.timer.pending == 4
        assert await values_of(life, topic) == [b"0", b"2"]
        await produce(life, topic, delayed(now, [None], 6))
        await asyncio.sleep(3)
        assert await values_of(life, topic) == [b"0", b"2", b"6", b"1", b"4", b"5", b"3"]

    on_virtual_time(main)


def test_sequences_of_delayed_batches_survive_a_restart() -> None:
    batches: list[bytearray] = []

    async def send(life: Life) -> None:
        topic = await life.topic()
        batches.append(delayed(life.now(), [DAY, 2 * DAY], 0))
        answer = await produce(life, topic, bytearray(batches[0]))
        assert answer.base_offset == 0
        assert life.timer.pending == 2

    async def again(life: Life) -> None:
        topic = await life.topic()
        assert (await produce(life, topic, bytearray(batches[0]))).duplicate
        assert life.timer.pending == 2

    on_virtual_time(again, on_virtual_time(send))


def test_a_cancellation_that_fails_leaves_the_message_to_fire() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + 5_000
        (id,) = await life.schedule(topic, 0, [b"1"], due)
        # Its bucket is near: what waits there is taken out of memory before the log is told.
        await asyncio.sleep(1)
        life.log.full = True
        with pytest.raises(StorageFailed):
            await life.timer.cancel(id)
        life.log.full = False
        assert life.timer.pending == 1
        await asyncio.sleep(5)
        assert (await life.fired(topic)) == {b"1": [due]}

    on_virtual_time(main)


def test_what_was_fired_and_did_not_become_durable_is_fired_again() -> None:
    async def main(life: Life) -> None:
        disk = life.runtime.disk
        assert isinstance(disk, SimulatedDisk)
        topic = await life.topic()
        await life.schedule(topic, 0, [b"1", b"2"], life.now() + 1_000)
        disk.plan.sync_error_chance = 1.0
        await asyncio.sleep(3)
        assert sum(disk.points.failed.values()) > 1
        assert life.timer.pending == 2
        disk.plan.sync_error_chance = 0.0
        await asyncio.sleep(10)
        assert await values_of(life, topic) == [b"1", b"2"]
        assert life.timer.pending == 0

    on_virtual_time(main)


def test_a_bucket_that_could_not_be_moved_down_is_moved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("the device is away")]

    async def fail_once(*given: Any) -> None:
        if failures:
            raise failures.pop()
        await read_all(*given)

    monkeypatch.setattr(buckets, "read_all", fail_once)

    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + 3 * HOUR
        await life.schedule(topic, 0, [b"1"], due)
        await asyncio.sleep(3 * 3_600 + 1)
        assert not failures
        assert await life.fired(topic) == {b"1": [due]}

    on_virtual_time(main)


@pytest.mark.parametrize(
    ("delay", "ahead"), [(10 * MINUTE, OPEN_AHEAD_MS), (5 * HOUR, 3 * MINUTE), (9 * DAY, 3 * HOUR)]
)
def test_buckets_are_attended_to_ahead_of_their_window(delay: int, ahead: int) -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        due = life.now() + delay
        await life.schedule(topic, 0, [b"1"], due)
        (bucket,) = [each for each in life.timer.buckets.all if each.waiting]
        window = due - due % bucket.width
        await asyncio.sleep((window - ahead - life.now() - 1_000) / 1_000)
        assert (bucket.state, bucket.waiting) == (State.FAR, 1)
        await asyncio.sleep(2)
        assert (bucket.state, bucket.waiting) == ((State.FAR, 0) if bucket.level else (State.NEAR, 1))

    on_virtual_time(main)


def test_a_near_bucket_stays_until_its_window_ends() -> None:
    async def main(life: Life) -> None:
        topic = await life.topic()
        # Early in a minute that has not begun.
        due = life.now() - life.now() % MINUTE + MINUTE + 5_000
        await life.schedule(topic, 0, [b"1"], due)
        (bucket,) = [each for each in life.timer.buckets.all if each.waiting]
        await asyncio.sleep((due - life.now()) / 1_000 + 1)
        assert await values_of(life, topic) == [b"1"]
        assert (bucket.state, bucket.waiting) == (State.NEAR, 0)
        await asyncio.sleep(50)
        assert bucket.state is State.NEAR
        assert bucket.partition.start < bucket.partition.end
        await asyncio.sleep(6)
        assert bucket.state is State.FAR
        assert bucket.partition.start == bucket.partition.end

    on_virtual_time(main)


def test_what_is_too_far_for_the_level_below_stays_until_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calendar is set back while a bucket is read to be moved down: its last minutes are out of reach again."""

    async def main(life: Life) -> None:
        topic = await life.topic()
        before = life.runtime.clock.now_ms
        hour = life.now() - life.now() % HOUR + 5 * HOUR
        dues = [hour + minute * MINUTE for minute in (0, 30, 59)]
        for due in dues:
            await life.schedule(topic, 0, [b"%d" % due], due)
        (bucket,) = [each for each in life.timer.buckets.all if each.waiting]

        async def set_back(*given: Any) -> None:
            life.runtime.clock.now_ms = lambda: before() - 10 * MINUTE  # type: ignore[method-assign]
            await read_all(*given)

        monkeypatch.setattr(buckets, "read_all", set_back)
        await asyncio.sleep((hour - 3 * MINUTE - life.now()) / 1_000 + 1)
        assert bucket.waiting == 1
        await asyncio.sleep(75 * MINUTE / 1_000)
        assert await life.fired(topic) == {b"%d" % due: [due] for due in dues}

    on_virtual_time(main)
