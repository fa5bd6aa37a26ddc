"""What this broker can tell of lives to a session: what it may read, within a time.

Whatever is not reached before the deadline is left out, and said in `notes`: a trace through a large log ends, and its
reader can ask again for fewer topics or a shorter time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.broker.lives.records import Partition, Place, Span, TracedRecord
from headrace.broker.queues.parking import PARKING
from headrace.broker.reading import POISON, batches
from headrace.broker.search import search
from headrace.broker.search.search import SCAN_BYTES
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import queue_name
from headrace.errors import OffsetOutOfRange, PartitionOffline
from headrace.format import records
from headrace.format.records import Record

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.queues import Queue
    from headrace.broker.security import Session
    from headrace.log.interface import Topic

# Partitions between two turns of the loop.
STEP_PARTITIONS = 64


class BrokerSource:
    """The broker, as a session may see it."""

    def __init__(self, broker: Broker, session: Session, seconds: float) -> None:
        """Each search takes so many seconds."""
        self.notes: list[str] = []
        """What was left out."""
        self._broker = broker
        self._session = session
        self._seconds = seconds
        self._deadline = 0.0

    @property
    def _is_late(self) -> bool:
        late = asyncio.get_running_loop().time() >= self._deadline
        if late and not self.notes:
            self.notes.append(
                f"not all was looked through within {self._seconds:g} s (search_ms): give topics, or a shorter time"
            )
        return late

    def may_read(self, topic: str) -> bool:
        """Whether the session may read a topic. The events are read for it: it sees those of messages that it may
        read."""
        may = self._broker.security.operations(self._session, Resource.TOPIC, topic)
        return Operation.READ in may

    async def topics(self) -> list[str]:
        known = [each for each in self._broker.log.topics if each == DELIVERIES or self.may_read(each)]
        return sorted(known)

    def _topic(self, name: str) -> Topic | None:
        return self._broker.log.topics.get(name) if name == DELIVERIES or self.may_read(name) else None

    async def find_span(self, topics: Sequence[str], since_ms: int, until_ms: int | None) -> Span:
        self._deadline = asyncio.get_running_loop().time() + self._seconds
        begin: dict[Partition, int] = {}
        end: dict[Partition, int] = {}
        for name in topics:
            topic = self._topic(name)
            for partition in topic.partitions if topic is not None else ():
                if self._is_late:
                    return Span(begin, end)
                if len(begin) % STEP_PARTITIONS == 0:
                    await asyncio.sleep(0)
                try:
                    await partition.load()
                    stable = partition.last_stable
                    first = (await partition.offset_at(max(since_ms, 0))).offset
                    last = -1 if until_ms is None else (await partition.offset_at(max(until_ms, 0))).offset
                except (PartitionOffline, OSError) as error:
                    self.notes.append(f"{name}/{partition.index} cannot be read: {error}")
                    continue
                begin[name, partition.index] = stable if first < 0 else max(first, partition.start)
                end[name, partition.index] = stable if last < 0 else min(last, stable)
        return Span(begin, end)

    async def scan(self, span: Span, needle: bytes, advance: Callable[[int], None]) -> AsyncIterator[TracedRecord]:
        for (name, number), end in span.end.items():
            topic = self._topic(name)
            offset = span.begin[name, number]
            while topic is not None and offset < end and not self._is_late:
                partition = topic.partitions[number]
                try:
                    found = await batches(self._broker.runtime, partition, max(offset, partition.start), SCAN_BYTES)
                except OffsetOutOfRange:
                    break
                before = offset
                for header, batch in found:
                    offset = max(offset, header.last_offset + 1)
                    if batch is None or not (header.compression or needle in batch):
                        continue
                    for record in await self._parse(batch):
                        if before <= record[0] < end:
                            yield _traced(name, number, record)
                if offset == before:
                    break
                advance(offset - before)
                await asyncio.sleep(0)

    async def _parse(self, batch: bytes) -> list[Record]:
        try:
            return await self._broker.unpacking.read(records.parse, batch)
        except POISON:
            return []

    async def read(self, place: Place) -> TracedRecord | str:
        topic = self._topic(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return f"{place} is in no topic that you may read"
        partition = topic.partitions[place.partition]
        await partition.load()
        if place.offset < partition.start:
            return f"{place} is deleted: by its retention the partition begins at {partition.start}"
        if place.offset >= partition.last_stable:
            behind = place.offset < partition.high_watermark
            ends = f"is not written yet: the partition ends at {partition.high_watermark}"
            return f"{place} is in or behind a transaction that is still open" if behind else f"{place} {ends}"
        record = await self._broker.search.at(topic, search.Place(place.partition, place.offset))
        if record is None:
            return f"{place} holds no message: it was compacted away or aborted, or marks the end of a transaction"
        return _traced(place.topic, place.partition, record)

    async def queues(self, topic: str) -> list[Mapping[str, Any]]:
        found = self._broker.queues.of(topic)
        names = {queue_name(topic, name): queue for name, queue in found.items()}
        shown = self._broker.security.visible(self._session, Resource.QUEUE, names)
        return [await self._described(names[each]) for each in shown]

    async def _described(self, queue: Queue) -> Mapping[str, Any]:
        try:
            await self._broker.queues.open(queue)
        except PartitionOffline:
            pass
        return {
            "queue": queue.name,
            "dead_letter_topic": queue.dead_letter_topic,
            "settings": queue.settings.as_json(),
            "partitions": [
                {"partition": lane.index, "settled_below": lane.ledger.floor}
                for lane in queue.lanes.values()
                if lane.index != PARKING
            ],
        }

    async def pending_timers(self) -> int:
        return self._broker.timer.pending

    async def dropped_events(self) -> int:
        return self._broker.deliveries.dropped

    async def first_event(self) -> tuple[int, int]:
        topic = self._broker.log.topics.get(DELIVERIES)
        if topic is None:
            return 0, -1
        partition = topic.partitions[0]
        await partition.load()
        if partition.start == 0:
            return 0, -1
        first = await partition.offset_at(0)
        return partition.start, first.timestamp if first.offset >= 0 else -1

    async def positions(self, partitions: Sequence[Partition]) -> Mapping[str, Mapping[Partition, int]]:
        asked: dict[str, list[int]] = {}
        for name, number in partitions:
            asked.setdefault(name, []).append(number)
        names = [group.group_id async for group in self._broker.groups.each()]
        found: dict[str, Mapping[Partition, int]] = {}
        for group in self._broker.security.visible(self._session, Resource.GROUP, names):
            problem, stands = await self._broker.groups.committed(group, asked)
            if problem:
                continue
            found[group] = {
                (name, number): at.offset
                for name, by_number in stands.items()
                for number, at in by_number.items()
                if at is not None
            }
        return found


def _traced(topic: str, partition: int, record: Record) -> TracedRecord:
    """Of several headers of one name, the last one counts."""
    offset, timestamp, key, value, headers = record
    by_name = {name: content or b"" for name, content in headers}
    return TracedRecord(Place(topic, partition, offset), timestamp, key, value, by_name)
