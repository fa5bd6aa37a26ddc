"""The administrator in etcd: taken by the leader, then removed, whatever etcd answers."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from tests.waiting import until

from headrace.cluster.errors import EtcdUnavailable, RecordInvalid
from headrace.cluster.etcd import Entry, Etcd, Outcome, Refused, Swapped, Unknown
from headrace.cluster.given_admin import AdminIntake
from headrace.cluster.records import AdminRecord, parse_admin
from headrace.errors import InvalidCredentials, NotEnoughReplicas

KEY = "/headrace/test/admins/main"
RECORD = AdminRecord(str(uuid4()), "ops", ({"mechanism": "SCRAM-SHA-256", "salt": "not shown"},))


class ScriptedEtcd(Etcd):
    """Answers swaps as it is told."""

    def __init__(self, *outcomes: Outcome | EtcdUnavailable) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, int, bytes | None]] = []

    async def swap(self, key: str, revision: int, value: bytes | None, *, lease: int = 0) -> Outcome:
        self.asked.append((key, revision, value))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, EtcdUnavailable):
            raise outcome
        return outcome


class Taken:
    def __init__(self, *errors: Exception) -> None:
        self.records: list[AdminRecord] = []
        self.errors = list(errors)

    async def __call__(self, record: AdminRecord) -> bool:
        if self.errors:
            raise self.errors.pop(0)
        is_new = record not in self.records
        self.records.append(record)
        return is_new


def entry(revision: int = 7, value: bytes = RECORD.encode()) -> Entry:
    return Entry(KEY, value, revision)


async def test_it_is_removed_once_it_is_taken() -> None:
    etcd, taken = ScriptedEtcd(Swapped(9)), Taken()
    intake = AdminIntake(etcd, entry, taken)
    await intake.look()
    assert taken.records == [RECORD]
    assert etcd.asked == [(KEY, 7, None)]
    # What was read last still has it.
    await intake.look()
    assert len(taken.records) == 1


@pytest.mark.parametrize("outcome", [Unknown("no answer"), EtcdUnavailable("away"), Refused(None)])
async def test_a_removal_that_failed_is_tried_again(outcome: Outcome | EtcdUnavailable) -> None:
    etcd, taken = ScriptedEtcd(outcome, Swapped(9)), Taken()
    intake = AdminIntake(etcd, entry, taken)
    await intake.look()
    await intake.look()
    assert len(etcd.asked) == 2
    await intake.look()
    assert len(etcd.asked) == 2


async def test_what_could_not_be_taken_stays() -> None:
    etcd, taken = ScriptedEtcd(Swapped(9)), Taken(NotEnoughReplicas("one of two"))
    intake = AdminIntake(etcd, entry, taken)
    with pytest.raises(NotEnoughReplicas):
        await intake.look()
    assert not etcd.asked
    await intake.look()
    assert taken.records == [RECORD]
    assert len(etcd.asked) == 1


async def test_a_record_of_no_use_is_reported_once_and_one_that_follows_is_taken() -> None:
    found = entry(value=b'{"id": "x", "password": "geheim"}')
    etcd, taken = ScriptedEtcd(Swapped(9)), Taken()
    intake = AdminIntake(etcd, lambda: found, taken)
    with pytest.raises(RecordInvalid, match="headrace cluster admin") as refused:
        await intake.look()
    assert "geheim" not in str(refused.value)
    await intake.look()
    taken.errors = [InvalidCredentials("none")]
    found = entry(8)
    with pytest.raises(InvalidCredentials):
        await intake.look()
    await intake.look()
    assert (taken.records, etcd.asked) == ([], [])
    found = entry(9)
    await intake.look()
    assert taken.records == [RECORD]


async def test_it_looks_from_time_to_time_and_ends_with_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.given_admin.SECONDS", 0.001)
    found: Entry | None = None
    etcd, taken = ScriptedEtcd(Swapped(9), Swapped(11)), Taken(InvalidCredentials("none"))
    intake = AdminIntake(etcd, lambda: found, taken)
    intake.start()
    await asyncio.wait_for(intake.has_looked.wait(), 10)
    found = entry(6)
    await until(lambda: not taken.errors)
    found = entry(7)
    await until(lambda: len(etcd.asked) == 1)
    intake.cancel()
    found = entry(10)
    await asyncio.sleep(0.02)
    assert len(etcd.asked) == 1


def test_the_record_is_read_strictly_and_shows_no_secret() -> None:
    assert parse_admin(RECORD.encode(), KEY) == RECORD
    assert "not shown" not in repr(RECORD)
