"""Replicas of a log in the simulator: what was promised holds, and a rule that keeps it is missed when it is broken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.campaigns import caught

from headrace.log.appending import Appender
from headrace.log.offset_blocks import OffsetBlocks
from headrace.log.partition import NativePartition
from headrace.log.replicated import ReplicatedLog
from headrace.log.replicated_commit import ReplicatedCommitter
from headrace.log.replicated_journal import ReplicatedJournal
from simulation.replicas.campaign import ReplicasCampaign

# What must have happened in ten short seeds.
FEW = {"acknowledged": 700, "read": 2_000, "election": 15, "handover": 2, "copied": 3, "kill": 1, "power cut": 2}


def run(campaign: ReplicasCampaign, first: int, count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in campaign.seeds(first, first + count):
        assert each.failure is None, f"seed {each.seed}: {each.failure}"
        counts.update(each.endings)
    print(dict(counts))
    return counts


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_nothing_acknowledged_or_read_is_ever_lost(first: int) -> None:
    counts = run(ReplicasCampaign(seconds=12.0), first, 10)
    assert {name: counts[name] for name, least in FEW.items() if counts[name] < least} == {}


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 2_000, 50))
def test_a_campaign(first: int) -> None:
    counts = run(ReplicasCampaign(), 10_000 + first, 50)
    rare = {"ELR election", "late swap", "restored disk"}
    assert not ReplicasCampaign().missed(counts, 50).keys() - rare


def test_what_happened_too_seldom_is_reported() -> None:
    campaign = ReplicasCampaign()
    plenty = dict.fromkeys(campaign.floors, 100_000)
    assert campaign.missed(plenty, 50) == {}
    assert campaign.missed({**plenty, "late swap": 1, "kill": 49}, 50) == {"kill": "49 < 50"}
    assert campaign.missed({}, 49) == {}


def apply_late(patch: pytest.MonkeyPatch, seconds: float, nodes: str = "abc") -> None:
    catch_up = ReplicatedLog._catch_up

    async def late(self: ReplicatedLog) -> None:
        if self.runtime.hostname in nodes:
            await asyncio.sleep(seconds)
        await catch_up(self)

    patch.setattr(ReplicatedLog, "_catch_up", late)


def test_replicas_that_apply_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose device is busy for five seconds with what it began before all was well applies late, too."""
    apply_late(monkeypatch, 7.0)
    run(ReplicasCampaign(seconds=3.0), 0, 3)


def test_a_replica_that_does_not_apply_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_late(monkeypatch, 1_000.0, "c")
    failure = ReplicasCampaign(seconds=1.0).run(0).failure
    assert failure is not None
    assert "not all that is committed is applied" in failure


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


def reserve_no_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetBlocks, "reserve", lambda self, partition, end: True)


def use_a_block_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    reserve = OffsetBlocks.reserve

    def use(self: OffsetBlocks, partition: NativePartition, end: int) -> bool:
        reserve(self, partition, end)
        return True

    patch.setattr(OffsetBlocks, "reserve", use)


# Each with the seeds among which it is noticed.
BROKEN = [
    pytest.param(write_back_uncommitted, 30),
    pytest.param(complete_before_the_commit, 30),
    pytest.param(keep_what_was_not_committed, 30),
    pytest.param(apply_beyond_committed, 80),
    pytest.param(checkpoint_too_far, 30),
    pytest.param(reserve_no_offsets, 30),
    pytest.param(use_a_block_before_it_is_committed, 60),
]


@pytest.mark.parametrize(("broken", "seeds"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_noticed(broken: Patch, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    caught(ReplicasCampaign(), seeds)
