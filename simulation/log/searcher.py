"""LogSearcher: asks the search indexes, reads everything that they cover, and compares the two."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.errors import PartitionOffline, UnknownTopic
from headrace.format import records
from headrace.format.batch import HEADER, HEADER_BYTES
from headrace.format.terms import KEY, digest
from headrace.log.interface import Partition
from headrace.log.local import Question, Suspects
from simulation.history import require
from simulation.log.model import CRC_AT, PartitionModel

if TYPE_CHECKING:
    from simulation.log.life import LogLife

KEYS = 8
BATCH_MAX = 1 << 20
ENDS_OF_TIME = (-(1 << 62), (1 << 62) - 1)


class LogSearcher:
    """The searches of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life

    async def search(self) -> None:
        rng = self._life.stream("searcher")
        for _ in range(self._life.steps):
            for model in self._life.choose(rng):
                partition = await self._life.verify(model)
                if partition is None or partition.high_watermark <= partition.start:
                    continue
                try:
                    await self._check(rng, model, partition)
                except (PartitionOffline, UnknownTopic) as error:
                    self._life.excuse(error, model)
            await asyncio.sleep(rng.expovariate(1 / 0.02))

    async def search_all(self, times: int) -> None:
        """So many searches of each partition."""
        rng = self._life.stream("searcher")
        for model in self._life.known.partitions():
            partition = await self._life.verify(model)
            if partition is not None and partition.high_watermark > partition.start:
                for _ in range(times):
                    await self._check(rng, model, partition)

    async def _check(self, rng: random.Random, model: PartitionModel, partition: Partition) -> None:
        """A few steps of a search from anywhere, one way or the other."""
        key, backwards = b"key %d" % rng.randrange(KEYS), rng.random() < 0.4
        question = Question(((KEY, digest(KEY, key)),), *ENDS_OF_TIME, rng.choice((1, 3, 100)))
        start, end = partition.start, partition.high_watermark
        at = rng.choice((start + 1 if backwards else start, end if backwards else end - 1, rng.randint(start + 1, end)))
        at = max(at, start + 1) if backwards else min(at, end - 1)
        for _ in range(4):
            answer = await self._life.log.local(partition).suspects(question, at, backwards=backwards)
            self._life.world.note(f"search {model} {answer.first} {answer.after} {answer.batches}")
            moved = partition.start > start
            require(
                answer.after == at and (answer.first < at or moved)
                if backwards
                else (answer.first == at or moved) and at < answer.after <= partition.high_watermark,
                f"{model}: a search at {at} was answered with {answer.first} to {answer.after}",
            )
            if answer.batches is not None:
                await self._compare(model, partition, answer, key)
            start = partition.start
            at = answer.first if backwards else answer.after
            if not start < at < partition.high_watermark:
                return

    async def _compare(self, model: PartitionModel, partition: Partition, answer: Suspects, key: bytes) -> None:
        """Whether every batch with the key is among those that the index names."""
        assert answer.batches is not None
        offset = max(answer.first, partition.start)
        while offset < answer.after:
            found = await self._life.reader.batches(model, partition, offset, look=False, limit=20)
            if not found:
                return
            for header, body in found:
                if header.base_offset >= answer.after:
                    return
                if header.is_control or header.base_offset < answer.first or not header.record_count:
                    continue
                whole = HEADER.pack(*header) + body[HEADER_BYTES - CRC_AT :]
                keys = {each[2] for each in records.parse(whole, BATCH_MAX)}
                require(
                    key not in keys or header.base_offset in answer.batches,
                    f"{model}: the index names {list(answer.batches)} from {answer.first} to {answer.after}: the batch "
                    f"at {header.base_offset} has the key, too",
                )
            offset = found[-1][0].last_offset + 1
