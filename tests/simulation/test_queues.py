"""Queues through kills and power cuts: what they promised holds; and where they are broken on purpose, the account says
so."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.longer import LONGER, seeds
from tests.simulation.campaigns import caught, failures

from headrace.broker.durable import submit
from headrace.broker.queues import leases as leases_module
from headrace.broker.queues import queue as queue_module
from headrace.broker.queues import queues as queues_module
from headrace.broker.queues.state import Shard
from headrace.broker.store import StateTopic
from headrace.log.partition import NativePartition
from simulation.history import Violation
from simulation.queues.campaign import QueueCampaign

SEEDS = 18
PARTS = 3


@pytest.mark.parametrize("part", seeds(1, PARTS))
def test_what_queues_promised_holds(part):
    step = SEEDS // PARTS
    assert failures(QueueCampaign(), part * step, (part + 1) * step) == {}


@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
def test_what_queues_promised_holds_over_many_seeds():
    assert failures(QueueCampaign(), 10_000, 10_000 + 500 * LONGER) == {}


def test_a_seed_replays_exactly():
    campaign = QueueCampaign()
    first, second = campaign.run(1), campaign.run(1)
    assert (first.digest, first.endings) == (second.digest, second.endings)


def violation(seeds: int = 100) -> str:
    failure = caught(QueueCampaign(), seeds)
    assert Violation.__name__ in failure, failure
    return failure.strip().splitlines()[-1]


def test_a_flush_that_writes_nothing_is_caught(monkeypatch):
    def nothing(self, changes):
        written = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    monkeypatch.setattr(Shard, "write", nothing)
    violation()


def test_a_letter_and_its_settlement_in_two_appends_are_caught(monkeypatch):
    submit = StateTopic.submit

    async def one_by_one(store, writes):
        done = []
        for write in writes:
            done += await submit(store, [write])
        return done

    def in_pieces(store, writes):
        return submit(store, writes) if len(writes) == 1 else asyncio.ensure_future(one_by_one(store, writes))

    monkeypatch.setattr(StateTopic, "submit", in_pieces)
    violation(300)


def test_offsets_that_are_given_out_again_and_taken_for_done_are_caught(monkeypatch):
    monkeypatch.setattr(NativePartition, "epoch_end", lambda self, epoch: (-1, -1))
    violation(300)


def test_a_filter_that_is_forgotten_is_caught(monkeypatch):
    monkeypatch.setattr(queue_module, "parse_filter", lambda text: [])
    monkeypatch.setattr(queues_module, "parse_filter", lambda text: [])
    assert "does not meet the filter" in violation()


def test_letters_that_are_sent_back_without_being_settled_are_caught(monkeypatch):
    settle_with = queue_module.Queue.settle_with

    async def only_send(self, lane, offsets, writes):
        if self.name != "redrive":
            return await settle_with(self, lane, offsets, writes)
        return await submit(self._queues._log, writes)

    monkeypatch.setattr(queue_module.Queue, "settle_with", only_send)
    # The redrive that sends the second copy notices, or the consumer that gets it.
    assert re.search(
        r"sent back twice|\+1@\w+ at \S+, attempt 1, came after attempt 1|was settled, and that", violation()
    )


def test_attempts_that_are_not_written_down_are_caught(monkeypatch):
    requeue = queue_module.Queue.requeue

    def forgetful(self, consumer, lane, offset, attempt, delay, error):
        taken = requeue(self, consumer, lane, offset, attempt, delay, error)
        if taken:
            self.lanes[lane].ledger.drain(1 << 20)
        return taken

    monkeypatch.setattr(queue_module.Queue, "requeue", forgetful)
    violation()


def test_a_stale_handle_that_settles_a_later_attempt_is_caught(monkeypatch):
    def find(self, handle):
        lane = self._queue.lanes.get(handle.lane)
        if lane is None or not lane.ledger.lease_of(handle.offset)[0]:
            return None
        return lane, lane.ledger.lease_of(handle.offset)[1]

    def finish_many(self, handles):
        (handle,) = handles
        found = find(self, handle)
        if found is None:
            return [0]
        lane, until = found
        lane.ledger.finish_lease(handle.offset, lane.ledger.lease_of(handle.offset)[0], until)
        self._queue.moved_up(lane)
        return []

    monkeypatch.setattr(leases_module.QueueLeases, "finish_many", finish_many)
    assert "was taken" in violation()


def test_leases_that_are_not_written_down_are_caught(monkeypatch):
    take = leases_module.QueueLeases._take

    def forgetful(self, lane, receiver, limit):
        taken = take(self, lane, receiver, limit)
        if taken:
            lane.ledger.drain(1 << 20)
        return taken

    monkeypatch.setattr(leases_module.QueueLeases, "_take", forgetful)
    violation()
