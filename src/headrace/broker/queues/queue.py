"""A queue: the messages of a topic, each handed to one consumer until that has settled it.

The queue knows its consumers and what they settle. `pump.py` hands messages out, lane by lane (`lane.py`); how the
state survives a crash is in `state.py`; dead letters are in `dead_letter_mover.py`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.queues import peek, state
from headrace.broker.queues.consumer import Consumer, Sink
from headrace.broker.queues.dead_letter_mover import DeadLetterMover
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.leases import QueueLeases
from headrace.broker.queues.ledger import CONDEMNED, DONE, OWNERS_MAX, READY, delay_of
from headrace.broker.queues.parking import PARKING
from headrace.broker.queues.peek import LOOK_BYTES, Peeked
from headrace.broker.queues.pump import Pump
from headrace.broker.queues.settings import EPHEMERAL, Condition, QueueSettings, parse_filter
from headrace.errors import AlreadySettled, InvalidQueueSetting, StorageFailed
from headrace.log.interface import Appended, Topic, Write
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.queues.queues import Queues
    from headrace.broker.security import Session

# The last errors that consumers gave are kept for this many messages.
ERRORS_MAX = 10_000


class Figures(NamedTuple):
    """How a queue stands. The counts are since the broker started."""

    depth: int
    """Ready to be handed out."""
    in_flight: int
    """Handed to a consumer, or leased."""
    deferred: int
    blocked: int
    """Waiting for another message of their key."""
    condemned: int
    """On their way to the dead-letter topic."""
    stuck: int
    """Dead, but the dead-letter topic does not take them: they stay, and hold retention."""
    move_error: str
    """Why messages that are condemned or stuck cannot move; empty where they can."""
    dead: int
    """Went to the dead-letter topic."""
    delivered: int
    finished: int
    requeued: int
    timed_out: int
    lost: int
    """Gone from the log before they were settled."""
    poisoned: int
    lookahead_hits: int
    consumers: int


class Queue:
    def __init__(self, queues: Queues, number: int, topic: Topic, name: str, settings: QueueSettings) -> None:
        self.id = number
        self.topic = topic
        self.name = name
        self.settings = settings
        self.conditions: list[Condition] = parse_filter(settings.filter)
        self.paused = False
        self.parked: dict[int, dict[bytes, None]] = {}
        """By lane: keys whose messages follow a dead one (`dead_key` is park)."""
        self.lanes: dict[int, QueueLane] = {}
        """By number: that of the partition, or PARKING."""
        self.consumers: dict[int, Consumer] = {}
        self.runtime: Runtime = queues.runtime
        self.unpacked_max = queues.unpacked_max
        self.unpacking = queues.unpacking
        self.gone = False
        self.dead = 0
        self.delivered = 0
        self.finished = 0
        self.requeued = 0
        self.timed_out = 0
        self.lookahead_hits = 0
        self.errors: dict[tuple[int, int], str] = {}
        """The last error that a consumer reported of a message, by lane and offset."""
        self.on_moved_up: Callable[[], None] | None = None
        """Called when messages were settled."""
        self._queues = queues
        self.dead_letters = DeadLetterMover(self, queues)
        self._pump = Pump(self, queues)
        self.kick = self._pump.kick
        self.watch_clock = self._pump.watch_clock
        self.wake_at = self._pump.wake_at
        self.serve_leases = self._pump.serve_leases
        self.leases = QueueLeases(self, queues)
        self._next_consumer = 1

    @property
    def ephemeral(self) -> bool:
        """It is not stored, and goes with its last consumer."""
        return self.name.endswith(EPHEMERAL)

    @property
    def dead_letter_topic(self) -> str:
        return self.settings.dead_letter_topic or f"{self.topic.name}.{self.name.removesuffix(EPHEMERAL)}.dead"

    def described(self, settings: QueueSettings, paused: bool) -> bytes:
        """What is stored of the queue beside its state."""
        return state.described(self.topic.id, self.name, settings.as_json(), paused, self.parked)

    def figures(self) -> Figures:
        """How the queue stands. All queues are asked in a turn or two of the loop: one pass over the lanes."""
        depth = in_flight = deferred = blocked = condemned = stuck = lost = poisoned = 0
        for lane in self.lanes.values():
            ledger = lane.ledger
            depth += ledger.ready + max(0, lane.partition.last_stable - ledger.cursor)
            in_flight += ledger.in_flight + ledger.leased
            deferred += ledger.deferred
            blocked += ledger.blocked
            condemned += ledger.condemned
            stuck += ledger.stuck
            lost += lane.lost
            poisoned += lane.poisoned
        return Figures(
            depth=depth,
            in_flight=in_flight,
            deferred=deferred,
            blocked=blocked,
            condemned=condemned,
            stuck=stuck,
            # What kept messages back that are not there any more does not matter.
            move_error=self.dead_letters.error if condemned or stuck else "",
            dead=self.dead,
            delivered=self.delivered,
            finished=self.finished,
            requeued=self.requeued,
            timed_out=self.timed_out,
            lost=lost,
            poisoned=poisoned,
            lookahead_hits=self.lookahead_hits,
            consumers=len(self.consumers),
        )

    @property
    def unsettled(self) -> int:
        """Messages that are not settled yet, handed out or not."""
        return sum(
            max(0, lane.partition.last_stable - lane.ledger.cursor) + lane.ledger.unsettled()
            for lane in self.lanes.values()
        )

    @property
    def received(self) -> int:
        """Messages that have come to it, with those that it had when the broker started."""
        lanes = [lane for lane in self.lanes.values() if lane.index != PARKING]
        return sum(max(0, lane.partition.last_stable - lane.began) for lane in lanes)

    # --- consumers ---

    def subscribe(
        self,
        sink: Sink,
        *,
        session: Session | None = None,
        label: str = "",
        timeout_ms: int | None = None,
        sample: int = 100,
    ) -> Consumer:
        """Add a consumer; it gets messages once it has credit (`ready`). A `session` must have the right to read the
        topic and the queue, and is unsubscribed when that goes; without one, the caller has asked. Raises
        NotAuthorized."""
        if self.gone:
            raise StorageFailed(f"the queue {self.name} of {self.topic.name} was deleted")
        if len(self.consumers) >= OWNERS_MAX:
            raise InvalidQueueSetting(f"the queue {self.name} has {OWNERS_MAX} consumers, the maximum. Stop some.")
        while self._next_consumer in self.consumers:
            self._next_consumer = self._next_consumer % OWNERS_MAX + 1
        consumer = Consumer(self, self._next_consumer, sink, label, timeout_ms, sample)
        if session is not None:
            consumer.watch(session, self._queues.security)
        self._next_consumer = self._next_consumer % OWNERS_MAX + 1
        self.consumers[consumer.id] = consumer
        return consumer

    def unsubscribe(self, consumer: Consumer) -> None:
        """Forget a consumer; what it had is ready again."""
        if self.consumers.pop(consumer.id, None) is None:
            return
        for lane in self.lanes.values():
            released = lane.ledger.release(consumer.id)
            if released:
                lane.block_followers(released)
                self._queues.deliveries.note(
                    self, "released", lane.index, _runs(sorted(released)), consumer=consumer.label
                )
                self.changed(lane)
        consumer.in_flight = 0
        if self.ephemeral and not self.consumers:
            self._queues.vanish(self)
        else:
            self.kick()

    # --- settling ---

    def finish(self, consumer: Consumer, ids: array[int]) -> list[int]:
        """See `Consumer.finish_many`."""
        failed: list[int] = []
        for index in set(ids[::3]):
            lane = self.lanes.get(index)
            if lane is None:
                failed += [at for at in range(len(ids) // 3) if ids[at * 3] == index]
                continue
            missed = lane.ledger.finish_many(ids, index, consumer.id)
            failed += missed
            if lane.keys is not None or self.errors or consumer.touched:
                self._follow(lane, consumer, ids, set(missed))
            if self.settings.deliveries:
                self._queues.deliveries.note_finished(self, index, ids, missed, consumer.label)
            self.moved_up(lane)
        self.finished += len(ids) // 3 - len(failed)
        self.kick()
        return sorted(failed)

    def _follow(self, lane: QueueLane, consumer: Consumer, ids: array[int], missed: set[int]) -> None:
        """What else must be known of single messages that were settled; most queues need none of it."""
        offsets = [ids[at * 3 + 1] for at in range(len(ids) // 3) if ids[at * 3] == lane.index and at not in missed]
        for offset in offsets:
            self.errors.pop((lane.index, offset), None)
            consumer.touched.pop((lane.index, offset), None)
            lane.release_key(offset)

    def recount(self) -> None:
        """Messages that were in flight are gone: their consumers have room for others."""
        counts: Counter[int] = Counter()
        for lane in self.lanes.values():
            counts.update(lane.ledger.owners())
        for consumer in self.consumers.values():
            consumer.in_flight = counts[consumer.id]
        self.kick()

    def requeue(
        self, consumer: Consumer, lane_index: int, offset: int, attempt: int, delay_ms: int, error: str
    ) -> bool:
        """See `Consumer.requeue`."""
        lane = self.lanes.get(lane_index)
        if lane is None:
            return False
        due, delay = self.due_of(attempt, delay_ms)
        if not lane.ledger.requeue(offset, consumer.id, attempt, due):
            return False
        consumer.touched.pop((lane_index, offset), None)
        self.returned(lane, offset, attempt, due, delay, error, consumer.label)
        return True

    def due_of(self, attempt: int, delay_ms: int) -> tuple[int, int]:
        """When a message that is given back after an attempt is due, and the delay; 0: at once, by the retry ladder."""
        delay = delay_ms or delay_of(self.settings.backoff_ms, attempt)
        return self.runtime.clock.now_ms() + delay if delay > 0 else delay, delay

    def returned(
        self, lane: QueueLane, offset: int, attempt: int, due: int, delay_ms: int, error: str, label: str
    ) -> None:
        """A message was given back."""
        lane.block_followers((offset,))
        self.keep_error(lane, offset, error)
        self.requeued += 1
        self._queues.deliveries.note(
            self, "requeued", lane.index, [(offset, offset)], consumer=label, attempt=attempt, delay_ms=delay_ms,
            error=error,
        )  # fmt: skip
        if due > 0:
            self.wake_at(due)
        self.changed(lane)
        self.kick()

    def keep_error(self, lane: QueueLane, offset: int, error: str) -> None:
        """Remember why a message came back, if there is room."""
        if error and (len(self.errors) < ERRORS_MAX or (lane.index, offset) in self.errors):
            self.errors[lane.index, offset] = error

    def touch(self, consumer: Consumer, lane_index: int, offset: int, attempt: int) -> bool:
        """See `Consumer.touch`."""
        lane = self.lanes.get(lane_index)
        if lane is None:
            return False
        ledger = lane.ledger
        now = self.runtime.clock.now_ms()
        latest = consumer.touched.get((lane_index, offset))
        if latest is None:
            delivered = ledger.deadline_of(offset, now) - consumer.timeout_ms
            latest = delivered + max(self.settings.timeout_max_ms, consumer.timeout_ms)
        if not ledger.touch(offset, consumer.id, attempt, min(now + consumer.timeout_ms, latest)):
            return False
        consumer.touched[lane_index, offset] = latest
        run = (offset, offset)
        self._queues.deliveries.note(self, "touched", lane_index, [run], consumer=consumer.label, attempt=attempt)
        return True

    async def settle_with(self, lane_index: int, offsets: list[int], writes: list[Write]) -> list[Appended]:
        """Settle messages, unless they are settled, together with writes to other partitions, in one atomic append.
        Raises an AppendRefused, and has then done nothing. Where the writes went."""
        lane = self.lanes[lane_index]
        offsets = sorted(offsets)
        await self._queues.state_writer.prepare(lane)
        for offset in offsets:
            if self.settled(lane_index, offset):
                raise AlreadySettled(f"message {offset} of partition {lane_index} was settled meanwhile")
        # No consumer may take them meanwhile, and nothing else may move them; what lies above the cursor is safe.
        held = [offset for offset in offsets if offset < lane.ledger.cursor and self.is_ready(lane_index, offset)]
        for offset in held:
            lane.ledger.block(offset)
        try:
            appended = await self._queues.state_writer.append_with(
                self, {lane_index: lane.ledger.word_of(offsets)}, writes
            )
        except BaseException:
            for offset in held:
                lane.ledger.unblock(offset)
            self.kick()
            raise
        lane.ledger.reach(offsets[-1] + 1)
        in_flight = lane.ledger.in_flight
        for offset in offsets:
            self.drop(lane, offset)
            lane.release_key(offset)
        if lane.ledger.in_flight != in_flight:
            self.recount()
        self.moved_up(lane)
        self.kick()
        return appended

    async def bury(self, lane: QueueLane, offsets: list[int], writes: list[Write]) -> bool:
        """Settle dead messages together with the writes of their letters; False, and nothing is done, if one of them
        was settled since. Where dead messages park their keys, those that waited for them follow."""
        described: bytes | None = None
        await self._queues.state_writer.prepare(lane)
        if any(lane.ledger.state_of(offset)[0] != CONDEMNED for offset in offsets):
            return False
        if lane.park_keys(offsets):
            described = self.described(self.settings, self.paused)
        word = lane.ledger.word_of(offsets)
        await self._queues.state_writer.append_with(self, {lane.index: word}, writes, described)
        self.dead += len(offsets)
        for offset in offsets:
            self.drop(lane, offset)
            lane.end_key(offset)
        self.moved_up(lane)
        self.kick()
        return True

    def stick(self, lane: QueueLane, offset: int) -> None:
        """A dead message cannot move. What it does to its key it does all the same: others must not wait for it."""
        lane.ledger.stick(offset)
        lane.park_keys([offset])
        lane.end_key(offset)
        self.kick()

    def drop(self, lane: QueueLane, offset: int) -> None:
        """Settle a message that no consumer answers for."""
        lane.ledger.settle(offset)
        self.errors.pop((lane.index, offset), None)

    def is_ready(self, lane_index: int, offset: int) -> bool:
        """Whether a message could be handed out now."""
        return self.lanes[lane_index].ledger.state_of(offset)[0] == READY

    def settled(self, lane_index: int, offset: int) -> bool:
        """Whether a message is settled."""
        return self.lanes[lane_index].ledger.state_of(offset)[0] == DONE

    def next_unsettled(self, lane_index: int, offset: int) -> int:
        """The first offset from `offset` on that is not settled, be there a message or not."""
        ledger = self.lanes[lane_index].ledger
        found = ledger.next_unsettled(offset)
        return found if found >= 0 else max(offset, ledger.cursor)

    def moved_up(self, lane: QueueLane) -> None:
        """Messages of a lane were settled: the floor may go up."""
        if lane.ledger.advance() and self.on_moved_up is not None:
            self.on_moved_up()
        self._queues.state_writer.changed(self)

    def changed(self, lane: QueueLane) -> None:
        """The state of a lane must be written down."""
        if lane.ledger.condemned:
            self.dead_letters.begin()
        self._queues.state_writer.changed(self)

    def empty(self) -> None:
        """Settle everything that is there, whatever became of it; what is in an open transaction is not yet."""
        for lane in self.lanes.values():
            end = lane.partition.last_stable
            if lane.ledger.floor < end:
                # One run, though some of it may be settled: a reader of events knows those by what they ended with.
                self._queues.deliveries.note(self, "emptied", lane.index, [(lane.ledger.floor, end - 1)])
            lane.ledger.skip_below(end)
            if lane.keys is not None:
                lane.keys.clear()
            self.moved_up(lane)
        self.errors.clear()
        for consumer in self.consumers.values():
            consumer.in_flight = 0
            consumer.touched.clear()
        self.kick()

    # --- looking ---

    async def age_ms(self) -> int:
        """How old the oldest unsettled message is; 0 where all is settled."""
        return await peek.age_ms(self)

    async def peek(self, limit: int, begin: tuple[int, int] | None = None, max_bytes: int = LOOK_BYTES) -> Peeked:
        """The messages that would be handed out next, untouched, from a lane and offset on; about `max_bytes` of them,
        but one at least, and fewer where they are far between."""
        return await peek.peek(self, limit, begin, max_bytes)

    @property
    def looks(self) -> asyncio.Semaphore:
        """Limits how many clients look into queues of this broker at a time."""
        return self._queues.looks

    # --- the end ---

    def close(self, reason: str = "") -> None:
        """Stop; with a reason, because the queue is no more."""
        self._pump.stop()
        self.dead_letters.stop()
        self.leases.end_receives()
        for lane in self.lanes.values():
            lane.close()
        if reason:
            self.gone = True
            for consumer in list(self.consumers.values()):
                consumer.end(reason)
            self.consumers.clear()


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Rising offsets as runs, both ends included."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
