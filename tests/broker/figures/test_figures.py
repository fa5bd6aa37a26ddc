"""The look at a broker: what rows say, that watchers share it, and that it takes turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.figures import KINDS, groups, topics
from headrace.broker.figures.columns import GROUPS, NODE, QUEUES, TOPICS
from headrace.broker.figures.groups import GroupFigures
from headrace.broker.figures.overview import overview
from headrace.broker.figures.pace import STEP_WORK
from headrace.broker.figures.queues import QueueFigures
from headrace.broker.figures.topics import TopicFigures
from headrace.broker.groups import Commit
from headrace.format import records
from headrace.log.interface import EARLIEST, Topic

Starting = Callable[..., Any]


@pytest.fixture
async def broker(start_broker: Starting) -> Broker:
    started: Broker = await start_broker(figures_interval_ms=1)
    return started


async def looked(broker: Broker) -> None:
    """A look that begins now."""
    broker.figures._looked = float("-inf")
    await broker.figures.renew()


def row_of(broker: Broker, kind: str, *names: str) -> dict[str, Any]:
    row = broker.figures.changes.get((kind, *names))
    assert row is not None, f"no {kind} {names}"
    return dict(zip(KINDS[kind].values, row, strict=True))


async def filled(broker: Broker, name: str, count: int, partitions: int = 1, time_ms: int = 0) -> Topic:
    topic = await broker.topics.create(name, partitions)
    now = time_ms or broker.runtime.clock.now_ms()
    for partition in topic.partitions:
        await partition.load()
        partition.append(records.build([(now, None, b"x", []) for _ in range(count)]))
        while partition.high_watermark < partition.end:
            await asyncio.sleep(0.001)
    return topic


async def test_topics_and_the_node(broker: Broker):
    await looked(broker)
    await filled(broker, "orders", 10, partitions=2)
    await looked(broker)
    row = row_of(broker, TOPICS, "orders")
    assert (row["partitions"], row["messages"], row["messages_in"], row["offline"]) == (2, 20, 20, 0)
    assert row["bytes"] > 0
    assert broker.figures.rates == {}, "what was not there at the last look has no rate yet"
    node = row_of(broker, NODE, "0")
    assert (node["topics"], node["partitions"], node["in_sync"]) == (1, 2, True)
    assert node["disk_bytes"] > node["disk_free_bytes"] > 0
    assert node["memory_bytes"] > 0
    await broker.topics.delete("orders")
    await looked(broker)
    assert broker.figures.changes.get((TOPICS, "orders")) is None
    assert row_of(broker, NODE, "0")["topics"] == 0


async def test_rates_are_of_what_came_between_two_looks(broker: Broker):
    topic = await filled(broker, "orders", 1)
    await looked(broker)
    topic.partitions[0].append(records.build([(0, None, b"x", [])] * 9))
    await looked(broker)
    assert set(broker.figures.rates) == {"orders"}
    assert row_of(broker, NODE, "0")["messages_in"] == 9, "what was there before the first look did not come since"
    await looked(broker)
    assert broker.figures.rates == {}


async def test_queues_and_their_age(broker: Broker):
    topic = await filled(broker, "orders", 5, time_ms=1_000)
    await broker.queues.ensure(topic, "q", EARLIEST)
    await broker.queues.open(broker.queues.of("orders")["q"])
    await looked(broker)
    row = row_of(broker, QUEUES, "orders", "q")
    assert (row["depth"], row["in_flight"], row["dead"], row["paused"]) == (5, 0, 0, False)
    assert abs(row["oldest_ms"] - 1_000) < 60_000


async def test_groups_and_their_lag(broker: Broker):
    topic = await filled(broker, "orders", 10, partitions=2, time_ms=5_000)
    await broker.groups.commit("g", [Commit("orders", topic.id, 0, 4), Commit("orders", topic.id, 1, 10)])
    await looked(broker)
    row = row_of(broker, GROUPS, "g", "orders")
    assert (row["kind"], row["state"], row["lag"], row["committed"], row["oldest_ms"]) == (
        *("classic", "Empty", 6, 14, 5_000),
    )
    assert broker.figures.lags["g"][0] == 6
    assert row_of(broker, NODE, "0")["lag"] == 6
    found = await overview(broker)
    assert [(each.kind, dict(each.subject)) for each in found.problems] == [
        ("group_behind", {"group": "g", "topic": "orders"})
    ]
    assert "It has no member." in found.problems[0].message
    await broker.groups.commit("g", [Commit("orders", topic.id, 0, 10)])
    await looked(broker)
    row = row_of(broker, GROUPS, "g", "orders")
    assert (row["lag"], row["oldest_ms"]) == (0, None)
    await broker.groups.delete("g")
    await looked(broker)
    assert broker.figures.changes.get((GROUPS, "g", "orders")) is None


async def test_watchers_share_a_look(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    looks = 0
    look = broker.figures._look

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await look()

    monkeypatch.setattr(broker.figures, "_look", counted)
    monkeypatch.setattr(broker.figures, "_interval", 1_000.0)
    await asyncio.gather(*(broker.figures.renew() for _ in range(50)))
    await broker.figures.renew()
    assert looks == 1


async def test_a_look_that_nothing_changed_for_changes_only_the_node(broker: Broker):
    for number in range(20):
        await broker.topics.create(f"t{number}", 1)
    await looked(broker)
    place = broker.figures.after("", 1_000, KINDS).place
    await looked(broker)
    changed = broker.figures.after(broker.figures.version_of(place), 1_000, KINDS)
    assert not changed.full
    assert {key[0] for key, _ in changed.rows} <= {NODE}


async def test_a_look_takes_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """By the work that it does between two turns, however many topics there are and partitions they have."""
    wide = await broker.topics.create("wide", 1_000)
    for number in range(200):
        topic = await broker.topics.create(f"t{number}", 1)
        await broker.queues.ensure(topic, "q", EARLIEST)
        await broker.queues.open(broker.queues.of(topic.name)["q"])
        await broker.groups.commit(f"g{number}", [Commit(topic.name, topic.id, 0, 0)])
    await broker.groups.commit("g", [Commit("wide", wide.id, index, 0) for index in range(1_000)])
    pace = broker.figures.pace
    steps: list[int] = []
    turn = pace.turn

    async def counted() -> None:
        steps.append(pace.done)
        await turn()

    monkeypatch.setattr(pace, "turn", counted)
    for _ in range(2):
        steps.clear()
        await looked(broker)
        assert sum(steps) >= 1_000 * (topics.PARTITION + groups.POSITION) + 200
        assert max(steps) <= 2 * STEP_WORK


async def test_what_is_at_rest_is_only_asked_whether_it_is(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """10,000 topics are watched for what a few comparisons of each cost."""
    for number in range(100):
        topic = await filled(broker, f"t{number}", 1)
        await broker.queues.ensure(topic, "q", EARLIEST)
        await broker.groups.commit(f"g{number}", [Commit(topic.name, topic.id, 0, 0)])
    await looked(broker)
    await looked(broker)
    whole: list[str] = []
    for each in (TopicFigures, QueueFigures, GroupFigures):
        look = each._look_whole

        async def counted(self: Any, *given: Any, look: Any = look) -> None:
            whole.append(type(self).__name__)
            await look(self, *given)

        monkeypatch.setattr(each, "_look_whole", counted)
    monkeypatch.setattr(topics, "TURNS", 1_000)
    broker.figures._topics._turn = 999
    await looked(broker)
    own = sum(len(topic.partitions) > 1 or name.startswith("__") for name, topic in broker.log.topics.items())
    assert len(whole) <= own, whole
    whole.clear()
    broker.topics.existing("t7").partitions[0].append(records.build([(0, None, b"x", [])]))
    await looked(broker)
    assert {"TopicFigures", "QueueFigures", "GroupFigures"} == set(whole)
    assert row_of(broker, TOPICS, "t7")["messages"] == 2
    assert row_of(broker, QUEUES, "t7", "q")["depth"] == 2
    assert row_of(broker, GROUPS, "g7", "t7")["lag"] == 2


async def test_what_moves_without_messages_is_looked_at_in_turn(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """Compaction takes bytes, and tells nobody."""
    await filled(broker, "orders", 3)
    await looked(broker)
    before = row_of(broker, TOPICS, "orders")["bytes"]
    partition = broker.log.local(broker.topics.existing("orders").partitions[0])
    monkeypatch.setattr(type(partition), "size", lambda self: 7)
    for _ in range(topics.TURNS):
        await looked(broker)
    assert before != 7 == row_of(broker, TOPICS, "orders")["bytes"]


async def test_the_whole_broker_is_the_sum_of_its_topics(broker: Broker):
    await filled(broker, "a", 3, partitions=2)
    await filled(broker, "b", 5)
    await looked(broker)
    broker.metrics.topic("b").bytes_out += 100
    await filled(broker, "c", 1)
    await looked(broker)
    await broker.topics.delete("a")
    await looked(broker)
    node = row_of(broker, NODE, "0")
    rows = [dict(zip(KINDS[TOPICS].values, row, strict=True)) for row in _rows(broker, TOPICS)]
    assert node["topics"] == len(rows) == 2
    for name in ("partitions", "bytes", "bytes_in", "bytes_out"):
        assert node[name] == sum(row[name] for row in rows), name


def _rows(broker: Broker, kind: str) -> list[Any]:
    return [row for key, row in broker.figures.after("", 10_000, [kind]).rows if row is not None]


async def test_only_rows_that_may_mean_trouble_are_judged(broker: Broker):
    for number in range(50):
        await broker.topics.create(f"t{number}", 1)
    topic = await filled(broker, "orders", 1, time_ms=1_000)
    await broker.groups.commit("g", [Commit("orders", topic.id, 0, 0)])
    broker.metrics.topic("t7").blocked = 1
    await looked(broker)
    suspects = broker.figures.rows.suspects
    assert (list(suspects(TOPICS)), list(suspects(GROUPS))) == ([("t7",)], [("g", "orders")])
    assert {each.kind for each in (await overview(broker)).problems} == {"producers_blocked", "group_behind"}
    broker.metrics.topic("t7").blocked = 0
    await broker.groups.delete("g")
    await looked(broker)
    assert not [*suspects(TOPICS), *suspects(GROUPS)]
    assert (await overview(broker)).problems == []


async def test_a_stop_ends_a_look(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.figures, "_look", endless)
    broker.figures._looked = float("-inf")
    asking = asyncio.ensure_future(broker.figures.renew())
    await begun.wait()
    await broker.figures.stop()
    with pytest.raises(asyncio.CancelledError):
        await asking
