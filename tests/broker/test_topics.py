from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from headrace.broker.broker import Broker
from headrace.broker.internal import is_internal
from headrace.broker.topics import Complete, check_name
from headrace.errors import (
    InvalidPartitions,
    InvalidTopic,
    InvalidTopicConfig,
    StorageFailed,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from headrace.log.interface import Durability, Topic
from headrace.log.native import STEP_PARTITIONS


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 249, "...", "-"])
def test_good_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "a/b", "ä", "a\n", "a\0", "#ephemeral"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_name(name)


async def test_a_topic_is_made_grown_and_deleted(broker: Broker) -> None:
    topic = await broker.topics.create("orders", 3, {"retention.ms": "1000"})
    assert broker.topics.get("orders") is topic
    assert len(topic.partitions) == 3
    assert topic.settings.retention_ms == 1000
    assert dict(topic.config) == {"retention.ms": "1000"}
    await broker.topics.grow("orders", 5)
    assert len(topic.partitions) == 5
    await broker.topics.delete("orders")
    assert broker.topics.get("orders") is None
    assert topic.deleted


async def test_topics_survive_a_restart(start_broker) -> None:
    first = await start_broker()
    made = await first.topics.create("orders", 2, {"cleanup.policy": "compact"})
    second = await start_broker()
    topic = second.topics.get("orders")
    assert topic is not None
    assert topic.id == made.id
    assert topic.settings.compact
    assert len(topic.partitions) == 2
    # The index of colliding names is rebuilt from what the log found.
    await second.topics.create("a.b")
    third = await start_broker()
    with pytest.raises(InvalidTopic, match=r"a\.b"):
        await third.topics.create("a_b")


async def test_partitions_must_make_sense(start_broker) -> None:
    broker = await start_broker(num_partitions=4, partitions_max=10)
    assert len((await broker.topics.create("default")).partitions) == 4
    for count in (0, -2, 11):
        with pytest.raises(InvalidPartitions):
            await broker.topics.create("x", count)
    for count in (4, 3, 0, -1, 11):
        with pytest.raises(InvalidPartitions):
            await broker.topics.grow("default", count)
    with pytest.raises(UnknownTopic):
        await broker.topics.grow("nope", 2)


async def test_names_that_collide(broker: Broker) -> None:
    await broker.topics.create("a.b_c")
    for name in ("a_b.c", "a.b.c", "a_b_c"):
        with pytest.raises(InvalidTopic, match=r"a\.b_c"):
            await broker.topics.create(name)
    await broker.topics.delete("a.b_c")
    await broker.topics.create("a_b_c")


async def test_reserved_names(broker: Broker) -> None:
    for name in ("__consumer_offsets", "__transaction_state", "__cluster_metadata"):
        with pytest.raises(InvalidTopic):
            await broker.topics.create(name)
        with pytest.raises(UnknownTopic):
            await broker.topics.ensure(name)
    made = await broker.topics.create("__consumer_offsets", 2, {"cleanup.policy": "compact"}, internal=True)
    assert is_internal(made.name)
    assert await broker.topics.ensure(made.name) is made


async def test_the_brokers_own_topics_are_not_for_clients_to_change(broker: Broker) -> None:
    for name in ("__consumer_offsets", "__timers", "__parked-orders-mail"):
        await broker.topics.create(name, 2, {"cleanup.policy": "delete", "retention.ms": "-1"}, internal=True)
        with pytest.raises(InvalidTopic, match="cannot be given more partitions"):
            await broker.topics.grow(name, 3)
        for change in ({"retention.ms": "1000"}, {"cleanup.policy": "compact"}, {"segment.bytes": "1048576"}):
            with pytest.raises(InvalidTopic, match="cannot be altered"):
                await broker.topics.alter_config(name, lambda old, change=change: {**old, **change})
        with pytest.raises(InvalidTopic, match="cannot be deleted"):
            await broker.topics.delete(name)
        await broker.topics.delete(name, internal=True)
    # Those who read it say for how long.
    await broker.topics.create("__deliveries", 1, {"retention.ms": "5"}, internal=True)
    await broker.topics.alter_config("__deliveries", lambda old: {**old, "retention.ms": "1000"})
    with pytest.raises(InvalidTopic, match="cannot be altered"):
        await broker.topics.alter_config("__deliveries", lambda old: {**old, "cleanup.policy": "compact"})


