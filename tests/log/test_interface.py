"""A second log: what the broker needs of one, and how little that is.

It keeps batches in a list and calls them durable in the next turn of the loop. The broker's catalogue of topics, its
stores and its readers run on it as they do on the native log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from headrace.broker import durable, reading
from headrace.broker.store import StateTopic
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.errors import AppendRefused, CorruptBatch, OffsetOutOfRange
from headrace.format import records
from headrace.format.batch import OFFSET_AND_EPOCH, PREFIX_BYTES, BatchHeader, batches_in, crc_fits, header_at
from headrace.log.interface import Appended, Chunk, Done, Log, OffsetAtTime, Partition, Topic, TopicSettings, Write
from headrace.runtime import Runtime
from headrace.runtime.real import real_runtime


class ListPartition(Partition):
    loaded = True

    def __init__(self, log: ListLog, topic: Topic, index: int) -> None:
        super().__init__(topic, index, 0, 0, 0)
        self.log = log
        self.batches: list[tuple[int, bytes]] = []

    async def load(self) -> None:
        pass

    @property
    def last_stable(self) -> int:
        return self.high_watermark

    def append(self, batches: bytearray | memoryview, done: Done | None = None) -> Appended:
        return self.log.append([Write(self, batches)], done)[0]

    def take(self, batch: memoryview, header: BatchHeader) -> None:
        OFFSET_AND_EPOCH.pack_into(batch, 0, self.end, header.size - PREFIX_BYTES, self.epoch)
        self.end += header.last_offset_delta + 1
        self.batches.append((self.end, bytes(batch)))

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True) -> Chunk:
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset, self.start, self.high_watermark)
        chunk = Chunk()
        for end, batch in self.batches:
            fits = chunk.size + len(batch) <= max_bytes or (at_least_one and not chunk.parts)
            if offset < end <= self.high_watermark and fits:
                chunk.parts.append(batch)
                chunk.size = chunk.available = chunk.size + len(batch)
                chunk.before = end
        return chunk

    async def offset_at(self, timestamp: int) -> OffsetAtTime:
        for _, batch in self.batches:
            found = records.first_at_or_after(batch, timestamp, 1 << 20, self.start)
            if found is not None:
                return OffsetAtTime(*found, self.epoch)
        return OffsetAtTime(-1, -1, -1)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return (epoch, self.end) if epoch == self.epoch else (-1, -1)

    async def trim(self, before: int) -> int:
        self.start = max(self.start, self.high_watermark if before == -1 else before)
        return self.start


class ListLog(Log):
    def __init__(self) -> None:
        super().__init__()
        self.counters: dict[str, int] = {}

    async def create(self, name: str, partitions: int, config: Mapping[str, str], settings: TopicSettings) -> Topic:
        topic = Topic(name, uuid4(), config, settings)
        topic.partitions = [ListPartition(self, topic, index) for index in range(partitions)]
        self.topics.add(topic)
        return topic

    async def delete(self, name: str) -> None:
        self.topics.remove(self.topics[name])

    async def alter(
        self, name: str, *, partitions: int | None = None, config: tuple[Mapping[str, str], TopicSettings] | None = None
    ) -> Topic:
        topic = self.topics[name]
        topic.config, topic.settings = config or (topic.config, topic.settings)
        more = [ListPartition(self, topic, index) for index in range(len(topic.partitions), partitions or 0)]
        topic.partitions = [*topic.partitions, *more]
        return topic

    def append(self, writes: Sequence[Write], done: Done | None = None) -> list[Appended]:
        refused: dict[int, AppendRefused] = {}
        for number, write in enumerate(writes):
            for at, header in batches_in(write.batches):
                if not crc_fits(memoryview(write.batches), at, header):
                    refused[number] = CorruptBatch("the batch does not fit its checksum")
        if refused:
            error = AppendRefused("nothing is appended")
            error.refused = refused
            raise error
        answers = []
        for write in writes:
            partition = write.partition
            assert isinstance(partition, ListPartition)
            answers.append(Appended(partition.end, -1, durable=False))
            for at, header in batches_in(write.batches):
                partition.take(memoryview(write.batches)[at : at + header.size], header)
        asyncio.get_running_loop().call_soon(self._flush, [write.partition for write in writes], done)
        return answers

    def _flush(self, partitions: Sequence[Partition], done: Done | None) -> None:
        for partition in partitions:
            partition.high_watermark = partition.end
            partition.wake_all()
        if done is not None:
            done(None)

    async def reserve(self, name: str, count: int) -> int:
        first = self.counters.get(name, 0)
        self.counters[name] = first + count
        return first


@dataclass
class Stage:
    runtime: Runtime
    log: ListLog = field(default_factory=ListLog)
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        self.topics = Topics(self.log, self.config)


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    return Stage(real_runtime(str(tmp_path)))


def batch(*values: bytes) -> bytearray:
    return records.build([(1_000, b"k", value, []) for value in values])


def test_a_log_has_thirteen_members_to_implement() -> None:
    """As docs/architecture.md says. One more is a decision, not an accident."""
    assert len(Log.__abstractmethods__) + len(Partition.__abstractmethods__) == 13


async def test_topics_are_found_by_name_and_by_id(stage: Stage) -> None:
    topic = await stage.topics.create("t", 1)
    assert stage.log.topics["t"] is stage.log.topics.by_id[topic.id] is topic
    await stage.topics.grow("t", 3)
    assert [each.index for each in topic.partitions] == [0, 1, 2]
    await stage.topics.delete("t")
    assert topic.deleted
    assert "t" not in stage.log.topics
    assert topic.id not in stage.log.topics.by_id
    assert UUID(int=0) not in stage.log.topics.by_id


async def test_the_brokers_own_topics_keep_their_state(stage: Stage) -> None:
    store = StateTopic(stage.runtime, stage.log, stage.topics, stage.config, "__configs", {"cleanup.policy": "compact"})
    (partition,) = (await store.open()).partitions
    other = (await stage.topics.create("other", 1)).partitions[0]
    writes = [store.write(partition, [(b"a", b"1"), (b"b", b"1")]), Write(other, batch(b"with it"))]
    assert [each.base_offset for each in await store.submit(writes)] == [0, 0]
    await store.submit([store.write(partition, [(b"a", b"2"), (b"b", None)])])
    state: dict[bytes | None, bytes | None] = {}
    await store.load(partition, lambda record, _: state.update({record[2]: record[3]}))
    assert state == {b"a": b"2", b"b": None}
    assert await store.forget(partition, 2)
    assert partition.start == 2


async def test_readers_are_woken_once_what_was_appended_is_durable(stage: Stage) -> None:
    partition = (await stage.topics.create("t", 1)).partitions[0]
    woken = asyncio.Event()
    never: list[None] = []

    def wake() -> None:
        never.append(None)

    partition.wait(woken.set)
    partition.wait(wake)
    partition.unwait(wake)
    partition.unwait(wake)
    done: list[Exception | None] = []
    assert durable.append(stage.log, [Write(partition, batch(b"a", b"b"))], done.append)[0].base_offset == 0
    assert done == []
    assert partition.read(0, 1 << 20).size == 0
    await woken.wait()
    await asyncio.sleep(0)
    assert (done, never) == ([None], [])
    [(header, found)] = await reading.batches(stage.runtime, partition, 0, 1 << 20)
    assert (header.base_offset, header.last_offset) == (0, 1)
    assert found is not None
    assert [record[3] for record in records.parse(found, 1 << 20)] == [b"a", b"b"]
    assert header_at(found) == header


async def test_all_that_is_refused_is_reported_and_nothing_is_appended(stage: Stage) -> None:
    topic = await stage.topics.create("t", 3)
    writes = [Write(partition, batch(b"v")) for partition in topic.partitions]
    for number in (0, 2):
        writes[number].batches[-1] ^= 1
    with pytest.raises(AppendRefused) as raised:
        await durable.submit(stage.log, writes)
    assert raised.value.refused.keys() == {0, 2}
    assert [partition.end for partition in topic.partitions] == [0, 0, 0]
