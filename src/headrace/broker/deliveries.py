"""`__deliveries`: what happened to the messages of queues, for trace and audit to read.

The queues say what they did, a run of offsets at a time; the words are gathered and written in batches some times a
second, never one append a message. It is an ordinary topic of one partition that any Kafka consumer reads. Watching
must not slow down what it watches: the topic is `async`, the memory for what waits is bounded, and what finds no room
there is dropped and counted.

Of a queue that has a share of its messages watched, `queues/watching.py` chooses them when they are first delivered;
that they are is remembered until they are settled. Failures are written of all messages, and so is what follows them: a
message that was requeued, timed out or died is never one of which nothing is known.

A record's key is `TOPIC/QUEUE`, its value a JSON object: `t` (milliseconds), `event`, `topic`, `queue`, `partition`,
`runs` (pairs of a first and a last offset, both included), and where they are known `consumer`, `attempt`, `delay_ms`
and `error`.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import structlog

from headrace.broker.delayed_flush import DelayedFlush
from headrace.broker.queues.delivery import Claimed
from headrace.broker.queues.watching import Attempt, kept_of_claimed, kept_of_ids
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.format.sampling import Run, seed_of, threshold
from headrace.log.interface import Partition
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue

log = structlog.get_logger("headrace.deliveries")

TOPIC = "__deliveries"
TOPIC_CONFIG = {
    "durability": "async",
    "retention.ms": str(24 * 3600 * 1000),
    "segment.ms": str(3600 * 1000),
    "segment.bytes": str(64 << 20),
}

# The events.
DELIVERED = "delivered"
FINISHED = "finished"
REQUEUED = "requeued"
TIMED_OUT = "timed-out"
TOUCHED = "touched"
RELEASED = "released"
"""Given back because its consumer went."""
DEAD = "dead"
EMPTIED = "emptied"
# Written of all messages, also of those that are not watched.
ALWAYS = (REQUEUED, TIMED_OUT, RELEASED, DEAD, EMPTIED)

# Runs that become text between two turns of the loop: about half a millisecond.
STEP_RUNS = 1_000
# Runs of one record: a reader should not meet one of a megabyte.
RECORD_RUNS = 500


class Event(NamedTuple):
    """What the runs of one record have in common."""

    t: int
    event: str
    topic: str
    queue: str
    partition: int
    consumer: str
    attempt: int
    delay_ms: int
    error: str


class Deliveries:
    """Gathers events, and writes them."""

    def __init__(self, runtime: Runtime, topics: Topics, config: BrokerSettings) -> None:
        self.written = 0
        """Records appended."""
        self.dropped = 0
        """Messages whose event found no room, or could not be written."""
        self._runtime = runtime
        self._topics = topics
        self._runs_max = config.deliveries_runs_max
        self._waiting: dict[Event, list[Run]] = {}
        # By queue and lane, the offsets of watched messages that were delivered once and are not settled; of queues
        # that have a share of them watched. What was delivered again is known by its attempt.
        self._watched: WeakKeyDictionary[Queue, dict[int, set[int]]] = WeakKeyDictionary()
        # Runs that wait or are being written: both take memory.
        self._runs = 0
        self._flush_later = DelayedFlush(config.deliveries_flush_ms / 1000, self.flush, lambda: bool(self._waiting))

    async def stop(self) -> None:
        """Write what waits."""
        await self._flush_later.stop()

    def note(
        self,
        queue: Queue,
        event: str,
        lane: int,
        runs: Sequence[Run],
        *,
        consumer: str = "",
        attempt: int = 0,
        delay_ms: int = -1,
        error: str = "",
    ) -> None:
        """Say that `event` happened now to the messages in `runs`: those that are watched, or all that failed. An
        attempt of 0 and a delay of -1 mean that there is none."""
        share = queue.settings.deliveries
        if not share:
            return
        if share < 1:
            watched = self._of(queue, lane)
            if event in ALWAYS:
                for first, last in runs:
                    _discard(watched, first, last)
            elif attempt <= 1:
                runs = [run for run in runs if run[0] in watched]
        self._gather(queue, event, lane, runs, consumer, attempt, delay_ms, error)

    def note_delivered(self, queue: Queue, claimed: Claimed, consumer: str) -> None:
        """Say that messages were just handed to a consumer."""
        lane = claimed.lane
        share = queue.settings.deliveries
        if not share:
            return
        found = kept_of_claimed(claimed, seed_of(queue.topic.name, lane), threshold(share))
        if share < 1 and found:
            watched = self._of(queue, lane)
            for first, last, attempt in found:
                if attempt <= 1:
                    watched.update(range(first, last + 1))
        self._gather_attempts(queue, DELIVERED, lane, found, consumer)

    def note_finished(self, queue: Queue, lane: int, ids: array[int], missed: Sequence[int], consumer: str) -> None:
        """Say that a consumer has finished messages: of (lane, offset, attempt, lane, ...) those of one lane, without
        the ones at the places in `missed`."""
        share = queue.settings.deliveries
        if not share:
            return
        watched = self._of(queue, lane) if share < 1 else None
        found = kept_of_ids(ids, lane, missed, watched)
        if watched:
            for first, last, _ in found:
                _discard(watched, first, last)
        self._gather_attempts(queue, FINISHED, lane, found, consumer)

    def _of(self, queue: Queue, lane: int) -> set[int]:
        return self._watched.setdefault(queue, {}).setdefault(lane, set())

    def _gather_attempts(self, queue: Queue, event: str, lane: int, found: Sequence[Attempt], consumer: str) -> None:
        by_attempt: dict[int, list[Run]] = {}
        for first, last, attempt in found:
            by_attempt.setdefault(attempt, []).append((first, last))
        for attempt, runs in by_attempt.items():
            self._gather(queue, event, lane, runs, consumer, attempt, -1, "")

    def _gather(
        self,
        queue: Queue,
        event: str,
        lane: int,
        runs: Sequence[Run],
        consumer: str,
        attempt: int,
        delay_ms: int,
        error: str,
    ) -> None:
        """Keep runs until the next flush, as far as there is room."""
        topic = queue.topic.name
        # A reader of events through a queue must not make more of them.
        if not runs or topic == TOPIC:
            return
        room = self._runs_max - self._runs
        if len(runs) > room:
            self._drop(runs[room:])
            if room <= 0:
                return
            runs = runs[:room]
        key = Event(self._runtime.clock.now_ms(), event, topic, queue.name, lane, consumer, attempt, delay_ms, error)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = list(runs)
        else:
            waiting.extend(runs)
        self._runs += len(runs)
        self._flush_later.request()

    async def flush(self) -> None:
        """Write what waits now. What cannot be written is dropped and counted."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        try:
            partition = await self._partition()
        except (HeadraceError, OSError) as error:
            log.warning("could not write delivery events", topic=TOPIC, error=str(error))
            for runs in waiting.values():
                self._drop(runs)
                self._runs -= len(runs)
            return
        step: list[tuple[Event, list[Run]]] = []
        size = 0
        for event, runs in waiting.items():
            for at in range(0, len(runs), RECORD_RUNS):
                part = runs[at : at + RECORD_RUNS]
                step.append((event, part))
                size += len(part)
                if size >= STEP_RUNS:
                    self._write(partition, step, size)
                    step, size = [], 0
                    await asyncio.sleep(0)
        if step:
            self._write(partition, step, size)

    async def _partition(self) -> Partition:
        topic = await self._topics.open(TOPIC, 1, TOPIC_CONFIG, internal=True)
        partition = topic.partitions[0]
        await partition.load()
        return partition

    def _write(self, partition: Partition, step: Sequence[tuple[Event, list[Run]]], size: int) -> None:
        self._runs -= size
        try:
            partition.append(records.build([_record(event, runs) for event, runs in step]))
        except (HeadraceError, OSError) as error:
            log.warning("could not write delivery events", topic=TOPIC, error=str(error))
            for _, runs in step:
                self._drop(runs)
            return
        self.written += len(step)

    def _drop(self, runs: Sequence[Run]) -> None:
        self.dropped += sum(last - first + 1 for first, last in runs)


def _discard(offsets: set[int], first: int, last: int) -> None:
    """Without those of a run, which may be much longer than the set is large."""
    if last - first < len(offsets):
        offsets.difference_update(range(first, last + 1))
    else:
        offsets.difference_update([each for each in offsets if first <= each <= last])


def _record(event: Event, runs: list[Run]) -> tuple[int, bytes, bytes, list[tuple[str, bytes]]]:
    value: dict[str, Any] = {
        "t": event.t,
        "event": event.event,
        "topic": event.topic,
        "queue": event.queue,
        "partition": event.partition,
        "runs": runs,
    }
    if event.consumer:
        value["consumer"] = event.consumer
    if event.attempt:
        value["attempt"] = event.attempt
    if event.delay_ms >= 0:
        value["delay_ms"] = event.delay_ms
    if event.error:
        value["error"] = event.error
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return event.t, f"{event.topic}/{event.queue}".encode(), text.encode("utf-8", "replace"), []
