"""All queues of the broker: made, found, changed, kept through a crash, deleted.

A queue is stored with its settings and, lane by lane, its state (`state.py`). Settling a message is not acknowledged in
any protocol that has queues, so the state is written down in the background, at most `queue_flush_ms` behind: that is
what a crash can make a consumer see again. What must not be behind (a queue's birth and end, its settings, a dead
letter) is written before it counts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID
from zlib import crc32

import structlog

from headrace.broker.deliveries import Deliveries
from headrace.broker.durable import append_durably
from headrace.broker.queues import state
from headrace.broker.queues.lane import Lane
from headrace.broker.queues.parking import PARKING, park_below, parking_topic
from headrace.broker.queues.queue import EPHEMERAL, Queue
from headrace.broker.queues.settings import QueueSettings, parse_filter
from headrace.broker.queues.state import Change, Shard, StoredQueue
from headrace.broker.topics import PARKED, Topics
from headrace.broker.turns import Turns
from headrace.config import Config
from headrace.errors import HeadraceError, InvalidQueue, TopicExists, UnknownQueue, UnknownTopic
from headrace.ground import Ground
from headrace.kernels.ledger import Ledger
from headrace.log.interface import EARLIEST, LATEST, Appended, Durability, Log, Partition, Topic, Write

NAME = re.compile(r"[.a-zA-Z0-9_-]{1,64}(#ephemeral)?\Z")
NAME_MAX = 64
# The topic setting by which NSQ's `topic pause` is kept.
PAUSED = "queues.paused"
RETRY_SECONDS = 0.5

log = structlog.get_logger("headrace.queues")


def check_name(name: str) -> None:
    """Raise InvalidQueue unless the name may be a queue's."""
    if not NAME.match(name) or len(name) > NAME_MAX:
        raise InvalidQueue(
            f"a queue's name has 1 to {NAME_MAX} of the characters .a-zA-Z0-9_- and {EPHEMERAL} at the end where it is "
            f"not to be stored, which {name[:80]!r} has not"
        )


