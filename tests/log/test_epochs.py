from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.epochs import LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    answer = LeaderEpochs()
    for epoch, offset in entries:
        assert answer.assign(epoch, offset)
    return answer


def test_an_epoch_is_assigned_once() -> None:
    e = epochs((0, 0), (3, 100))
    assert not e.assign(3, 120)
    assert not e.assign(1, 120)
    assert e.latest == 3
    assert [e.epoch_at(offset) for offset in (0, 99, 100, 500)] == [0, 0, 3, 3]
    assert e.assign(4, 100)
    assert e.entries == [(0, 0), (4, 100)]


def test_the_end_of_an_epoch() -> None:
    e = epochs((2, 10), (4, 50), (5, 80))
    assert e.end_of(5, 90) == (5, 90)
    assert e.end_of(4, 90) == (4, 80)
    assert e.end_of(3, 90) == (2, 50)
    assert e.end_of(1, 90) == (1, 10)
    assert e.end_of(6, 90) == (-1, -1)
    assert e.end_of(-1, 90) == (-1, -1)
    assert LeaderEpochs().end_of(0, 0) == (-1, -1)


def test_cutting_either_end() -> None:
    e = epochs((2, 10), (4, 50), (5, 80))
    assert e.truncate_end(80)
    assert e.entries == [(2, 10), (4, 50)]


@given(st.dictionaries(st.integers(0, 1000), st.integers(0, 10_000)))
def test_the_file_round_trips(entries: dict[int, int]) -> None:
    offsets = sorted(entries.values())
    e = LeaderEpochs(list(zip(sorted(entries), offsets, strict=True)))
    assert LeaderEpochs.load(e.dump()).entries == e.entries


def test_kafkas_text() -> None:
    assert epochs((0, 0), (7, 42)).dump() == b"0\n2\n0 0\n7 42\n"
    assert LeaderEpochs.load(b"").latest == -1
    for broken in (b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n2\n1 5\n1 6\n", b"0\n1\nx y\n", b"\xff\xff"):
        with pytest.raises(ValueError):  # noqa: PT011 - any complaint will do
            LeaderEpochs.load(broken)
