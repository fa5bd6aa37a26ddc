"""Where ids are written down: `__deduplication`, in the same append as the messages that brought them.

The records of a topic carry their ids themselves, but they are no store to learn them from: those of a queue go when it
has settled them, compaction drops some, a delayed message is not in its topic yet, and ten minutes of a busy topic are
gigabytes. So the hash of an id, with its message's place, is one more write of the same atomic append: 20 bytes an id.
A topic's ids are all in one partition, under its id as the key, and their times are the broker's own. What no topic's
window reaches any more is trimmed away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct

from headrace.broker.deduplication.ids import Claim
from headrace.broker.deduplication.window import Window
from headrace.broker.internal import STATE_CONFIG
from headrace.broker.reading import read
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import StateTopic
from headrace.broker.topic_config import deduplicates, deduplication_ms
from headrace.broker.topics import Topics
from headrace.errors import CorruptLog, OffsetOutOfRange, PartitionOffline
from headrace.log.interface import Log, Partition, Topic, Write
from headrace.runtime import Runtime

TOPIC = "__deduplication"
PARTITIONS = 8
TOPIC_CONFIG = dict(STATE_CONFIG)
# What is read of it at once, and the ids that are then taken at once: about as many microseconds of the loop.
CHUNK_BYTES = 65_536
STEP_IDS = 500
# How often to look whether what is being flushed has landed.
LOOK_SECONDS = 0.005

# Version, partition, offset of the first record of the batch.
PLACE = Struct(">Biq")
VERSION = 0


class IdLog:
    """The topic of ids."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self._runtime = runtime
        self._log = log
        self._state = StateTopic(runtime, log, topics, config, TOPIC, TOPIC_CONFIG, PARTITIONS)

    async def partition_of(self, topic: Topic) -> Partition:
        """The partition that a topic's ids are in, ready to be appended to; made if it is missing."""
        partition = _of(await self._state.open(), topic)
        await partition.load()
        if partition.offline:
            raise PartitionOffline(partition.offline)
        return partition

    def write(self, window: Window, parts: Sequence[tuple[Partition, int, Claim]]) -> list[Write]:
        """What is to be appended together with messages for the ids that they bring: a partition, the offset of the
        first record there (-1: they have no place), and the claim, for each batch."""
        topic = window.topic.id.bytes
        changes = [
            (topic, PLACE.pack(VERSION, partition.index, base) + claim.entries)
            for partition, base, claim in parts
            if claim.entries
        ]
        return [self._state.write(window.log, changes)] if changes and window.log is not None else []

    async def replay(self, window: Window, now: Callable[[], int], counted: Callable[[Window], None]) -> None:
        """Learn what the window holds, in small steps. No client publishes to the topic meanwhile."""
        partition = window.log
        assert partition is not None
        end = partition.end
        now_ms, present = self._runtime.clock.now_ms(), now()
        found = await partition.offset_at(now_ms - window.span_ms)
        position = found.offset if found.offset >= 0 else partition.high_watermark
        # What was being flushed when the window was turned off and on again may still fail.
        while position < min(end, partition.end):
            if position >= partition.high_watermark:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                data = await read(self._runtime, partition, position, CHUNK_BYTES)
            except OffsetOutOfRange:
                position = max(position, partition.start)
                continue
            before = position
            topic, span = window.topic.id.bytes, window.span_ms
            while (after := window.table.replay(data, position, topic, now_ms, present, span, STEP_IDS)) > position:
                position = after
                counted(window)
                await asyncio.sleep(0)
            if position == before:
                raise CorruptLog(f"{TOPIC}-{partition.index} cannot be read at offset {position}")

    async def trim(self) -> None:
        """Forget what no topic's window reaches any more."""
        ids = self._state.topic
        if ids is None:
            return
        spans: dict[Partition, int] = {}
        for topic in self._log.topics.values():
            if deduplicates(topic.config):
                place = _of(ids, topic)
                spans[place] = max(deduplication_ms(topic.config), spans.get(place, 0))
        for partition in ids.partitions:
            if partition.loaded and not partition.offline and partition.start < partition.high_watermark:
                end = partition.high_watermark
                found = await partition.offset_at(self._runtime.clock.now_ms() - spans.get(partition, 0))
                await self._state.forget(partition, max(found.offset if found.offset >= 0 else end, partition.start))


def _of(ids: Topic, topic: Topic) -> Partition:
    return ids.partitions[topic.id.int % len(ids.partitions)]
