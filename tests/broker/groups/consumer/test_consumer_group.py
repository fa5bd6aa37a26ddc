"""A group of the consumer protocol: who comes, follows, falls silent, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.groups.consumer.stage import GROUP, Client, ConsumerStage, refusal, settle

from headrace.broker.groups.consumer import consumer_group as module
from headrace.broker.groups.consumer.consumer_member import Step
from headrace.broker.groups.protocol import Leaver, Problem, State


def test_one_member_has_all() -> None:
    stage = ConsumerStage(t=4)
    a = Client(stage, "a")
    answer = a.join()
    assert (answer.member_id, answer.epoch, answer.heartbeat_ms) == ("a", 1, 5_000)
    assert answer.assignment == {stage.catalogue["t"].id: frozenset(range(4))}
    a.obey()
    assert a.beat().assignment is None
    assert stage.group.state is State.STABLE


def test_a_second_member_gets_what_the_first_gives_back() -> None:
    stage = ConsumerStage(t=4)
    topic = stage.catalogue["t"].id
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    assert b.join().assignment == {}
    assert (b.epoch, stage.group.state) == (2, State.RECONCILING)

    told = a.beat().assignment
    assert told is not None
    assert (len(told[topic]), a.epoch) == (2, 1), "it must give two back before it enters the new epoch"
    assert a.beat(tells=False).epoch == 1
    assert b.beat().assignment is None, "they are not free yet"
    a.obey()
    assert a.beat().epoch == 2
    (theirs,) = (b.beat().assignment or {}).values()
    assert theirs == frozenset(range(4)) - told[topic]
    assert stage.group.state is State.STABLE


def test_members_that_nothing_changes_for_go_on() -> None:
    stage = ConsumerStage(t=4, u=4)
    a, b = Client(stage, "a", topics=("t",)), Client(stage, "b", topics=("u",))
    a.join()
    a.obey()
    b.join()
    answer = a.beat(tells=False)
    assert (answer.epoch, answer.assignment) == (2, None)


def test_silence() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    b.join()
    stage.loop.advance(30)
    a.beat()
    stage.loop.advance(30)
    assert list(stage.group.roster.members) == ["a"]
    settle(a)
    assert sum(map(len, a.has.values())) == 2
    stage.loop.advance(45)
    assert stage.group.state is State.EMPTY
    assert refusal(a.beat) is Problem.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_back_is_out() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a", rebalance_timeout_ms=10_000), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    assert stage.group.roster.members["a"].position.step is Step.UNREVOKED
    for _ in range(3):
        stage.loop.advance(4)
        if "a" in stage.group.roster.members:
            a.beat()
        b.beat()
    assert list(stage.group.roster.members) == ["b"]
    settle(b)
    assert sum(map(len, b.has.values())) == 2


def test_one_that_gave_back_in_time_stays() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a", rebalance_timeout_ms=10_000), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    settle(a, b)
    stage.loop.advance(20)
    assert len(stage.group.roster.members) == 2


def test_epochs() -> None:
    stage = ConsumerStage(t=4)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    settle(a, b)
    assert (a.epoch, b.epoch) == (2, 2)
    a.epoch = 3
    assert refusal(a.beat) is Problem.FENCED_MEMBER_EPOCH
    a.epoch = 1
    assert refusal(lambda: a.beat(tells=False)) is Problem.FENCED_MEMBER_EPOCH
    a.has = {stage.catalogue["t"].id: frozenset(range(4))}
    assert refusal(a.beat) is Problem.FENCED_MEMBER_EPOCH
    a.obey()
    assert a.beat().epoch == 2, "the answer that told it may have been lost"
    assert a.join().assignment == a.told, "whoever is fenced joins again, and finds what it had"


def test_subscriptions_change() -> None:
    stage = ConsumerStage(t=2, u=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    b.join()
    settle(a, b)
    a.beat(topics=("u",))
    assert stage.group.reads_topic("u")
    settle(a, b)
    assert list(a.has) == [stage.catalogue["u"].id]
    assert sum(map(len, b.has.values())) == 2
    epoch = stage.group.epoch
    a.beat(topics=("u", "u"))
    assert stage.group.epoch == epoch
    a.beat(topics=("nowhere",))
    settle(a, b)
    assert (a.has, stage.group.reads_topic("u"), stage.group.reads_topic("nowhere")) == ({}, False, True)


def test_a_topic_is_left_at_once() -> None:
    """Also by a member that has yet to give something else back."""
    stage = ConsumerStage(t=2, u=2)
    a, b = Client(stage, "a", topics=("t", "u")), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    assert stage.group.roster.members["a"].position.step is Step.UNREVOKED
    assert a.beat(tells=False, topics=("t",)).assignment is not None
    assert stage.catalogue["u"].id not in a.told


def test_topics_come_grow_and_go() -> None:
    stage = ConsumerStage(t=2)
    a = Client(stage, "a", topics=("t", "u"))
    a.join()
    a.obey()
    u = stage.make("u", 1)
    settle(a)
    assert a.has[u] == {0}
    stage.make("u", 3)
    settle(a)
    assert a.has[u] == {0, 1, 2}
    stage.delete("u")
    settle(a)
    assert u not in a.has
    epoch = stage.group.epoch
    stage.make("other", 5)
    settle(a)
    assert stage.group.epoch == epoch


def test_patterns() -> None:
    stage = ConsumerStage(t1=2, t2=1, other=1)
    a = Client(stage, "a", topics=None, pattern="t[0-9]")
    a.join()
    a.obey()
    assert sum(map(len, a.has.values())) == 3
    stage.make("t3", 2)
    stage.make("t33", 2)
    settle(a)
    assert sum(map(len, a.has.values())) == 5
    assert stage.group.reads_topic("t3")
    assert refusal(lambda: a.beat(pattern="(")) is Problem.INVALID_REGULAR_EXPRESSION
    assert refusal(lambda: a.beat(pattern="t" * 5_000)) is Problem.INVALID_REGULAR_EXPRESSION
    a.beat(pattern="", topics=("other",))
    settle(a)
    assert list(a.has) == [stage.catalogue["other"].id]


def test_patterns_take_no_longer_than_names() -> None:
    """A matcher that goes back and forth would take longer than the world has stood."""
    stage = ConsumerStage(**{"a" * 240: 1})
    assert Client(stage, "a", topics=(), pattern="(a*)*b").join().assignment == {}


def test_static_members() -> None:
    stage = ConsumerStage(t=2)
    a = Client(stage, "a", instance_id="i")
    a.join()
    a.obey()
    twin = Client(stage, "b", instance_id="i")
    assert refusal(twin.join) is Problem.UNRELEASED_INSTANCE_ID
    assert refusal(twin.beat) is Problem.UNRELEASED_INSTANCE_ID
    twin.epoch = 1
    assert refusal(twin.beat) is Problem.FENCED_INSTANCE_ID
    assert refusal(twin.leave) is Problem.FENCED_INSTANCE_ID
    stranger = Client(stage, "c", instance_id="j")
    stranger.epoch = 1
    assert refusal(stranger.beat) is refusal(stranger.leave) is Problem.UNKNOWN_MEMBER_ID

    epoch = stage.group.epoch
    assert a.leave(-2).epoch == -2
    assert refusal(lambda: Client(stage, "x").beat()) is Problem.NONE
    assert stage.group.epoch == epoch + 1, "only the newcomer is a change"
    stage.group.leave([Leaver("x")])
    assert twin.join().assignment == a.told
    assert list(stage.group.roster.members) == ["b"]
    a.epoch = epoch
    assert refusal(a.beat) is Problem.FENCED_INSTANCE_ID


def test_instance_ids_do_not_move() -> None:
    """A member that is in the group has the instance id that it came with."""
    stage = ConsumerStage(t=4)
    a, b, c = Client(stage, "a", instance_id="i"), Client(stage, "b", instance_id="j"), Client(stage, "c")
    for client in (a, b, c):
        client.join()
    settle(a, b, c)
    a.leave(-2)
    b.instance_id = c.instance_id = "i"
    assert refusal(b.join) is refusal(c.join) is Problem.INVALID_REQUEST
    b.instance_id = "new"
    assert refusal(b.join) is Problem.INVALID_REQUEST
    b.instance_id, c.instance_id = "j", None
    settle(b, c)
    for client in (b, c):
        client.leave()
    assert Client(stage, "d", instance_id="j").join().problem is Problem.NONE


def test_a_static_member_that_stays_away_is_out() -> None:
    stage = ConsumerStage(t=2)
    a = Client(stage, "a", instance_id="i")
    a.join()
    a.leave(-2)
    stage.loop.advance(45)
    assert stage.group.state is State.EMPTY
    assert refusal(Client(stage, "b", instance_id="i").join) is Problem.NONE


def test_a_static_member_that_goes_has_nothing_to_give_back() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a", instance_id="i", rebalance_timeout_ms=5_000), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    a.leave(-2)
    assert sum(map(len, (b.beat().assignment or {}).values())) == 1
    stage.loop.advance(10)
    assert set(stage.group.roster.members) == {"a", "b"}


def test_administrators_take_members_out() -> None:
    stage = ConsumerStage(t=2)
    for member_id, instance_id in (("a", None), ("b", "i"), ("c", "j")):
        Client(stage, member_id, instance_id=instance_id).join()
    leavers = [Leaver("a"), Leaver("", "i"), Leaver("a", "j"), Leaver("zz"), Leaver("c", "i")]
    unknown, fenced = Problem.UNKNOWN_MEMBER_ID, Problem.FENCED_INSTANCE_ID
    assert stage.group.leave(leavers) == [Problem.NONE, Problem.NONE, fenced, unknown, unknown]
    assert stage.group.leave([Leaver("zz", "j"), Leaver("", "zz"), Leaver("")]) == [fenced, unknown, unknown]
    Client(stage, "d", instance_id="k").join()
    assert stage.group.leave([Leaver("c", "k")]) == [fenced]
    assert list(stage.group.roster.members) == ["c", "d"]


def test_static_members_are_served_first() -> None:
    """By their instance ids: whoever comes and goes beside them moves nothing of theirs but shares."""
    stage = ConsumerStage(t=4)
    clients = [
        Client(stage, "a", assignor="range"),
        Client(stage, "b", assignor="range", instance_id="y"),
        Client(stage, "c", assignor="range", instance_id="x"),
        Client(stage, "d", assignor="range"),
    ]
    for client in clients:
        client.join()
    settle(*clients)
    has = {client.member_id: [index for indexes in client.has.values() for index in indexes] for client in clients}
    assert has == {"c": [0], "b": [1], "a": [2], "d": [3]}


def test_what_is_yet_to_be_given_back_is_shown_with_who_has_it() -> None:
    stage = ConsumerStage(t=2)
    topic = stage.catalogue["t"].id
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    shown = {member.member_id: member for member in stage.group.describe().members}
    assert shown["a"].assignment == {topic: frozenset({0, 1})} == a.has
    assert (len(shown["a"].target[topic]), len(shown["b"].target[topic]), shown["b"].assignment) == (1, 1, {})


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ConsumerStage(t=2)
    stage.max_size = 2
    Client(stage, "a").join()
    Client(stage, "b").join()
    assert refusal(Client(stage, "c").join) is Problem.GROUP_MAX_SIZE_REACHED
    assert Client(stage, "b").join().problem is Problem.NONE
    larger = Client(stage, "b", topics=("t", "u"))
    size = sum(member.traits.size for member in stage.group.roster)
    monkeypatch.setattr(module, "GROUP_BYTES_MAX", size + 67)
    assert refusal(larger.join) is Problem.GROUP_MAX_SIZE_REACHED
    assert stage.group.roster.members["b"].traits.topics == ("t",)
    monkeypatch.setattr(module, "GROUP_BYTES_MAX", size + 68)
    assert refusal(larger.join) is Problem.NONE


def test_patterns_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ConsumerStage(t=2)
    monkeypatch.setattr(module, "PATTERNS_MAX", 2)
    Client(stage, "a", pattern="x").join()
    Client(stage, "b", pattern="y").join()
    assert refusal(Client(stage, "c", pattern="z").join) is Problem.GROUP_MAX_SIZE_REACHED
    assert refusal(Client(stage, "c", pattern="x").join) is Problem.NONE


def test_commits() -> None:
    stage = ConsumerStage(t=2)
    judge = stage.group.judge_commit
    assert judge("", -1, True) is Problem.NONE
    a = Client(stage, "a")
    a.join()
    assert judge("", -1, True) is Problem.UNKNOWN_MEMBER_ID
    assert judge("a", 1, True) is Problem.NONE
    assert judge("a", 0, True) is judge("a", 2, True) is Problem.STALE_MEMBER_EPOCH
    assert judge("a", 1, False) is Problem.UNSUPPORTED_VERSION
    fetch = stage.group.judge_fetch
    assert (fetch(None, -1), fetch("a", 1)) == (Problem.NONE, Problem.NONE)
    assert (fetch("a", 2), fetch("b", 1)) == (Problem.STALE_MEMBER_EPOCH, Problem.UNKNOWN_MEMBER_ID)


def test_commits_in_an_epoch_that_has_passed() -> None:
    """A commit may have been on its way when the member was told of its new epoch: it holds for what it kept."""
    stage = ConsumerStage(t=2)
    topic = stage.catalogue["t"].id
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    settle(a, b)
    (kept,), (lost,) = a.has[topic], b.has[topic]
    held = stage.group.roster.held
    assert (a.epoch, stage.group.judge_commit("a", 1, True)) == (2, Problem.STALE_MEMBER_EPOCH)
    assert [held("a", epoch, topic, kept) for epoch in (0, 1, 2, 3)] == [False, True, True, False]
    assert not held("a", 1, topic, lost)
    assert [held("b", epoch, topic, lost) for epoch in (1, 2)] == [False, True]


async def saved(stage: ConsumerStage) -> Problem:
    return await stage.group.saved()


async def test_what_could_not_be_written_is_written_next_time() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    stage.failing = Problem.COORDINATOR_NOT_AVAILABLE
    b.join()
    assert await saved(stage) is Problem.COORDINATOR_NOT_AVAILABLE
    assert list(stage.replayed().roster.members) == ["a"]
    b.leave()
    stage.failing = Problem.NONE
    settle(a)
    assert await saved(stage) is Problem.NONE
    assert stage.replayed().describe() == stage.group.describe()


async def test_whoever_was_not_told_is_told() -> None:
    """A position that could not be written is not answered; the next heartbeat of its member, however short, is."""
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    a.obey()
    a.beat()
    stage.failing = Problem.COORDINATOR_NOT_AVAILABLE
    b.beat()
    assert await saved(stage) is Problem.COORDINATOR_NOT_AVAILABLE
    stage.failing = Problem.NONE
    assert sum(map(len, (b.beat(tells=False).assignment or {}).values())) == 1
    assert b.beat(tells=False).assignment is None


async def test_members_whose_end_was_not_written_end_with_the_group() -> None:
    stage = ConsumerStage(t=2)
    a = Client(stage, "a")
    a.join()
    stage.failing = Problem.COORDINATOR_NOT_AVAILABLE
    a.leave()
    stage.written += stage.group.tombstones()
    assert not stage.replayed().roster.members


async def test_changes_are_written_together_or_not_at_all() -> None:
    """However many they are: of a part of them, two members could have one partition."""
    stage = ConsumerStage(t=40)
    clients = [Client(stage, name) for name in "abcd"]
    for client in clients:
        client.join()
    settle(*clients)
    assert await saved(stage) is Problem.NONE
    stage.hold = True
    clients[0].beat(topics=("u",))
    assert len(stage.waiting) == 1
    stage.failing = Problem.COORDINATOR_NOT_AVAILABLE
    clients[1].beat(topics=("u",))
    assert len(stage.waiting) == 2
    stage.release()
    stage.hold, stage.failing = False, Problem.NONE
    settle(*clients)
    assert await saved(stage) is Problem.NONE
    assert stage.replayed().describe() == stage.group.describe()


async def test_an_answer_does_not_pass_a_failure_before_it() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    stage.hold, stage.failing = True, Problem.COORDINATOR_NOT_AVAILABLE
    a.join()
    stage.failing = Problem.NONE
    b.join()
    stage.release()
    assert await saved(stage) is Problem.COORDINATOR_NOT_AVAILABLE
    stage.hold = False
    b.beat()
    assert await saved(stage) is Problem.NONE
    assert set(stage.replayed().roster.members) == {"a", "b"}


def test_after_a_start_members_go_on() -> None:
    stage = ConsumerStage(t=4)
    a, b = Client(stage, "a"), Client(stage, "b", instance_id="i")
    a.join()
    b.join()
    settle(a, b)
    written = len(stage.written)
    stage.group = stage.replayed()
    stage.group.resume()
    for client in (a, b):
        assert client.beat().assignment == client.has, "the answer that told it may have been lost"
        assert client.beat().assignment is None
    assert len(stage.written) == written, "a start is no reason to move anybody"
    stage.loop.advance(44)
    a.beat()
    stage.loop.advance(1)
    assert list(stage.group.roster.members) == ["a"]


def test_a_start_amid_a_revocation() -> None:
    stage = ConsumerStage(t=4)
    a, b = Client(stage, "a", rebalance_timeout_ms=5_000), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    stage.group = stage.replayed()
    stage.group.resume()
    assert b.beat().assignment == {}
    stage.loop.advance(5)
    assert list(stage.group.roster.members) == ["b"]


def test_topics_that_changed_while_nobody_looked() -> None:
    stage = ConsumerStage(t=1)
    a = Client(stage, "a")
    a.join()
    a.obey()
    stage.group = stage.replayed()
    stage.make("t", 2)
    settle(a)
    assert sum(map(len, a.has.values())) == 2


def test_it_ends_without_a_timer() -> None:
    stage = ConsumerStage(t=2)
    a, b = Client(stage, "a"), Client(stage, "b")
    a.join()
    a.obey()
    b.join()
    a.beat()
    stage.group.kill()
    assert (stage.loop.armed, stage.group.state) == (0, State.DEAD)
    assert stage.group.group_id == GROUP


def test_targets_that_take_long_are_computed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ConsumerStage(t=4)
    quick = module.ASSIGNORS["uniform"]

    def slow(*told: Any) -> Any:
        stage.loop.now += 0.1
        return quick(*told)

    monkeypatch.setitem(module.ASSIGNORS, "uniform", slow)
    clients = [Client(stage, name) for name in "abc"]
    for client in clients:
        assert client.join().epoch == 1
        client.obey()
    assert stage.group.state is State.ASSIGNING
    assert [sum(map(len, client.has.values())) for client in clients] == [4, 0, 0]
    stage.loop.advance(0.99)
    settle(*clients)
    assert stage.group.state is State.ASSIGNING
    stage.loop.advance(0.02)
    settle(*clients)
    assert stage.group.state is State.STABLE
    assert sorted(sum(map(len, client.has.values())) for client in clients) == [1, 1, 2]


def test_what_is_no_longer_read_is_left_before_the_next_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those may be a while off."""
    stage = ConsumerStage(t=2, u=2)
    quick = module.ASSIGNORS["uniform"]

    def slow(*told: Any) -> Any:
        stage.loop.now += 0.1
        return quick(*told)

    monkeypatch.setitem(module.ASSIGNORS, "uniform", slow)
    a, b = Client(stage, "a", topics=("t", "u")), Client(stage, "b", topics=("t", "u"))
    a.join()
    a.obey()
    t, u = stage.catalogue["t"].id, stage.catalogue["u"].id
    assert a.beat(topics=("t",)).assignment == {t: frozenset({0, 1})}
    assert stage.group.roster.members["a"].position.step is Step.UNREVOKED
    assert b.join().assignment == {}
    stage.delete("t")
    a.obey()
    assert a.beat().assignment == {}, "nor has it what is gone"
    a.obey()
    a.beat()
    assert (stage.group.state, stage.group.roster.owners) == (State.ASSIGNING, {})
    stage.loop.advance(2)
    settle(a, b)
    assert (stage.group.state, a.has, b.has) == (State.STABLE, {}, {u: frozenset({0, 1})})
