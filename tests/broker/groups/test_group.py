"""The state machine of a group, one rule at a time."""

from __future__ import annotations

import pytest
from tests.broker.groups.stage import Stage, join_request, joined, leave, stable, sync_request, synced

from headrace.broker.groups.group import Group
from headrace.broker.groups.members import GROUP_BYTES_MAX
from headrace.broker.groups.protocol import Leaver, Problem, State, SyncRequest


def new_group(**settings: object) -> tuple[Stage, Group]:
    stage = Stage(**settings)  # type: ignore[arg-type]
    return stage, Group("g", stage)


def test_first_member_leads_and_syncs() -> None:
    stage, group = new_group()
    answer = joined(group.join(join_request()))
    assert (answer.problem, answer.generation, answer.leader) == (Problem.NONE, 1, answer.member_id)
    assert [each.metadata for each in answer.members] == [b"r"]
    assert group.state is State.COMPLETING
    got = synced(group.sync(SyncRequest(member_id="c-1", generation=1, assignments=(("c-1", b"all"),))))
    assert (got.assignment, got.protocol_name, group.state) == (b"all", "range", State.STABLE)
    assert stage.stores == [(1, {"c-1": b"all"})]


def test_dynamic_member_must_come_back_with_its_id() -> None:
    _, group = new_group()
    answer = joined(group.join(join_request(needs_known_id=True)))
    assert answer.problem is Problem.MEMBER_ID_REQUIRED
    assert group.state is State.EMPTY
    assert joined(group.join(join_request(answer.member_id, needs_known_id=True))).generation == 1


def test_pending_member_that_never_comes_back_is_forgotten() -> None:
    stage, group = new_group()
    answer = joined(group.join(join_request(needs_known_id=True)))
    stage.loop.advance(10.1)
    assert stage.vacancies == 1
    assert joined(group.join(join_request(answer.member_id))).problem is Problem.UNKNOWN_MEMBER_ID


def test_pending_member_holds_up_a_rebalance_until_its_time_is_up() -> None:
    stage, group = new_group()
    (leader,) = stable(group, 1)
    joined(group.join(join_request(needs_known_id=True)))
    assert group.state is State.STABLE, "an id that was handed out changes nothing"
    again = group.join(join_request(leader.member_id))
    assert not again.done()
    for _ in range(3):
        stage.loop.advance(3.5)
        group.heartbeat(leader.member_id, None, leader.generation)
    assert joined(again).generation == 2


def test_leaving_while_pending_causes_no_rebalance() -> None:
    _, group = new_group()
    stable(group, 1)
    pending = joined(group.join(join_request(needs_known_id=True)))
    assert leave(group, pending.member_id) == [Problem.NONE]
    assert group.state is State.STABLE


def test_second_member_makes_the_first_rejoin() -> None:
    _, group = new_group()
    (first,) = stable(group, 1)
    second = group.join(join_request())
    assert group.heartbeat(first.member_id, None, 1) is Problem.REBALANCE_IN_PROGRESS
    assert not second.done()
    first_again = group.join(join_request(first.member_id))
    assert joined(first_again).generation == joined(second).generation == 2
    assert len(joined(first_again).members) == 2
    assert joined(second).members == ()


def test_follower_waits_for_the_leader_to_sync_and_the_store() -> None:
    stage, group = new_group()
    stable(group, 2)
    stage.hold = True
    one, two = group.join(join_request("c-1", protocols=(("range", b"x"),))), group.join(join_request("c-2"))
    follower = group.sync(sync_request(joined(two)))
    leader = group.sync(sync_request(joined(one), c_1=b"1", c_2=b"2"))
    assert not leader.done()
    assert group.judge_commit("c-2", None, group.generation) is Problem.REBALANCE_IN_PROGRESS
    stage.settle()
    assert (synced(leader).assignment, synced(follower).assignment) == (b"1", b"2")


def test_failed_store_makes_everybody_rejoin() -> None:
    stage, group = new_group()
    first = joined(group.join(join_request()))
    stage.failing = Problem.COORDINATOR_NOT_AVAILABLE
    answer = group.sync(sync_request(first, c_1=b"1"))
    assert synced(answer).problem is Problem.COORDINATOR_NOT_AVAILABLE
    assert group.state is State.PREPARING


def test_join_while_the_assignment_is_being_stored() -> None:
    stage, group = new_group()
    stage.hold = True
    first = joined(group.join(join_request()))
    waiting = group.sync(sync_request(first, c_1=b"1"))
    newcomer = group.join(join_request())
    assert synced(waiting).problem is Problem.REBALANCE_IN_PROGRESS
    stage.settle()
    assert group.state is State.PREPARING, "the old assignment must not make the group stable"
    group.join(join_request(first.member_id))
    assert joined(newcomer).generation == 2


