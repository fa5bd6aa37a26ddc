from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.tail import BASE, LAST, TailBatch, find, from_index


def batches(sizes: list[int], first: int = 0) -> deque[TailBatch]:
    made: deque[TailBatch] = deque()
    for size in sizes:
        made.append((first, first + size - 1, b"", 0))
        first += size
    return made


@given(st.lists(st.integers(1, 5), min_size=1, max_size=200), st.integers(0, 1000), st.data())
def test_find_gives_the_batch_that_holds_an_offset(sizes: list[int], first: int, data: st.DataObject) -> None:
    tail = batches(sizes, first)
    offset = data.draw(st.integers(first, tail[-1][LAST]))
    found = tail[find(tail, offset)]
    assert found[BASE] <= offset <= found[LAST]


def test_find_gives_the_last_batch_for_an_offset_behind_it() -> None:
    assert find(batches([1, 1, 1]), 10) == 2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=50), st.data())
def test_from_index_gives_the_rest_in_order(sizes: list[int], data: st.DataObject) -> None:
    tail = batches(sizes)
    index = data.draw(st.integers(0, len(tail) - 1))
    assert list(from_index(tail, index)) == list(tail)[index:]
