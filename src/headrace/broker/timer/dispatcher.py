"""Firing: from near buckets to the topics that the messages are for.

What is due within some seconds is read ahead into the bucket's stage, so that at its time nothing waits for a disk.
A slice of what is due is then one atomic append: the batches for its targets, and in the bucket the mark that these
messages have left. A slice holds the loop for about a millisecond; when a hundred thousand messages are due at once,
all other work has a turn between two slices, and only so many bytes may be on their way to the disk.

Nothing is ever given up but what its topic's deletion has made void. When the log cannot take a slice it is tried
again; when a target refuses a message (it is offline, or compacted by now, and the message has no key), that message is
tried again each minute and the others go on.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from functools import partial
from uuid import UUID

import structlog

from headrace.broker import move
from headrace.broker.durable import append
from headrace.broker.metrics import LATENCY_BOUNDS, Histogram
from headrace.broker.timer.bucket import Bucket, Near
from headrace.broker.timer.buckets import RETRY_MS, Buckets, retry_after
from headrace.broker.timer.chunks import CHUNK_BYTES, chunk_at
from headrace.broker.timer.heap import NEVER, Heap
from headrace.broker.timer.stage import Fired
from headrace.broker.timer.wheel import mark
from headrace.errors import AppendOffline, AppendRefused, CorruptLog, HeadraceError
from headrace.log.interface import Log, Partition, Write
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.timer")

# Reading ahead begins when a message that is not read is due within this time, and goes as far as that time: many at
# once are read in the order of the log, few at a time each from another place.
BEGIN_MS = 250
AHEAD_MS = 3_000
# How many messages are read ahead, and how many bytes of them.
STAGE_RECORDS = 16_384
STAGE_BYTES = 4_194_304
# One slice. When all that was due has been fired, what is due next is gathered for this long.
REST_MS = 4
SLICE_RECORDS = 1_024
SLICE_BYTES = 131_072
# Bytes that are fired but not durable.
FLYING_BYTES = 8_388_608
# A message that its target refuses is tried again after this.
REFUSED_MS = 60_000
# What a record takes beside its key, value and headers, and a batch beside its records: more than either ever does.
OVERHEAD_BYTES = 128

_BOUNDS_MS = array("q", (int(bound * 1_000) for bound in LATENCY_BOUNDS))


class Dispatcher:
    """Fires what is due in the near buckets."""

    def __init__(self, runtime: Runtime, log: Log, buckets: Buckets, changed: asyncio.Event) -> None:
        self._runtime = runtime
        self._log = log
        self._buckets = buckets
        self._changed = changed
        self._flying_bytes = 0
        self._retry_at = 0
        self.fired = 0
        self.dropped = 0
        self.refused = 0
        self.late = Histogram()

    def next_at(self) -> int:
        """When there is something to do for the near buckets."""
        next_at = NEVER
        for bucket in self._buckets.near:
            near = bucket.near
            assert near is not None
            if self._flying_bytes < FLYING_BYTES and len(near.partitions) == len(near.stage.targets):
                next_at = min(next_at, max(near.stage.top, near.rests_until, self._retry_at))
            if near.filling is None and self._has_room(near):
                next_at = min(next_at, max(near.index.top - BEGIN_MS, bucket.retry_at))
            if not near.waiting and near.filling is None:
                next_at = min(next_at, near.until)
            next_at = min(next_at, near.refused.top)
        return next_at

    def forget_pauses(self) -> None:
        """Nothing rests or waits to be tried again any more."""
        self._retry_at = 0
        for bucket in self._buckets.near:
            assert bucket.near is not None
            bucket.near.rests_until = 0

    async def fire(self, bucket: Bucket, near: Near) -> None:
        """Fire what is due in one bucket, and read ahead."""
        now = self._runtime.clock.now_ms()
        if near.refused.top <= now:
            # There and back again: a move between heaps changes key and value.
            again = Heap()
            near.refused.move(now, len(near.refused), again)
            again.move(NEVER, len(again), near.index)
        while (
            near.stage.top <= now
            and now >= max(near.rests_until, self._retry_at)
            and self._flying_bytes < FLYING_BYTES
            and len(near.partitions) == len(near.stage.targets)
        ):
            self._slice(bucket, near, now)
            self._read_ahead(bucket, near, now)
            if near.stage.top > now:
                near.rests_until = now + REST_MS
            await asyncio.sleep(0)
            now = self._runtime.clock.now_ms()
        self._read_ahead(bucket, near, now)

    # --- reading ahead ------------------------------------------------------------------------------------------------

    @staticmethod
    def _has_room(near: Near) -> bool:
        return len(near.stage) < STAGE_RECORDS // 2 and near.stage.held_bytes < STAGE_BYTES // 2

    def _read_ahead(self, bucket: Bucket, near: Near, now: int) -> None:
        if (
            near.filling is None
            and near.index.top - BEGIN_MS <= now
            and now >= bucket.retry_at
            and self._has_room(near)
        ):
            near.filling = asyncio.get_running_loop().create_task(self._fill(bucket, near, now))

    async def _fill(self, bucket: Bucket, near: Near, now: int) -> None:
        stage = near.stage
        if not len(stage) and not near.flying:
            # Numbers of targets are only spoken of by what is staged or may come back to the stage.
            stage.forget_targets()
            near.partitions.clear()
        wanted = Heap()
        near.index.move(now + AHEAD_MS, STAGE_RECORDS - len(stage), wanted)
        near.wanted = len(wanted)
        try:
            while len(wanted) and stage.held_bytes < STAGE_BYTES:
                offset = wanted.top
                # Where few are wanted, little is read in vain.
                data = await chunk_at(self._runtime, bucket.partition, offset, min(CHUNK_BYTES, 2_048 * len(wanted)))
                stage.read(data, wanted, STAGE_BYTES)
                if len(wanted) and wanted.top == offset:
                    raise CorruptLog(f"bucket {bucket.number} of the timer has no message at offset {offset}")
                near.wanted = len(wanted)
                await self._find_targets(near)
                # What has been read may be due already.
                self._changed.set()
                await asyncio.sleep(0)
        except (HeadraceError, OSError) as error:
            bucket.retry_at = self._runtime.clock.now_ms() + retry_after(error)
            log.warning("messages that are due cannot be read yet", bucket=bucket.number, error=str(error))
        finally:
            wanted.move(NEVER, len(wanted), near.index)
            near.wanted = 0
            near.filling = None
            self._changed.set()

    async def _find_targets(self, near: Near) -> None:
        """Find the partitions that new messages are for, and warm them."""
        targets = near.stage.targets
        while len(near.partitions) < len(targets):
            topic_id, index = targets[len(near.partitions)]
            topic = self._log.topics.by_id.get(UUID(bytes=topic_id))
            partition: Partition | None = None
            if topic is not None and index < len(topic.partitions):
                partition = topic.partitions[index]
                with suppress(AppendOffline):  # the append reports it, too
                    await move.load(partition)
            near.partitions.append(partition)

    # --- firing -------------------------------------------------------------------------------------------------------

    def _slice(self, bucket: Bucket, near: Near, now: int) -> None:
        gone = set()
        room = SLICE_BYTES
        for number, partition in enumerate(near.partitions):
            if partition is None or partition.topic.deleted:
                gone.add(number)
            else:
                room = min(room, partition.topic.settings.max_batch_bytes - OVERHEAD_BYTES)
        fired = near.stage.fire(now, 1 if near.cautious else SLICE_RECORDS, room, gone)
        near.cautious = max(near.cautious - 1, 0)
        writes = []
        for number, batch in fired.batches.items():
            partition = near.partitions[number]
            assert partition is not None
            writes.append(move.write_batch(partition, batch))
        writes.append(Write(bucket.partition, mark(fired.offsets, now)))
        size = sum(len(write.batches) for write in writes)
        near.flying += len(fired)
        self._flying_bytes += size
        try:
            append(self._log, writes, partial(self._landed, bucket, near, fired, size, now))
        except AppendRefused as error:
            near.flying -= len(fired)
            self._flying_bytes -= size
            self._refused(bucket, near, fired, writes[:-1], now, error)

    def _landed(self, bucket: Bucket, near: Near, fired: Fired, size: int, now: int, error: Exception | None) -> None:
        near.flying -= len(fired)
        self._flying_bytes -= size
        if error is not None:
            near.stage.put_back(fired)
            self._wait(error)
        else:
            bucket.waiting -= len(fired)
            self.fired += len(fired) - fired.dropped
            self.late.total += fired.late_ms / 1_000
            fired.count_late(now, _BOUNDS_MS, self.late.counts)
            if fired.dropped:
                self.dropped += fired.dropped
                log.warning("messages of a deleted topic came due and were dropped", messages=fired.dropped)
        self._changed.set()

    def _refused(
        self, bucket: Bucket, near: Near, fired: Fired, writes: list[Write], now: int, error: AppendRefused
    ) -> None:
        if move.is_general(error):
            near.stage.put_back(fired)
            self._wait(error)
        elif len(fired) > 1:
            near.stage.put_back(fired)
            near.cautious = len(fired)
        else:
            (offset,) = fired.offsets
            near.refused.add(now + REFUSED_MS, offset)
            self.refused += 1
            log.warning(
                "a message is due, but its topic refuses it: it is tried again every minute until it is cancelled",
                topic=writes[0].partition.topic.name, bucket=bucket.number, offset=offset, error=str(error),
            )  # fmt: skip

    def _wait(self, error: Exception) -> None:
        now = self._runtime.clock.now_ms()
        if now >= self._retry_at:
            log.warning("messages that are due cannot be stored yet: they are kept and tried again", error=str(error))
        self._retry_at = now + RETRY_MS
