from __future__ import annotations

import asyncio

import pytest
from tests.broker.prepared.stage import Life, play
from tests.broker.timer.stage import read_records

from headrace.broker.prepared import State
from headrace.errors import (
    BatchTooLarge,
    HalfDecided,
    HalfFull,
    InvalidHalf,
    InvalidRecords,
    InvalidTopic,
    StorageFailed,
    TopicFull,
    UnknownHalf,
    UnknownTopic,
)
from headrace.format.partitioning import partition_of


def test_a_prepared_message_is_seen_once_it_is_committed() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        headers = [("trace", b"7"), ("headrace-half", b"the producer's own"), ("none", None)]
        id = await life.prepared.prepare("orders", b"v", group="shop", key=b"k", headers=headers)
        assert life.prepared.pending == 1
        await life.rest(1)
        assert await life.values() == []
        standing, message = await life.prepared.show(id)
        assert (standing.state, standing.topic, standing.group) == (State.PREPARED, "orders", "shop")
        assert message is not None
        assert (message.key, message.value, list(message.headers)) == (b"k", b"v", headers)
        committed = await life.prepared.commit(id)
        assert (committed.state, committed.partition, committed.offset) == (State.COMMITTED, 0, 0)
        ((at, key, value, seen),) = await read_records(life.runtime, life.log.topics["orders"].partitions[0])
        assert (key, value, seen) == (b"k", b"v", headers)
        assert at >= standing.prepared_ms + 1_000, "the time is that of the commit"
        assert life.prepared.pending == 0
        assert await life.prepared.show(id) == (committed, None)

    play(act)


def test_what_is_rolled_back_is_never_seen() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        id = await life.prepared.prepare("orders", b"v", group="shop")
        assert (await life.prepared.rollback(id)).state is State.ROLLED_BACK
        assert await life.values() == []

    async def later(life: Life) -> None:
        await life.rest(1_000)
        assert await life.values() == []

    play(act, later)


def test_deciding_again() -> None:
    ids: list[str] = []

    async def decide(life: Life) -> None:
        await life.topic()
        ids.extend([await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(2)])
        await life.prepared.commit(ids[0])
        await life.prepared.rollback(ids[1])
        await again(life)

    async def again(life: Life) -> None:
        committed = await life.prepared.commit(ids[0])
        assert (committed.topic, committed.partition, committed.offset) == ("orders", 0, 0)
        with pytest.raises(HalfDecided, match="orders/0 at offset 0"):
            await life.prepared.rollback(ids[0])
        assert (await life.prepared.rollback(ids[1])).state is State.ROLLED_BACK
        with pytest.raises(HalfDecided, match="rolled back"):
            await life.prepared.commit(ids[1])
        assert await life.values() == [b"0"]

    play(decide, again, again)


def test_deciding_at_the_same_time() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        for first, second in (("commit", "rollback"), ("rollback", "commit"), ("commit", "commit")):
            id = await life.prepared.prepare("orders", first.encode(), group="shop")
            deciding = [getattr(life.prepared, each)(id) for each in (first, second, first)]
            one, other, third = await asyncio.gather(*deciding, return_exceptions=True)
            assert one == third
            if first == second:
                assert other == one
            else:
                assert isinstance(other, HalfDecided)
        assert await life.values() == [b"commit", b"commit"]

    play(act)


def test_whoever_waits_may_go_while_it_is_decided() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        for _ in range(20):
            preparing = asyncio.create_task(life.prepared.prepare("orders", b"gone", group="shop"))
            for _ in range(3):
                await asyncio.sleep(0)
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        await life.rest(0.1)
        for number, standing in enumerate(await life.prepared.list()):
            committing = asyncio.create_task(life.prepared.commit(standing.id))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
            await life.prepared.commit(standing.id)
        assert life.prepared.pending == 0
        assert life.prepared.accepted == life.prepared.resolver.committed == len(await life.values())

    play(act)


def test_restarts() -> None:
    ids: list[str] = []

    async def prepare(life: Life) -> None:
        await life.topic()
        ids.extend([await life.prepared.prepare("orders", b"%d" % n, group="shop", key=b"k%d" % n) for n in range(5)])
        await life.prepared.rollback(ids[1])

    async def commit(life: Life) -> None:
        assert [each.id for each in await life.prepared.list()] == [ids[0], *ids[2:]]
        await life.prepared.commit(ids[3])
        _, message = await life.prepared.show(ids[4])
        assert message is not None
        assert (message.key, message.value) == (b"k4", b"4")

    async def look(life: Life) -> None:
        assert [each.id for each in await life.prepared.list()] == [ids[0], ids[2], ids[4]]
        assert await life.values() == [b"3"]

    play(prepare, commit, look, half_timeout_ms=60_000)


