"""The publisher: check, make, load, ask for room, and append, delay or deduplicate.

On a warm topic everything here is a plain call. What must be awaited is asked for first, and a caller that has awaited
something asks again, since the topic may have changed meanwhile; only room in a full topic, once it was given, is not
asked for twice.

There are two ways to append. A producer's batch is taken as it comes, compressed or numbered by its producer, and each
partition succeeds or fails alone (`produce`). What a door has made of messages is stored all or nothing (`publish`,
`store`, `append`, `append_all`).

Deduplication ids count by one rule. A producer's batches are searched for them on topics with a window
(`deduplication.window.ms`) only, because that means unpacking them. Where a door is given an id with a message, it
counts unless the topic has turned that off; the first one turns the window on.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from headrace.broker.deduplication import Deduplication, Stored
from headrace.broker.deduplication.deduplication import Part
from headrace.broker.deduplication.ids import HEADER, carries_ids
from headrace.broker.deduplication.window import Joint
from headrace.broker.durable import append, durable
from headrace.broker.internal import check_change, check_write
from headrace.broker.metrics import Metrics
from headrace.broker.overflow import Overflow
from headrace.broker.publish import messages as single
from headrace.broker.publish.admission import Admission, Admissions
from headrace.broker.publish.messages import Message, Place
from headrace.broker.quotas import Quotas
from headrace.broker.security import Operation, Resource, Security, Session
from headrace.broker.timer import Timer
from headrace.broker.topics import Topics
from headrace.broker.transactions import Outcome, TransactionalBatch, TransactionCoordinator
from headrace.errors import BatchTooLarge, PartitionOffline
from headrace.format.batch import batches_in
from headrace.log.interface import Appended, Done, Log, Partition, Topic, Write
from headrace.runtime import Runtime

# Of what had no duplicates.
NONE: array[int] = array("q")


class Loadable(Protocol):
    """What may have to be read from disk before anything can be published."""

    async def load(self) -> None: ...


class Publisher:
    """What clients publish, through whichever door."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        topics: Topics,
        timer: Timer,
        deduplication: Deduplication,
        overflow: Overflow,
        transactions: TransactionCoordinator,
        metrics: Metrics,
        security: Security,
        quotas: Quotas,
    ) -> None:
        self._clock = runtime.clock
        self._log = log
        self._topics = topics
        self._timer = timer
        self._deduplication = deduplication
        self._overflow = overflow
        self._transactions = transactions
        self._security = security
        self._quotas = quotas
        self.admissions = Admissions(log, topics, overflow, metrics, security)
        self.admit = self.admissions.admit

    # --- before anything is appended ----------------------------------------------------------------------------------

    def cold(
        self, admission: Admission, partitions: Sequence[Partition], *, timer: bool = False, ids: bool = False
    ) -> list[Loadable]:
        """What must be loaded before messages go to these partitions: themselves; the timer, for messages that are
        delayed; the topic's deduplication ids, for messages that have some."""
        cold: list[Loadable] = [partition for partition in partitions if not partition.loaded]
        if timer and not self._timer.loaded:
            cold.append(self._timer)
        topic = admission.topic
        if ids and self._deduplication.counts_ids(topic) and not self._deduplication.ready(topic):
            cold.append(self._deduplication.loader(topic))
        return cold

    def has_ids(self, admission: Admission, batches: bytearray) -> bool:
        """Whether batches that a door has made have deduplication ids that count. Raises InvalidRecords."""
        counts_ids = self._deduplication.counts_ids
        return HEADER in batches and counts_ids(admission.topic) and carries_ids(batches, len(batches))

    def take(self, session: Session, size: int) -> None:
        """Count bytes that a client is about to publish through a door that refuses those that published too much.
        Raises QuotaExceeded."""
        if self._quotas.is_active and (meter := self._quotas.meter(session)) is not None:
            meter.take_produce(size, asyncio.get_running_loop().time())

    async def ensure(self, session: Session, name: str, config: Mapping[str, str] | None = None) -> Topic:
        """The topic, made with these settings for a session that is about to publish if it is missing. Raises a
        HeadraceError."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        # First, so that a client without rights does not learn which topics there are.
        self._security.check(session, Operation.WRITE, Resource.TOPIC, name)
        self._security.check_create(session, name)
        self._quotas.take_mutate(session, self._topics.partitions_by_default)
        return await self._topics.ensure(name, config, session)

    async def ready(
        self,
        session: Session,
        name: str,
        config: Mapping[str, str] | None = None,
        route: Callable[[Topic], Sequence[Partition]] | None = None,
        *,
        timer: bool = False,
        ids: bool = False,
    ) -> Admission:
        """Make the topic if it is missing (with these settings), load what `cold` finds, and wait for room; what is
        then published before anything is awaited need not wait. Without a `route` messages go to the session's own
        partition. Raises a HeadraceError."""
        check_change(name, "written to")
        has_room = False
        while True:
            topic = await self.ensure(session, name, config)
            admission = self.admit(session, topic)
            partitions = [session.partition_of(topic)] if route is None else route(topic)
            cold = self.cold(admission, partitions, timer=timer or admission.delays, ids=ids)
            for each in cold:
                await each.load()
            if cold:
                continue
            for partition in partitions:
                if partition.offline:
                    raise PartitionOffline(partition.offline)
            if has_room:
                return admission
            has_room = True
            room = self._overflow.admit(topic)
            if room is None:
                return admission
            await room

    # --- each partition alone -----------------------------------------------------------------------------------------

    def produce(self, admission: Admission, partition: Partition, batch: memoryview, done: Done | None) -> Appended:
        """Take a producer's batch as it comes. As `Partition.append`; raises PartitionOffline or InvalidTopic, too."""
        self._check(admission, partition, batch)
        if admission.deduplicates:
            appended = self._deduplication.produce(partition, batch, done)
        elif admission.delays:
            appended = self._timer.produce(partition, batch, done)
        else:
            appended = partition.append(batch, done)
        self._count(admission, 1, len(batch))
        return appended

    def offer(self, admission: Admission, partition: Partition, batch: memoryview, done: Done) -> TransactionalBatch:
        """Check a batch of a transaction, which `produce_within` then takes with others. Raises a HeadraceError."""
        self._check(admission, partition, batch)
        if admission.delays:
            self._timer.check_undelayed(partition, batch)
        return TransactionalBatch(partition, batch, done)

    def produce_within(
        self, transactional_id: str | None, offered: Sequence[tuple[Admission, TransactionalBatch]], client_version: int
    ) -> list[Outcome]:
        """Take the batches that a request has for a transaction; what became of each."""
        batches = [batch for _, batch in offered]
        outcomes = self._transactions.produce(transactional_id, batches, client_version)
        for (admission, each), outcome in zip(offered, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self._count(admission, 1, len(each.batch))
        return outcomes

    def _check(self, admission: Admission, partition: Partition, batch: memoryview) -> None:
        if not partition.loaded:
            raise PartitionOffline(partition.offline or "the partition is not loaded")
        if admission.is_protected:
            check_write(admission.topic.name, batch)

    # --- all or nothing -----------------------------------------------------------------------------------------------

    async def publish(
        self, session: Session, name: str, messages: Sequence[Message], config: Mapping[str, str] | None = None
    ) -> list[Place]:
        """Publish messages, all of them or none, and return once they are durable: where each went. The topic is made
        (with these settings) if it is missing. Raises a HeadraceError."""
        self.take(session, sum(len(message.key or b"") + len(message.value or b"") for message in messages))
        # Before a topic is made for what it then cannot take.
        asked_ms = self._clock.now_ms()
        single.check_times(messages, asked_ms)
        has_ids = single.has_ids(messages)
        due = messages
        places: list[Partition] = []

        def route(topic: Topic) -> Sequence[Partition]:
            nonlocal due, places
            is_delaying = self.admit(session, topic).delays
            due = [single.apply_header(each, self._clock.now_ms()) for each in messages] if is_delaying else messages
            places = single.route(session, topic, messages)
            return list(dict.fromkeys(places))

        is_timed = any(message.due_ms > asked_ms for message in messages)
        admission = await self.ready(session, name, config, route, timer=is_timed, ids=has_ids)
        parts = single.divide(due, places, self._clock.now_ms())
        now = [(part.partition, part.batch) for part in parts if not part.due_ms]
        later = [(part.partition, part.batch, part.due_ms) for part in parts if part.due_ms]
        waiter, done = durable(None)
        stored = self.store(admission, now, later, done, ids=has_ids)
        await waiter
        return single.places_of(parts, stored)

    def store(
        self,
        admission: Admission,
        now: Sequence[tuple[Partition, bytearray]],
        later: Sequence[tuple[Partition, bytearray, int]],
        done: Done,
        *,
        ids: bool,
    ) -> list[Stored]:
        """Append batches, each to a partition of its own, and delay others until their times: all or nothing, but for
        those whose ids (if they have any) were there before. What became of each. `done` is always called, and never
        before this returns. Raises an AppendRefused."""
        if ids and admission.deduplicates:
            stored = self._deduplication.publish_timed(now, later, done)
        else:
            writes = [Write(partition, batch) for partition, batch in now]
            if later:
                timers, appended = self._timer.schedule(later, done, writes)
            else:
                timers, appended = [], append(self._log, writes, done)
            stored = [Stored(each.base_offset, -1, NONE) for each in appended]
            stored += [Stored(-1, -1, NONE, waiting) for waiting in timers]
        size = sum(len(batch) for _, batch in now) + sum(len(batch) for _, batch, _ in later)
        self._count(admission, len(now) + len(later), size)
        return stored

    def append(self, admission: Admission, partition: Partition, batches: bytearray, done: Done) -> Appended:
        """Append batches, one behind the other, of messages without keys and headers. As `Partition.append`."""
        appended = partition.append(batches, done)
        self._count(admission, 1, len(batches))
        return appended

    def append_all(
        self, admission: Admission, parts: Sequence[tuple[Partition, bytearray]], done: Done, *, ids: bool
    ) -> bool:
        """Append to each partition its batches, one behind the other, whose messages may have headers: what is for
        later on a topic with `delay=true` goes to the timer, and what was there before (if they have ids) is left out.
        Whether that is durable: `done` is called if it is not. Raises an AppendRefused."""
        if ids and admission.deduplicates:
            self._append_new(admission.topic, parts, done)
            is_durable = False
        elif admission.delays:
            produced = [(partition, [*_batches(part)], None) for partition, part in parts]
            is_durable = self._timer.produce_all(produced, done)[0].durable
        else:
            is_durable = self._log.append([Write(partition, part) for partition, part in parts], done)[0].durable
        self._count(admission, len(parts), sum(len(part) for _, part in parts))
        return is_durable

    def _append_new(self, topic: Topic, parts: Sequence[tuple[Partition, bytearray]], done: Done) -> None:
        """Append messages but for those that were there before. `done` is always called."""
        rounds: list[list[Part]] = []
        for partition, part in parts:
            for number, batch in enumerate(_batches(part)):
                if len(batch) > topic.settings.max_batch_bytes:
                    # Before anything is appended: all is stored or nothing.
                    raise BatchTooLarge(
                        f"a message of {len(batch)} bytes is larger than the topic {topic.name} takes, "
                        f"{topic.settings.max_batch_bytes} (max.message.bytes)"
                    )
                if number == len(rounds):
                    rounds.append([])
                rounds[number].append((partition, batch))
        # Nearly always one. They are of the same turn of the loop, and so of the same flush.
        on_durable = done if len(rounds) == 1 else Joint(done, (), len(rounds)).on_durable
        for each in rounds:
            self._deduplication.publish(each, on_durable)

    def _count(self, admission: Admission, batches: int, size: int) -> None:
        metrics = admission.metrics
        metrics.batches_in += batches
        metrics.bytes_in += size


def _batches(joined: bytearray) -> Iterator[memoryview]:
    """The batches that stand one behind the other."""
    view = memoryview(joined)
    for at, header in batches_in(joined):
        yield view[at : at + header.size]