def test_protocol_by_votes() -> None:
    _, group = new_group()
    a = (("range", b""), ("sticky", b""))
    b = (("sticky", b""), ("range", b""), ("mine", b""))
    group.join(join_request(protocols=a))
    waiting = [group.join(join_request(protocols=b)), group.join(join_request(protocols=b))]
    group.join(join_request("c-1", protocols=a))
    assert {joined(each).protocol_name for each in waiting} == {"sticky"}


def test_inconsistent_protocol() -> None:
    _, group = new_group()
    assert joined(group.join(join_request(protocols=()))).problem is Problem.INCONSISTENT_GROUP_PROTOCOL
    stable(group, 1)
    other = join_request(protocols=(("else", b""),))
    assert joined(group.join(other)).problem is Problem.INCONSISTENT_GROUP_PROTOCOL
    assert joined(group.join(join_request(protocol_type="connect"))).problem is Problem.INCONSISTENT_GROUP_PROTOCOL
    wrong = SyncRequest(member_id="c-2", generation=1, protocol_name="sticky")
    assert synced(group.sync(wrong)).problem is Problem.UNKNOWN_MEMBER_ID
    wrong = SyncRequest(member_id="c-1", generation=1, protocol_name="sticky")
    assert synced(group.sync(wrong)).problem is Problem.INCONSISTENT_GROUP_PROTOCOL


def test_silent_member_is_dropped() -> None:
    stage, group = new_group()
    leader, follower = stable(group, 2)
    for _ in range(3):
        stage.loop.advance(4)
        group.heartbeat(leader.member_id, None, group.generation)
    assert group.judge_member(follower.member_id, None) is Problem.UNKNOWN_MEMBER_ID
    assert group.state is State.PREPARING
    assert joined(group.join(join_request(leader.member_id))).generation == 3


def test_everybody_silent_empties_the_group() -> None:
    stage, group = new_group()
    stable(group, 3)
    stage.loop.advance(71)
    assert (group.state, group.protocol_name) == (State.EMPTY, None)
    assert stage.stores[-1] == (group.generation, {})
    assert stage.loop.armed == 0


def test_member_that_does_not_rejoin_is_dropped_after_the_rebalance_timeout() -> None:
    stage, group = new_group()
    leader, follower = stable(group, 2)
    again = group.join(join_request(leader.member_id))
    for _ in range(15):
        stage.loop.advance(4)
        group.heartbeat(follower.member_id, None, 2)
    assert joined(again).generation == 3
    assert len(joined(again).members) == 1


def test_waiting_in_a_join_outlives_the_session() -> None:
    stage, group = new_group()
    leader, follower = stable(group, 2)
    again = group.join(join_request(leader.member_id))
    for _ in range(5):
        stage.loop.advance(5)
        assert group.heartbeat(follower.member_id, None, 2) is Problem.REBALANCE_IN_PROGRESS
    group.join(join_request(follower.member_id))
    assert joined(again).generation == 3


def test_member_that_does_not_sync_is_dropped() -> None:
    stage, group = new_group()
    stable(group, 1)
    newcomer = group.join(join_request())
    leader = joined(group.join(join_request("c-1")))
    lazy = joined(newcomer)
    got = group.sync(sync_request(leader, c_1=b"1", c_2=b"2"))
    assert synced(got).assignment == b"1"
    for _ in range(16):
        stage.loop.advance(4)
        group.heartbeat(lazy.member_id, None, 2)
        group.heartbeat("c-1", None, 2)
    assert group.state is State.PREPARING
    assert lazy.member_id not in group.roster


def test_leave_by_the_last_member() -> None:
    stage, group = new_group()
    (only,) = stable(group, 1)
    assert leave(group, only.member_id, "nobody") == [Problem.NONE, Problem.UNKNOWN_MEMBER_ID]
    assert (group.state, group.generation) == (State.EMPTY, 2)
    assert stage.loop.armed == 0


def test_rejoin_with_nothing_new_is_told_the_same() -> None:
    _, group = new_group()
    leader, follower = stable(group, 2)
    assert joined(group.join(join_request(follower.member_id))) == follower
    assert group.state is State.STABLE
    assert not group.join(join_request(leader.member_id)).done(), "a leader asks for a new division"


