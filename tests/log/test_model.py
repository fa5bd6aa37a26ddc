"""The log against a model: a list of values for each partition.

Any order of appends, atomic appends, duplicates, trims, checkpoints, clean stops and kills must leave what the model
says. (A kill keeps the page cache; power cuts are the simulator's.)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Appended, Durability, Partition, TopicSettings, Write
from headrace.log.native import NativeLog
from headrace.runtime.real import real_runtime

T = TypeVar("T")

CONFIG = Config(
    journal_bytes=16_384, tail_bytes=8_192, direct_bytes=2_000, checkpoint_ms=3_600_000, open_files_max=4,
    retention_check_ms=3_600_000, compaction_check_ms=3_600_000,
)  # fmt: skip
NAMES = ("sync", "async")
PARTITIONS = 2
PRODUCER = 9

partitions = st.tuples(st.sampled_from(NAMES), st.integers(0, PARTITIONS - 1))
sizes = st.one_of(st.integers(0, 200), st.integers(1_500, 5_000))


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        # In memory where that is to be had: what is tested is the order of things, not the device.
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.model: dict[tuple[str, int], list[bytes]] = {(name, n): [] for name in NAMES for n in range(PARTITIONS)}
        self.starts = dict.fromkeys(self.model, 0)
        self.sequences = dict.fromkeys(self.model, 0)
        self.last: dict[tuple[str, int], tuple[bytes, int]] = {}
        self.number = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.run(self._start())
        for name in NAMES:
            limits = TopicSettings(
                durability=Durability(name), segment_bytes=6_000, index_interval_bytes=500, retention_ms=-1
            )
            self.run(self.log.create(name, PARTITIONS, {}, limits))

    async def _start(self) -> None:
        self.log = NativeLog(real_runtime(self.folder), CONFIG)
        await self.log.start()

    def partition(self, at: tuple[str, int]) -> Partition:
        partition = self.log.topics[at[0]].partitions[at[1]]
        self.run(partition.load())
        return partition

    def value(self, size: int) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"x" * size

    @rule(at=partitions, sizes=st.lists(sizes, min_size=1, max_size=6), wait=st.booleans())
    def append(self, at: tuple[str, int], sizes: list[int], wait: bool) -> None:
        values = [self.value(size) for size in sizes]
        self.model[at] += [value for value in values for _ in range(2)]
        self.run(self._append(self.partition(at), values, wait))

    async def _append(self, partition: Partition, values: list[bytes], wait: bool) -> None:
        for value in values:
            partition.append(records.build([(0, b"k", value, [])] * 2))
        if wait:
            await self.flush()

    @rule(at=partitions, size=sizes)
    def append_idempotently(self, at: tuple[str, int], size: int) -> None:
        value, sequence = self.value(size), self.sequences[at]
        self._numbered(at, value, sequence)
        self.last[at] = (value, len(self.model[at]))
        self.model[at].append(value)
        self.sequences[at] += 1

    def _numbered(self, at: tuple[str, int], value: bytes, sequence: int) -> tuple[bool, int]:
        data = records.build([(0, b"k", value, [])], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
        appended = self.run(self._append_one(self.partition(at), data))
        return appended.duplicate, appended.base_offset

    async def _append_one(self, partition: Partition, data: bytearray) -> Appended:
        return partition.append(data)

    @rule(at=partitions)
    def retry(self, at: tuple[str, int]) -> None:
        if at in self.last:
            value, offset = self.last[at]
            assert self._numbered(at, value, self.sequences[at] - 1) == (True, offset)

    @rule(size=sizes)
    def append_to_all(self, size: int) -> None:
        writes = []
        for at in self.model:
            value = self.value(size)
            writes.append(Write(self.partition(at), records.build([(0, b"k", value, [])])))
            self.model[at].append(value)
        self.run(self._append_atomically(writes))

    async def _append_atomically(self, writes: list[Write]) -> None:
        self.log.append(writes)

    @rule(at=partitions, part=st.floats(0, 1))
    def trim(self, at: tuple[str, int], part: float) -> None:
        self.run(self.flush())
        before = int(len(self.model[at]) * part)
        start = self.run(self.partition(at).trim(before))
        self.starts[at] = max(self.starts[at], before)
        assert start == self.starts[at]

    @rule()
    def checkpoint(self) -> None:
        assert self.run(self.log.upkeep.checkpoint())

    @rule()
    def restart(self) -> None:
        self.run(self._stop())
        self.run(self._start())
        assert self.log.clean

    @rule()
    def kill(self) -> None:
        self.run(self.flush())
        epoch = self.log.epoch
        self.run(self._abandon())
        self.run(self._start())
        assert self.log.epoch == epoch + 1

    async def flush(self) -> None:
        await self.log.committer.flushed()

    async def _stop(self) -> None:
        await self.log.stop()
        self.log.runtime.offload.close()

    async def _abandon(self) -> None:
        await self.log.upkeep.stop()
        self.log.runtime.disk.unlock()
        self.log.runtime.offload.close()

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        self.run(self.flush())
        for at, values in self.model.items():
            partition = self.partition(at)
            assert (partition.start, partition.high_watermark, partition.end) == (
                self.starts[at],
                len(values),
                len(values),
            )
            assert read_all(partition) == list(enumerate(values))[self.starts[at] :]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.run(self._stop())
        self.loop.close()
        shutil.rmtree(self.folder)


def read_all(partition: Partition) -> list[tuple[int, bytes]]:
    found = []
    offset = partition.start
    while offset < partition.high_watermark:
        chunk = partition.read(offset, 3_000)
        if chunk.cold is not None:
            chunk.cold()
            continue
        data = chunk.read()
        chunk.release()
        for position, header in batches_in(data):
            batch = data[position : position + header.size]
            found += [(at, value) for at, _, _, value, _ in records.parse(batch, 1 << 20) if at >= partition.start]
            offset = header.last_offset + 1
    return found


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=10, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
