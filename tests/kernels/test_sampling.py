"""A share of the offsets, the same ones each time."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

from headrace.kernels import sampling

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
