"""How queues are kept through a crash: what changes in them is written down in `__queues`, soon or at once.

Settling a message is not acknowledged in any protocol that has queues, so the state is written down in the background,
at most `queue_flush_ms` behind: that is what a crash can make a consumer see again. What must not be behind (a queue's
birth and end, its settings, a dead letter) is written before it counts. From time to time the whole state of a shard is
written anew, and what precedes it is trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import structlog

from headrace.broker.queues import state
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.state import Shard, StoredQueue
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Change, StateTopic
from headrace.broker.topics import Topics
from headrace.broker.turns import Turns
from headrace.errors import HeadraceError, NotLeading
from headrace.log.interface import Appended, Log, Partition, Write
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

RETRY_SECONDS = 0.5
# Lanes that are gone over between two turns of the loop: about a millisecond.
STEP_LANES = 64

log = structlog.get_logger("headrace.queues")


class StateWriter:
    """What is written down of all queues."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        topics: Topics,
        config: BrokerSettings,
        turns: Turns,
        listed: Callable[[], list[Queue]],
        is_known: Callable[[Queue], bool],
    ) -> None:
        self.shards: list[Shard] = []
        # No more durable than what the state is of can be.
        durability = "memory" if config.durability == "memory" else "sync"
        settings = {**state.TOPIC_CONFIG, "durability": durability}
        self.topic = StateTopic(runtime, log, topics, config, state.TOPIC, settings, config.queue_state_partitions)
        self._config = config
        self._turns = turns
        # All queues, those that are being made too; and whether one was made and is not gone.
        self._listed = listed
        self._is_known = is_known
        self._dirty: dict[Queue, None] = {}
        # What waits for the settlements of a lane that are being written.
        self._quiet: dict[QueueLane, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._stopping = False

    def use(self, partitions: Sequence[Partition]) -> None:
        """Write to these partitions of `__queues`."""
        self.shards = [Shard(self.topic, partition) for partition in partitions]

    async def load(self, partitions: Sequence[Partition], log: LocalLog) -> dict[int, StoredQueue]:
        """Read back what these partitions of `__queues` have, by the number of the queue, and write to them."""
        stored: dict[int, StoredQueue] = {}
        self.use(partitions)
        for shard in self.shards:
            await shard.load(stored)
            # What was read is what the next snapshot would save.
            shard.written = log.local(shard.partition).size()
        return stored

    async def stop(self) -> None:
        """Write nothing in the background any more; what is under way is over on return."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)

    async def ensure_shards(self) -> None:
        """Make `__queues` if it is missing."""
        if self.shards:
            return
        async with self._turns.of(state.TOPIC):
            if not self.shards:
                await self._make_shards()

    async def _make_shards(self) -> None:
        topic = await self.topic.open()
        for partition in topic.partitions:
            await partition.load()
        self.use(topic.partitions)

    def _shard(self, queue: Queue, lane: int) -> Shard:
        return self.shards[crc32(queue.topic.id.bytes + lane.to_bytes(4, "big")) % len(self.shards)]

    # --- soon ---

    def changed(self, queue: Queue) -> None:
        """The state of a queue has changed: it will be written down soon."""
        self._dirty[queue] = None
        if self._timer is None and self._flushing is None and not self._stopping:
            self._arm(self._config.queue_flush_ms / 1000)

    def forget(self, queue: Queue) -> None:
        """The queue has gone: nothing more is to be written of it."""
        self._dirty.pop(queue, None)

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush_in_time())

    async def _flush_in_time(self) -> None:
        wait = self._config.queue_flush_ms / 1000
        try:
            await self.flush()
            for shard in self.shards:
                if shard.worth_a_snapshot(self._config.queue_snapshot_bytes):
                    await self.snapshot(shard)
        except NotLeading:
            # This node hands its leadership over, or has lost it: what was written is the next leader's to go on from.
            wait = RETRY_SECONDS
        except (HeadraceError, OSError) as error:
            log.warning("the state of queues could not be written, and will be again", error=str(error))
            wait = RETRY_SECONDS
        finally:
            self._flushing = None
            if self._dirty and not self._stopping:
                self._arm(wait)

    async def flush(self) -> None:
        """Write down what has changed. Raises what the log raises; what was not written is then written whole later."""
        dirty, self._dirty = self._dirty, {}
        by_shard: dict[Shard, list[Change]] = {}
        lanes: list[QueueLane] = []
        for queue in dirty:
            for lane in queue.lanes.values():
                if queue.ephemeral:
                    lane.ledger.drain(state.RECORD_BYTES)
                    continue
                if lane.settling:
                    self._dirty[queue] = None
                    continue
                words = self._whole(lane) if lane.unsaved else self._changes(lane)
                if words:
                    lanes.append(lane)
                    by_shard.setdefault(self._shard(queue, lane.index), []).extend(words)
        if not by_shard:
            return
        # All at once, and now: what is written of these lanes next must come behind.
        writing = [shard.write(changes) for shard, changes in by_shard.items()]
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for lane in lanes:
            lane.unsaved = bool(failures)
            if failures:
                self._dirty[lane.queue] = None
        if failures:
            raise failures[0]

    def _changes(self, lane: QueueLane) -> list[Change]:
        words: list[Change] = []
        while (word := lane.ledger.drain(state.RECORD_BYTES)) is not None:
            words.append(_change(lane, word))
        return words

    def _whole(self, lane: QueueLane) -> list[Change]:
        """A lane's state from its beginning, in one piece."""
        words = [_change(lane, lane.ledger.begin())]
        page = 0
        while page >= 0:
            image, page = lane.ledger.images(page, state.RECORD_BYTES)
            words.append(_change(lane, image))
        # The images hold what the deltas would.
        lane.ledger.drain(0)
        return words

    # --- at once ---

    async def describe(self, queue: Queue, described: bytes | None) -> None:
        """Write down what a queue is (None: that it is no more)."""
        await self._shard(queue, 0).write([(state.queue_key(queue.id), described)])

    async def write(self, queue: Queue, lanes: Sequence[QueueLane], *, is_new: bool = False) -> None:
        """Write a queue and some of its lanes from their beginning, in one atomic append. Nothing else touches the
        lanes of a new queue yet, so their state is gathered in small steps."""
        by_shard: dict[Shard, list[Change]] = {}
        for count, lane in enumerate(lanes, 1):
            by_shard.setdefault(self._shard(queue, lane.index), []).extend(self._whole(lane))
            if is_new and count % STEP_LANES == 0:
                await asyncio.sleep(0)
        described = queue.described(queue.settings, queue.paused)
        by_shard.setdefault(self._shard(queue, 0), []).insert(0, (state.queue_key(queue.id), described))
        writes = [shard.encode(changes) for shard, changes in by_shard.items()]
        try:
            await self.topic.submit(writes)
        except BaseException:
            for lane in lanes:
                lane.unsaved = True
            raise

    async def save(self, lane: QueueLane) -> None:
        """Write a lane whole whose state on disk is not the one that its changes build on."""
        await self.until_quiet(lane)
        if lane.unsaved and not lane.queue.ephemeral:
            lane.unsaved = False
            await self._append_words(self._shard(lane.queue, lane.index), [lane], self._whole(lane))

    async def prepare(self, lane: QueueLane) -> None:
        """Write down what a word about single messages builds on: it moves the cursor, and what lies between was passed
        over or settled, perhaps, and not written yet. On return nothing else is under way on the lane."""
        await self.until_quiet(lane)
        if lane.queue.ephemeral:
            return
        words = self._whole(lane) if lane.unsaved else self._changes(lane)
        if words:
            lane.unsaved = False
            written = self._shard(lane.queue, lane.index).write(words)
            # Not waited for: what comes behind it on the same partition is not there without it.
            written.add_done_callback(partial(self._prepared, lane))

    def _prepared(self, lane: QueueLane, written: asyncio.Future[list[Appended]]) -> None:
        if not written.cancelled() and written.exception() is not None:
            lane.unsaved = True
            self.changed(lane.queue)

    async def append_with(
        self, queue: Queue, words: Mapping[int, bytes], writes: Sequence[Write], described: bytes | None = None
    ) -> list[Appended]:
        """Append `writes`, the words that lanes (by number) have to say of it, and the queue's description if that
        changes too, all or nothing, durably. The lanes were prepared. Where the writes went."""
        together = list(writes)
        if not queue.ephemeral:
            by_shard: dict[Shard, list[Change]] = {}
            for number, word in words.items():
                by_shard.setdefault(self._shard(queue, number), []).append(_change(queue.lanes[number], word))
            if described is not None:
                by_shard.setdefault(self._shard(queue, 0), []).append((state.queue_key(queue.id), described))
            together += [shard.encode(changes) for shard, changes in by_shard.items()]
        lanes = [queue.lanes[number] for number in words]
        for lane in lanes:
            lane.settling += 1
        try:
            appended = await self.topic.submit(together)
        finally:
            # Waiters go on in a later turn: by then the caller has changed the ledger.
            for lane in lanes:
                lane.settling -= 1
                if not lane.settling and (waiter := self._quiet.pop(lane, None)) is not None:
                    waiter.set_result(None)
        return appended[: len(writes)]

    async def until_quiet(self, lane: QueueLane) -> None:
        """Wait until the ledger has heard of all settlements that are being written with something else."""
        while lane.settling:
            waiter = self._quiet.get(lane)
            if waiter is None:
                waiter = self._quiet[lane] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiter)

    # --- anew ---

    async def snapshot(self, shard: Shard) -> None:
        """Write the whole state of a shard's lanes anew, a piece at a time, and trim what precedes it."""
        shard.written = 0
        # From here on whatever is written stands behind it. A queue that is being made may stand before it already.
        first = shard.partition.end
        for queue in self._listed():
            # A change of the queue meanwhile must not be undone by what was so before.
            async with self._turns.of((queue.topic.id, queue.name)):
                if not queue.ephemeral and self._is_known(queue):
                    await self._snapshot_queue(shard, queue)
        await shard.trim(first)
        shard.snapshot_bytes = shard.written

    async def _snapshot_queue(self, shard: Shard, queue: Queue) -> None:
        changes: list[Change] = []
        lanes = [lane for lane in queue.lanes.values() if self._shard(queue, lane.index) is shard]
        if self._shard(queue, 0) is shard:
            changes.append((state.queue_key(queue.id), queue.described(queue.settings, queue.paused)))
        for lane in lanes:
            if lane.settling and changes:
                await self._append_words(shard, lanes, changes)
                changes = []
            await self.until_quiet(lane)
            changes += self._changes(lane)
            changes.append(_change(lane, lane.ledger.begin()))
            page = 0
            while page >= 0:
                # An image holds how far the lane has come: what has become of the rest up to there goes before it.
                changes += self._changes(lane)
                image, page = lane.ledger.images(page, state.RECORD_BYTES)
                changes.append(_change(lane, image))
                if page >= 0:
                    await self._append_words(shard, lanes, changes)
                    changes = []
                    await self.until_quiet(lane)
        if changes:
            await self._append_words(shard, lanes, changes)

    async def _append_words(self, shard: Shard, lanes: Sequence[QueueLane], words: Sequence[Change]) -> None:
        try:
            await shard.write(words)
        except (HeadraceError, OSError):
            for lane in lanes:
                lane.unsaved = True
                self._dirty[lane.queue] = None
            raise


def _change(lane: QueueLane, word: bytes) -> Change:
    return state.lane_key(lane.queue.id, lane.index), state.EPOCH.pack(lane.epoch) + word
