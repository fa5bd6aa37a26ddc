"""The store of users and rules: several kinds of records, and nodes that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Operation, Resource, Session
from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.rules import allow
from headrace.broker.security.store import STEP_CHANGES, Key, RecordKind
from headrace.errors import StorageFailed

Starting = Callable[..., Awaitable[Broker]]


@dataclass(frozen=True)
class Box:
    size: int


BOX = RecordKind("box", lambda box: {"size": box.size}, lambda key, value: Box(int(value["size"])))
ANN = Session(user="ann", host="127.0.0.1")
RIGHT = Operation.READ, Resource.TOPIC, "t"
RULES = RuleFilter()


async def test_another_kind_of_record(start_broker: Starting):
    changes: list[tuple[Key, Box | None, Box | None]] = []
    broker = await start_broker()
    store = broker.security.store
    boxes = store.table(BOX, lambda *change: changes.append(change))
    async with store.changing():
        await store.write([boxes.put(("a", "b"), Box(1)), boxes.put(("c",), Box(2))])
        await store.write([boxes.drop(("c",)), boxes.put(("a", "b"), Box(3)), boxes.drop(("none",))])
        await store.write([])
    assert boxes.values == {("a", "b"): Box(3)}
    assert changes == [
        (("a", "b"), None, Box(1)),
        (("c",), None, Box(2)),
        (("c",), Box(2), None),
        (("a", "b"), Box(1), Box(3)),
    ]
    # A broker that does not know the kind passes it over.
    broker = await start_broker()
    assert broker.security.store.is_loaded


async def test_a_change_that_is_not_durable_has_no_effect(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    await broker.security.accounts.create_user(OWN, "ann", "secret")

    def refuse(*arguments: object) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(broker.log, "append", refuse)
    with pytest.raises(StorageFailed):
        await broker.security.accounts.create_user(OWN, "bob", "secret")
    with pytest.raises(StorageFailed):
        await broker.security.accounts.delete_user(OWN, "ann")
    assert [user.name for user in broker.security.accounts.users(OWN)] == ["ann"]


async def test_a_caller_that_gives_up_leaves_what_the_topic_says(broker: Broker):
    accounts = broker.security.accounts
    await accounts.create_user(OWN, "ann")
    task = asyncio.ensure_future(accounts.delete_user(OWN, "ann"))
    partition = broker.topics.existing("__security").partitions[0]
    before = partition.end
    await until(lambda: partition.end > before)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: not accounts.users(OWN))


async def test_a_node_that_follows_reads_what_the_leader_writes(start_broker: Starting):
    leader = await start_broker(authorization="on")
    follower = Broker(leader.runtime, leader.log, leader.config)
    await follower.follow()
    assert not follower.security.allows(ANN, *RIGHT)
    await leader.security.grants.add_rules(OWN, [allow("ann", *RIGHT)])
    await leader.security.accounts.create_user(OWN, "ann", "secret")
    await until(lambda: follower.security.allows(ANN, *RIGHT))
    await until(lambda: "ann" in follower.security.users.by_name)
    gone: list[str] = []
    follower.security.watch(ANN, *RIGHT, lambda error: gone.append(error.name))
    await leader.security.grants.remove_rules(OWN, [RULES])
    await until(lambda: gone == ["t"])
    many = [allow(f"u{number}", *RIGHT) for number in range(3 * STEP_CHANGES)]
    await leader.security.grants.add_rules(OWN, many)
    # It leads: what it has read so far is not read again.
    await follower.security.start()
    assert len(follower.security.grants.find_rules(OWN, RULES)) == len(many)
    await follower.security.stop()


async def test_nothing_is_allowed_before_rules_are_read(start_broker: Starting, monkeypatch: pytest.MonkeyPatch):
    leader = await start_broker(authorization="on", super_users="root")
    await leader.security.grants.add_rules(OWN, [allow("ann", *RIGHT)])
    follower = Broker(leader.runtime, leader.log, leader.config)
    load = follower.security.store._topic.load

    async def fail(*arguments: object, **more: object) -> int:
        raise StorageFailed("the disk is gone")

    monkeypatch.setattr(follower.security.store._topic, "load", fail)
    await follower.follow()
    assert not follower.security.allows(ANN, *RIGHT)
    assert follower.security.allows(Session(user="root"), *RIGHT)
    monkeypatch.setattr(follower.security.store._topic, "load", load)
    await until(lambda: follower.security.allows(ANN, *RIGHT))
    await follower.security.stop()
