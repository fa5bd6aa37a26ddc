"""Copies between replicas in the simulator: each rule that keeps them honest is missed when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.campaigns import caught

from headrace.cluster.copying.exchange import CopyExchange
from headrace.log.copy import target
from headrace.log.copy.source import CopySource
from headrace.log.copy.target import CopyTarget
from headrace.log.replicated import ReplicatedLog
from simulation.replicas.campaign import ReplicasCampaign

Patch = Callable[[pytest.MonkeyPatch], None]


def ignore_the_mark(patch: pytest.MonkeyPatch) -> None:
    """A directory that is no whole copy is taken for a replica's."""

    async def open_as_whole(self: CopyExchange) -> None:
        pass

    patch.setattr(CopyExchange, "open", open_as_whole)


def clear_the_mark_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def end_file(self: CopyTarget) -> None:
        self.close()
        self._disk.rename(self._path + target.COPIED, self._path)

    patch.setattr(CopyTarget, "end_file", end_file)


def copy_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    async def fix(log: ReplicatedLog) -> CopySource:
        partitions = [each for topic in log.topics.values() for each in log.partitions_of(topic)]
        return CopySource(log, log.frames.last.sequence, {each: each.high_watermark for each in partitions})

    patch.setattr(CopySource, "fix", fix)


def leave_the_catalogue_behind(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint of a copy is of a later frame than its partitions."""
    make = target.checkpoint_of

    def later(*arguments: Any) -> Any:
        made = make(*arguments)
        made.journal_from += 20
        return made

    patch.setattr(target, "checkpoint_of", later)


# Each with the seeds among which it is noticed.
BROKEN = [
    pytest.param(ignore_the_mark, 10),
    pytest.param(clear_the_mark_before_the_sync, 40),
    pytest.param(copy_what_is_not_committed, 20),
    pytest.param(leave_the_catalogue_behind, 10),
]


@pytest.mark.parametrize(("broken", "seeds"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_of_copies_is_noticed(broken: Patch, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    print(caught(ReplicasCampaign(), seeds))