def test_later_join_of_a_member_answers_the_earlier() -> None:
    _, group = new_group()
    leader, follower = stable(group, 2)
    first = group.join(join_request(leader.member_id))
    second = group.join(join_request(leader.member_id))
    assert joined(first).problem is Problem.REBALANCE_IN_PROGRESS
    group.join(join_request(follower.member_id))
    assert joined(second).generation == 3


def test_generations_and_strangers() -> None:
    _, group = new_group()
    (only,) = stable(group, 1)
    assert group.heartbeat(only.member_id, None, 7) is Problem.ILLEGAL_GENERATION
    assert group.heartbeat("x", None, 1) is Problem.UNKNOWN_MEMBER_ID
    assert synced(group.sync(SyncRequest(member_id="c-1", generation=0))).problem is Problem.ILLEGAL_GENERATION
    assert joined(group.join(join_request("x"))).problem is Problem.UNKNOWN_MEMBER_ID


def test_commits() -> None:
    stage, group = new_group()
    assert group.judge_commit("", None, -1) is Problem.NONE
    (only,) = stable(group, 1)
    assert group.judge_commit("", None, -1) is Problem.UNKNOWN_MEMBER_ID
    assert group.judge_commit(only.member_id, None, 1) is Problem.NONE
    assert group.judge_commit(only.member_id, None, 0) is Problem.ILLEGAL_GENERATION
    group.join(join_request())
    assert group.state is State.PREPARING
    assert group.judge_commit(only.member_id, None, 1) is Problem.NONE
    for _ in range(4):
        stage.loop.advance(4)
        assert group.judge_commit(only.member_id, None, 1) is Problem.NONE, "a commit keeps the session"


def test_initial_delay_waits_for_more_and_is_put_off() -> None:
    stage, group = new_group(initial_delay=3.0)
    first = group.join(join_request())
    stage.loop.advance(2.9)
    second = group.join(join_request())
    stage.loop.advance(2.9)
    assert not first.done(), "a newcomer gives the others another delay"
    stage.loop.advance(0.3)
    assert joined(first).generation == joined(second).generation == 1


def test_group_is_full() -> None:
    _, group = new_group(max_size=2)
    stable(group, 2)
    assert joined(group.join(join_request())).problem is Problem.GROUP_MAX_SIZE_REACHED
    assert group.state is State.STABLE
    asked = join_request(needs_known_id=True)
    assert joined(group.join(asked)).problem is Problem.GROUP_MAX_SIZE_REACHED


def test_metadata_is_bounded() -> None:
    _, group = new_group()
    heavy = join_request(protocols=(("range", bytes(GROUP_BYTES_MAX)),))
    assert joined(group.join(heavy)).problem is Problem.GROUP_MAX_SIZE_REACHED


# --- static members ---------------------------------------------------------------------------------------------------


