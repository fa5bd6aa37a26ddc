"""Transactions through the Kafka door, with clients that die, stall and are overtaken, through kills, power cuts and
failing disks: the history of what they did and saw holds; and where a mechanism is switched off, it says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests.longer import LONGER, seeds
from tests.simulation.campaigns import caught, failures

from headrace.broker.durable import submit
from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.offsets import GroupOffsets
from headrace.broker.transactions import Transaction, TransactionCoordinator, transaction
from headrace.log.partition import NativePartition
from headrace.log.producers import ProducerStates
from simulation.faults import Killed
from simulation.history import Violation
from simulation.transactions.campaign import TransactionCampaign

SEEDS = 24
PARTS = 4


@pytest.mark.parametrize("part", seeds(2, PARTS))
def test_histories_hold(part):
    step = SEEDS // PARTS
    assert failures(TransactionCampaign(), part * step, (part + 1) * step) == {}


@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
def test_histories_hold_over_many_seeds():
    assert failures(TransactionCampaign(), 10_000, 10_000 + 500 * LONGER) == {}


def test_a_seed_replays_exactly():
    campaign = TransactionCampaign()
    first, second = campaign.run(1), campaign.run(1)
    assert (first.digest, first.endings) == (second.digest, second.endings)


def violates(words: str = "") -> None:
    """The first failing seed reports one of these words; without them, anything."""
    failure = caught(TransactionCampaign(steps=20, lives=6), 100)
    assert Violation.__name__ in failure, failure
    assert any(each in failure for each in words.split("|")), failure


def killer() -> Callable[[TransactionCoordinator], None]:
    """Ends the process, each tenth time."""
    times = itertools.count(1)

    def now_and_then(coordinator: TransactionCoordinator) -> None:
        if next(times) % 10 == 0:
            coordinator._runtime.disk.die(Killed("between two appends"))

    return now_and_then


def test_clients_that_are_not_fenced_are_caught(monkeypatch):
    monkeypatch.setattr(Transaction, "check", lambda self, transactional_id, producer_id, epoch: None)
    # Or the owner finds its transaction ended by the client that it has fenced.
    violates("fenced before|refused with|read as committed|is committed|half of|no other client has taken")


def test_markers_one_by_one_are_caught(monkeypatch):
    write, now_and_then = TransactionCoordinator._write, killer()

    async def piecemeal(self, entry, state, writes=()):
        for each in writes:
            await submit(self._log, [each])
            now_and_then(self)
        await write(self, entry, state)

    monkeypatch.setattr(TransactionCoordinator, "_write", piecemeal)
    violates("half of|without what|leads to|aborted")


def test_a_state_before_its_markers_is_caught(monkeypatch):
    write, now_and_then = TransactionCoordinator._write, killer()

    async def hasty(self, entry, state, writes=()):
        await write(self, entry, state)
        if writes:
            now_and_then(self)
            await submit(self._log, list(writes))

    monkeypatch.setattr(TransactionCoordinator, "_write", hasty)
    violates()


def test_a_reply_before_the_end_is_durable_is_caught(monkeypatch):
    async def hasty(self, entry, state, writes=()):
        self._store.append(entry, state, list(writes), lambda error: None)

    monkeypatch.setattr(TransactionCoordinator, "_write", hasty)
    violates()


def test_an_end_that_is_not_known_when_it_is_repeated_is_caught(monkeypatch):
    monkeypatch.setattr(Transaction, "repeats_end", lambda self, producer_id, epoch: False)
    violates("no other client has taken|ProducerFenced")


def test_offsets_that_count_at_once_are_caught(monkeypatch):
    def eager(self, producer_id, taken):
        for (topic, partition), committed in taken.items():
            self.put(topic, partition, committed)

    monkeypatch.setattr(GroupOffsets, "wait", eager)
    violates("which no client asked for")


def test_offsets_that_never_count_are_caught(monkeypatch):
    monkeypatch.setattr(GroupCoordinator, "end_transaction", lambda self, producer_id, commit, shards: None)
    violates("went back|which no client|not stable")


def test_a_stable_offset_at_the_end_is_caught(monkeypatch):
    monkeypatch.setattr(NativePartition, "last_stable", property(lambda self: self.high_watermark))
    # What was read, and then aborted, is gone when it is read again.
    violates("read as committed|has disappeared")


def test_a_list_of_aborted_transactions_that_is_empty_is_caught(monkeypatch):
    monkeypatch.setattr(NativePartition, "aborted", lambda self, first, last: [])
    violates("read as committed")


def test_transactions_that_never_time_out_are_caught(monkeypatch):
    monkeypatch.setattr(TransactionCoordinator, "_look_for_timeouts", lambda self: None)
    violates("still open|stuck")


def test_a_new_owner_that_leaves_the_old_transaction_open_is_caught(monkeypatch):
    async def careless(self, entry, state, commit, marker_epoch, after):
        if after.places or after.status.name != "EMPTY":
            await end(self, entry, state, commit, marker_epoch, after)
        else:
            await self._write(entry, after)

    end = TransactionCoordinator._end
    monkeypatch.setattr(TransactionCoordinator, "_end", careless)
    violates("stuck|read as committed|not stable|fenced")


def test_duplicates_that_are_taken_for_new_are_caught(monkeypatch):
    check = ProducerStates.check

    def trusting(self, header, coordinator_epoch=None):
        check(self, header, coordinator_epoch)

    monkeypatch.setattr(ProducerStates, "check", trusting)
    violates("duplicate")


def test_histories_hold_where_epochs_run_out(monkeypatch):
    """A producer id has some thirty thousand epochs: here it has six, and every few transactions take a new id."""
    monkeypatch.setattr(transaction, "EPOCH_MAX", 6)
    assert failures(TransactionCampaign(), 0, 8) == {}
