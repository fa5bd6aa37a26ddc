"""Replicas of a log in the simulator: what was promised holds, and a rule that keeps it is missed when it is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.campaigns import caught

from headrace.log.appending import Appender
from headrace.log.replicated import ReplicatedLog
from headrace.log.replicated_commit import ReplicatedCommitter
from headrace.log.replicated_journal import ReplicatedJournal
from simulation.replicas.campaign import ReplicasCampaign

# What must have happened in two seeds, and in fifty.
FEW = {"acknowledged": 600, "read": 2_000, "leaderships": 2, "trimmed": 10}
FIFTY = {
    "acknowledged": 20_000,
    "read": 100_000,
    "leaderships": 100,
    "created": 80,
    "deleted": 150,
    "trimmed": 400,
    "kill": 50,
    "power cut": 30,
    "restart": 5,
    "copied": 50,
    "wiped disk": 10,
    "restored disk": 3,
}


def check(first: int, count: int, floors: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    for run in ReplicasCampaign().seeds(first, first + count):
        assert run.failure is None, f"seed {run.seed}: {run.failure}"
        counts.update(run.endings)
    print(dict(counts))
    assert {name: counts[name] for name, least in floors.items() if counts[name] < least} == {}


def test_nothing_acknowledged_or_read_is_ever_lost() -> None:
    check(0, 2, FEW)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 2_000, 50))
def test_a_campaign(first: int) -> None:
    check(first, 50, FIFTY)


# --- each rule, broken ---

Patch = Callable[[pytest.MonkeyPatch], None]


def write_back_uncommitted(patch: pytest.MonkeyPatch) -> None:
    def write_back(self: Appender) -> bool:
        try:
            self._cache.write_back(self.partition.end)
        except OSError as error:
            self._on_write_failed(error)
            return False
        return True

    patch.setattr(Appender, "write_back", write_back)


def complete_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    flush = ReplicatedCommitter._flush

    def complete(self: ReplicatedCommitter) -> None:
        flush(self)
        self.complete(self._last)

    patch.setattr(ReplicatedCommitter, "_flush", complete)


def keep_what_was_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicatedLog, "_roll_back", lambda self, partition: None)


def apply_beyond_committed(patch: pytest.MonkeyPatch) -> None:
    read = ReplicatedLog._read

    def all_of_it(self: ReplicatedLog, last: int) -> Any:
        return read(self, self.frames.flushed)

    patch.setattr(ReplicatedLog, "_read", all_of_it)


def checkpoint_too_far(patch: pytest.MonkeyPatch) -> None:
    switch = ReplicatedJournal.switch

    def beyond(self: ReplicatedJournal, *, roomy: bool = True) -> int:
        return min(switch(self, roomy=roomy) + 5, self.flushed + 1)

    patch.setattr(ReplicatedJournal, "switch", beyond)


# Each with the seeds among which it is noticed.
BROKEN = [
    pytest.param(write_back_uncommitted, 30),
    pytest.param(complete_before_the_commit, 30),
    pytest.param(keep_what_was_not_committed, 30),
    pytest.param(apply_beyond_committed, 30),
    pytest.param(checkpoint_too_far, 30),
]


@pytest.mark.parametrize(("broken", "seeds"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_noticed(broken: Patch, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    caught(ReplicasCampaign(), seeds)
