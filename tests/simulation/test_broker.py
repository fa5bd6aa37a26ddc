"""The whole broker behind its Kafka door, with clients over a network that breaks, through kills and power cuts: what
clients were told holds; and where the broker is broken on purpose, the history says so."""

from __future__ import annotations

import asyncio

import pytest
from tests.longer import LONGER, seeds
from tests.simulation.campaigns import caught, failures

from headrace.doors.kafka.fetch import FetchCall
from headrace.log.interface import Appended
from headrace.log.partition import NativePartition
from headrace.log.producers import ProducerStates
from simulation.broker.campaign import BrokerCampaign
from simulation.history import Violation

SEEDS = 40
PARTS = 4


@pytest.mark.parametrize("part", seeds(2, PARTS))
def test_what_clients_were_told_holds(part):
    step = SEEDS // PARTS
    assert failures(BrokerCampaign(), part * step, (part + 1) * step) == {}


@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
def test_what_clients_were_told_holds_over_many_seeds():
    assert failures(BrokerCampaign(), 10_000, 10_000 + 500 * LONGER) == {}


def test_a_seed_replays_exactly():
    campaign = BrokerCampaign()
    for seed in (1, 2):
        first, second = campaign.run(seed), campaign.run(seed)
        assert (first.digest, first.endings) == (second.digest, second.endings)


def violation() -> str:
    """Of the first failing seed. Lives are shorter still: what is in flight when one ends is what counts."""
    failure = caught(BrokerCampaign(steps=6, lives=12), 300)
    assert Violation.__name__ in failure, failure
    # Behind it may stand notes about what the end of the run left behind.
    return next(line for line in failure.splitlines() if f"{Violation.__name__}: " in line)


append = NativePartition.append


def test_a_reply_before_the_batch_is_durable_is_caught(monkeypatch):
    def hasty(self, batches, done=None):
        if self.topic.name.startswith("__"):
            return append(self, batches, done)
        return append(self, batches, None)._replace(durable=True)

    monkeypatch.setattr(NativePartition, "append", hasty)
    violation()


def test_a_dropped_batch_is_caught(monkeypatch):
    count = 0

    def forgetful(self, batches, done=None):
        nonlocal count
        count += 1
        if count % 50 or self.topic.name.startswith("__"):
            return append(self, batches, done)
        return Appended(self.end, -1, True)

    monkeypatch.setattr(NativePartition, "append", forgetful)
    violation()


def test_a_duplicate_answered_as_new_is_caught(monkeypatch):
    check = ProducerStates.check

    def trusting(self, header):
        check(self, header)

    monkeypatch.setattr(ProducerStates, "check", trusting)
    assert "duplicate" in violation()


@pytest.mark.timeout(600)
def test_a_read_beyond_the_durable_offset_is_caught(monkeypatch):
    read = FetchCall._read

    def eager(self, entry, *limits):
        if entry.topic is None or entry.topic.deleted:
            return read(self, entry, *limits)
        partition = entry.topic.partitions[entry.index]
        readable, partition.high_watermark = partition.high_watermark, partition.end
        try:
            return read(self, entry, *limits)
        finally:
            partition.high_watermark = readable

    monkeypatch.setattr(FetchCall, "_read", eager)
    violation()


@pytest.mark.timeout(600)
def test_commits_that_are_not_durable_are_caught(monkeypatch):
    def hasty(self, batches, done=None):
        if not self.topic.name.startswith("__") or done is None:
            return append(self, batches, done)
        asyncio.get_running_loop().call_soon(done, None)
        return append(self, batches, None)

    monkeypatch.setattr(NativePartition, "append", hasty)
    assert "went back" in violation()
