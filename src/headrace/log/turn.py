"""One write a turn: what arrives for `async` topics in one turn of the loop is written together.

An acknowledgement of an `async` topic means that the operating system has the batch. A system call for each would be
half the cost of a small append, so batches gather in memory until the loop has handled everything that it had received.
A single partition then writes its own to its segment; what several have is one write to the spool. Nothing waits for a
timer.

Gathering costs a turn of the loop, which pays only where several batches share it. So when batches have come alone for
some turns, the next ones are written as they come, until it is time to look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.errors import StorageFailed
from headrace.log.interface import Done
from headrace.log.spool import Spool, Spooled

# After this many turns with one batch each, gathering stops ...
LONELY_TURNS = 4
# ... for this many batches.
DIRECT_BATCHES = 64

NOT_STORED = "the segment could not be written: the disk is full or failed"


class Writer(Spooled, Protocol):
    """What appends to a partition, as the turn sees it."""

    def finish_turn(self, end: int, *, spooled: bool) -> int:
        """Everything below `end` is in the spool, or else store it; the offset up to which that worked."""
        ...


class Turn:
    """Partitions with something to write before the next turn."""

    def __init__(self, spool: Spool, on_void: Callable[[Any], None]) -> None:
        """`on_void`: called with each partition of which what could not be stored is void, before it is answered."""
        self._spool = spool
        self._on_void = on_void
        self._ends: dict[Writer, int] = {}
        self._dones: list[tuple[Writer, int, Done]] = []
        # Of what was taken back before the turn was over.
        self._void: list[Done] = []
        self._count = 0
        self._bytes = 0
        self._lonely = 0
        self._direct = 0

    def gathers(self) -> bool:
        """Whether the next batch should be added here, or be written at once."""
        if self._direct:
            self._direct -= 1
            return False
        return True

    def add(self, partition: Writer, end: int, size: int, done: Done | None) -> None:
        """A batch of `size` bytes that ends before `end` is in memory; call `done` when the operating system has it."""
        if not self._ends:
            asyncio.get_running_loop().call_soon(self.finish)
        self._ends[partition] = end
        self._count += 1
        self._bytes += size
        if done is not None:
            self._dones.append((partition, end, done))

    def take_back(self, partition: Writer, end: int) -> None:
        """What has gathered from `end` on never came: the journal was to go on behind it, and a flush failed. It is
        answered when the turn is over."""
        if self._ends.pop(partition, None) is None:
            return
        dones, self._dones = self._dones, []
        for each in dones:
            if each[0] is partition and each[1] > end:
                self._void.append(each[2])
            else:
                self._dones.append(each)

    def finish(self) -> None:
        """Write what has gathered, and answer it."""
        ends, self._ends = self._ends, {}
        dones, self._dones = self._dones, []
        void, self._void = self._void, []
        self._lonely = self._lonely + 1 if self._count == 1 else 0
        size, self._count, self._bytes = self._bytes, 0, 0
        if self._lonely >= LONELY_TURNS:
            self._direct = DIRECT_BATCHES
        spooled = len(ends) > 1 and self._spool.take(ends.items(), size)
        short = {}
        for partition, end in ends.items():
            reached = partition.finish_turn(end, spooled=spooled)
            if reached < end:
                self._on_void(partition)
                short[partition] = reached
        for done in void:
            done(StorageFailed(NOT_STORED))
        if not short:
            for _, _, done in dones:
                done(None)
            return
        for partition, end, done in dones:
            failed = end > short.get(partition, end)
            done(StorageFailed(NOT_STORED) if failed else None)
