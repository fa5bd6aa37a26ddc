"""A share of the messages, the same ones each time."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together

from headrace.broker.queues import delivery, watching
from headrace.broker.queues.ledger import Ledger
from headrace.format import records, sampling

SOURCE, WATCHING = interpreted_together("format.sampling", "broker.queues.watching").values()


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
    watched = None if share == 1 else set(offsets(sampling.kept([(0, 30)], 7, sampling.threshold(share))))
    places = sorted(place for place in missed if place < len(triples))
    expected = [
        (offset, attempt)
        for place, (lane, offset, attempt) in enumerate(triples)
        # What was delivered before is watched in any case.
        if lane == 1 and place not in missed and (watched is None or attempt > 1 or offset in watched)
    ]
    for build in (watching, WATCHING):
        assert attempts(build.kept_of_ids(ids, 1, places, watched)) == expected


def test_runs_are_as_long_as_they_can_be():
    ids = array("q", [number for offset in (1, 2, 3, 5, 6, 4) for number in (0, offset, 1 if offset < 6 else 2)])
    for build in (watching, WATCHING):
        assert build.kept_of_ids(ids, 0, [], None) == [(1, 3, 1), (5, 5, 1), (6, 6, 2), (4, 4, 1)]


class Plain:
    """What a compiled build keeps to itself is open in an interpreted one."""

    def __init__(self, given: list[tuple[int, int, bytes | None, list[tuple[str, bytes | None]]]]) -> None:
        self.count = len(given)
        self.given = given
        laid_out = [
            number
            for offset, attempt, key, headers in given
            for number in (offset, attempt, 0, 0, -1 if key is None else len(key), 0, 0, 0, len(headers), 0, 0)
        ]
        self.cells = array("q", laid_out)

    def key_of(self, number: int) -> bytes | None:
        return self.given[number][2]

    def headers_of(self, number: int) -> list[tuple[str, bytes | None]]:
        return self.given[number][3]


def claimed_of(given: list[tuple[bytes | None, list[tuple[str, bytes | None]]]]) -> delivery.Claimed:
    feed = delivery.Feed(1 << 20)
    feed.fill(bytes(records.build([(0, key, b"v", headers) for key, headers in given])), 0)
    rules = delivery.Rules("q", [], None, 1)
    return delivery.claim(feed, Ledger(0), rules, 0, 1, 1_000, len(given), 1 << 20, False)


def parent(trace: int) -> bytes:
    return b"00-%032x-%016x-01" % (trace, trace + 1)


HEADERS = st.one_of(
    st.just(("other", b"x")),
    st.tuples(st.just("traceparent"), st.one_of(st.none(), st.binary(max_size=60), st.integers(0, 9).map(parent))),
    st.just(("headrace-redriven", b"1")),
)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=3)), st.lists(HEADERS, max_size=3)), min_size=1, max_size=40
    ),
    st.sampled_from((0.0, 0.3, 1.0)),
)
def test_of_claimed(given: list[tuple[bytes | None, list[tuple[str, bytes | None]]]], share: float):
    below = sampling.threshold(share)
    expected = [
        (offset, 1)
        for offset, (key, headers) in enumerate(given)
        if share == 1 or sampling.is_kept(offset, 7, below, key, headers)
    ]
    assert attempts(watching.kept_of_claimed(claimed_of(given), 7, below)) == expected
    plain = Plain([(offset, 1, *each) for offset, each in enumerate(given)])
    assert attempts(WATCHING.kept_of_claimed(plain, 7, below)) == expected
    again = Plain([(offset, 2, *each) for offset, each in enumerate(given)])
    assert attempts(WATCHING.kept_of_claimed(again, 7, below)) == [(offset, 2) for offset in range(len(given))]


@pytest.mark.parametrize("build", [sampling, SOURCE])
def test_a_life_is_watched_as_a_whole(build: ModuleType):
    below = build.threshold(0.3)
    places = [(offset, seed) for offset in range(20) for seed in (7, 8)]
    by_key = {key: {build.is_kept(*place, below, b"%d" % key) for place in places} for key in range(100)}
    by_trace = {
        trace: {build.is_kept(*place, below, b"%d" % place[0], [("traceparent", parent(trace))]) for place in places}
        for trace in range(100)
    }
    for found in (by_key, by_trace):
        # The same everywhere, and of about so many.
        assert all(len(each) == 1 for each in found.values())
        assert 15 < sum(True in each for each in found.values()) < 45
    # A key that is empty is none.
    assert len({build.is_kept(*place, below, b"") for place in places}) == 2
    # What was sent back had died.
    assert build.is_kept(0, 7, 1, None, [("headrace-redriven", b"1")])
    assert not build.is_kept(0, 7, 0, None, [("headrace-redriven", b"1")])
