"""All queues of the broker: made, found, changed, deleted, and revived after a start.

A queue is stored with its settings and, lane by lane, its state (`state.py`). When and how that is written down is in
`state_writer.py`. Whatever makes, opens or changes a queue takes its turn with the others that do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace.broker import internal, topic_config
from headrace.broker.queues import state
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.ledger import Ledger
from headrace.broker.queues.parking import PARKING, park_below, parking_topic
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.revival import revive
from headrace.broker.queues.settings import EPHEMERAL, QueueSettings, check_name, check_settings, parse_filter
from headrace.broker.queues.state_writer import STEP_LANES, StateWriter
from headrace.broker.security.rights import queue_name
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.broker.turns import Turns
from headrace.broker.unpacking import Unpacker
from headrace.errors import HeadraceError, InvalidPartitions, InvalidQueue, NotLeading, UnknownQueue, UnknownTopic
from headrace.log.interface import EARLIEST, LATEST, Partition, Topic
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

if TYPE_CHECKING:  # which reads what queues claim, and so imports this package itself
    from headrace.broker.deliveries import Deliveries
    from headrace.broker.security import Security, Session

# The topic setting by which NSQ's `topic pause` is kept.
PAUSED = "queues.paused"
RETRY_SECONDS = 0.5
# Clients that may look into queues at once: each may hold a batch that unpacks to `decompressed_max_bytes`.
LOOKS_MAX = 2

log = structlog.get_logger("headrace.queues")


class Queues:
    """The broker's queues."""

    def __init__(
        self,
        runtime: Runtime,
        log: LocalLog,
        topics: Topics,
        deliveries: Deliveries,
        config: BrokerSettings,
        unpacking: Unpacker,
        security: Security,
    ) -> None:
        self.runtime = runtime
        self.security = security
        self.unpacked_max = config.decompressed_max_bytes
        self.unpacking = unpacking
        self.leases_max = config.queue_leases_max
        self.receives_max = config.queue_receives_max
        self._log = log
        self._topics = topics
        self.deliveries = deliveries
        self._config = config
        self.on_managed: list[Callable[[Session | None, str, str, str], None]] = []
        """Called with who has changed a queue (None: the broker by itself), how, its name, and more on it."""
        self.making: Callable[[Session | None], AbstractContextManager[None]] = lambda _: nullcontext()
        """Around the making of a queue, with who makes it; may raise."""
        self._queues: dict[UUID, dict[str, Queue]] = {}
        self._turns = Turns()
        # Queues that are being written for the first time.
        self._making: dict[Queue, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopping = False
        self._replayed = False
        self.looks = asyncio.Semaphore(LOOKS_MAX)
        """Limits how many clients look into queues at a time."""
        self.state_writer = StateWriter(runtime, log, topics, config, self._turns, self._listed, self._is_known)
        # From now on, not from the start on: the log may look before the broker has started.
        log.holds.append(self._hold)

    # --- starting and stopping ---

    async def start(self) -> None:
        """Read back what was stored. Of other partitions only those are opened that have dead messages to bury."""
        self._topics.changed.append(self._topic_changed)
        self._topics.growing.append(self._check_growth)
        topic = self.state_writer.topic.topic
        if topic is not None:
            await self._restore(topic)
        self._replayed = True
        condemned = [queue for queue in self.all() if any(lane.ledger.condemned for lane in queue.lanes.values())]
        if condemned:
            self._spawn(self._open_all(condemned))

    async def _restore(self, topic: Topic) -> None:
        """Read the queues back that `__queues` has."""
        wanted = {**topic.config, **state.TOPIC_CONFIG}
        if wanted != topic.config:
            # It was made when the bound on messages held for it too.
            await self._log.alter(state.TOPIC, config=(wanted, topic_config.settings_of(wanted, self._config)))
        stored = await self.state_writer.load(topic.partitions, self._log)
        for number, found in sorted(stored.items()):
            of = self._log.topics.by_id.get(UUID(found.described["topic"])) if found.described else None
            if of is not None:
                parking = self._log.topics.get(parking_topic(number))
                self._queues.setdefault(of.id, {})[found.described["name"]] = revive(self, number, of, parking, found)

    async def _open_all(self, queues: Sequence[Queue]) -> None:
        """Open queues that have dead messages: a client may never ask for them."""
        failed: dict[Queue, None] = {}
        while queues and not self._stopping:
            again = []
            for queue in queues:
                try:
                    if not queue.gone and not self._stopping:
                        await self.open(queue)
                except (HeadraceError, OSError) as error:
                    again.append(queue)
                    if queue not in failed:
                        failed[queue] = None
                        log.warning("dead messages cannot be buried yet", queue=queue.name, error=str(error))
            queues = again
            if queues:
                await asyncio.sleep(RETRY_SECONDS)

    def _hold(self, partition: Partition) -> int | None:
        """Retention by time and size stops before the first message that is dead and has not moved yet."""
        if not self._replayed:
            return 0
        lanes = [
            queue.lanes[partition.index]
            for queue in self._queues.get(partition.topic.id, {}).values()
            if partition.index in queue.lanes
        ]
        return min([first for lane in lanes if (first := lane.ledger.first_dead()) >= 0], default=None)

    async def flush(self) -> None:
        """Write down now what has changed. Raises what the log raises."""
        await self.state_writer.flush()

    async def stop(self) -> None:
        """Write everything down, and stop."""
        self._stopping = True
        for queue in self.all():
            queue.close()
        await self.state_writer.stop()
        for task in list(self._tasks):
            await asyncio.gather(task, return_exceptions=True)
        for queue in self.all():
            for lane in list(queue.lanes.values()):
                await self.state_writer.until_quiet(lane)
        try:
            await self.state_writer.flush()
        except NotLeading:
            log.info("what was settled last in queues is not written down: another node leads")
        except (HeadraceError, OSError) as error:
            log.error("the state of queues could not be written: what was settled last repeats", error=str(error))

    # --- finding ---

    def get(self, topic: str, name: str) -> Queue | None:
        return self.of(topic).get(name)

    def of(self, topic: str) -> Mapping[str, Queue]:
        """A topic's queues by name."""
        known = self._log.topics.get(topic)
        return self._queues.get(known.id, {}) if known is not None else {}

    def all(self) -> list[Queue]:
        return [queue for of_topic in self._queues.values() for queue in of_topic.values()]

    def _listed(self) -> list[Queue]:
        return [*self.all(), *self._making]

    def _is_known(self, queue: Queue) -> bool:
        return self._queues.get(queue.topic.id, {}).get(queue.name) is queue

    async def await_burials(self, dead_letter_topic: str, seconds: float) -> int:
        """Wait, so long at most, for what is on its way to a dead-letter topic; how many messages still are."""
        queues = [queue for queue in self.all() if queue.dead_letter_topic == dead_letter_topic]
        try:
            async with asyncio.timeout(seconds):
                for queue in queues:
                    await self.open(queue)
                    await queue.dead_letters.caught_up()
        except TimeoutError:
            return sum(queue.figures().condemned for queue in queues)
        except (HeadraceError, OSError) as error:
            # What can be sent back of the others is better than nothing.
            log.warning("a queue's dead messages cannot be waited for", topic=dead_letter_topic, error=str(error))
        return 0

    def lag(self, topic: str) -> int:
        """Messages that the slowest queue of a topic has not settled; 0 where it has no queues."""
        return max((queue.unsettled for queue in self.of(topic).values()), default=0)

    def floor(self, topic: Topic, partition: int) -> int | None:
        """Below this offset every queue of the topic has settled everything; None where it has no queues."""
        if topic.name.startswith(internal.PARKED):
            lanes = [queue.lanes.get(PARKING) for queue in self.all() if parking_topic(queue.id) == topic.name]
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

    async def ensure(
        self,
        topic: Topic,
        name: str,
        start: int | None = None,
        *,
        start_ms: int | None = None,
        session: Session | None = None,
    ) -> Queue:
        """The queue, open, and made durably if it is missing.

        It starts at `start` (EARLIEST, LATEST, or an offset) or at the time `start_ms`; where neither is given, the
        first queue of a topic gets what the topic holds, and a later one what comes from now on."""
        check_name(name)
        queue = self._queues.get(topic.id, {}).get(name)
        if queue is None or not all(lane.open for lane in queue.lanes.values()):
            async with self._turns.of((topic.id, name)):
                making = asyncio.ensure_future(self._make_open(topic, name, start, start_ms, session))
                try:
                    return await asyncio.shield(making)
                except asyncio.CancelledError:
                    # A caller that gives up, because its client has gone, leaves no half of a queue: one that is on the
                    # disk and not in memory, or an ephemeral one that no consumer will ever leave.
                    await asyncio.wait((making,))
                    if not making.cancelled() and making.exception() is None:
                        self._vanish_unused(making.result())
                    raise
        return queue

    async def _make_open(
        self, topic: Topic, name: str, start: int | None, start_ms: int | None, session: Session | None
    ) -> Queue:
        queue = self._queues.get(topic.id, {}).get(name)
        if queue is None:
            with self.making(session):
                queue = await self._make(topic, name, start, start_ms)
                self.report(session, "create", queue)
        await self._open(queue)
        return queue

    async def open(self, queue: Queue) -> None:
        """Load the partitions of a queue; before, little is known of it. Raises UnknownQueue or PartitionOffline."""
        if queue.gone or not all(lane.open for lane in queue.lanes.values()):
            async with self._turns.of((queue.topic.id, queue.name)):
                await self._open(queue)

    def _check_growth(self, topic: Topic, partitions: int) -> None:
        most = self._config.queue_partitions_max
        if partitions > most and self._queues.get(topic.id):
            raise InvalidPartitions(
                f"the topic '{topic.name}' has queues, and {partitions} partitions are more than the {most} that a "
                "queue can look after (queue_partitions_max). Delete its queues first."
            )

    async def _make(self, topic: Topic, name: str, start: int | None, start_ms: int | None) -> Queue:
        if topic.deleted:
            raise UnknownTopic(f"the topic {topic.name} was deleted")
        most = self._config.queue_partitions_max
        if len(topic.partitions) > most:
            raise InvalidQueue(
                f"the topic '{topic.name}' has {len(topic.partitions)} partitions, and a queue can look after {most} "
                "(queue_partitions_max). Use a topic with fewer partitions, or a consumer group."
            )
        number = 0 if name.endswith(EPHEMERAL) else await self._log.reserve("queue", 1)
        queue = Queue(self, number, topic, name, QueueSettings(timeout_ms=self._config.queue_timeout_ms))
        if start is None:
            start = LATEST if self._queues.get(topic.id) else EARLIEST
        for count, partition in enumerate(topic.partitions, 1):
            if count % STEP_LANES == 0:
                await asyncio.sleep(0)
            await partition.load()
            ledger = Ledger(await _offset(partition, start, start_ms))
            queue.lanes[partition.index] = QueueLane(queue, partition, partition.index, ledger, partition.epoch)
        self._making[queue] = None
        try:
            if not queue.ephemeral:
                await self.state_writer.ensure_shards()
                await self.state_writer.write(queue, list(queue.lanes.values()), is_new=True)
            if topic.deleted:
                raise UnknownTopic(f"the topic {topic.name} was deleted")
            self._queues.setdefault(topic.id, {})[name] = queue
        finally:
            del self._making[queue]
        self._topics.notify(topic)
        return queue

    async def _open(self, queue: Queue) -> None:
        if queue.gone:
            raise UnknownQueue(f"the queue {queue.name} of {queue.topic.name} was deleted")
        await self._add_lanes(queue)
        for count, lane in enumerate(list(queue.lanes.values()), 1):
            if count % STEP_LANES == 0:
                await asyncio.sleep(0)
            await lane.activate()
            try:
                await self.state_writer.save(lane)
            except BaseException:
                lane.close()
                raise
        self.state_writer.changed(queue)
        if any(lane.ledger.condemned for lane in queue.lanes.values()):
            queue.dead_letters.begin()
        queue.watch_clock()
        queue.kick()

    async def park_below(self, queue: Queue, lane: int, end: int) -> int:
        """Move the messages of a lane below `end` that stayed behind to the queue's parking; how many."""
        async with self._turns.of((queue.topic.id, queue.name)):
            if queue.gone or lane not in queue.lanes:
                return 0
            await self._open(queue)
            return await park_below(self, queue, queue.lanes[lane], end)

    async def parking(self, queue: Queue) -> QueueLane:
        """The lane of a queue's parking, made if it is missing."""
        known = queue.lanes.get(PARKING)
        if known is not None:
            return known
        config = {"retention": "consumed", "segment.bytes": str(16 << 20)}
        topic = await self._topics.open(parking_topic(queue.id), 1, config, internal=True)
        partition = topic.partitions[0]
        await partition.load()
        lane = QueueLane(queue, partition, PARKING, Ledger(partition.start), partition.epoch)
        await self.state_writer.write(queue, [lane])
        queue.lanes[PARKING] = lane
        await lane.activate()
        return lane

    async def delete(self, topic: str, name: str, session: Session | None = None) -> None:
        """End a queue; what it has not settled stays in the log. Raises UnknownQueue."""
        found = self._existing(topic, name)
        async with self._turns.of((found.topic.id, name)):
            queue = self._existing(topic, name)
            if not queue.ephemeral:
                await self.state_writer.describe(queue, None)
            self._remove(queue, f"the queue {name} of {topic} was deleted")
            self.report(session, "delete", queue)

    def vanish(self, queue: Queue) -> None:
        """The last consumer of an ephemeral queue has gone, and the queue with it."""
        self._remove(queue, "its last consumer has gone")

    def _vanish_unused(self, queue: Queue) -> None:
        """The first consumer of an ephemeral queue has gone before it came."""
        if queue.ephemeral and not queue.consumers and not queue.gone:
            self.vanish(queue)

    def _remove(self, queue: Queue, reason: str) -> None:
        of_topic = self._queues.get(queue.topic.id, {})
        if of_topic.get(queue.name) is queue:
            del of_topic[queue.name]
            if not of_topic:
                del self._queues[queue.topic.id]
        self.state_writer.forget(queue)
        queue.close(reason)
        if PARKING in queue.lanes:
            self._spawn(self._topics.delete(parking_topic(queue.id), internal=True))
        if not queue.topic.deleted:
            self._topics.notify(queue.topic)

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
            await self.state_writer.describe(queue, None)
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
                # No other event would try again: the topic has grown, and the disk may have room later.
                log.warning("new partitions cannot be queued yet", queue=queue.name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        queue.kick()

    async def _add_lanes(self, queue: Queue) -> None:
        for partition in queue.topic.partitions:
            if queue.gone:
                return
            if partition.index in queue.lanes:
                continue
            await partition.load()
            lane = QueueLane(queue, partition, partition.index, Ledger(partition.start), partition.epoch)
            if not queue.ephemeral:
                await self.state_writer.write(queue, [lane])
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

    async def configure(self, queue: Queue, changes: Mapping[str, object], session: Session | None = None) -> None:
        """Change settings, durably and at once. Raises InvalidQueueSetting."""
        settings = queue.settings.changed(changes)
        check_settings(settings)
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
                        queue.dead_letters.begin()
            queue.dead_letters.retry()
        self.report(session, "alter", queue, " ".join(sorted(changes)))
        queue.kick()

    async def pause(self, queue: Queue, paused: bool, session: Session | None = None) -> None:
        """Let a queue stand still, or go on."""
        async with self._turns.of((queue.topic.id, queue.name)):
            await self._describe(queue, queue.settings, paused)
            queue.paused = paused
        self.report(session, "pause" if paused else "resume", queue)
        queue.kick()

    async def pause_topic(self, topic: str, paused: bool, session: Session | None = None) -> None:
        """Let all queues of a topic stand still, those to come too, or go on. Raises UnknownTopic."""
        await self._topics.alter_config(topic, lambda old: {**old, PAUSED: "true" if paused else "false"}, session)

    async def empty(self, queue: Queue, session: Session | None = None) -> None:
        """Settle everything that the topic holds now, durably."""
        async with self._turns.of((queue.topic.id, queue.name)):
            await self._open(queue)
            queue.empty()
            lanes = [] if queue.ephemeral else list(queue.lanes.values())
            for at in range(0, len(lanes), STEP_LANES):
                await self.state_writer.write(queue, lanes[at : at + STEP_LANES])
        self.report(session, "empty", queue)

    def report(self, session: Session | None, action: str, queue: Queue, detail: str = "") -> None:
        """Tell those who want to know that a queue was changed, by whom, and how."""
        for call in self.on_managed:
            call(session, action, queue_name(queue.topic.name, queue.name), detail)

    async def _describe(self, queue: Queue, settings: QueueSettings, paused: bool) -> None:
        if queue.gone:
            raise UnknownQueue(f"the queue {queue.name} of {queue.topic.name} was deleted")
        if not queue.ephemeral:
            await self.state_writer.describe(queue, queue.described(settings, paused))

    async def dead_letter_topic(self, queue: Queue) -> Topic:
        """Where a queue's dead messages go, made if it is missing."""
        internal.check_change(queue.dead_letter_topic, "a dead-letter topic")
        return await self._topics.open(queue.dead_letter_topic)


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
    return min(max(start, partition.start), partition.high_watermark)
