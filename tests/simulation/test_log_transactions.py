"""Transactions at the level of the log: where one of the mechanisms that keep their promises is switched off, the
campaign says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.campaigns import caught

from headrace.log import loading
from headrace.log.interface import Durability
from headrace.log.producers import ProducerStates
from headrace.log.segments import Loaded
from simulation.log.campaign import LogCampaign

SEEDS = 60


def forget_what_was_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "remember", lambda self, producer, base, durable: None)


def decide_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    first_unstable = ProducerStates.first_unstable
    patch.setattr(ProducerStates, "first_unstable", lambda self, upto=None: first_unstable(self))


def trust_the_newest_snapshot(patch: pytest.MonkeyPatch) -> None:
    fold = loading._fold

    def only_the_last(found: Loaded, producers: ProducerStates, since: int, upto: int) -> None:
        if producers is found.producers:
            fold(found, producers, since, upto)

    patch.setattr(loading, "_fold", only_the_last)


@pytest.mark.parametrize(
    ("switch_off", "durabilities"),
    [
        (forget_what_was_before, (Durability.SYNC,)),
        (decide_before_it_is_durable, (Durability.SYNC,)),
        (trust_the_newest_snapshot, tuple(Durability)),
    ],
)
def test_what_is_switched_off_is_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    durabilities: tuple[Durability, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    caught(LogCampaign(durabilities=durabilities), SEEDS)


def test_an_index_that_is_not_synced_is_caught() -> None:
    caught(LogCampaign(durabilities=(Durability.SYNC,), ignored=frozenset({"sync transaction index"})), SEEDS)
