# cython: boundscheck=False, wraparound=False
"""Which batches of a chunk were aborted, asked as the chunk is walked.

A transaction's batches stand anywhere between its first offset and its marker, among those of other producers. So a
batch was aborted if it is transactional and lies within an aborted transaction of its own producer. One producer's
transactions follow each other: a batch is held against one of them, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable


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
