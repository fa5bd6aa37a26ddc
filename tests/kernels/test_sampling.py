"""A share of the offsets, the same ones each time."""

from __future__ import annotations

from array import array
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

from headrace.kernels import delivery, records, sampling
from headrace.kernels.ledger import Ledger

SOURCE = interpreted("sampling")


def offsets(runs: list[tuple[int, int]]) -> list[int]:
    return [offset for first, last in runs for offset in range(first, last + 1)]


@given(
    st.lists(st.tuples(st.integers(0, (1 << 63) - 100), st.integers(0, 50)).map(lambda run: (run[0], sum(run)))),
    st.integers(0, (1 << 32) - 1),
    st.floats(0, 1),
)
def test_both_builds_keep_the_same_and_one_by_one_like_together(runs, seed, share):
    below = sampling.threshold(share)
    found = sampling.kept(runs, seed, below)
    assert found == SOURCE.kept(runs, seed, below)
    alone = [offset for offset in offsets(runs) if sampling.kept([(offset, offset)], seed, below)]
    assert offsets(found) == alone
    for build in (sampling, SOURCE):
        assert [offset for offset in offsets(runs) if build.is_kept(offset, seed, below)] == alone


def test_partitions_differ():
    assert len({sampling.seed_of(topic, partition) for topic in ("a", "b") for partition in range(4)}) == 8
    assert sampling.seed_of("a", 0) == SOURCE.seed_of("a", 0)


@pytest.mark.parametrize("build", [sampling, SOURCE])
@pytest.mark.parametrize("start", [0, (1 << 32) - 5_000, 1 << 40])
def test_about_the_share_that_was_asked_for(build: ModuleType, start: int):
    run = [(start, start + 9_999)]
    assert build.kept(run, 7, build.threshold(0.0)) == []
    assert build.kept(run, 7, build.threshold(1.0)) == run
    tenth = offsets(build.kept(run, 7, build.threshold(0.1)))
    assert 850 < len(tenth) < 1150
    # What a smaller share keeps, a larger one keeps too: raising the share loses no message that is being watched.
    assert set(tenth) < set(offsets(build.kept(run, 7, build.threshold(0.3))))
    assert set(tenth) != set(offsets(build.kept(run, 8, build.threshold(0.1))))
    # No pattern in the traffic can hide behind a period of the choice.
    assert {offset % 10 for offset in tenth} == set(range(10))


def attempts(runs: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(offset, attempt) for first, last, attempt in runs for offset in range(first, last + 1)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 2))),
    st.sets(st.integers(0, 10)),
    st.sampled_from((0.0, 0.3, 1.0)),
)
def test_of_ids(triples, missed, share):
    ids = array("q", [number for triple in triples for number in triple])
    below = sampling.threshold(share)
    places = sorted(place for place in missed if place < len(triples))
    expected = [
        (offset, attempt)
        for place, (lane, offset, attempt) in enumerate(triples)
        if lane == 1 and place not in missed and sampling.kept([(offset, offset)], 7, below)
    ]
    for build in (sampling, SOURCE):
        assert attempts(build.kept_of_ids(ids, 1, places, 7, below)) == expected


def test_runs_are_as_long_as_they_can_be():
    ids = array("q", [number for offset in (1, 2, 3, 5, 6, 4) for number in (0, offset, 1 if offset < 6 else 2)])
    for build in (sampling, SOURCE):
        assert build.kept_of_ids(ids, 0, [], 7, build.ALL) == [(1, 3, 1), (5, 5, 1), (6, 6, 2), (4, 4, 1)]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_of_claimed(share: float):
    feed = delivery.Feed(1 << 20)
    feed.fill(bytes(records.build([(0, None, b"v", [])] * 100)), 0)
    claimed = delivery.claim(feed, Ledger(0), delivery.Rules("q", [], None, 1), 0, 1, 1_000, 100, 1 << 20, False)
    assert claimed.count == 100
    below = sampling.threshold(share)
    expected = [(offset, 1) for offset in offsets(sampling.kept([(0, 99)], 7, below))]
    assert attempts(sampling.kept_of_claimed(claimed, 7, below)) == expected
    # What a compiled build keeps to itself is open in an interpreted one.
    laid_out = [number for offset in range(100) for number in (offset, 1, *[0] * 9)]
    plain = SimpleNamespace(count=100, cells=array("q", laid_out))
    assert attempts(SOURCE.kept_of_claimed(plain, 7, below)) == expected