def test_ids() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        with pytest.raises(UnknownHalf, match="none was ever prepared"):
            await life.prepared.commit("0" * 24)
        assert await life.prepared.list() == []
        assert "__half" not in life.log.topics
        id = await life.prepared.prepare("orders", b"v", group="shop")
        for wrong in ("", "x", id[:-1], id + "0", id.upper() if id.upper() != id else "Z" * 24, "\u0661" * 24):
            with pytest.raises(InvalidHalf, match="hexadecimal"):
                await life.prepared.commit(wrong)
        for unknown in (id[:8] + "f" * 16, id[:-1] + "9"):
            with pytest.raises(UnknownHalf, match="forgotten"):
                await life.prepared.rollback(unknown)
            with pytest.raises(UnknownHalf, match="forgotten"):
                await life.prepared.show(unknown)
        other = ("1" if id[0] == "0" else "0") + id[1:]
        with pytest.raises(UnknownHalf, match="another data directory"):
            await life.prepared.commit(other)

    play(act)


def test_an_op_has_no_id() -> None:
    """The offsets of other records than prepared messages are nobody's."""

    async def act(life: Life) -> None:
        await life.topic()
        id = await life.prepared.prepare("orders", b"v", group="shop")
        await life.prepared.commit(id)
        with pytest.raises(UnknownHalf):
            await life.prepared.commit(id[:-1] + "1")

    play(act, act)


def test_what_cannot_be_prepared() -> None:
    async def act(life: Life) -> None:
        half = life.prepared
        await life.topic("small", **{"max.message.bytes": "200"})
        await life.topic("keyed", **{"cleanup.policy": "compact"})
        await life.topic("later", delay="true")
        with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes"):
            await half.prepare("small", b"x" * 200, group="shop")
        await half.prepare("small", b"x" * 50, group="shop")
        with pytest.raises(InvalidRecords, match="key"):
            await half.prepare("keyed", b"x", group="shop")
        with pytest.raises(InvalidHalf, match="headrace-deliver-at"):
            await half.prepare("later", b"x", group="shop", headers=[("headrace-deliver-at", b"1")])
        await half.prepare("later", b"x", group="shop")
        with pytest.raises(UnknownTopic, match="auto_create_topics"):
            await half.prepare("missing", b"x", group="shop")
        with pytest.raises(InvalidTopic, match="own"):
            await half.prepare("__half", b"x", group="shop")
        with pytest.raises(InvalidTopic):
            await half.prepare("no good", b"x", group="shop")
        for partition in (1, -2):
            with pytest.raises(UnknownTopic, match="partition"):
                await half.prepare("small", b"x", group="shop", partition=partition)
        for group in ("", "g" * 256):
            with pytest.raises(InvalidHalf, match="group"):
                await half.prepare("small", b"x", group=group)
            with pytest.raises(InvalidHalf, match="group"):
                await half.poll(group, 0)
        for timeout in (0, -1, 86_400_001):
            with pytest.raises(InvalidHalf, match="half_timeout_max_ms"):
                await half.prepare("small", b"x", group="shop", timeout_ms=timeout)
        assert half.pending == 2

    play(act, auto_create_topics=False)


def test_topics_are_made_as_the_broker_does_it() -> None:
    async def act(life: Life) -> None:
        await life.prepared.commit(await life.prepared.prepare("new", b"v", group="shop"))
        assert await life.values("new") == [b"v"]

    play(act)


def test_no_more_than_may_be_undecided() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        many = [life.prepared.prepare("orders", b"v", group="shop") for _ in range(20)]
        found = await asyncio.gather(*many, return_exceptions=True)
        ids = [each for each in found if isinstance(each, str)]
        assert len(ids) == 5
        assert all(isinstance(each, HalfFull) for each in found if not isinstance(each, str))
        await life.prepared.rollback(ids[0])
        await life.prepared.prepare("orders", b"v", group="shop")
        with pytest.raises(HalfFull, match="half_max_pending"):
            await life.prepared.prepare("orders", b"v", group="shop")

    play(act, half_max_pending=5)


def test_partitions() -> None:
    async def act(life: Life) -> None:
        topic = await life.topic(partitions=4)
        for n in range(8):
            id = await life.prepared.prepare("orders", b"v", group="shop", key=b"k%d" % n)
            assert (await life.prepared.commit(id)).partition == partition_of(b"k%d" % n, 4)
        id = await life.prepared.prepare("orders", b"v", group="shop", key=b"k", partition=3)
        assert (await life.prepared.commit(id)).partition == 3
        ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(8)]
        used = [(await life.prepared.commit(id)).partition for id in ids]
        assert sorted(used) == [0, 0, 1, 1, 2, 2, 3, 3]
        # A key is looked at when it is committed.
        waiting = await life.prepared.prepare("orders", b"v", group="shop", key=b"grown")
        await life.broker.topics.grow(topic.name, 64)
        assert (await life.prepared.commit(waiting)).partition == partition_of(b"grown", 64)

    play(act)


