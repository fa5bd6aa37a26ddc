"""Groups of RocketMQ's clients: members by heartbeats, positions that coalesce, and what outlives the process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.groups import Commit, JoinRequest, Problem, State
from headrace.broker.groups.protocol import GroupError
from headrace.broker.groups.rocketmq_group import LOCK_MS, RocketMqGroup, RocketMqMember, RocketMqSubscription

ALL = RocketMqSubscription("*")
WEEK_MS = 7 * 86_400_000


def member(name: str, *topics: str, notices: list[str] | None = None) -> RocketMqMember:
    heard = [] if notices is None else notices
    return RocketMqMember(name, "127.0.0.1", dict.fromkeys(topics, ALL), lambda _: heard.append(name))


def test_members_are_notified_when_the_list_or_a_subscription_changes() -> None:
    notices: list[str] = []
    group = RocketMqGroup("g", lambda: 1)
    one, two = member("one", "t", notices=notices), member("two", "t", notices=notices)
    group.join(one)
    assert notices == ["one"]
    group.join(two)
    assert notices[1:] == ["one", "two"]
    group.join(replace(one))
    assert len(notices) == 3, "the same once more is no news"
    changed = member("one", "t", "u", notices=notices)
    group.join(changed)
    assert len(notices) == 5
    assert not group.leave_member(one), "another connection has its place"
    assert group.leave_member(changed)
    assert notices[5:] == ["two"]
    assert group.leave_member(two)
    assert group.is_vacant
    assert group.state is State.EMPTY


def test_the_newest_subscription_counts() -> None:
    group = RocketMqGroup("g", lambda: 1)
    assert group.subscription("t") is None
    old, new = RocketMqSubscription("a", 1), RocketMqSubscription("b", 2)
    group.join(RocketMqMember("one", "", {"t": new}, lambda _: None))
    group.join(RocketMqMember("two", "", {"t": old}, lambda _: None))
    assert group.subscription("t") is new
    assert group.reads_topic("t")
    assert not group.reads_topic("u")


def test_locks_end() -> None:
    group = RocketMqGroup("g", lambda: 1)
    assert group.lock(("t", 0), "one", 1_000)
    assert not group.lock(("t", 0), "two", 1_000 + LOCK_MS - 1)
    assert group.lock(("t", 0), "two", 1_000 + LOCK_MS)
    group.unlock(("t", 0), "one")
    assert not group.lock(("t", 0), "one", 1_000 + LOCK_MS)


async def written(broker: Broker) -> int:
    """Records in the topic of the groups."""
    topic = broker.topics.existing("__consumer_offsets")
    return sum(partition.end for partition in topic.partitions)


async def test_positions_that_have_not_moved_are_not_appended(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        topic = await broker.topics.create("t", 2)
        groups = broker.groups.rocketmq
        assert await groups.position("g", topic, 0) is None
        groups.move("g", topic, 0, 5)
        groups.move("g", topic, 1, 6)
        assert await groups.position("g", topic, 0) == 5
        assert await groups.position("g", topic, 1) == 6
        before = await written(broker)
        for _ in range(3):
            groups.move("g", topic, 0, 5)
            groups.move("g", topic, 1, 6)
            await groups.settle("g")
        assert await written(broker) == before
        for offset in range(7, 100):
            groups.move("g", topic, 0, offset)
        await groups.settle("g")
        assert await written(broker) < before + 10, "those that came meanwhile go together"
        assert await groups.position("g", topic, 0) == 99
        # Also back.
        groups.move("g", topic, 0, 3)
        assert await groups.position("g", topic, 0) == 3
    async with brokers.running(tmp_path) as broker:
        assert await broker.groups.rocketmq.position("g", broker.topics.existing("t"), 0) == 3


async def test_a_topic_made_anew_has_no_position(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        groups = broker.groups.rocketmq
        groups.move("g", await broker.topics.create("t"), 0, 5)
        await groups.settle("g")
        await broker.topics.delete("t")
        topic = await broker.topics.create("t")
        assert await groups.position("g", topic, 0) is None
        groups.move("g", topic, 0, 5)
        assert await groups.position("g", topic, 0) == 5, "the same number, and yet another position"


async def test_live_members_keep_offsets_and_an_empty_group_loses_them(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        topic = await broker.topics.create("t")
        groups = broker.groups.rocketmq
        groups.move("g", topic, 0, 5)
        await groups.settle("g")
        joined = member("one", "t")
        group = await groups.join("g", joined)
        far = broker.runtime.clock.now_ms() + 10 * WEEK_MS
        assert group.expired(far, WEEK_MS) == []
        groups.leave(group, joined)
        assert group.expired(broker.runtime.clock.now_ms(), WEEK_MS) == []
        assert group.expired(far, WEEK_MS) == [("t", 0)]


async def test_a_group_is_rocketmqs_after_a_restart_and_empty_since_it_was(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        topic = await broker.topics.create("t")
        groups = broker.groups.rocketmq
        for name in ("left", "killed"):
            groups.move(name, topic, 0, 5)
            await groups.settle(name)
            joined = member("one", "t")
            group = await groups.join(name, joined)
            if name == "left":
                groups.leave(group, joined)
        left_ms = groups.find("left").state_ms  # type: ignore[union-attr]
        assert left_ms <= broker.runtime.clock.now_ms()
    async with brokers.running(tmp_path) as broker:
        started_ms = broker.runtime.clock.now_ms()
        problem, listed = await broker.groups.list_groups()
        assert problem is Problem.NONE
        assert {(each.group_id, each.state) for each in listed} == {("left", State.EMPTY), ("killed", State.EMPTY)}
        left, killed = broker.groups.rocketmq.find("left"), broker.groups.rocketmq.find("killed")
        assert left is not None
        assert killed is not None
        assert left.state_ms == left_ms
        assert killed.state_ms >= started_ms, "it had members until the end of the process"


async def test_groups_of_other_protocols(tmp_path: Path) -> None:
    async with brokers.running(tmp_path, group_initial_rebalance_delay_ms=0) as broker:
        topic = await broker.topics.create("t")
        groups = broker.groups.rocketmq
        joined = member("one", "t")
        group = await groups.join("g", joined)
        request = JoinRequest(
            member_id="",
            protocol_type="consumer",
            protocols=(("range", b""),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
        )
        assert (await broker.groups.join("g", request)).problem is Problem.INCONSISTENT_GROUP_PROTOCOL
        commit = [Commit("t", topic.id, 0, 3)]
        assert await broker.groups.commit("g", commit) == [Problem.UNKNOWN_MEMBER_ID]
        assert (await broker.groups.delete("g")) is Problem.NON_EMPTY_GROUP
        groups.leave(group, joined)
        assert await broker.groups.commit("g", commit) == [Problem.NONE]
        assert await groups.position("g", topic, 0) == 3
        answer = await broker.groups.join("g", request)
        assert answer.problem is Problem.NONE
        with pytest.raises(GroupError, match="members that speak Kafka's protocol"):
            await groups.join("g", joined)
        groups.move("g", topic, 0, 9)
        with pytest.raises(GroupError):
            await groups.settle("g")


async def test_names_that_no_group_can_have(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        for name in ("", "x" * 9_000):
            with pytest.raises(GroupError):
                await broker.groups.rocketmq.join(name, member("one"))


async def test_a_group_that_never_had_anything_is_forgotten(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        groups = broker.groups.rocketmq
        joined = member("one")
        groups.leave(await groups.join("g", joined), joined)
        await broker.groups.expire()
        assert groups.find("g") is None
        await until(lambda: groups.find("g") is None)


async def test_positions_that_were_not_stored_are_not_made_good_by_others(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        topic = await broker.topics.create("t", 1)
        groups = broker.groups.rocketmq
        append, problems = groups._append_moved, [Problem.COORDINATOR_NOT_AVAILABLE, Problem.NONE]

        async def fail_first(group_id: str, moved: Iterable[Any]) -> Problem:
            # While the first is appended, another comes.
            if len(problems) == 2:
                groups.move("g", topic, 0, 2)
            return problems.pop(0)

        groups._append_moved = fail_first  # type: ignore[method-assign]
        groups.move("g", topic, 0, 1)
        with pytest.raises(GroupError):
            await groups.settle("g")
        groups._append_moved = append  # type: ignore[method-assign]
