"""A group of nodes in the simulator: what was promised holds, and a rule that keeps it is missed when it is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulation.campaigns import caught

from headrace.cluster import changes, election
from headrace.cluster.commitment import Commitment
from headrace.cluster.records import Group, Incarnation
from headrace.log.group_frames import Position
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


@pytest.mark.parametrize("first", [0, 2])
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


def commit_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commitment, "reach", lambda self, flushed: flushed if self.has_enough else 0)


# Each with the seeds among which it is noticed.
BROKEN = [
    pytest.param(truncate_by_committed, 20),
    pytest.param(commit_alone, 10),
    pytest.param(let_any_node_lead, 40, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("broken", "seeds"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_noticed(broken: Patch, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    caught(GroupCampaign(), seeds)