def test_the_topic_is_deleted_meanwhile() -> None:
    ids: list[str] = []

    async def act(life: Life) -> None:
        await life.topic()
        ids.extend([await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(2)])
        await life.broker.topics.delete("orders")
        with pytest.raises(UnknownTopic, match="deleted"):
            await life.prepared.commit(ids[0])
        # Another topic of that name is not the one that was meant.
        await life.topic()
        with pytest.raises(UnknownTopic, match="deleted"):
            await life.prepared.commit(ids[0])
        assert (await life.prepared.rollback(ids[0])).state is State.ROLLED_BACK

    async def after(life: Life) -> None:
        with pytest.raises(UnknownTopic, match="rolled back"):
            await life.prepared.commit(ids[1])
        await life.prepared.rollback(ids[1])
        assert await life.values() == []

    play(act, after, half_timeout_ms=60_000)


def test_the_topic_asks_for_keys_meanwhile() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        id = await life.prepared.prepare("orders", b"x" * 1_000, group="shop")
        await life.broker.topics.alter_config("orders", lambda _: {"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecords, match="key"):
            await life.prepared.commit(id)
        assert life.prepared.pending == 1
        await life.broker.topics.alter_config("orders", lambda _: {})
        await life.prepared.commit(id)
        assert await life.values() == [b"x" * 1_000]

    play(act)


def test_a_full_topic_refuses_when_it_is_prepared_and_not_when_committed() -> None:
    async def act(life: Life) -> None:
        topic = await life.topic(**{"overflow": "reject", "overflow.lag": "1"})
        await life.broker.queues.ensure(topic, "mail")
        ids = [await life.prepared.prepare("orders", b"v", group="shop") for _ in range(2)]
        await life.prepared.commit(ids[0])
        await life.rest(1)
        with pytest.raises(TopicFull):
            await life.prepared.prepare("orders", b"v", group="shop")
        await life.prepared.commit(ids[1])
        assert len(await life.values()) == 2

    play(act)


@pytest.mark.parametrize("durability", ["async", "memory"])
def test_targets_of_other_durabilities(durability: str) -> None:
    async def act(life: Life) -> None:
        await life.topic(durability=durability)
        ids = [await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(3)]
        assert [(await life.prepared.commit(id)).offset for id in ids] == [0, 1, 2]
        assert await life.values() == [b"0", b"1", b"2"]

    play(act)


def test_outcomes_are_forgotten_in_time() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        ids = [await life.prepared.prepare("orders", b"%d" % n, group="shop") for n in range(5)]
        for id in ids:
            await life.prepared.commit(id)
        for id in ids[:2]:
            with pytest.raises(UnknownHalf, match="half_decided_max"):
                await life.prepared.commit(id)
        for id in ids[2:]:
            await life.prepared.commit(id)
        assert len(await life.values()) == 5

    play(act, half_decided_max=3)


def test_lists() -> None:
    async def act(life: Life) -> None:
        await life.topic("a")
        await life.topic("b")
        ids = [
            await life.prepared.prepare("ab"[n % 2], b"v", group=f"g{n % 3}", timeout_ms=60_000 + n) for n in range(12)
        ]
        listed = await life.prepared.list()
        assert [each.id for each in listed] == ids
        assert [each.timeout_ms for each in listed] == [60_000 + n for n in range(12)]
        assert [each.id for each in await life.prepared.list("a")] == ids[::2]
        assert [each.id for each in await life.prepared.list(group="g1")] == ids[1::3]
        assert [each.id for each in await life.prepared.list("b", "g1", limit=1)] == [ids[1]]
        assert [each.id for each in await life.prepared.list("b", "g1", after=ids[1])] == [ids[7]]
        with pytest.raises(InvalidHalf):
            await life.prepared.list(after="x")

    play(act)


def test_after_the_stop() -> None:
    async def act(life: Life) -> None:
        await life.topic()
        id = await life.prepared.prepare("orders", b"v", group="shop")
        await life.prepared.stop()
        with pytest.raises(StorageFailed, match="stopping"):
            await life.prepared.commit(id)
        assert await life.prepared.poll("shop", 10) == []

    play(act)


def test_a_flush_that_fails_changes_nothing() -> None:
    ids: list[str] = []

    async def act(life: Life) -> None:
        await life.topic()
        plan = life.runtime.disk.plan  # type: ignore[attr-defined]
        ids.append(await life.prepared.prepare("orders", b"v", group="shop"))
        for attempt in (
            life.prepared.prepare("orders", b"never", group="shop"),
            life.prepared.commit(ids[0]),
            life.prepared.rollback(ids[0]),
        ):
            plan.sync_error_chance = 1.0
            with pytest.raises(StorageFailed):
                await attempt
            plan.sync_error_chance = 0.0
            assert [each.id for each in await life.prepared.list()] == ids
            assert (await life.prepared.show(ids[0]))[0].state is State.PREPARED
            assert await life.values() == []
        assert (await life.prepared.commit(ids[0])).offset == 0

    async def after(life: Life) -> None:
        assert await life.prepared.list() == []
        assert await life.values() == [b"v"]

    play(act, after)
