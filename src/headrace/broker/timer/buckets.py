"""Buckets in their time: opened, moved down a level, and emptied.

All three are a matter of reading a log and, for the latter two, of one atomic append or one trim. Whatever stops them
halfway, the log holds what is left to do: a message and the mark that it has left are one journal entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from headrace.broker.durable import append, durable
from headrace.broker.timer import wheel as kernel
from headrace.broker.timer.bucket import Bucket, Near, State
from headrace.broker.timer.chunks import STEP_PAIRS, chunk_at, read_all
from headrace.broker.timer.heap import NEVER
from headrace.broker.timer.scan import Cascade, Scan
from headrace.errors import HeadraceError, StorageFailed
from headrace.log.interface import Appended, Done, Log, Write
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.timer")

RETRY_MS = 1_000
# What is damaged does not heal by itself; an operator may put it right.
RETRY_DAMAGED_MS = 60_000
# At most so many buckets are near at the same time, not counting those with few messages.
NEAR_BUCKETS = 3
SMALL_BUCKET = 1_000


def retry_after(error: Exception) -> int:
    """How long to leave a bucket alone."""
    return RETRY_MS if isinstance(error, (OSError, StorageFailed)) else RETRY_DAMAGED_MS


class Buckets:
    """The buckets of the wheel: opens them, moves their messages down, empties them."""

    def __init__(self, runtime: Runtime, log: Log, changed: Callable[[], None]) -> None:
        self._runtime = runtime
        self._log = log
        self.all: list[Bucket] = []
        """By number, once the timer is loaded."""
        self._changed = changed
        """Called when the timer must look again at what to do next."""
        self.near: list[Bucket] = []
        self.stale = True
        """Whether some far bucket may have to be looked at earlier than the timer knows."""
        self.moved = 0

    def enter(
        self, writes: list[Write], entering: Mapping[int, kernel.BucketBatch], done: Done | None = None
    ) -> list[Appended]:
        """Append messages to their buckets, together with `writes`: all or nothing, those first in the answer. Nothing
        enters if one of `writes` had been appended before. Raises an AppendRefused."""
        placed: list[tuple[Bucket, Sequence[int], int]] = []

        def on_durable(error: Exception | None) -> None:
            if error is None:
                for bucket, dues, base in placed:
                    if bucket.entered(dues, base):
                        self.stale = True
                self._changed()
            if done is not None:
                done(error)

        into = [(self.all[number], each) for number, each in entering.items()]
        writes = writes + [Write(bucket.partition, each.batch()) for bucket, each in into]
        appended = append(self._log, writes, on_durable)
        if not appended[0].duplicate:
            for (bucket, each), where in zip(into, appended[len(writes) - len(into) :], strict=True):
                placed.append((bucket, each.dues, where.base_offset))
        return appended

    def attend(self, bucket: Bucket) -> Coroutine[Any, Any, None]:
        """Do what the time asks of a far bucket. It is busy from now on: nothing else begins with it."""
        bucket.state = State.BUSY
        return self._attend(bucket)

    async def _attend(self, bucket: Bucket) -> None:
        try:
            async with bucket.turn:
                if bucket.level:
                    await self._move_down(bucket)
                else:
                    await self._open(bucket)
        except (HeadraceError, OSError) as error:
            bucket.near = None
            bucket.state = State.FAR
            bucket.retry_at = self._runtime.clock.now_ms() + retry_after(error)
            log.warning("a bucket of the timer cannot be read yet", bucket=bucket.number, error=str(error))
        self.stale = True
        self._changed()

    async def _open(self, bucket: Bucket) -> None:
        partition = bucket.partition
        scan = Scan(partition.start, partition.high_watermark)
        bucket.near = near = Near(scan.index, partition.high_watermark, bucket.closes_at)
        await read_all(self._runtime, partition, scan)
        while True:
            if near.index.order(STEP_PAIRS):
                break
            await asyncio.sleep(0)
        bucket.waiting = len(near.index)
        bucket.state = State.NEAR
        self.near.append(bucket)

    async def _move_down(self, bucket: Bucket) -> None:
        partition = bucket.partition
        scan = Scan(partition.start, partition.high_watermark)
        known, before = bucket.waiting, bucket.earliest
        # From here on it speaks of what comes in meanwhile.
        bucket.earliest = NEVER
        try:
            await read_all(self._runtime, partition, scan)
            bucket.waiting += len(scan.index) - known
            cascade = Cascade(scan.index, bucket.number)
            while (offset := cascade.next) >= 0:
                data = await chunk_at(self._runtime, partition, offset)
                now = self._runtime.clock.now_ms()
                entering, moved = cascade.read(data, now)
                if moved:
                    await self._carry(bucket, entering, moved, now)
                elif cascade.next == offset:
                    raise HeadraceError(f"bucket {bucket.number} of the timer has no message at offset {offset}")
        except BaseException:
            bucket.earliest = min(bucket.earliest, before)
            raise
        bucket.earliest = min(bucket.earliest, cascade.stays)
        bucket.state = State.FAR
        if bucket.earliest == NEVER:
            # Nothing stays, and nothing has come in since.
            await self._empty(bucket, partition.high_watermark)

    async def _carry(
        self, bucket: Bucket, entering: Mapping[int, kernel.BucketBatch], moved: Sequence[int], now: int
    ) -> None:
        """Move messages to other buckets: the mark that they have left this one goes with them."""
        waiter, done = durable(None)

        def on_durable(error: Exception | None) -> None:
            if error is None:
                bucket.waiting -= len(moved)
                self.moved += len(moved)
            done(error)

        self.enter([Write(bucket.partition, kernel.mark(moved, now))], entering, on_durable)
        await waiter

    def has_room(self) -> bool:
        """Whether one more bucket may be near. Two are as a rule: the current minute's and the next. Messages that
        their targets refuse do not count, however many they are: others must not wait for them."""
        large = sum(bucket.near is not None and bucket.near.movable > SMALL_BUCKET for bucket in self.near)
        return large + sum(bucket.state is State.BUSY and not bucket.level for bucket in self.all) < NEAR_BUCKETS

    def finished(self, bucket: Bucket, now: int) -> bool:
        """Whether a near bucket has had its time and nothing waits in it any more."""
        near = bucket.near
        return near is not None and now >= near.until and not near.waiting and near.filling is None

    def close(self, bucket: Bucket) -> Coroutine[Any, Any, None]:
        """Empty a bucket that is finished. It is not near from now on."""
        self.near.remove(bucket)
        bucket.near = None
        bucket.earliest = NEVER
        bucket.state = State.BUSY
        return self._close(bucket, bucket.partition.high_watermark)

    async def _close(self, bucket: Bucket, before: int) -> None:
        try:
            async with bucket.turn:
                await self._empty(bucket, before)
        finally:
            bucket.state = State.FAR
            self.stale = True
            self._changed()

    async def _empty(self, bucket: Bucket, before: int) -> None:
        """Give the disk its room back: nothing below `before` waits. What fails here is done at another time."""
        try:
            await bucket.partition.trim(before)
        except (HeadraceError, OSError) as error:
            log.warning("a bucket of the timer could not be emptied", bucket=bucket.number, error=str(error))
