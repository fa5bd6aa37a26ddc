"""The meters of quotas, compiled and interpreted, beside a model in whole numbers."""

from __future__ import annotations

import gc
import random
import weakref
from fractions import Fraction
from types import ModuleType

import pytest
from tests.kernels.conftest import interpreted_together

import headrace.broker.quotas.bucket as bucket
import headrace.broker.quotas.meter as meter
from headrace.broker.quotas.kinds import Kind
from headrace.errors import QuotaExceeded

SOURCES = interpreted_together("broker.quotas.bucket", "broker.quotas.meter")
BUILDS = [(bucket, meter), (SOURCES["broker.quotas.bucket"], SOURCES["broker.quotas.meter"])]
builds = pytest.mark.parametrize(("buckets", "meters"), BUILDS, ids=["installed", "interpreted"])
WAIT_MAX = 10.0


class Model:
    """A bucket by its definition."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.level = Fraction(0)
        self.then = Fraction(0)

    def charge(self, amount: int, now: Fraction) -> Fraction:
        self.level = max(self.level - (now - self.then) * self.rate, Fraction(0)) + amount
        self.then = now
        return min(max(self.level - self.rate, Fraction(0)) / self.rate, Fraction(WAIT_MAX))


@builds
@pytest.mark.parametrize("seed", range(5))
def test_it_waits_for_as_long_as_the_model(buckets: ModuleType, meters: ModuleType, seed: int) -> None:
    chance = random.Random(seed)
    rates = {"produce": 1_000, "consume": 3_000}
    figures = buckets.Throttling()
    made = {kind: buckets.Bucket(rate, 1.0, WAIT_MAX, figures) for kind, rate in rates.items()}
    models = {kind: Model(rate) for kind, rate in rates.items()}
    metered = meters.Meter(made["produce"], made["consume"], None, None)
    now, throttled, seconds = Fraction(0), 0, 0.0
    for _ in range(2_000):
        now += Fraction(chance.randrange(3_000), 1_000)
        size = chance.randrange(5_000)
        kind = chance.choice(list(rates))
        wait = (metered.produced if kind == "produce" else metered.consumed)(size, float(now))
        expected = models[kind].charge(size, now)
        assert wait == pytest.approx(float(expected), abs=1e-6)
        throttled += wait > 0
        seconds += wait
    assert throttled > 500
    assert figures.throttled == throttled
    assert figures.seconds == pytest.approx(seconds)
    assert metered.wait_to_mutate(float(now)) == metered.asked(float(now)) == 0.0


@builds
def test_the_longest_wait_of_bytes_and_of_the_loop_counts(buckets: ModuleType, meters: ModuleType) -> None:
    figures = buckets.Throttling()
    produce, request = (buckets.Bucket(rate, 1.0, WAIT_MAX, figures) for rate in (10, 1))
    metered = meters.Meter(produce, None, request, None)
    assert metered.request is request
    assert metered.produced(30, 1.0) == 2.0
    request.count(6.0, 1.0)
    assert metered.produced(0, 1.0) == metered.consumed(10, 1.0) == metered.asked(1.0) == 5.0
    request.count(600.0, 1.0)
    assert metered.asked(1.0) == WAIT_MAX
    assert request.is_exhausted(1.0)
    with pytest.raises(QuotaExceeded) as refused:
        metered.take_request(1.0)
    assert refused.value.kind is Kind.REQUEST
    assert figures.refused == 1


@builds
def test_a_bucket_goes_with_the_last_meter(buckets: ModuleType, meters: ModuleType) -> None:
    made = buckets.Bucket(10, 1.0, WAIT_MAX, buckets.Throttling())
    seen = weakref.ref(made)
    metered = meters.Meter(None, None, None, made)
    del made
    gc.collect()
    assert seen() is not None
    del metered
    gc.collect()
    assert seen() is None