class Queues:
    """The broker's queues."""

    def __init__(self, ground: Ground, log: Log, topics: Topics, deliveries: Deliveries, config: Config) -> None:
        self.ground = ground
        self.unpacked_max = config.decompressed_max_bytes
        self.flushes = 0
        self._log = log
        self._topics = topics
        self.deliveries = deliveries
        self._config = config
        self._queues: dict[UUID, dict[str, Queue]] = {}
        self._shards: list[Shard] = []
        self._turns = Turns()
        # Queues that are being written for the first time.
        self._making: dict[Queue, None] = {}
        self._dirty: dict[Queue, None] = {}
        # Who waits for the settlements of a lane that are being written.
        self._quiet: dict[Lane, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopping = False

    # --- starting and stopping ---

    async def start(self) -> None:
        """Read back what was stored. No partition but those of `__queues` is opened."""
        self._topics.changed.append(self._topic_changed)
        topic = self._log.topics.get(state.TOPIC)
        if topic is None:
            return
        stored: dict[int, StoredQueue] = {}
        self._shards = [Shard(partition) for partition in topic.partitions]
        for shard in self._shards:
            await state.replay(self.ground, shard.partition, self.unpacked_max, stored)
            # What was read is what the next snapshot would save.
            shard.written = shard.partition.size()
        for number, found in sorted(stored.items()):
            self._revive(number, found)

    def _revive(self, number: int, found: StoredQueue) -> None:
        if not found.described:
            return
        topic = self._log.topics_by_id.get(UUID(found.described["topic"]))
        if topic is None:
            return
        settings = QueueSettings().changed(found.described["settings"])
        queue = Queue(self, number, topic, found.described["name"], settings)
        queue.paused = bool(found.described["paused"])
        queue.parked = state.parked_keys(found.described)
        for partition in topic.partitions:
            known = found.lane(partition.index)
            # Nothing of a `memory` topic outlives the process; and a lane whose topic grew just before a crash was
            # never written down.
            new = known is None or topic.settings.durability is Durability.MEMORY
            ledger, epoch = (Ledger(partition.start), partition.epoch) if known is None or new else known
            lane = queue.lanes[partition.index] = Lane(queue, partition, partition.index, ledger, epoch)
            lane.unsaved = new
        parking = self._log.topics.get(parking_topic(queue))
        known = found.lane(PARKING)
        if known is not None and parking is not None:
            queue.lanes[PARKING] = Lane(queue, parking.partitions[0], PARKING, *known)
        self._queues.setdefault(topic.id, {})[queue.name] = queue

    async def stop(self) -> None:
        """Write everything down, and stop."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in self.all():
            queue.close()
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        for task in list(self._tasks):
            await asyncio.gather(task, return_exceptions=True)
        for queue in self.all():
            for lane in list(queue.lanes.values()):
                await self._until_quiet(lane)
        try:
            await self._flush()
        except (HeadraceError, OSError) as error:
            log.error("the state of queues could not be written: what was settled last repeats", error=str(error))

    # --- finding ---

    def get(self, topic: str, name: str) -> Queue | None:
        """The queue of that name."""
        return self.of(topic).get(name)

    def of(self, topic: str) -> Mapping[str, Queue]:
        """A topic's queues by name."""
        known = self._log.topics.get(topic)
        return self._queues.get(known.id, {}) if known is not None else {}

    def all(self) -> list[Queue]:
        """Every queue."""
        return [queue for of_topic in self._queues.values() for queue in of_topic.values()]

    def lag(self, topic: str) -> int:
        """Messages that the slowest queue of a topic has not settled; 0 where it has no queues."""
        return max((queue.unsettled for queue in self.of(topic).values()), default=0)

    def floor(self, topic: Topic, partition: int) -> int | None:
        """Below this offset every queue of the topic has settled everything; None where it has no queues."""
        if topic.name.startswith(PARKED):
            lanes = [queue.lanes.get(PARKING) for queue in self.all() if parking_topic(queue) == topic.name]
            return lanes[0].settled_below if lanes and lanes[0] is not None else None
        return min(
            (
                queue.lanes[partition].settled_below if partition in queue.lanes else 0
                for queue in self._queues.get(topic.id, {}).values()
            ),
            default=None,
        )

    def topic_paused(self, topic: str) -> bool:
        """Whether all queues of a topic stand still."""
        known = self._log.topics.get(topic)
        return known is not None and known.config.get(PAUSED) == "true"

    # --- making and unmaking ---

    async def ensure(self, topic: Topic, name: str, start: int | None = None, *, start_ms: int | None = None) -> Queue:
        """The queue, open, and made durably if it is missing.

        It starts at `start` (EARLIEST, LATEST, or an offset) or at the time `start_ms`; where neither is said, the
        first queue of a topic gets what the topic holds, and a later one what comes from now on."""
        check_name(name)
        queue = self._queues.get(topic.id, {}).get(name)
        if queue is None or not all(lane.open for lane in queue.lanes.values()):
            async with self._turns.of((topic.id, name)):
                queue = self._queues.get(topic.id, {}).get(name)
                if queue is None:
                    queue = await self._make(topic, name, start, start_ms)
                await self._open(queue)
        return queue

    async def open(self, queue: Queue) -> None:
        """Load the partitions of a queue; before, little is known of it. Raises UnknownQueue or PartitionOffline."""
        if queue.gone or not all(lane.open for lane in queue.lanes.values()):
            async with self._turns.of((queue.topic.id, queue.name)):
                await self._open(queue)

    async def _make(self, topic: Topic, name: str, start: int | None, start_ms: int | None) -> Queue:
        if topic.deleted:
            raise UnknownTopic(f"the topic {topic.name} was deleted")
        number = 0 if name.endswith(EPHEMERAL) else await self._log.reserve("queue", 1)
        queue = Queue(self, number, topic, name, QueueSettings(timeout_ms=self._config.queue_timeout_ms))
        if start is None:
            start = LATEST if self._queues.get(topic.id) else EARLIEST
        for partition in topic.partitions:
            if not partition.loaded:
                await partition.load()
            ledger = Ledger(await _offset(partition, start, start_ms))
            queue.lanes[partition.index] = Lane(queue, partition, partition.index, ledger, partition.epoch)
        self._making[queue] = None
        try:
            if not queue.ephemeral:
                await self._ensure_shards()
                await self._write(queue, list(queue.lanes.values()))
            if topic.deleted:
                raise UnknownTopic(f"the topic {topic.name} was deleted")
            self._queues.setdefault(topic.id, {})[name] = queue
        finally:
            del self._making[queue]
        self._topics.tell(topic)
        return queue

    async def _open(self, queue: Queue) -> None:
        if queue.gone:
            raise UnknownQueue(f"the queue {queue.name} of {queue.topic.name} was deleted")
        await self._add_lanes(queue)
        for lane in list(queue.lanes.values()):
            await lane.activate()
            try:
                await self._save(lane)
            except BaseException:
                lane.close()
                raise
        self.changed(queue)
        if any(lane.ledger.condemned for lane in queue.lanes.values()):
            queue.condemned()
        queue.watch_clock()
        queue.kick()

    async def park_below(self, queue: Queue, lane: int, end: int) -> int:
        """Move the messages of a lane below `end` that stayed behind to the queue's parking; how many."""
        async with self._turns.of((queue.topic.id, queue.name)):
            if queue.gone or lane not in queue.lanes:
                return 0
            await self._open(queue)
            return await park_below(self, queue, queue.lanes[lane], end)

    async def parking(self, queue: Queue) -> Lane:
        """The lane of a queue's parking, made if it is missing."""
        known = queue.lanes.get(PARKING)
        if known is not None:
            return known
        name = parking_topic(queue)
        topic = self._topics.get(name)
        if topic is None:
            config = {"retention": "consumed", "segment.bytes": str(16 << 20)}
            topic = await self._topics.create(name, 1, config, internal=True)
        partition = topic.partitions[0]
        if not partition.loaded:
            await partition.load()
        lane = Lane(queue, partition, PARKING, Ledger(partition.start), partition.epoch)
        await self._write(queue, [lane])
        queue.lanes[PARKING] = lane
        await lane.activate()
        return lane

    async def _ensure_shards(self) -> None:
        if self._shards:
            return
        async with self._turns.of(state.TOPIC):
            if not self._shards:
                self._shards = await self._make_shards()

    async def _make_shards(self) -> list[Shard]:
        durability = "memory" if self._config.durability == "memory" else "sync"
        config = {"durability": durability, "retention.ms": "-1", "segment.bytes": str(16 << 20)}
        try:
            topic = await self._topics.create(state.TOPIC, self._config.queue_state_partitions, config, internal=True)
        except TopicExists:
            topic = self._topics.all[state.TOPIC]
        for partition in topic.partitions:
            if not partition.loaded:
                await partition.load()
        return [Shard(partition) for partition in topic.partitions]

    async def delete(self, topic: str, name: str) -> None:
        """End a queue; what it has not settled stays in the log. Raises UnknownQueue."""
        found = self._existing(topic, name)
        async with self._turns.of((found.topic.id, name)):
            queue = self._existing(topic, name)
            if not queue.ephemeral:
                await self._shard(queue, 0).append(self.ground, [(state.queue_key(queue.id), None)])
            self._remove(queue, f"the queue {name} of {topic} was deleted")

    def vanish(self, queue: Queue) -> None:
        """The last consumer of an ephemeral queue has gone, and the queue with it."""
        self._remove(queue, "its last consumer has gone")

    def _remove(self, queue: Queue, reason: str) -> None:
        of_topic = self._queues.get(queue.topic.id, {})
        if of_topic.get(queue.name) is queue:
            del of_topic[queue.name]
            if not of_topic:
                del self._queues[queue.topic.id]
        self._dirty.pop(queue, None)
        queue.close(reason)
        if PARKING in queue.lanes:
            self._spawn(self._topics.delete(parking_topic(queue)))
        if not queue.topic.deleted:
            self._topics.tell(queue.topic)

    def _existing(self, topic: str, name: str) -> Queue:
        queue = self.get(topic, name)
        if queue is None:
            raise UnknownQueue(f"there is no queue {name!r} on the topic {topic!r}")
        return queue

    def _topic_changed(self, topic: Topic) -> None:
        """A topic was deleted, has grown, or stands still no more."""
        of_topic = self._queues.get(topic.id)
        if of_topic is None or self._stopping:
            return
        for queue in list(of_topic.values()):
            if topic.deleted:
                self._remove(queue, f"the topic {topic.name} was deleted")
                if not queue.ephemeral:
                    self._spawn(self._bury_name(queue))
            elif len(topic.partitions) - 1 not in queue.lanes:
                self._spawn(self._grow(queue))
            else:
                queue.kick()

    async def _bury_name(self, queue: Queue) -> None:
        try:
            await self._shard(queue, 0).append(self.ground, [(state.queue_key(queue.id), None)])
        except (HeadraceError, OSError) as error:
            # Harmless: a queue whose topic is gone is not revived.
            log.warning("the end of a queue could not be written down", queue=queue.name, error=str(error))

    async def _grow(self, queue: Queue) -> None:
        """Give a queue lanes for the partitions that its topic has got; it sees them from their beginning."""
        while not queue.gone and not self._stopping:
            try:
                async with self._turns.of((queue.topic.id, queue.name)):
                    await self._add_lanes(queue)
                break
            except (HeadraceError, OSError) as error:
                # Nobody would ask again: the topic has grown, and the disk may have room later.
                log.warning("new partitions cannot be queued yet", queue=queue.name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        queue.kick()

    async def _add_lanes(self, queue: Queue) -> None:
        for partition in queue.topic.partitions:
            if queue.gone:
                return
            if partition.index in queue.lanes:
                continue
            if not partition.loaded:
                await partition.load()
            lane = Lane(queue, partition, partition.index, Ledger(partition.start), partition.epoch)
            if not queue.ephemeral:
                await self._write(queue, [lane])
            queue.lanes[lane.index] = lane
            await lane.activate()

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks[task] = None
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a change of a queue failed", error=repr(error))

    # --- changing ---

    async def configure(self, queue: Queue, changes: Mapping[str, object]) -> None:
        """Change settings, durably and at once. Raises InvalidQueueSetting."""
        settings = queue.settings.changed(changes)
        async with self._turns.of((queue.topic.id, queue.name)):
            if settings.dead_key != "park":
                queue.parked = {}
            await self._describe(queue, settings, queue.paused)
            queue.settings = settings
            queue.conditions = parse_filter(settings.filter)
            for lane in queue.lanes.values():
                if lane.open:
                    await lane.use_rules()
                    if lane.ledger.condemned:
                        queue.condemned()
        queue.kick()

    async def pause(self, queue: Queue, paused: bool) -> None:
        """Let a queue stand still, or go on."""
        async with self._turns.of((queue.topic.id, queue.name)):
            await self._describe(queue, queue.settings, paused)
            queue.paused = paused
        queue.kick()

    async def pause_topic(self, topic: str, paused: bool) -> None:
        """Let all queues of a topic stand still, those to come too, or go on. Raises UnknownTopic."""
        await self._topics.alter_config(topic, lambda old: {**old, PAUSED: "true" if paused else "false"})

    async def empty(self, queue: Queue) -> None:
        """Settle everything that the topic holds now, durably."""
        async with self._turns.of((queue.topic.id, queue.name)):
            await self._open(queue)
            queue.empty()
            if not queue.ephemeral:
                await self._write(queue, list(queue.lanes.values()))

    async def _describe(self, queue: Queue, settings: QueueSettings, paused: bool) -> None:
        if queue.gone:
            raise UnknownQueue(f"the queue {queue.name} of {queue.topic.name} was deleted")
        if not queue.ephemeral:
            value = queue.described(settings, paused)
            await self._shard(queue, 0).append(self.ground, [(state.queue_key(queue.id), value)])

    async def dead_letter_topic(self, queue: Queue) -> Topic:
        """Where a queue's dead messages go, made if it is missing."""
        name = queue.dead_letter_topic
        topic = self._topics.get(name)
        if topic is None:
            try:
                topic = await self._topics.create(name)
            except TopicExists:
                topic = self._topics.all[name]
        return topic

    # --- writing down ---

    def note(
        self, queue: Queue, event: str, lane: int, offsets: Sequence[int], *, consumer: str = "", attempt: int = 0,
        delay_ms: int = -1, error: str = "",
    ) -> None:  # fmt: skip
        """Say to `__deliveries` what happened to messages, where the queue is watched."""
        if queue.settings.deliveries and offsets:
            self.deliveries.note(
                queue, event, lane, _runs(sorted(offsets)), consumer=consumer, attempt=attempt, delay_ms=delay_ms,
                error=error,
            )  # fmt: skip

    def changed(self, queue: Queue) -> None:
        """The state of a queue has changed: it will be written down soon."""
        self._dirty[queue] = None
        if self._timer is None and self._flushing is None and not self._stopping:
            self._arm(self._config.queue_flush_ms / 1000)

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush_in_time())

    async def _flush_in_time(self) -> None:
        wait = self._config.queue_flush_ms / 1000
        try:
            await self._flush()
            for shard in self._shards:
                if shard.worth_a_snapshot(self._config.queue_snapshot_bytes):
                    await self._snapshot(shard)
        except (HeadraceError, OSError) as error:
            log.warning("the state of queues could not be written, and will be again", error=str(error))
            wait = RETRY_SECONDS
        finally:
            self._flushing = None
            if self._dirty and not self._stopping:
                self._arm(wait)

    async def _flush(self) -> None:
        """Write down what has changed. Raises what the log raises; what was not written is then written whole later."""
        dirty, self._dirty = self._dirty, {}
        by_shard: dict[Shard, list[Change]] = {}
        lanes: list[Lane] = []
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
        self.flushes += 1
        # All at once, and now: whoever writes to these lanes next must come behind.
        writing = [shard.write(self.ground, changes) for shard, changes in by_shard.items()]
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for lane in lanes:
            lane.unsaved = bool(failures)
            if failures:
                self._dirty[lane.queue] = None
        if failures:
            raise failures[0]

    def _changes(self, lane: Lane) -> list[Change]:
        epoch = state.EPOCH.pack(lane.epoch)
        key = state.lane_key(lane.queue.id, lane.index)
        words: list[Change] = []
        while (word := lane.ledger.drain(state.RECORD_BYTES)) is not None:
            words.append((key, epoch + word))
        return words

    def _whole(self, lane: Lane) -> list[Change]:
        """A lane's state from its beginning, in one piece."""
        epoch = state.EPOCH.pack(lane.epoch)
        key = state.lane_key(lane.queue.id, lane.index)
        words: list[Change] = [(key, epoch + lane.ledger.begin())]
        page = 0
        while page >= 0:
            image, page = lane.ledger.images(page, state.RECORD_BYTES)
            words.append((key, epoch + image))
        # What remains to be said is said by the images already.
        lane.ledger.drain(0)
        return words

    async def _write(self, queue: Queue, lanes: Sequence[Lane]) -> None:
        """Write a queue and some of its lanes from their beginning, in one atomic append."""
        described = queue.described(queue.settings, queue.paused)
        by_shard: dict[Shard, list[Change]] = {self._shard(queue, 0): [(state.queue_key(queue.id), described)]}
        for lane in lanes:
            by_shard.setdefault(self._shard(queue, lane.index), []).extend(self._whole(lane))
        now = self.ground.clock.now_ms()
        writes = [Write(shard.partition, state.batches_of(changes, now)) for shard, changes in by_shard.items()]
        for shard, write in zip(by_shard, writes, strict=True):
            shard.written += len(write.batches)
        try:
            await append_durably(self._log, writes)
        except BaseException:
            for lane in lanes:
                lane.unsaved = True
            raise

    async def prepare(self, lane: Lane) -> None:
        """Write down what a word about single messages builds on: it moves the cursor, and what lies between was passed
        over or settled, perhaps, and not said so yet. On return nothing else is under way on the lane."""
        await self._until_quiet(lane)
        if lane.queue.ephemeral:
            return
        words = self._whole(lane) if lane.unsaved else self._changes(lane)
        if words:
            lane.unsaved = False
            written = self._shard(lane.queue, lane.index).write(self.ground, words)
            # Not waited for: what comes behind it on the same partition is not there without it.
            written.add_done_callback(partial(self._prepared, lane))

    def _prepared(self, lane: Lane, written: asyncio.Future[None]) -> None:
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
                epoch = state.EPOCH.pack(queue.lanes[number].epoch)
                by_shard.setdefault(self._shard(queue, number), []).append(
                    (state.lane_key(queue.id, number), epoch + word)
                )
            if described is not None:
                by_shard.setdefault(self._shard(queue, 0), []).append((state.queue_key(queue.id), described))
            now = self.ground.clock.now_ms()
            for shard, changes in by_shard.items():
                batches = state.batches_of(changes, now)
                shard.written += len(batches)
                together.append(Write(shard.partition, batches))
        lanes = [queue.lanes[number] for number in words]
        for lane in lanes:
            lane.settling += 1
        try:
            appended = await append_durably(self._log, together)
        finally:
            # Whoever waits goes on in a later turn: by then the caller has told the ledger.
            for lane in lanes:
                lane.settling -= 1
                if not lane.settling and (waiter := self._quiet.pop(lane, None)) is not None:
                    waiter.set_result(None)
        return appended[: len(writes)]

    async def _until_quiet(self, lane: Lane) -> None:
        """Wait until the ledger has heard of all settlements that are being written with something else."""
        while lane.settling:
            waiter = self._quiet.get(lane)
            if waiter is None:
                waiter = self._quiet[lane] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiter)

    def _shard(self, queue: Queue, lane: int) -> Shard:
        return self._shards[crc32(queue.topic.id.bytes + lane.to_bytes(4, "big")) % len(self._shards)]

    async def _save(self, lane: Lane) -> None:
        """Write a lane whole whose state on disk is not the one that its changes build on."""
        await self._until_quiet(lane)
        if lane.unsaved and not lane.queue.ephemeral:
            lane.unsaved = False
            await self._append_words(self._shard(lane.queue, lane.index), [lane], self._whole(lane))

    async def _snapshot(self, shard: Shard) -> None:
        """Write the whole state of a shard's lanes anew, a piece at a time, and trim what precedes it."""
        shard.written = 0
        # From here on whatever is written stands behind it. A queue that is being made may stand before it already.
        first = shard.partition.end
        for queue in [*self.all(), *self._making]:
            # Whoever changes a queue meanwhile must not be undone by what was so before.
            async with self._turns.of((queue.topic.id, queue.name)):
                if not queue.ephemeral and self._queues.get(queue.topic.id, {}).get(queue.name) is queue:
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
            await self._until_quiet(lane)
            epoch = state.EPOCH.pack(lane.epoch)
            key = state.lane_key(queue.id, lane.index)
            changes += self._changes(lane)
            changes.append((key, epoch + lane.ledger.begin()))
            page = 0
            while page >= 0:
                # An image says how far the lane has come: what has become of the rest up to there goes before it.
                changes += self._changes(lane)
                image, page = lane.ledger.images(page, state.RECORD_BYTES)
                changes.append((key, epoch + image))
                if page >= 0:
                    await self._append_words(shard, lanes, changes)
                    changes = []
                    await self._until_quiet(lane)
        if changes:
            await self._append_words(shard, lanes, changes)

    async def _append_words(self, shard: Shard, lanes: Sequence[Lane], words: Sequence[Change]) -> None:
        try:
            await shard.append(self.ground, words)
        except (HeadraceError, OSError):
            for lane in lanes:
                lane.unsaved = True
                self._dirty[lane.queue] = None
            raise


async def _offset(partition: Partition, start: int, start_ms: int | None) -> int:
    """Where a queue begins."""
    if start_ms is not None:
        found = (await partition.offset_at(start_ms)).offset
        return partition.last_stable if found < 0 else found
    if start == EARLIEST:
        return partition.start
    if start == LATEST:
        # What is in an open transaction will come when that is committed.
        return partition.last_stable
    return min(max(start, partition.start), partition.durable)


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Rising offsets as runs, both ends included."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
