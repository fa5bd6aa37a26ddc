# cython: boundscheck=False, wraparound=False
"""Which batches of a chunk were aborted, asked as the chunk is walked.

A transaction's batches stand anywhere between its first offset and its marker, among those of other producers. So a
batch was aborted if it is transactional and lies within an aborted transaction of its own producer. One producer's
transactions follow each other: a batch is held against one of them, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable

import cython

PREFIX = cython.declare(cython.Py_ssize_t, 12)
HEAD = cython.declare(cython.Py_ssize_t, 61)


class Aborted:
    """The aborted transactions that a chunk has to do with: producer id, first offset and the marker's of each, in the
    order of their markers."""

    def __init__(self, transactions: Iterable[tuple[int, int, int]]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in transactions:
            self._spans.setdefault(producer_id, []).append((first, last))
        for spans in self._spans.values():
            spans.reverse()

    def has(self, producer_id: int, base_offset: int) -> bool:
        """Whether a transactional batch was aborted. Ask for the batches in their order."""
        spans = self._spans.get(producer_id)
        if spans is None:
            return False
        while spans and spans[len(spans) - 1][1] < base_offset:
            spans.pop()
        return bool(spans) and spans[len(spans) - 1][0] <= base_offset


def end_of(data: bytes) -> int:
    """Behind the last offset of the last whole batch of a chunk; 0 where there is none."""
    position: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = -1
    size: cython.Py_ssize_t
    while len(data) - position >= HEAD:
        size = data[position + 8]
        size = PREFIX + (size << 24 | data[position + 9] << 16 | data[position + 10] << 8 | data[position + 11])
        if len(data) - position < size:
            break
        last = position
        position += size
    if last < 0:
        return 0
    base = int.from_bytes(data[last : last + 8], "big")
    return base + int.from_bytes(data[last + 23 : last + 27], "big") + 1
