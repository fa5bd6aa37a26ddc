"""The tail: the newest batches of all partitions, in memory, under one budget.

It serves two needs with one bound. Consumers that keep up read from it and never touch a file; and batches of `sync`
topics that are in the journal but not yet in their segment wait here. The oldest batch of all goes first when the
budget is full; if it still waits for its segment, its partition writes everything that waits, in one large write.
Batches enter in the order of appends, so the oldest of all is always the oldest of its partition: one queue of
partitions and one of sizes are the whole book-keeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

# Up to this many batches from the end, a copy of them is cheaper than walking there from the start.
NEAR_END = 4_096


# A batch as the log keeps it in memory: base offset, last offset, bytes, largest timestamp. A plain tuple, which the
# garbage collector stops tracking once it has seen that nothing in it can point back: there may be hundreds of
# thousands, and a full collection stops the broker for as long as it takes to visit all that are tracked.
TailBatch = tuple[int, int, bytes, int]
BASE: Final = 0
LAST: Final = 1
DATA: Final = 2
TIME: Final = 3


class Holder(Protocol):
    """A partition, as the tail sees it."""

    def release_oldest(self) -> bool:
        """Let go of the oldest batch; False if it cannot go yet, because the disk does not take it."""
        ...


class Tail:
    """The order in which batches leave memory."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._holders: deque[Holder] = deque()
        self._sizes: deque[int] = deque()
        self.size = 0

    def add(self, holder: Holder, size: int) -> None:
        """Note a batch that `holder` has just taken, and make room."""
        self._holders.append(holder)
        self._sizes.append(size)
        self.size += size
        while self.size > self._budget and len(self._holders) > 1:
            if not self._holders[0].release_oldest():
                return
            self._holders.popleft()
            self.size -= self._sizes.popleft()


def find(tail: deque[TailBatch], offset: int) -> int:
    """The index of the last batch whose base is at or below `offset`. The first one's must be.

    Readers are mostly near the end, and a deque is quick only near its ends: so the search begins there."""
    high = len(tail) - 1
    step = 1
    while tail[high][BASE] > offset:
        low = max(0, high - step)
        if tail[low][BASE] <= offset:
            while high - low > 1:
                middle = (low + high) >> 1
                if tail[middle][BASE] <= offset:
                    low = middle
                else:
                    high = middle
            return low
        high = low
        step *= 2
    return high


def from_index(tail: deque[TailBatch], index: int) -> Iterable[TailBatch]:
    """The batches from there on, at the cost of the distance to the nearer end."""
    behind = len(tail) - index
    if behind > min(index, NEAR_END):
        return islice(tail, index, None)
    newest = list(islice(reversed(tail), behind))
    newest.reverse()
    return newest
