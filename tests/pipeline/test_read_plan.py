"""How a read is cut into pieces and how a stream is slowed down."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.read_plan import Range, _cut, limit_ends


@given(st.integers(0, 1_000), st.integers(1, 10_000), st.integers(1, 50))
def test_pieces_cover_the_whole_once(start: int, length: int, count: int) -> None:
    pieces = _cut(Range("t", 0, start, start + length), min(count, length))
    assert pieces[0].start == start
    assert pieces[-1].end == start + length
    assert all(before.end == after.start for before, after in pairwise(pieces))
    assert all(piece.end > piece.start for piece in pieces)


@given(
    st.dictionaries(st.tuples(st.just("t"), st.integers(0, 20)), st.integers(0, 5_000), min_size=1),
    st.integers(1, 9_000),
)
def test_a_limit_is_shared_out_and_everybody_gets_on(waiting: dict[tuple[str, int], int], most: int) -> None:
    start = dict.fromkeys(waiting, 100)
    end = {each: 100 + count for each, count in waiting.items()}
    found = limit_ends(start, end, most)
    assert all(start[each] <= offset <= end[each] for each, offset in found.items())
    assert all(found[each] > start[each] for each, count in waiting.items() if count)
    # One more for each partition that would have got none.
    assert sum(found[each] - start[each] for each in found) <= max(most, 0) + len(waiting)
