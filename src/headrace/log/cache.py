"""A partition's newest batches in memory: a cache for readers at the tail, and a write-back buffer for its segments.

`segments.end` divides the two: below it a batch is here for readers only and may go, from it on a batch is nowhere else
but in the journal or the spool, and waits to be stored with others in one large write. What a `memory` topic has is
here and never stored. When batches leave to make room for others is `tail.py`'s business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.log.interface import Chunk, Topic
from headrace.log.segments import Segments
from headrace.log.state import PartitionState
from headrace.log.tail import BASE, DATA, LAST, TailBatch, from_index


class Owner(Protocol):
    """A partition, as its cache sees it."""

    end: int
    """The next offset to be assigned."""


class BatchCache:
    """The batches of one partition that are in memory, oldest first."""

    __slots__ = (
        "_now_ms", "_owner", "_released", "_segments", "_state", "_topic", "batches", "memory_bytes", "pending_bytes"
    )  # fmt: skip

    def __init__(
        self, owner: Owner, topic: Topic, segments: Segments, state: PartitionState, now_ms: Callable[[], int]
    ) -> None:
        self._owner = owner
        self._topic = topic
        self._segments = segments
        self._state = state
        self._now_ms = now_ms
        self.batches: deque[TailBatch] = deque()
        # Bytes that a `memory` topic keeps, and bytes that wait for their segment.
        self.memory_bytes = 0
        self.pending_bytes = 0
        # Batches that left before the tail had come to them.
        self._released = 0

    # --- reading ---

    def read(self, index: int, upto: int, max_bytes: int, at_least_one: bool) -> Chunk:
        """Batches from the one at `index` on that lie below `upto` and follow each other."""
        chunk = Chunk()
        expected = self.batches[index][BASE]
        for base, last, data, _ in from_index(self.batches, index):
            size = chunk.size + len(data)
            if base != expected or last >= upto:
                break
            if size > max_bytes and (chunk.parts or not at_least_one):
                chunk.available = max_bytes
                break
            chunk.parts.append(data)
            chunk.size = chunk.available = size
            expected = last + 1
        chunk.before = expected
        return chunk

    # --- writing back ---

    def write_back(self, limit: int) -> None:
        """Store what is in memory only, and below `limit`. Raises OSError."""
        segments, batches = self._segments, self.batches
        if segments.end >= limit:
            # Without a look at all that waits for the journal, which each further append would repeat.
            return
        if batches and batches[-1][BASE] == segments.end:
            # One batch waits, as in most turns of a partition among many.
            if batches[-1][LAST] < limit:
                self._store([batches[-1]])
            return
        waiting = []
        for batch in reversed(batches):
            if batch[BASE] < segments.end:
                break
            if batch[LAST] < limit:
                waiting.append(batch)
        if waiting:
            waiting.reverse()
            self._store(waiting)

    def _store(self, waiting: list[TailBatch]) -> None:
        segments = self._segments
        settings, now = self._topic.settings, self._now_ms()
        try:
            if len(waiting) == 1:
                base, last, data, newest = waiting[0]
                segments.store_one(base, last, data, newest, settings, now, self.on_rolled)
            else:
                segments.store(waiting, settings, now, self.on_rolled)
        finally:
            self.pending_bytes = 0 if segments.end == self._owner.end else self.count_pending()
        if self._state.unindexed:
            self._state.write_aborted(segments)

    def on_rolled(self, base: int) -> None:
        """A segment begins at `base`: keep what a restart would otherwise have to read the log for."""
        if len(self._segments.all) > 1:
            self._state.write(self._segments, self._owner.end)

    def count_pending(self) -> int:
        """Bytes that are in memory only: the newest, of batches that may be many."""
        size = 0
        for batch in reversed(self.batches):
            if batch[BASE] < self._segments.end:
                break
            size += len(batch[DATA])
        return size

    # --- leaving ---

    def release_oldest(self) -> bool:
        """Let go of the oldest batch; False if it waits for its segment."""
        batches = self.batches
        if self._released:
            self._released -= 1
        elif batches:
            if batches[0][BASE] >= self._segments.end:
                return False
            batches.popleft()
        return True

    def keep_newest(self, limit: int, high_watermark: int) -> int | None:
        """Drop the oldest batches of a `memory` topic until at most `limit` bytes are left, but no batch that
        readers do not see yet, nor the last; the new start, if that moves it."""
        start = None
        while self.memory_bytes > limit and len(self.batches) > 1 and self.batches[0][LAST] < high_watermark:
            gone = self.batches.popleft()
            self.memory_bytes -= len(gone[DATA])
            start = gone[LAST] + 1
        return start

    def forget_before(self, start: int) -> None:
        """Nothing but its memory holds what a `memory` topic has, so what is trimmed goes at once."""
        while self.batches and self.batches[0][LAST] < start:
            self.memory_bytes -= len(self.batches.popleft()[DATA])

    def roll_back(self, end: int, *, in_memory: bool) -> None:
        """The batches from `end` on never came."""
        while self.batches and self.batches[-1][BASE] >= end:
            gone = self.batches.pop()
            if in_memory:
                self.memory_bytes -= len(gone[DATA])

    def forget_compacted(self, before: int) -> None:
        """Files up to there were compacted: readers shall find in memory no more than in them."""
        while self.batches and self.batches[0][LAST] < before:
            self.batches.popleft()
            self._released += 1

    def clear(self) -> None:
        """Free what is held in memory: the topic is gone, or it will not be read in this life."""
        self.batches.clear()
        self.pending_bytes = self.memory_bytes = 0
