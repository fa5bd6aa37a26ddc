"""A bucket: one partition of `__timers`, and the messages that wait in its log for one window of time.

Most buckets are *far*: of them only the earliest due time and a number of messages are known. A bucket of the lowest
level becomes *near* shortly before its window: then 16 bytes of each message are in memory, and the messages that are
due next are read. A bucket of a higher level is never near; its messages move down before its window begins. Both take
the bucket's turn, and so does a cancellation.

A far bucket is looked at again at `opens_at`, which follows from its earliest due time alone. There is no other clock
or cursor on disk: the first batch of a bucket's log is of its oldest window, and a start reads only that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from headrace.broker.timer.heap import NEVER, Heap
from headrace.broker.timer.stage import Stage
from headrace.broker.timer.wheel import BUCKETS, LEVELS, RATIO, WIDTH_MS
from headrace.log.interface import Partition

# A bucket of the lowest level is opened this long before its window, to have time to read all of it.
OPEN_AHEAD_MS = 15_000
# One of a higher level moves its messages down this many windows of the level below ahead: as many as that has spare.
MOVE_AHEAD = 3


class State(Enum):
    """Where the messages of a bucket are."""

    FAR = "far"
    """On disk alone."""
    BUSY = "busy"
    """About to be read, or moved down, or given up."""
    NEAR = "near"
    """On disk, and their due times in memory."""


class Near:
    """What is in memory of a bucket whose time has come."""

    def __init__(self, index: Heap, read_from: int, until: int) -> None:
        self.index = index
        """Due time and offset of what is not staged."""
        self.refused = Heap()
        """When to try again, and offset, of messages that their target refuses."""
        self.stage = Stage()
        self.partitions: list[Partition | None] = []
        """The stage's targets, loaded; None: the topic is gone."""
        self.wanted = 0
        """Messages on their way from the index to the stage."""
        self.flying = 0
        """Messages that are fired, but not durably yet."""
        self.filling: asyncio.Task[None] | None = None
        self.read_from = read_from
        """What is at or above this offset was reported by an append, not read."""
        self.until = until
        """The end of the window: once it has passed and nothing waits, the bucket is emptied."""
        self.rests_until = 0
        """Nothing is fired before this, so that many small slices become few."""
        self.cautious = 0
        """This many messages are fired one by one, to find the one that its target refuses."""

    @property
    def waiting(self) -> int:
        return self.movable + len(self.refused)

    @property
    def movable(self) -> int:
        """Those that wait for nothing but their time."""
        return len(self.index) + len(self.stage) + self.wanted + self.flying


class Bucket:
    """One of the wheel's buckets."""

    def __init__(self, number: int, partition: Partition) -> None:
        self.number = number
        self.partition = partition
        self.width: int = WIDTH_MS * RATIO ** (number // BUCKETS)
        self.state = State.FAR
        self.near: Near | None = None
        self.turn = asyncio.Lock()
        self.earliest: int = NEVER
        """No message that waits here is due in an earlier window than this."""
        self.waiting = 0
        """Messages that wait, as far as is known: one that was cancelled in an earlier life counts until it is read."""
        self.retry_at = 0
        """After an error, not to be tried again before this."""

    @property
    def level(self) -> int:
        return self.number // BUCKETS

    @property
    def opens_at(self) -> int:
        """When a far bucket must be opened, or its messages moved down; NEVER where none waits."""
        if self.earliest == NEVER:
            return NEVER
        ahead = MOVE_AHEAD * self.width // RATIO if self.level else OPEN_AHEAD_MS
        return max(self.earliest - self.earliest % self.width - ahead, self.retry_at)

    @property
    def closes_at(self) -> int:
        """The end of the window of the earliest message."""
        return self.earliest - self.earliest % self.width + self.width

    def entered(self, dues: Sequence[int], base: int) -> bool:
        """Messages have been appended here, durably. Whether the bucket is far and must be looked at earlier now."""
        self.waiting += len(dues)
        first = min(dues)
        earlier = first < self.earliest
        if earlier:
            self.earliest = first
        if self.near is not None and base >= self.near.read_from:
            self.near.index.add_keys(dues, base)
        return earlier and self.state is State.FAR


def candidates(due_ms: int) -> list[int]:
    """The buckets in which a message that is due then may wait, the highest level first: messages only move down, so
    a search in this order misses none."""
    found = []
    for level in reversed(range(LEVELS)):
        width = WIDTH_MS * RATIO**level
        found.append(level * BUCKETS + due_ms // width % BUCKETS)
    return found