async def test_the_broker_has_room_for_so_many_partitions(start_broker) -> None:
    broker = await start_broker(partitions_total_max=10, num_partitions=3)
    await broker.topics.create("a", 4)
    outcomes = await asyncio.gather(*(broker.topics.create(name, 4) for name in "bc"), return_exceptions=True)
    assert [type(each) for each in outcomes] == [Topic, TooManyPartitions]
    with pytest.raises(TooManyPartitions, match="the broker has 8 partitions, and 3 more would be above 10"):
        await broker.topics.ensure("d")
    with pytest.raises(TooManyPartitions):
        await broker.topics.grow("a", 7)
    # The broker's own have their place whatever clients have.
    await broker.topics.create("__timers", 5, {}, internal=True)
    await broker.topics.delete("__timers", internal=True)
    await broker.topics.grow("a", 6)
    broker = await start_broker(partitions_total_max=10)
    with pytest.raises(TooManyPartitions):
        await broker.topics.create("d", 1)
    await broker.topics.delete("b")
    await broker.topics.create("d", 4)


async def test_many_partitions_come_and_go_in_small_steps(broker: Broker) -> None:
    """What is counted is not time but how often others had their turn."""
    turns, stopping = 0, False

    async def others() -> None:
        nonlocal turns
        while not stopping:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    steps = 1_000 // STEP_PARTITIONS
    topic = await broker.topics.create("t", 1_000)
    assert turns >= steps
    assert [each.index for each in topic.partitions] == list(range(1_000))
    turns = 0
    await broker.topics.grow("t", 2_000)
    assert turns >= steps
    turns = 0
    await broker.topics.delete("t")
    assert turns >= 2 * steps
    stopping = True
    await counting


async def test_ensure_makes_a_topic_once(broker: Broker) -> None:
    made = await asyncio.gather(*(broker.topics.ensure("auto") for _ in range(20)))
    assert len({id(topic) for topic in made}) == 1


async def test_ensure_where_it_may_not(start_broker) -> None:
    broker = await start_broker(auto_create_topics=False)
    with pytest.raises(UnknownTopic):
        await broker.topics.ensure("auto")
    with pytest.raises(InvalidTopic):
        await broker.topics.ensure("a b")


async def test_one_of_many_creations_wins(broker: Broker) -> None:
    outcomes = await asyncio.gather(*(broker.topics.create("orders") for _ in range(10)), return_exceptions=True)
    assert Counter(type(outcome) for outcome in outcomes) == {Topic: 1, TopicExists: 9}


