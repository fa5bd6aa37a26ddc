"""Records released when they are due: as far from each other in time as they were, at a chosen multiple.

A record is due when the newest one up to it in its partition is, so that the order stays. A task that takes too long is
behind, and gets what is due at once; how far behind it was is known at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

# Records that are due within so many seconds leave together.
TICK = 0.01
NEVER = -(1 << 62)


@dataclass(frozen=True)
class Pace:
    """When records are due."""

    first_ms: int
    """The time of a record that is due at the begin."""
    begin: float
    """By the clock of all machines, in seconds."""
    speed: float

    def due(self, times_ms: Any) -> Any:
        """When records of these times are."""
        return self.begin + (times_ms - self.first_ms) / 1000 / self.speed

    def reaches(self, at: float) -> int:
        """The time (ms) of records that are due at a moment."""
        return self.first_ms + int((at - self.begin) * 1000 * self.speed)


class _PartitionCursor:
    """One partition's records, of which the first `taken` of a block have left."""

    def __init__(self, blocks: Iterator[pa.RecordBatch], pace: Pace) -> None:
        self._blocks = blocks
        self._pace = pace
        self._newest = NEVER
        self.taken = 0
        self.block: pa.RecordBatch | None = None
        self.due: Any = None
        self.advance()

    def advance(self) -> None:
        self.block = next((block for block in self._blocks if block.num_rows), None)
        if self.block is None:
            return
        times = self.block.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        newest = np.maximum.accumulate(np.maximum(times, self._newest))
        self._newest = int(newest[-1])
        self.taken, self.due = 0, self._pace.due(newest)

    @property
    def next(self) -> float:
        return float(self.due[self.taken])


class Pacer:
    """Releases the blocks of some partitions."""

    def __init__(
        self,
        partitions: Sequence[Iterator[pa.RecordBatch]],
        pace: Pace,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lanes = [_PartitionCursor(blocks, pace) for blocks in partitions]
        self._clock = clock
        self._sleep = sleep
        self.behind = 0.0
        """How late a record left at worst, in seconds."""

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Records when they are due, those of a partition in their order."""
        lanes = [lane for lane in self._lanes if lane.block is not None]
        while lanes:
            now = self._clock()
            for lane in lanes:
                ready = int(np.searchsorted(lane.due, now, side="right"))
                if ready <= lane.taken:
                    continue
                assert lane.block is not None
                self.behind = max(self.behind, now - lane.next)
                part = lane.block.slice(lane.taken, ready - lane.taken)
                lane.taken = ready
                if ready == lane.block.num_rows:
                    lane.advance()
                yield part
            lanes = [lane for lane in lanes if lane.block is not None]
            # What has become due meanwhile goes first.
            if lanes and (wait := min(lane.next for lane in lanes) - self._clock()) > 0:
                self._sleep(max(wait, TICK))
