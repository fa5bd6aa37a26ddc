"""Deduplication: what doors ask for, and the ids of all topics under one limit.

A message may carry an id, in the header `headrace-dedup-id`. Within its topic's window (`deduplication.window.ms`) a
second message with that id is not stored, whichever partition and door it comes to; its publisher gets the answer of
the first. The ids are in memory, in one compact table a topic, and in a log of their own (`log.py`), from which a table
is read when the first publish after a start comes. Topics that no id is ever published to have neither.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from headrace.broker.deduplication import ids as kernel
from headrace.broker.deduplication.ids import Claim
from headrace.broker.deduplication.log import IdLog
from headrace.broker.deduplication.window import Flight, Joint, Window
from headrace.broker.durable import append, call_later
from headrace.broker.loading import SharedLoad
from headrace.broker.metrics import Metrics
from headrace.broker.periodic import Periodic
from headrace.broker.rate_limit import RateLimit
from headrace.broker.settings import BrokerSettings
from headrace.broker.timer import Timer
from headrace.broker.topic_config import deduplicates, deduplication_ms, delays
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError, StorageFailed, UnknownTopic
from headrace.format import records
from headrace.format.batch import header_at
from headrace.log.interface import Appended, Done, Durability, Log, Partition, Topic, Write
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.deduplication")

SETTING = "deduplication.window.ms"
# How often ids that have grown old are freed though no client publishes, and their log is trimmed.
SWEEP_SECONDS = 30.0
# Ids that are freed in one step.
STEP_IDS = 2_000
# Freed with each publish: so many for each new id, and so many besides.
EXPIRED_EACH = 2
EXPIRED_BESIDES = 16

# The offset of what has no place in its topic.
NOWHERE = -1

# A partition, and one batch for it.
Part = tuple[Partition, bytearray | memoryview]


class Stored(NamedTuple):
    """What became of one batch."""

    base_offset: int
    """Of its records; -1 where they have none, or are not in a row."""
    log_append_time: int
    duplicates: array[int]
    """Four numbers for each record that was not stored: its own in the batch, one of no meaning, and partition and
    offset of the first."""
    timers: Sequence[str] = ()
    """The ids under which those records wait that are for later."""


class Deduplication:
    """Ids of all topics."""

    def __init__(
        self, runtime: Runtime, log: Log, topics: Topics, timer: Timer, metrics: Metrics, config: BrokerSettings
    ) -> None:
        self._runtime = runtime
        self._log = log
        self._topics = topics
        self._timer = timer
        self._metrics = metrics
        self._config = config
        self._ids = IdLog(runtime, log, topics, config)
        self._windows: dict[Topic, Window] = {}
        self._loading: dict[Topic, SharedLoad] = {}
        self._sweeps = Periodic(SWEEP_SECONDS, self._sweep, "free and trim old ids", logger)
        self.count = 0
        """Ids that are remembered."""
        self.evicted = 0
        """Ids that had to go before their time."""
        self._log_limit = RateLimit()

    async def start(self) -> None:
        """Follow the topics; nothing is read before the first publish."""
        self._topics.changed.append(self._topic_changed)

    async def stop(self) -> None:
        """Stop what runs beside. What is on its way becomes durable with the log's own stop."""
        tasks = [loading.task for loading in self._loading.values() if loading.task is not None]
        for task in tasks:
            task.cancel()
        self._sweeps.cancel()
        await asyncio.gather(*tasks, self._sweeps.stop(), return_exceptions=True)

    # --- the windows --------------------------------------------------------------------------------------------------

    def counts_ids(self, topic: Topic) -> bool:
        """Whether an id that a door was given for a message of the topic counts, or will once it is loaded."""
        span = deduplication_ms(topic.config)
        return span > 0 or (span < 0 and self._config.deduplication_window_ms > 0)

    def ready(self, topic: Topic) -> bool:
        """Whether messages with ids can be published to the topic without waiting."""
        return topic in self._windows

    def loader(self, topic: Topic) -> SharedLoad:
        """What makes the ids of a topic known. Where the topic leaves it to the broker, its window is set by this,
        durably. Raises a HeadraceError; the next call tries again."""
        loading = self._loading.get(topic)
        if loading is None:
            loading = self._loading[topic] = SharedLoad(partial(self._load, topic))
        return loading

    async def _load(self, topic: Topic) -> None:
        try:
            await self._load_window(topic)
        except (HeadraceError, OSError) as error:
            logger.warning("the ids of a topic cannot be loaded yet", topic=topic.name, error=str(error))
            raise
        finally:
            if topic.deleted:
                self._loading.pop(topic, None)

    async def _load_window(self, topic: Topic) -> None:
        if topic in self._windows:
            return
        if deduplication_ms(topic.config) < 0:
            await self._topics.alter_config(topic.name, self._turned_on)
        if not deduplicates(topic.config):
            return
        in_memory = topic.settings.durability is Durability.MEMORY
        window = Window(
            topic, deduplication_ms(topic.config), None if in_memory else await self._ids.partition_of(topic)
        )
        try:
            if not in_memory:
                await self._ids.replay(window, self._now, self._recount)
            if topic.deleted:
                raise UnknownTopic(f"there is no topic {topic.name!r} any more")
        except OSError as error:
            self._drop(window)
            raise StorageFailed(f"the deduplication ids of the topic {topic.name} cannot be read: {error}") from error
        except BaseException:
            self._drop(window)
            raise
        self._windows[topic] = window
        self._topic_changed(topic)
        self._sweeps.start()

    def _turned_on(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """The settings of a topic to which the first message with an id comes."""
        if deduplication_ms(given) >= 0:
            return given
        return {**given, SETTING: str(self._config.deduplication_window_ms)}

    def _topic_changed(self, topic: Topic) -> None:
        loading = self._loading.get(topic)
        if topic.deleted and loading is not None and not loading.is_running:
            del self._loading[topic]
        window = self._windows.get(topic)
        if window is None:
            return
        if topic.deleted or not deduplicates(topic.config):
            del self._windows[topic]
            self._drop(window)
        else:
            window.span_ms = deduplication_ms(topic.config)

    def _drop(self, window: Window) -> None:
        window.dropped = True
        self.count -= window.counted

    def _now(self) -> int:
        """Milliseconds of a clock that is never set."""
        return int(asyncio.get_running_loop().time() * 1_000)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def produce(self, partition: Partition, batch: bytearray | memoryview, done: Done | None) -> Appended:
        """Append a Kafka producer's batch to a topic with a window, without the records whose ids were there before.
        Their places stay empty, as compaction leaves them; the producer's sequence numbers are kept even if nothing
        else is. Raises an AppendRefused."""
        window = self._window(partition.topic)
        part = (partition, batch)
        (claim,) = claims = self._claim(window, [part])
        delayed = delays(partition.topic.config)
        if claim is None:
            return self._timer.produce(partition, batch, done) if delayed else partition.append(batch, done)
        (stored,) = (self._store_delayed if delayed else self._store)(window, [part], claims, done)
        return Appended(stored.base_offset, stored.log_append_time, durable=False)

    def publish(self, parts: Sequence[Part], done: Done) -> list[Stored]:
        """Append batches to partitions of one topic that is `ready`, each partition once, all or nothing, but for the
        records whose ids were there before. `done` is always called, never before this returns, and not before
        everything that the batches hold is durable, be it from an earlier publish. On a topic with `delay=true` what is
        for later goes to the timer. Raises an AppendRefused."""
        topic = parts[0][0].topic
        window = self._window(topic)
        store = self._store_delayed if delays(topic.config) else self._store
        return store(window, parts, self._claim(window, parts), done)

    def publish_timed(
        self, parts: Sequence[Part], waiting: Sequence[tuple[Partition, bytearray, int]], done: Done
    ) -> list[Stored]:
        """Append batches to partitions of one topic, each partition once, and give others to the timer, each with its
        time: all or nothing, whatever `delay` the topic has. The answers to those come behind those to these. As
        `publish`; the timer must be loaded. What is for later has no place in the topic before it is due, so a message
        that repeats it is answered without an offset."""
        window = self._window((parts[0] if parts else waiting[0])[0].topic)
        places = [*parts, *((partition, batch) for partition, batch, _ in waiting)]
        dues = [0] * len(parts) + [due_ms for _, _, due_ms in waiting]
        claims = self._claim(window, parts)
        try:
            claims += self._claim(window, places[len(parts) :], placed=False)
        except HeadraceError:
            self._take_back(window, claims)
            raise
        return self._store(window, places, claims, done, dues)

    def _window(self, topic: Topic) -> Window:
        window = self._windows.get(topic)
        if window is None:
            raise StorageFailed(f"the deduplication ids of topic {topic.name} are not loaded. Send the batch again.")
        return window

    def _claim(self, window: Window, parts: Sequence[Part], *, placed: bool = True) -> list[Claim | None]:
        """Take the new ids of batches, as those of the records that will be appended next, or will have no place."""
        now = self._now()
        since = now - window.span_ms
        unpacked_max = self._config.decompressed_max_bytes
        claims: list[Claim | None] = []
        count = 0
        try:
            for partition, batch in parts:
                base = partition.end if placed else NOWHERE
                claim = window.table.claim(batch, unpacked_max, partition.index, base, now, since)
                claims.append(claim)
                count += claim.last - claim.first if claim is not None else 0
        except HeadraceError:
            window.take_back(claims)
            raise
        if count:
            window.table.expire(since, EXPIRED_EACH * count + EXPIRED_BESIDES)
            self._recount(window)
        return claims

    def _store(
        self,
        window: Window,
        parts: Sequence[Part],
        claims: Sequence[Claim | None],
        done: Done | None,
        dues: Sequence[int] | None = None,
    ) -> list[Stored]:
        """One append for everything, be it for now (a due time of 0) or for later."""
        times = dues or [0] * len(parts)
        try:
            rests = [self._rest(*part, claim) for part, claim in zip(parts, claims, strict=True)]
            left = [
                (partition, batch, rest, due_ms)
                for (partition, batch), rest, due_ms in zip(parts, rests, times, strict=True)
                if rest is not None
            ]
            joint = Joint(done, window.pending(claims), bool(left))
            appended: list[Appended] = []
            timers: list[list[str]] = []
            if left:
                on_durable = self._take_off(window, claims, joint.on_durable)
                placed = [
                    (partition, NOWHERE if due_ms else partition.end, claim)
                    for (partition, _), claim, due_ms in zip(parts, claims, times, strict=True)
                    if claim is not None
                ]
                now = [
                    Write(partition, rest, sparse=rest is not batch)
                    for partition, batch, rest, due_ms in left
                    if not due_ms
                ]
                later = [(partition, bytearray(rest), due_ms) for partition, _, rest, due_ms in left if due_ms]
                writes = now + self._ids.write(window, placed)
                if later:
                    timers, appended = self._timer.schedule(later, on_durable, writes)
                else:
                    appended = append(self._log, writes, on_durable)
        except HeadraceError:
            self._take_back(window, claims)
            raise
        if any(each.duplicate for each in appended):
            # A producer's numbers say that the batch was there, however long ago: nothing is new.
            self._take_back(window, claims)
        where, waits = iter(appended), iter(timers)
        stored = []
        for (partition, _), claim, rest, due_ms in zip(parts, claims, rests, times, strict=True):
            here = None if rest is None or due_ms else next(where)
            there = () if rest is None or not due_ms else next(waits)
            stored.append(self._answer(partition, claim, here)._replace(timers=there))
        return stored

    def _store_delayed(
        self, window: Window, parts: Sequence[Part], claims: Sequence[Claim | None], done: Done | None
    ) -> list[Stored]:
        """The same for a topic with `delay=true`: the timer divides what is left of each batch."""
        is_left = [
            claim is None or any(claim.keep) or header_at(batch).producer_id >= 0
            for (_, batch), claim in zip(parts, claims, strict=True)
        ]
        if not any(is_left):
            return self._store(window, parts, claims, done)
        joint = Joint(done, window.pending(claims), 1)
        on_durable = self._take_off(window, claims, joint.on_durable)
        left = [(*part, claim) for part, claim, is_one in zip(parts, claims, is_left, strict=True) if is_one]
        placed = [(partition, partition.end, claim) for partition, _, claim in left if claim is not None]
        produced = [
            (partition, [batch], claim.keep if claim is not None and claim.duplicates else None)
            for partition, batch, claim in left
        ]
        try:
            appended = call_later(
                self._timer.produce_all(produced, on_durable, self._ids.write(window, placed)), on_durable
            )
        except HeadraceError:
            self._take_back(window, claims)
            raise
        if any(each.duplicate for each in appended):
            self._take_back(window, claims)
        where = iter(appended)
        return [
            self._answer(partition, claim, next(where) if is_one else None)
            for (partition, _), claim, is_one in zip(parts, claims, is_left, strict=True)
        ]

    def _rest(
        self, partition: Partition, batch: bytearray | memoryview, claim: Claim | None
    ) -> bytearray | memoryview | None:
        """What is to be stored of a batch; itself where that is all, None where it is nothing."""
        if claim is None or not claim.duplicates:
            return batch
        unpacked_max = self._config.decompressed_max_bytes
        if partition.topic.settings.compact:
            # The log leaves this to the caller that takes records out.
            records.check(batch, True, unpacked_max)
        rest = records.retain(batch, claim.keep, unpacked_max, None)
        if rest is None and header_at(batch).producer_id >= 0:
            # Its sequence numbers must be in the log, or the producer's next batch would be out of order.
            rest = records.empty(batch)
        return rest

    def _answer(self, partition: Partition, claim: Claim | None, appended: Appended | None) -> Stored:
        base, time = (appended.base_offset, appended.log_append_time) if appended is not None else (NOWHERE, -1)
        if claim is None:
            return Stored(base, time, array("q"))
        if appended is None or not appended.duplicate:
            if claim.duplicates:
                self._metrics.topic(partition.topic.name).duplicates += len(claim.duplicates) // kernel.STRIDE
            if not any(claim.keep):
                # Nothing of it is new: the answer is that of the first, as far as one offset can say it.
                base, time = kernel.run_from(claim.duplicates, partition.index), -1
        return Stored(base, time, claim.duplicates)

    # --- flights ------------------------------------------------------------------------------------------------------

    def _take_off(self, window: Window, claims: Sequence[Claim | None], on_durable: Done) -> Done:
        """New ids are about to be given to the log; what it is to call when they are durable, or never will be."""
        new = [claim for claim in claims if claim is not None and claim.first < claim.last]
        if not new:
            return on_durable
        flight = Flight(new[0].first, new[-1].last)
        window.flights[flight.first] = flight
        return partial(self._landed, window, flight, on_durable)

    def _landed(self, window: Window, flight: Flight, on_durable: Done, error: Exception | None) -> None:
        window.flights.pop(flight.first, None)
        if error is not None:
            # Free again: the next publish of it is the first.
            window.table.forget(flight.first, flight.last)
            self._recount(window)
        for each in flight.waiters:
            each(error)
        on_durable(error)

    def _take_back(self, window: Window, claims: Sequence[Claim | None]) -> None:
        window.take_back(claims)
        self._recount(window)

    # --- the limit ----------------------------------------------------------------------------------------------------

    def _recount(self, window: Window) -> None:
        """Ids came or went. At the limit the topic that has the most of them forgets its oldest, some at once."""
        if window.dropped:
            return
        self.count += len(window.table) - window.counted
        window.counted = len(window.table)
        limit = self._config.deduplication_max_ids
        if self.count <= limit:
            return
        largest = max((window, *self._windows.values()), key=lambda each: each.counted)
        gone = largest.table.evict(self.count - limit + limit // 256)
        largest.counted -= gone
        self.count -= gone
        self.evicted += gone
        evicted = self._log_limit.count(asyncio.get_running_loop().time(), gone)
        if evicted:
            logger.warning(
                "ids were evicted before their time. Raise deduplication_max_ids, or shorten the window.",
                topic=largest.topic.name,
                ids=evicted,
                limit=limit,
            )

    async def _sweep(self) -> None:
        for window in list(self._windows.values()):
            await self._expire(window)
        await self._ids.trim()

    async def _expire(self, window: Window) -> None:
        """Free what has grown old, in small steps."""
        while True:
            done = window.table.expire(self._now() - window.span_ms, STEP_IDS)
            self._recount(window)
            if done:
                return
            await asyncio.sleep(0)
