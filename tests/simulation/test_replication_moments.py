"""Rules of replication that faults at random hardly reach, each broken in the shipped code: one scenario leads to the
moment for which the rule is there, and the checks of the simulator notice.

Each scenario holds in the code as it is. docs/replication.md has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.watched import WatchedGroup

from headrace.cluster import changes, election, records
from headrace.cluster.commitment import Commitment
from headrace.cluster.leadership import Leadership
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.node import Node
from headrace.cluster.records import Group, Incarnation
from headrace.log import replicated_journal
from headrace.log.group_frames import NOTHING, Position
from simulation.group.replica import GROUP, KEYS
from simulation.history import Violation

Patch = Callable[[pytest.MonkeyPatch], None]
Scenario = Callable[[WatchedGroup], Awaitable[None]]

# Longer than a leader waits for an answer of etcd.
ANSWER_S = 1.5
# Longer than a follower may lag, and than a lease.
LONG_S = 5.0


async def lead_alone(group: WatchedGroup, min_isr: int) -> None:
    """Node a leads, and is alone in the ISR: the others lost power."""
    await group.leader()
    group.send("a", 3)
    await group.until(lambda: group.acknowledged == 3)
    group.stop("b", "c")
    # Nobody lags while there is nothing to be acknowledged.
    group.send("a")
    await group.until(lambda: group.in_sync() == "a")
    assert group.eligible() == ("bc" if min_isr == 2 else "")


async def start_apart(group: WatchedGroup, name: str) -> None:
    """A node starts, and cannot reach the one that leads."""
    group.cut("a", name)
    group.start(name)
    await group.until(lambda: name in group.nodes and group.nodes[name].group is not None)


# --- the leader ---


async def commit_by_an_earlier_epoch(group: WatchedGroup) -> None:
    """What a leader left uncommitted is on every replica before its next leadership's own first frame is. One of
    them has cut off a frame of an epoch between for it, and crashes in that moment: that frame is back, and newer."""
    await group.leader()
    group.send("a", 2)
    await group.until(lambda: group.acknowledged == 2)
    # A frame that a alone has, and one of the next epoch that b alone has.
    group.cut("a", "b", "c")
    group.send("a")
    await group.until(lambda: group.nodes["a"].journal.flushed == 4)
    group.stop("a")
    group.cut("b", "c")
    group.stop("c")
    await group.until(lambda: group.nodes["b"].journal.last == (2, 4))
    await asyncio.sleep(0.1)
    group.stop("b")
    group.heal("a", "b", "c")
    # Nobody of the ISR lives; a is of the ELR.
    group.start("a")
    await group.until(lambda: group.record.epoch == 3)
    for name in "bc":
        group.start(name)
        await group.until(lambda name=name: name in group.nodes)  # type: ignore[misc]
        machine = group.world.machines[name]
        # Its device has the earlier frame, and hangs before the first one of this leadership.
        group.nodes[name].journal.on_device = lambda last, machine=machine: machine.hang_disk()  # type: ignore[misc]
    await asyncio.sleep(2 * LONG_S)
    group.stop("a", "b", "c")
    group.world.machines["b"].repair_disk()
    group.start("b")
    await asyncio.sleep(LONG_S)


def commit_what_predecessors_left(patch: pytest.MonkeyPatch) -> None:
    def reach(self: Commitment, flushed: int) -> int:
        others = [self.acknowledged(replica) for replica in self.isr.members if replica != self._leader]
        return min([flushed, *others]) if self.has_enough else 0

    made = Leadership.__init__

    def init(self: Leadership, *arguments: Any) -> None:
        made(self, *arguments)
        self.begin = 0

    patch.setattr(Commitment, "reach", reach)
    patch.setattr(Leadership, "__init__", init)


async def commit_while_a_follower_joins(group: WatchedGroup) -> None:
    """The ISR is too small, and the swap that would make it large enough is lost."""
    await lead_alone(group, 2)
    group.send("a")
    await start_apart(group, "c")
    group.etcd.faults.only_transactions, group.etcd.faults.request_lost = True, 1.0
    group.heal("a", "c")
    await group.until(lambda: group.nodes["c"].journal.flushed == group.nodes["a"].journal.flushed)
    await asyncio.sleep(ANSWER_S)
    assert group.in_sync() == "a"
    # One of the ELR, which has nothing of it, leads.
    group.stop("a", "c")
    group.etcd.faults.request_lost = 0.0
    group.start("b")
    await asyncio.sleep(LONG_S)


def judge_min_isr_by_the_maximal_isr(patch: pytest.MonkeyPatch) -> None:
    def has_enough(self: Commitment) -> bool:
        return len(self.isr.members) >= self.min_isr

    patch.setattr(Commitment, "has_enough", property(has_enough))


async def append_behind_an_unknown_joining(group: WatchedGroup) -> None:
    """A follower joins, and the leader, cut off from it and from etcd in that moment, does not hear that it has."""
    await lead_alone(group, 1)
    await start_apart(group, "c")
    group.etcd.faults.watch_hang = group.etcd.faults.answer_lost = 1.0
    group.etcd.faults.only_transactions = True
    group.heal("a", "c")
    await group.until(lambda: group.in_sync() == "ac")
    group.cut("a", "c", "etcd")
    node = group.nodes["a"]
    assert node.group is not None
    assert len(node.group.isr) == 1
    group.send("a")
    await asyncio.sleep(ANSWER_S)
    group.send("a")
    await asyncio.sleep(0.1)
    group.stop("a")
    group.etcd.faults.answer_lost = 0.0
    await asyncio.sleep(LONG_S)


def count_one_that_joins_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaximalIsr, "members", property(lambda self: self.confirmed))


def take_an_unknown_outcome_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaximalIsr, "members", property(_members_while_changing))
    propose = MaximalIsr.propose

    def forget_the_last(self: MaximalIsr, isr: Any) -> None:
        self._proposed.clear()
        propose(self, isr)

    patch.setattr(MaximalIsr, "propose", forget_the_last)


def _members_while_changing(self: MaximalIsr) -> frozenset[str]:
    return self.confirmed.union(*self._proposed)


async def carry_out_a_swap_late(group: WatchedGroup) -> None:
    """The swap by which a follower joins is carried out seconds later, when that follower is gone and more has been
    appended."""
    await lead_alone(group, 1)
    await start_apart(group, "c")
    faults = group.etcd.faults
    faults.only_transactions, faults.request_lost = True, 1.0
    group.heal("a", "c")
    await group.until(lambda: group.nodes["a"].metadata.is_changing)
    before, leader, member = group.record, group.record.leader, group.nodes["c"]._settings.me
    assert leader is not None
    group.world.machines["c"].kill()
    faults.request_lost = 0.0
    await asyncio.sleep(ANSWER_S)
    group.send("a")
    await group.until(lambda: group.acknowledged == 5)
    if group.record == before:
        group.put(KEYS.group(GROUP), changes.add_to_isr(before, leader, member))
    group.stop("a")
    group.start("c")
    await asyncio.sleep(2 * LONG_S)


def settle_by_reading_the_same_revision(patch: pytest.MonkeyPatch) -> None:
    def see(self: MaximalIsr, revision: int, isr: Any) -> None:
        if revision >= self.revision:
            self.revision, self.confirmed = revision, frozenset(isr)
            self._proposed.clear()

    patch.setattr(MaximalIsr, "see", see)


async def join_with_a_hung_disk(group: WatchedGroup) -> None:
    """A follower has opened its session, and its device takes nothing of what it lacks."""
    await lead_alone(group, 1)
    group.send("a", 3)
    await group.until(lambda: group.acknowledged == 7)
    await start_apart(group, "c")
    group.world.machines["c"].hang_disk()
    group.heal("a", "c")
    with suppress(TimeoutError):
        await group.until(lambda: "c" in group.in_sync(), LONG_S)
    group.stop("a", "c")
    group.world.machines["c"].repair_disk()
    group.start("c")
    await asyncio.sleep(LONG_S)


def admit_one_that_lags(patch: pytest.MonkeyPatch) -> None:
    caught_up = Leadership.caught_up

    def as_if_it_had_everything(self: Leadership, *rules: Any) -> Incarnation | None:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(Commitment, "acknowledged", lambda self, replica: 1 << 60)
            return caught_up(self, *rules)

    patch.setattr(Leadership, "caught_up", as_if_it_had_everything)


async def depose_a_leader(group: WatchedGroup) -> None:
    """It is cut off, another is elected, and it comes back."""
    await group.leader()
    group.cut("a", "b", "c", "etcd")
    # Not so long that it gives up by itself.
    await group.until(lambda: group.record.epoch == 2)
    group.heal("a", "b", "c", "etcd")


def lead_on_in_a_newer_epoch(patch: pytest.MonkeyPatch) -> None:
    step_down = Node.step_down

    def but_not_for_an_epoch(self: Node, reason: str) -> None:
        if "has begun" not in reason and "has been heard" not in reason:
            step_down(self, reason)

    patch.setattr(Node, "step_down", but_not_for_an_epoch)


# --- recovery, and the record ---


async def recover_with_a_longer_tail_of_an_earlier_epoch(group: WatchedGroup) -> None:
    """A deposed leader has many frames that no other has, cuts them off, follows, and all lose power."""
    await group.leader()
    group.cut("a", "b", "c")
    group.send("a", 20)
    await group.until(lambda: group.nodes["a"].journal.flushed == 21)
    group.stop("a")
    group.heal("a", "b", "c")
    leader = await group.leader(2)
    group.send(leader, 3)
    await group.until(lambda: group.acknowledged == 3)
    group.start("a")
    await group.leader()
    group.stop("a", "b", "c")
    group.start("a")
    await asyncio.sleep(LONG_S)


def recover_by_the_highest_sequence(patch: pytest.MonkeyPatch) -> None:
    def newest(found: Any) -> Position:
        return max(found, key=lambda position: (position.sequence, position.epoch), default=NOTHING)

    patch.setattr(replicated_journal, "newest", newest)


async def lower_min_isr(group: WatchedGroup) -> None:
    """The ISR is too small; then one replica is enough, it commits alone, and is gone."""
    await lead_alone(group, 2)
    group.put(KEYS.group(GROUP), changes.configure(group.record, min_isr=1))
    await group.until(lambda: group.nodes["a"].group is not None and group.nodes["a"].group.min_isr == 1)
    group.send("a", 3)
    await group.until(lambda: group.acknowledged == 7)
    group.stop("a")
    group.start("b")
    await asyncio.sleep(LONG_S)


def keep_the_elr(patch: pytest.MonkeyPatch) -> None:
    configure = changes.configure

    def but_the_elr(group: Group, **changed: Any) -> Group:
        return replace(configure(group, **changed), elr=group.elr)

    patch.setattr(changes, "configure", but_the_elr)
    # A record that contradicts itself would be refused.
    patch.setattr(records, "contradictions", lambda group: [])


# --- a group that must go on ---


async def hang_the_disk_of_the_leader(group: WatchedGroup) -> None:
    """It never answers again, though the process lives and reaches everyone."""
    await group.leader()
    group.world.machines["a"].hang_disk()
    group.send("a")
    await asyncio.sleep(2 * LONG_S)
    await group.serves_within(LONG_S)


def never_resign(patch: pytest.MonkeyPatch) -> None:
    async def resign(self: Node) -> None:
        """As if etcd need not know."""

    patch.setattr(Node, "resign", resign)


async def keep_a_leader_from_etcd(group: WatchedGroup) -> None:
    """It cannot remove a follower that is gone, and so commits nothing, while another follower hears it."""
    await group.leader()
    group.cut("a", "etcd")
    group.stop("c")
    group.send("a")
    await asyncio.sleep(3 * LONG_S)
    await group.serves_within(LONG_S)


def let_a_live_session_veto_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "_is_stuck", lambda prospect: False)


async def lose_the_last_of_the_isr(group: WatchedGroup) -> None:
    """It never returns; one of the ELR has everything too."""
    await lead_alone(group, 2)
    group.stop("a")
    group.start("b")
    group.start("c")
    await asyncio.sleep(2 * LONG_S)
    await group.serves_within(LONG_S)


def let_the_isr_alone_stand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election, "_is_eligible", lambda prospect: prospect.me in prospect.isr)


# Each with the group's min.insync.replicas, and the rules that it takes.
MOMENTS: list[tuple[Scenario, int, list[Patch]]] = [
    (commit_by_an_earlier_epoch, 3, [commit_what_predecessors_left]),
    (commit_while_a_follower_joins, 2, [judge_min_isr_by_the_maximal_isr]),
    (append_behind_an_unknown_joining, 1, [count_one_that_joins_late, take_an_unknown_outcome_for_a_failure]),
    (carry_out_a_swap_late, 1, [settle_by_reading_the_same_revision]),
    (join_with_a_hung_disk, 1, [admit_one_that_lags]),
    (depose_a_leader, 2, [lead_on_in_a_newer_epoch]),
    (recover_with_a_longer_tail_of_an_earlier_epoch, 2, [recover_by_the_highest_sequence]),
    (lower_min_isr, 2, [keep_the_elr]),
    (hang_the_disk_of_the_leader, 2, [never_resign]),
    (keep_a_leader_from_etcd, 1, [let_a_live_session_veto_for_ever]),
    (lose_the_last_of_the_isr, 2, [let_the_isr_alone_stand]),
]


@pytest.mark.parametrize(
    ("scenario", "min_isr"), [each[:2] for each in MOMENTS], ids=lambda each: getattr(each, "__name__", "")
)
def test_what_was_promised_holds(scenario: Scenario, min_isr: int) -> None:
    group = WatchedGroup(min_isr)
    group.check(lambda: scenario(group))


@pytest.mark.parametrize(
    ("scenario", "min_isr", "broken"),
    [(scenario, min_isr, broken) for scenario, min_isr, rules in MOMENTS for broken in rules],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_broken_rule_is_noticed(
    scenario: Scenario, min_isr: int, broken: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    group = WatchedGroup(min_isr)
    with pytest.raises(Violation):
        group.check(lambda: scenario(group))
