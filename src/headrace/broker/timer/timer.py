"""The timer: what doors ask for, and the one task that follows the clock.

A message that is to be delivered later waits in a bucket of `__timers` (`bucket.py`), durably, however long. One task
sleeps until the next thing is due: a bucket to be opened or moved down (`buckets.py`), a slice to be fired
(`dispatcher.py`). The calendar may be set while it sleeps, so it never sleeps long. Where no message was ever delayed
there is no topic, no task and no cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from headrace.broker.internal import STATE_CONFIG
from headrace.broker.loading import SharedLoad
from headrace.broker.settings import BrokerSettings
from headrace.broker.timer import wheel as kernel
from headrace.broker.timer.bucket import Bucket, State
from headrace.broker.timer.buckets import Buckets
from headrace.broker.timer.chunks import chunk_at
from headrace.broker.timer.dispatcher import Dispatcher
from headrace.broker.timer.heap import NEVER
from headrace.broker.timer.pending import Pending, PendingMessages, id_of, parse_id
from headrace.broker.topics import Topics
from headrace.errors import BatchTooLarge, HeadraceError, InvalidDelay, StorageFailed
from headrace.format import records
from headrace.format.batch import HEADER_BYTES, header_at
from headrace.format.delay import MAX_DELAY_MS
from headrace.format.faults import Faults
from headrace.log.interface import Appended, Done, Log, Partition, Topic, Write
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.timer")

TOPIC = "__timers"
TOPIC_CONFIG = {
    **STATE_CONFIG,
    # The time of a record is when it is due.
    "message.timestamp.after.max.ms": str((1 << 63) - 1),
    "segment.bytes": str(64 << 20),
}
# Buckets that are taken up at the same time after a start.
TAKEN_AT_ONCE = 16
# The longest sleep: while something is near, and while nothing is.
SLEEP_SECONDS = 1.0
SLEEP_FAR_SECONDS = 30.0

# Batches for one partition. Of a single one, records whose byte in the last is 0 are left out.
Part = tuple[Partition, Sequence[bytearray | memoryview], bytearray | None]


class Timer:
    """Delayed messages of all topics."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self._runtime = runtime
        self._log = log
        self._topics = topics
        self._config = config
        self._changed = asyncio.Event()
        self.buckets = Buckets(runtime, log, self._changed.set)
        self.dispatcher = Dispatcher(runtime, log, self.buckets, self._changed)
        self.waiting = PendingMessages(runtime, log, self.buckets.all)
        self.loaded = False
        """Whether messages can be scheduled without waiting."""
        self.scheduled = 0
        self._loading = SharedLoad(self._load)
        self._running: asyncio.Task[None] | None = None
        self._attending: set[asyncio.Task[None]] = set()
        self._opens_next = NEVER
        self._last_step = 0
        # Ids need only be unique among messages that are due in the same millisecond: counting from anywhere else in
        # each life is enough, and a start need not write for it.
        self._number = int.from_bytes(runtime.random.bytes(8), "big") >> 2

    @property
    def pending(self) -> int:
        """Messages that wait, as far as is known: what was cancelled before the last start counts until its bucket is
        read."""
        return sum(bucket.waiting for bucket in self.buckets.all)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Go on where the last life ended, in the background."""
        if TOPIC in self._log.topics:
            self._loading.begin()

    async def stop(self) -> None:
        """Stop firing. What is on its way becomes durable with the log's own stop."""
        tasks = [*self._attending]
        tasks += [bucket.near.filling for bucket in self.buckets.all if bucket.near and bucket.near.filling]
        tasks += [task for task in (self._loading.task, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def load(self) -> None:
        """Make the timer usable; its topic, if it is missing. Raises StorageFailed; the next call tries again."""
        if not self.loaded:
            await self._loading.load()

    async def _load(self) -> None:
        if self.loaded:
            return
        try:
            topic = await self._topics.open(TOPIC, kernel.LEVELS * kernel.BUCKETS, TOPIC_CONFIG, internal=True)
            if not self.buckets.all:
                self.buckets.all += [Bucket(number, each) for number, each in enumerate(topic.partitions)]
                self._running = asyncio.get_running_loop().create_task(self._run())
            # The lowest level first: it may hold what came due meanwhile.
            for first in range(0, len(self.buckets.all), TAKEN_AT_ONCE):
                await asyncio.gather(*(self._take_up(each) for each in self.buckets.all[first : first + TAKEN_AT_ONCE]))
                self.buckets.stale = True
                self._changed.set()
        except (HeadraceError, OSError) as error:
            log.warning("the timer cannot be loaded yet", error=str(error))
            raise StorageFailed(f"the timer cannot be loaded yet: {error}") from error
        self.loaded = True

    async def _take_up(self, bucket: Bucket) -> None:
        """Learn what a bucket of an earlier life holds, from its first batch."""
        partition = bucket.partition
        try:
            await partition.load()
            if partition.start < partition.high_watermark and bucket.earliest == NEVER:
                bucket.waiting = partition.high_watermark - partition.start
                first = await chunk_at(self._runtime, partition, partition.start, HEADER_BYTES)
                bucket.earliest = header_at(first).base_timestamp
        except (HeadraceError, OSError) as error:
            # The others must go on. What waits here is not lost: it is for an operator to look at.
            log.error("a bucket of the timer cannot be used", bucket=bucket.number, error=str(error))

    # --- scheduling ---------------------------------------------------------------------------------------------------

    def schedule(
        self, waiting: Sequence[tuple[Partition, bytearray, int]], done: Done, beside: Sequence[Write]
    ) -> tuple[list[list[str]], list[Appended]]:
        """Deliver batches to partitions, each at its own time, all or nothing; the ids of each batch's messages, and
        where what is `beside` them went. The timer must be `loaded`. `done` is always called. Raises an AppendRefused.
        """
        if not self.loaded:
            raise StorageFailed("the timer is not loaded: send the messages again")
        now = self._runtime.clock.now_ms()
        number = self._number
        ids: list[list[str]] = []
        buckets: dict[int, kernel.BucketBatch] = {}
        for partition, batch, due_ms in waiting:
            place = kernel.place(due_ms, now)
            if place < 0:
                raise _too_far(due_ms)
            self._check(partition.topic, batch)
            route = kernel.route_of(partition.topic.id.bytes, partition.index, now)
            into = buckets.get(place)
            before = 0 if into is None else len(into.dues)
            unpacked_max = self._config.decompressed_max_bytes
            buckets[place] = kernel.enter(batch, unpacked_max, due_ms, number, route, into)
            count = len(buckets[place].dues) - before
            ids.append([id_of(due_ms, number + index) for index in range(count)])
            number += count
        appended = self.buckets.enter([*beside], buckets, done)
        self._number = number
        self.scheduled += sum(map(len, ids))
        return ids, appended[: len(beside)]

    def produce(self, partition: Partition, batch: bytearray | memoryview, done: Done | None) -> Appended:
        """`produce_all` of one batch."""
        return self.produce_all([(partition, [batch], None)], done)[0]

    def produce_all(self, parts: Sequence[Part], done: Done | None, beside: Sequence[Write] = ()) -> list[Appended]:
        """Append batches to partitions of topics with `delay=true`: what is for later goes to the timer, and the rest,
        if only an empty batch with the producer's sequence numbers, to its partition, in one append. So a batch that is
        sent again is recognised by the partition, and nothing of it waits twice. What is `beside` is appended with all
        of it. The answer to each part; `done` as in `Log.append`. Raises an AppendRefused."""
        now = self._runtime.clock.now_ms()
        unpacked_max = self._config.decompressed_max_bytes
        number = self._number
        later: dict[int, kernel.BucketBatch] = {}
        writes = []
        for partition, batches, keep in parts:
            topic = partition.topic
            route = kernel.route_of(topic.id.bytes, partition.index, now)
            room = topic.settings.max_batch_bytes
            rests: list[bytearray | memoryview] = []
            is_sparse = False
            for batch in batches:
                self._check(topic, batch)
                found = kernel.split(batch, unpacked_max, now, number, route, room, later, keep)
                if found is None:
                    rests.append(batch)
                    continue
                is_sparse = True
                number += found[1]
                rests.append(records.retain(batch, found[0], unpacked_max, None) or records.empty(batch))
            rest = rests[0] if len(rests) == 1 else bytearray().join(rests)
            writes.append(Write(partition, rest, sparse=is_sparse))
        if not later:
            return self._log.append([*writes, *beside], done)[: len(parts)]
        if not self.loaded:
            raise StorageFailed("the timer is not loaded: send the batch again")
        appended = self.buckets.enter([*writes, *beside], later, done)
        if not appended[0].duplicate:
            self.scheduled += number - self._number
        self._number = number
        return appended[: len(parts)]

    def check_undelayed(self, partition: Partition, batch: bytearray | memoryview) -> None:
        """Whether a batch of a transaction, for a topic with `delay=true`, is all for now: what went to the timer would
        come even if the transaction were aborted. Raises InvalidRecords."""
        topic = partition.topic
        now = self._runtime.clock.now_ms()
        route = kernel.route_of(topic.id.bytes, partition.index, now)
        unpacked_max = self._config.decompressed_max_bytes
        found = kernel.split(batch, unpacked_max, now, 0, route, topic.settings.max_batch_bytes, {})
        if found is not None:
            faults = Faults()
            for index in (index for index, is_for_now in enumerate(found[0]) if not is_for_now):
                faults.note(
                    index,
                    f"record {index} of the batch asks to be delivered later (headrace-deliver-at), which cannot be "
                    "undone: send it outside of transactions",
                )
            faults.check()

    def _check(self, topic: Topic, batch: bytearray | memoryview) -> None:
        """What the topic would say of the batch now it must not say when it is due."""
        if len(batch) > topic.settings.max_batch_bytes:
            raise BatchTooLarge(
                f"the batch has {len(batch)} bytes, the topic {topic.name} takes {topic.settings.max_batch_bytes} "
                "(max.message.bytes)"
            )
        if topic.settings.compact:
            records.check(batch, True, self._config.decompressed_max_bytes)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def list(self, topic: str | None = None, limit: int = 100, after: str = "") -> list[Pending]:
        """Messages that wait, by due time: at most `limit`, behind the one of the id `after`."""
        if limit <= 0 or not await self._exists():
            return []
        return await self.waiting.list(topic, limit, after)

    async def find(self, id: str) -> Pending | None:
        """The message that waits under an id."""
        parsed = parse_id(id)
        if parsed is None:
            return None
        due_ms, number = parsed
        before = id_of(due_ms, number - 1) if number else id_of(due_ms - 1, NEVER - 1)
        found = await self.list(None, 1, before)
        return found[0] if found and found[0].id == id else None

    async def cancel(self, id: str) -> bool:
        """Take a message out of the timer, durably; False where none of that id waits."""
        return await self._exists() and await self.waiting.cancel(id)

    async def _exists(self) -> bool:
        if not self.loaded and TOPIC in self._log.topics:
            await self.load()
        return self.loaded

    # --- following the clock ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self._changed.clear()
                await self._sleep(await self._step())
            except Exception:
                # A surprise with one message must not be the end of all others.
                log.exception("the timer stumbled and goes on")
                await asyncio.sleep(SLEEP_SECONDS)

    async def _step(self) -> int:
        """Do what is due; when there is more to do."""
        for bucket in list(self.buckets.near):
            assert bucket.near is not None
            await self.dispatcher.fire(bucket, bucket.near)
            if self.buckets.finished(bucket, self._runtime.clock.now_ms()):
                self._attend(self.buckets.close(bucket))
        now = self._runtime.clock.now_ms()
        if now < self._last_step:
            self._clock_set_back()
        self._last_step = now
        if self.buckets.stale or now >= self._opens_next:
            self._look_at_far(now)
        return min(self._opens_next, self.dispatcher.next_at())

    def _clock_set_back(self) -> None:
        """Pauses that were meant to be short would last until the calendar is there again."""
        self.dispatcher.forget_pauses()
        for bucket in self.buckets.all:
            bucket.retry_at = 0
        self.buckets.stale = True

    def _look_at_far(self, now: int) -> None:
        """Open or move down the far buckets whose time has come; learn when the next one's has."""
        self.buckets.stale = False
        self._opens_next = NEVER
        overdue = []
        for bucket in self.buckets.all:
            if bucket.state is State.FAR and bucket.earliest != NEVER:
                if bucket.opens_at <= now:
                    overdue.append(bucket)
                else:
                    self._opens_next = min(self._opens_next, bucket.opens_at)
        # After a long stop there may be many: the oldest first, and not all in memory at once.
        for bucket in sorted(overdue, key=lambda each: each.earliest):
            if bucket.level or self.buckets.has_room():
                self._attend(self.buckets.attend(bucket))
            else:
                self.buckets.stale = True

    async def _sleep(self, next_at: int) -> None:
        """Until then, or until something changes; never long, since the calendar may be set meanwhile."""
        if next_at == NEVER:
            await self._changed.wait()
            return
        most = SLEEP_SECONDS if self.buckets.near else SLEEP_FAR_SECONDS
        seconds = max(min((next_at - self._runtime.clock.now_ms()) / 1_000, most), 0.0)
        alarm = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            alarm.cancel()

    def _attend(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._attending.add(task)
        task.add_done_callback(self._attending.discard)


def _too_far(due_ms: int) -> InvalidDelay:
    return InvalidDelay(f"a message cannot be delayed until {due_ms}: more than {MAX_DELAY_MS} ms from now")
