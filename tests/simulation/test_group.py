"""A group of nodes in the simulator: what was promised holds, and each rule that keeps it is broken once and missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from tests.simulation.campaigns import caught

from headrace.cluster import changes, election
from headrace.cluster.commitment import Commitment
from headrace.cluster.following import Following
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.node import Node
from headrace.cluster.records import Group, Incarnation
from headrace.cluster.wire import Acknowledgement
from headrace.log import replicated_journal
from headrace.log.group_frames import NOTHING, Position
from headrace.log.replicated_journal import ReplicatedJournal
from simulation.group.campaign import GroupCampaign

# What must have happened in a few seeds, and in fifty.
FEW = {"acknowledged": 300, "read": 1_000, "leaderships": 2}
FIFTY = {
    "acknowledged": 15_000,
    "read": 50_000,
    "leaderships": 100,
    "kill": 30,
    "power cut": 30,
    "pause": 50,
    "cut": 100,
    "one-way cut": 50,
    "hung disk": 20,
    "failing disk": 10,
    "lease expired": 100,
    "etcd answer lost": 50,
    "etcd late": 20,
}


def check(first: int, count: int, floors: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    for run in GroupCampaign().seeds(first, first + count):
        assert run.failure is None, f"seed {run.seed}: {run.failure}"
        counts.update(run.endings)
    print(dict(counts))
    assert {name: counts[name] for name, least in floors.items() if counts[name] < least} == {}


@pytest.mark.parametrize("first", range(0, 8, 2))
def test_nothing_acknowledged_or_read_is_ever_lost(first: int) -> None:
    check(first, 2, FEW)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 3_000, 50))
def test_a_campaign(first: int) -> None:
    check(first, 50, FIFTY)


def test_a_seed_is_the_same_run_again() -> None:
    campaign = GroupCampaign(seconds=10)
    assert campaign.run(3).digest == campaign.run(3).digest


# --- each rule, broken ---

Patch = Callable[[pytest.MonkeyPatch], None]


def truncate_by_committed(patch: pytest.MonkeyPatch) -> None:
    def common_end(self: ReplicatedJournal, theirs: list[Position]) -> int:
        return min(self.committed, theirs[-1].sequence if theirs else 0)

    patch.setattr(ReplicatedJournal, "common_end", common_end)


def let_any_node_lead(patch: pytest.MonkeyPatch) -> None:
    def elect(group: Group, candidate: Incarnation, alive: set[str]) -> Group:
        isr = [each for each in group.isr if each in alive and each != candidate.directory_id]
        return replace(
            group,
            version=group.version + 1,
            epoch=group.epoch + 1,
            leader=candidate,
            isr=(candidate.directory_id, *isr),
            elr=(),
        )

    patch.setattr(election, "_is_eligible", lambda prospect: True)
    patch.setattr(changes, "elect", elect)
    patch.setattr(changes, "elect_unclean", elect)


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    store = Following._store

    def acknowledge(self: Following) -> None:
        self._connection.send(Acknowledgement(self._journal.last.sequence))

    def store_and_acknowledge(self: Following, data: bytes) -> None:
        store(self, data)
        acknowledge(self)

    patch.setattr(Following, "_acknowledge", acknowledge)
    patch.setattr(Following, "_store", store_and_acknowledge)


def commit_before_the_begin_frame(patch: pytest.MonkeyPatch) -> None:
    def reach(self: Commitment, flushed: int) -> int:
        others = [self.acknowledged(each) for each in self.isr.members if each != self._leader]
        return min([flushed, *others]) if self.has_enough else 0

    patch.setattr(Commitment, "reach", reach)


def recover_by_the_highest_sequence(patch: pytest.MonkeyPatch) -> None:
    def newest(found: Iterable[Position]) -> Position:
        return max(found, key=lambda at: (at.sequence, at.epoch), default=NOTHING)

    patch.setattr(replicated_journal, "newest", newest)


def let_removals_count_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    def members(self: MaximalIsr) -> frozenset[str]:
        newest = self._proposed[-1] if self._proposed else self.confirmed
        return newest if newest < self.confirmed else self.confirmed.union(*self._proposed)

    patch.setattr(MaximalIsr, "members", property(members))


def let_additions_count_after_the_swap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaximalIsr, "members", property(lambda self: self.confirmed))


def judge_min_isr_by_the_maximal_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commitment, "has_enough", property(lambda self: len(self.isr.members) >= self.min_isr))


def take_an_unknown_swap_for_refused(patch: pytest.MonkeyPatch) -> None:
    swap = Node._swap

    async def swap_and_forget(self: Node, changed: Group) -> bool:
        swapped = await swap(self, changed)
        if self.leadership is not None:
            self.leadership.commitment.isr._proposed.clear()
        return swapped

    patch.setattr(Node, "_swap", swap_and_forget)


def follow_after_stepping_down(patch: pytest.MonkeyPatch) -> None:
    """A node that stepped down does not stand again, although etcd still names it."""
    leader_is_gone = election._leader_is_gone

    def gone(prospect: election.Prospect) -> bool:
        return prospect.leader != prospect.me and leader_is_gone(prospect)

    patch.setattr(election, "_leader_is_gone", gone)


# Each with the seeds among which it is noticed.
OFTEN: list[tuple[Patch, int, int | None]] = [
    (truncate_by_committed, 40, None),
    (let_any_node_lead, 40, None),
    (acknowledge_before_the_sync, 60, None),
    (commit_before_the_begin_frame, 60, None),
    (follow_after_stepping_down, 40, None),
    (let_removals_count_before_the_swap, 60, 1),
    (recover_by_the_highest_sequence, 60, None),
    (judge_min_isr_by_the_maximal_isr, 60, 2),
    (let_additions_count_after_the_swap, 60, 1),
    (take_an_unknown_swap_for_refused, 60, 1),
]


@pytest.mark.parametrize(("broken", "seeds", "min_isr"), OFTEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_noticed(
    broken: Patch, seeds: int, min_isr: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    caught(GroupCampaign(min_isr=min_isr), seeds)
