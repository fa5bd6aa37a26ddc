"""The clients of one replica, for one life of it: a producer, an administrator and a reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from headrace.cluster import identity
from headrace.cluster.errors import EtcdError, StartRefused
from headrace.cluster.etcd import Etcd
from headrace.cluster.records import Incarnation
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.replica import Replica, Role
from headrace.errors import AppendRefused, CorruptLog, HeadraceError
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Durability, Partition, TopicSettings, Write
from headrace.log.settings import LogSettings
from headrace.runtime import Runtime
from simulation.group.replica import ETCD, GROUP, KEYS, PORT, SETTINGS, operate
from simulation.replicas.history import LogHistory

TOPICS = {"one": 1, "many": 3, "fast": 1}
# Its leader alone has what it holds. So it is not among those of which anything must be there in the end.
VOLATILE = "volatile"
SMALL = LogSettings(checkpoint_ms=1_500, retention_check_ms=2_000, journal_bytes=20_000, tail_bytes=20_000)
SEGMENTS = TopicSettings(segment_bytes=4_000)
# As durable as the others, in a group.
ASYNC = replace(SEGMENTS, durability=Durability.ASYNC)
SETTINGS_OF = {"fast": ASYNC, VOLATILE: replace(SEGMENTS, durability=Durability.MEMORY)}
READ_BYTES = 2_000
# Offsets of a `memory` topic that a leader reserves at once.
BLOCK = 40
# A journal so small that a node which is away for some seconds must copy, and so slowly that much happens meanwhile.
SMALL_NODE = replace(SETTINGS, journal_max_bytes=20_000, copy_bytes_per_second=200_000)


async def start_replica(runtime: Runtime, number: int) -> Replica | None:
    """A replica that takes part in the group; None if it cannot be started now."""
    etcd, name = Etcd([ETCD]), runtime.hostname
    try:
        found = await identity.start(runtime, etcd, KEYS, GROUP, number)
        me = Incarnation(number, found.directory_id, found.starts)
        settings = replace(SMALL_NODE, cluster_id=found.cluster_id, me=me)
        replica = Replica(runtime, etcd, settings, SMALL, lambda _: None)
        replica.log.blocks.size = BLOCK
        await replica.start(name, PORT)
    except (EtcdError, StartRefused, OSError):
        return None
    addresses = {"peer": f"{name}:{PORT}"}
    await replica.join(NodeRecord(me.directory_id, me.starts, GROUP, "", addresses, runtime.boot_id, 1, 1))
    return replica


class Clients:
    """Those that sit on one replica."""

    def __init__(
        self, name: str, replica: Replica, history: LogHistory, rng: random.Random, is_alive: Callable[[], bool]
    ) -> None:
        self._name = name
        self.replica = replica
        self._history = history
        self._rng = rng
        self._is_alive = is_alive
        self._led = 0
        replica.copies.on_copied = self._on_copied
        self.found: dict[tuple[str, int], tuple[int, dict[int, bytes]]] | None = None
        """Start and values of each partition, once they were read."""

    def _on_copied(self) -> None:
        self._history.counts["copied"] += 1

    async def run(self) -> None:
        """Until the replica cannot go on, or an operator stops it."""
        tasks = [asyncio.ensure_future(each()) for each in (self._produce, self._administer, self._read, self._inspect)]
        broken = asyncio.ensure_future(self.replica.broken.wait())
        history = self._history
        operator = asyncio.ensure_future(operate(self.replica.node, self._rng, history.counts, lambda: history.is_calm))
        done, left = await asyncio.wait([*tasks, broken, operator], return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for each in done:
            each.result()
        if operator in done:
            await self.replica.retire()

    async def _inspect(self) -> None:
        # One that was started again since the others were waited for has yet to catch up.
        history, frames = self._history, self.replica.log.frames
        while history.inspected_from is None or frames.applied < history.inspected_from:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        topics = self.replica.log.topics
        partitions = [each for name in TOPICS if name in topics for each in topics[name].partitions]
        found = {(each.topic.name, each.index): await self._all_values(each) for each in partitions}
        self.found = found
        await asyncio.get_running_loop().create_future()

    @property
    def _leads(self) -> bool:
        leadership = self.replica.node.leadership
        if self.replica.role is not Role.LEADER or leadership is None or self._history.is_over:
            return False
        if leadership.epoch != self._led:
            self._led = leadership.epoch
            self._history.lead(self._name, self._led)
        return True

    async def _produce(self) -> None:
        while True:
            await asyncio.sleep(self._rng.choice((0.002, 0.01, 0.05, 0.2)))
            topics = self.replica.log.topics
            partitions = [each for name in TOPICS if name in topics for each in topics[name].partitions]
            if not self._leads or not partitions:
                continue
            chosen = self._rng.sample(partitions, min(self._rng.choice((1, 1, 2)), len(partitions)))
            if VOLATILE in topics and self._rng.random() < 0.2:
                chosen = list(topics[VOLATILE].partitions)
            try:
                for partition in chosen:
                    await partition.load()
                self._append(chosen)
            except (HeadraceError, RuntimeError):
                self._history.counts["refused"] += 1

    def _append(self, partitions: list[Partition]) -> None:
        value = self._history.next_value()
        if len(partitions) == 2:
            first, second = ((each.topic.name, each.index) for each in partitions)
            self._history.pairs[value] = first, second
        size = self._rng.choice((1, 1, 50, 800))
        row = (self.replica.log.now_ms(), None, value + b" " * size, ())
        writes = [Write(partition, bytearray(records.build([row]))) for partition in partitions]
        places: list[tuple[str, int, int]] = []

        def done(error: Exception | None) -> None:
            # What a dying process still hears never reached a client.
            if error is None and self._is_alive():
                for place in places:
                    self._history.acknowledge(place, value)

        appended = self.replica.log.append(writes, done)
        for partition, each in zip(partitions, appended, strict=True):
            places.append((partition.topic.name, partition.index, each.base_offset))
        if appended[0].durable:
            done(None)

    async def _administer(self) -> None:
        log = self.replica.log
        while True:
            await asyncio.sleep(self._rng.choice((0.1, 0.5, 2.0)))
            if not self._leads:
                continue
            try:
                missing = [name for name in (*TOPICS, VOLATILE) if name not in log.topics]
                if missing:
                    settings = SETTINGS_OF.get(missing[0], SEGMENTS)
                    await log.create(missing[0], TOPICS.get(missing[0], 1), {}, settings)
                    self._history.counts["created"] += 1
                elif self._rng.random() < 0.3:
                    partition = self._rng.choice(log.topics["many"].partitions)
                    await partition.load()
                    before = (partition.start + partition.high_watermark) // 2
                    self._history.starts[partition.topic.name, partition.index] = before
                    await partition.trim(before)
                    self._history.counts["trimmed"] += 1
                elif self._rng.random() < 0.2:
                    made = await log.create(f"short-{self._history.next_value().decode()}", 1, {}, SEGMENTS)
                    await log.delete(made.name)
                    self._history.counts["deleted"] += 1
            except (AppendRefused, HeadraceError, OSError):
                self._history.counts["refused"] += 1

    async def _read(self) -> None:
        log = self.replica.log
        while True:
            await asyncio.sleep(self._rng.choice((0.05, 0.2, 0.5)))
            names = [*TOPICS, VOLATILE]
            partitions = [each for name in names if name in log.topics for each in log.topics[name].partitions]
            if not partitions:
                continue
            partition = self._rng.choice(partitions)
            try:
                await partition.load()
                if partition.start < partition.high_watermark:
                    offset = self._rng.randrange(partition.start, partition.high_watermark)
                    found = await self._values(partition, offset, READ_BYTES)
                else:
                    continue
            except (HeadraceError, OSError, CorruptLog):
                self._history.counts["read refused"] += 1
                continue
            for at, value in found.items():
                if self._is_alive():
                    self._history.read(self._name, (partition.topic.name, partition.index, at), value)

    async def _values(self, partition: Partition, offset: int, max_bytes: int) -> dict[int, bytes]:
        chunk = partition.read(offset, max_bytes)
        if chunk.cold is not None:
            await self.replica.log.runtime.offload.run(chunk.cold)
            chunk = partition.read(offset, max_bytes)
        raw = chunk.read()
        chunk.release()
        return dict(values_in(raw))

    async def _all_values(self, partition: Partition) -> tuple[int, dict[int, bytes]]:
        await partition.load()
        values: dict[int, bytes] = {}
        position = partition.start
        while position < partition.high_watermark:
            found = await self._values(partition, position, 1 << 20)
            values |= {offset: value for offset, value in found.items() if offset >= partition.start}
            position = max(found) + 1
        return partition.start, values


def values_in(raw: bytes) -> list[tuple[int, bytes]]:
    """Offset and value of each record of whole batches."""
    found = []
    for at, header in batches_in(raw):
        for offset, _, _, value, _ in records.parse(raw[at : at + header.size], 1 << 20):
            found.append((offset, (value or b"").rstrip()))
    return found