async def test_one_of_two_colliding_creations_wins(broker: Broker) -> None:
    outcomes = await asyncio.gather(broker.topics.create("a.b"), broker.topics.create("a_b"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Topic, InvalidTopic]


async def test_a_caller_that_gives_up_leaves_a_whole_topic(broker: Broker) -> None:
    topics = broker.topics
    creating = asyncio.ensure_future(topics.create("early"))
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert topics.get("early") is not None
    go_on = asyncio.Event()
    completed: list[str] = []

    async def complete(topic: Topic) -> None:
        await go_on.wait()
        completed.append(topic.name)

    async def prepare(name: str) -> Complete:
        assert topics.get(name) is None
        return complete

    topics.prepare = prepare
    creating = asyncio.ensure_future(topics.create("late"))
    while topics.get("late") is None:
        await asyncio.sleep(0)
    creating.cancel()
    deleting = asyncio.ensure_future(topics.delete("late"))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert completed == ["late"]
    # The deletion waited for all of it.
    await deleting
    assert topics.get("late") is None


async def test_a_creation_that_fails_once_its_caller_has_gone_is_heard(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = asyncio.Event()

    async def create(*_: object) -> Topic:
        await fail.wait()
        raise StorageFailed("the device failed")

    monkeypatch.setattr(broker.log, "create", create)
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    creating = asyncio.ensure_future(broker.topics.create("never"))
    await asyncio.sleep(0)
    creating.cancel()
    await asyncio.sleep(0)
    fail.set()
    # Not awaited: its error would keep what failed in memory, and so unheard for longer than this test.
    await asyncio.wait((creating,))
    assert creating.cancelled()
    del creating
    gc.collect()
    assert unheard == []


async def test_a_deletion_waits_for_the_creation_before_it(broker: Broker) -> None:
    topics = broker.topics
    outcomes = await asyncio.gather(
        topics.create("x"),
        topics.delete("x"),
        topics.delete("x"),
        topics.create("x", 2),
        topics.grow("x", 3),
        topics.alter_config("x", lambda own: {**own, "retention.ms": "5"}),
        topics.alter_config("x", lambda own: {**own, "segment.ms": "5"}),
        return_exceptions=True,
    )
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, False, True, False, False, False, False]
    assert isinstance(outcomes[2], UnknownTopic)
    topic = topics.get("x")
    assert topic is not None
    assert len(topic.partitions) == 3
    # Neither of two changes at once undid the other.
    assert dict(topic.config) == {"retention.ms": "5", "segment.ms": "5"}
    assert len(topics._turns) == 0


async def test_deleting_only_the_topic_that_was_meant(broker: Broker) -> None:
    first = await broker.topics.create("x")
    await broker.topics.delete("x")
    second = await broker.topics.create("x")
    with pytest.raises(UnknownTopic):
        await broker.topics.delete("x", only=first)
    assert broker.topics.get("x") is second


async def test_settings_change_live(broker: Broker) -> None:
    topic = await broker.topics.create("x", 1, {"retention.ms": "1000"})
    await broker.topics.alter_config("x", lambda own: {**own, "max.message.bytes": " 2000 ", "durability": "sync"})
    assert topic.settings.max_batch_bytes == 2000
    assert topic.settings.durability is Durability.SYNC
    assert topic.config["max.message.bytes"] == "2000"
    await broker.topics.alter_config("x", lambda own: {})
    assert topic.settings.retention_ms == broker.config.log_retention_ms
    with pytest.raises(InvalidTopicConfig):
        await broker.topics.alter_config("x", lambda own: {"max.message.bytes": "many"})
    with pytest.raises(UnknownTopic):
        await broker.topics.alter_config("nope", lambda own: {})
    with pytest.raises(InvalidTopic):
        await broker.topics.alter_config("a b", lambda own: {})


async def test_topics_follow_new_defaults_of_the_broker(start_broker) -> None:
    broker = await start_broker(durability="async")
    await broker.topics.create("follows")
    await broker.topics.create("says", 1, {"retention.ms": "1000", "durability": "async"})
    broker = await start_broker(durability="sync", log_retention_ms=5000)
    settings = {name: topic.settings for name, topic in broker.topics.all.items()}
    assert (settings["follows"].retention_ms, settings["follows"].durability) == (5000, Durability.SYNC)
    assert (settings["says"].retention_ms, settings["says"].durability) == (1000, Durability.ASYNC)
    # A topic on disk does not lose its data because the default for new ones is memory.
    broker = await start_broker(durability="memory")
    settings = {name: topic.settings for name, topic in broker.topics.all.items()}
    assert (settings["follows"].retention_ms, settings["follows"].durability) == (604_800_000, Durability.SYNC)


@pytest.mark.parametrize(("before", "after"), [("memory", "sync"), ("async", "memory")])
async def test_memory_is_for_life(broker: Broker, before: str, after: str) -> None:
    topic = await broker.topics.create("x", 1, {"durability": before})
    with pytest.raises(InvalidTopicConfig, match="durability cannot change"):
        await broker.topics.alter_config("x", lambda own: {"durability": after})
    assert topic.settings.durability is Durability(before)


async def test_producer_ids_are_never_given_twice(start_broker) -> None:
    broker = await start_broker()
    given = await asyncio.gather(*(broker.producer_ids.next() for _ in range(2500)))
    # Those who wait for a block share it.
    assert given == list(range(given[0], given[0] + 2500))
    broker = await start_broker()
    assert await broker.producer_ids.next() > given[-1]
