"""The rules of replication, each broken in the shipped code: the campaigns notice.

docs/replication.md has the rules, and by how many seeds each of these is caught. Rules of the log that a group rests on
are broken in `test_replicas.py` and `test_group.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.campaigns import caught

from headrace.cluster import changes, election, identity
from headrace.cluster.commitment import Commitment
from headrace.cluster.copying.exchange import CopyExchange
from headrace.cluster.following import Following
from headrace.cluster.identity import Plan
from headrace.cluster.leadership import Leadership
from headrace.cluster.maximal_isr import MaximalIsr
from headrace.cluster.records import Group, Incarnation
from headrace.cluster.wire import Acknowledgement
from headrace.log.group_frames import Position
from headrace.log.replicated_journal import ReplicatedJournal
from simulation.replicas.campaign import ReplicasCampaign

Patch = Callable[[pytest.MonkeyPatch], None]


# --- the leader ---


def keep_the_epoch(patch: pytest.MonkeyPatch) -> None:
    elect = changes.elect

    def in_the_same_epoch(group: Group, candidate: Incarnation, alive: Any) -> Group:
        return replace(elect(group, candidate, alive), epoch=max(group.epoch, 1))

    patch.setattr(changes, "elect", in_the_same_epoch)


def count_one_that_leaves_no_more(patch: pytest.MonkeyPatch) -> None:
    def members(self: MaximalIsr) -> frozenset[str]:
        return self.confirmed.intersection(*self._proposed) or self.confirmed

    patch.setattr(MaximalIsr, "members", property(members))


def commit_what_the_own_device_lacks(patch: pytest.MonkeyPatch) -> None:
    reach = Commitment.reach
    patch.setattr(Leadership, "advance", _advance_with(reach))


def _advance_with(reach: Callable[[Commitment, int], int]) -> Callable[[Leadership], None]:
    def advance(self: Leadership) -> None:
        found = reach(self.commitment, self._journal.last.sequence)
        if found > self._journal.committed and not self.is_over and not self._is_doubtful():
            self._journal.commit(found)
            self._on_committed(found)
            self._wake_waiters()

    return advance


def never_stand_again(patch: pytest.MonkeyPatch) -> None:
    gone = election._leader_is_gone
    patch.setattr(election, "_leader_is_gone", lambda prospect: prospect.leader != prospect.me and gone(prospect))


# --- a follower ---


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    store = Following._store

    def at_once(self: Following, data: bytes) -> None:
        store(self, data)
        self._acknowledge()

    def acknowledge(self: Following) -> None:
        self._connection.send(Acknowledgement(self._journal.last.sequence, self._clock.now_ms()))

    patch.setattr(Following, "_acknowledge", acknowledge)
    patch.setattr(Following, "_store", at_once)


def keep_what_the_leader_lacks(patch: pytest.MonkeyPatch) -> None:
    common_end = ReplicatedJournal.common_end

    def longest(self: ReplicatedJournal, theirs: list[Position]) -> int:
        # As if sequences alone told frames apart.
        common = common_end(self, theirs)
        return min(self.last.sequence, theirs[-1].sequence) if theirs else common

    patch.setattr(ReplicatedJournal, "common_end", longest)


# --- elections and incarnations ---


def take_a_wiped_disk_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    plan_start = identity.plan_start

    def believe(found: Any, has_messages: bool, cluster: Any, member: Any, group: Group, joined: Any) -> Plan:
        if found is None and member is not None:
            starts = member.starts + 1
            return Plan(replace(joined, directory_id=member.directory_id, starts=starts, is_copying=False), ())
        return plan_start(found, has_messages, cluster, member, group, joined)

    patch.setattr(identity, "plan_start", believe)


def take_a_restored_backup_for_the_newest_state(patch: pytest.MonkeyPatch) -> None:
    plan_start = identity.plan_start

    def believe(found: Any, has_messages: bool, cluster: Any, member: Any, group: Group, joined: Any) -> Plan:
        if found is not None and member is not None and found.directory_id == member.directory_id:
            return Plan(replace(found, starts=max(found.starts, member.starts) + 1), ())
        return plan_start(found, has_messages, cluster, member, group, joined)

    patch.setattr(identity, "plan_start", believe)
    patch.setattr(identity, "check_not_older", lambda group, identity: None)


def trust_half_a_copy(patch: pytest.MonkeyPatch) -> None:
    opened = CopyExchange.open

    async def as_if_whole(self: CopyExchange) -> None:
        await opened(self)
        self._node.is_copying = self._log.is_copying = False

    patch.setattr(CopyExchange, "open", as_if_whole)


LONG = pytest.mark.long
# Each with the seeds among which it is noticed.
BROKEN = [
    pytest.param(keep_the_epoch, 10),
    pytest.param(count_one_that_leaves_no_more, 40),
    pytest.param(never_stand_again, 30),
    pytest.param(acknowledge_before_the_sync, 50),
    pytest.param(keep_what_the_leader_lacks, 30),
    pytest.param(trust_half_a_copy, 10),
    pytest.param(commit_what_the_own_device_lacks, 150, marks=LONG),
    pytest.param(take_a_wiped_disk_for_the_old_one, 150, marks=LONG),
    pytest.param(take_a_restored_backup_for_the_newest_state, 150, marks=LONG),
]


@pytest.mark.parametrize(("broken", "seeds"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_noticed(broken: Patch, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    caught(ReplicasCampaign(), seeds)