def test_static_leader_returns_without_a_rebalance_and_skips_the_assignment() -> None:
    stage, group = new_group()
    (old,) = stable(group, 1, instance_id="i")
    back = joined(group.join(join_request(instance_id="i", may_skip_assignment=True)))
    assert back.member_id != old.member_id
    assert (back.generation, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert len(back.members) == 1
    assert group.state is State.STABLE
    assert synced(group.sync(sync_request(back))).assignment == old.member_id.encode()
    assert group.heartbeat(old.member_id, "i", 1) is Problem.FENCED_INSTANCE_ID
    assert stage.stores[-1] == (1, {back.member_id: old.member_id.encode()})


def test_older_static_leader_is_shown_its_old_id() -> None:
    _, group = new_group()
    (old,) = stable(group, 1, instance_id="i")
    back = joined(group.join(join_request(instance_id="i")))
    assert (back.leader, back.members, back.skip_assignment) == (old.member_id, (), False)


def test_static_return_that_changes_the_protocol_rebalances() -> None:
    _, group = new_group()
    both = (("range", b""), ("sticky", b""))
    stable(group, 1, instance_id="i", protocols=both)
    back = joined(group.join(join_request(instance_id="i", protocols=both[::-1])))
    assert (back.generation, back.protocol_name) == (2, "sticky")


def test_static_return_while_completing_rebalances() -> None:
    _, group = new_group()
    first = joined(group.join(join_request(instance_id="i")))
    waiting = group.sync(SyncRequest(member_id="stranger", generation=1))
    assert synced(waiting).problem is Problem.UNKNOWN_MEMBER_ID
    back = joined(group.join(join_request(instance_id="i")))
    assert back.generation == first.generation + 1


@pytest.mark.parametrize("problem", [Problem.NONE, Problem.COORDINATOR_NOT_AVAILABLE])
def test_static_return_in_a_rebalance_is_stored_before_the_member_knows(problem: Problem) -> None:
    stage, group = new_group()
    (old,) = stable(group, 1, instance_id="i", protocols=(("range", b"old"),))
    stage.hold, stage.failing = True, problem
    other = group.join(join_request())
    back = group.join(join_request(instance_id="i", protocols=(("range", b"new"),)))
    assert group.state is State.COMPLETING
    assert not other.done()
    assert not back.done()
    stage.settle()
    assert {joined(other).problem, joined(back).problem} == {problem}
    restarted = Group("g", stage)
    assert stage.record is not None
    restarted.restore(stage.record)
    if problem is Problem.NONE:
        # It joins again, as itself.
        assert joined(back).generation == 2
        assert restarted.heartbeat(joined(back).member_id, "i", 2) is Problem.ILLEGAL_GENERATION
        assert restarted.heartbeat(old.member_id, "i", 1) is Problem.FENCED_INSTANCE_ID
        assert restarted.roster.leader == joined(back).member_id
        (member,) = restarted.roster
        assert member.assignment == old.member_id.encode(), "what it had until then"
    else:
        assert restarted.heartbeat(old.member_id, "i", 1) is Problem.NONE


def test_static_twin_fences_a_waiting_join() -> None:
    _, group = new_group()
    stable(group, 1)
    waiting = group.join(join_request(instance_id="i"))
    twin = group.join(join_request(instance_id="i"))
    assert joined(waiting).problem is Problem.FENCED_INSTANCE_ID
    group.join(join_request("c-1"))
    assert joined(twin).generation == 2


def test_absent_static_member_survives_a_rebalance_but_not_its_session() -> None:
    stage, group = new_group()
    absent = joined(group.join(join_request(instance_id="i")))
    group.sync(sync_request(absent, i_1=b"1"))
    second = group.join(join_request(session_timeout_ms=30_000))
    stage.loop.advance(5)
    stage.loop.advance(5.1)
    assert joined(second).generation == 2, "its session ended while the group waited for it"
    assert group.roster.holder("i") is None


def test_administrator_removes_by_instance_id() -> None:
    _, group = new_group()
    stable(group, 1, instance_id="i")
    wrong = Leaver("somebody-else", "i")
    assert group.leave([Leaver("", "nobody"), wrong]) == [Problem.UNKNOWN_MEMBER_ID, Problem.FENCED_INSTANCE_ID]
    assert group.leave([Leaver("", "i")]) == [Problem.NONE]
    assert group.state is State.EMPTY


def test_killed_group_refuses_everything() -> None:
    stage, group = new_group()
    stable(group, 2)
    waiting = group.join(join_request())
    group.kill()
    assert joined(waiting).problem is Problem.COORDINATOR_NOT_AVAILABLE
    assert joined(group.join(join_request())).problem is Problem.COORDINATOR_NOT_AVAILABLE
    assert group.heartbeat("c-1", None, 1) is Problem.COORDINATOR_NOT_AVAILABLE
    assert stage.loop.armed == 0


def test_ten_thousand_heartbeats_leave_one_timer_each() -> None:
    stage, group = new_group()
    stable(group, 1)
    before = stage.loop.armed
    for _ in range(10_000):
        group.heartbeat("c-1", None, 1)
        stage.loop.now += 0.001
    assert stage.loop.armed == before


def test_a_large_generation_is_told_some_at_a_time() -> None:
    stage, group = new_group(initial_delay=3.0)
    waiting = [group.join(join_request()) for _ in range(500)]
    # The join's end, which newcomers put off, and each further part of the answers are a turn of their own.
    stage.loop.turn()
    turns = []
    while not all(each.done() for each in waiting):
        stage.loop.turn()
        turns.append(sum(each.done() for each in waiting))
    assert turns == [200, 400, 500]
    answers = [joined(each) for each in waiting]
    assert {each.generation for each in answers} == {1}
    leader = next(each for each in answers if each.members)
    assert len(leader.members) == 500
    syncs = [group.sync(sync_request(each)) for each in answers if each is not leader]
    given = {each.member_id: each.member_id.encode() for each in answers}
    syncs.append(group.sync(SyncRequest(member_id=leader.member_id, generation=1, assignments=tuple(given.items()))))
    assert sum(each.done() for each in syncs) == 200
    stage.loop.turn()
    stage.loop.turn()
    assert sorted(synced(each).assignment for each in syncs) == sorted(given.values())
