"""LogReader: a consumer that checks every batch it gets, and then relies on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import CorruptBatch, CorruptLog, OffsetOutOfRange, PartitionOffline, UnknownTopic
from headrace.format.batch import BatchHeader, batches_in, crc_fits
from headrace.log.interface import Partition
from simulation.history import Violation, require
from simulation.log.model import CRC_AT, PartitionModel

if TYPE_CHECKING:
    from simulation.log.life import LogLife


# By then every task that waits for a sync knows its outcome.
HEARD_SECONDS = 1.0


class LogReader:
    """The reads of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life

    async def batches(
        self, model: PartitionModel, partition: Partition, offset: int, *, look: bool, limit: int = 1 << 30
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from `offset` up to the high watermark. `look`: for a reader that then relies on them."""
        found: list[tuple[BatchHeader, bytes]] = []
        rng = self._life.stream(f"read {model} {offset}")
        cold = 0
        while offset < partition.high_watermark and len(found) < limit:
            durable = partition.high_watermark
            try:
                chunk = partition.read(offset, rng.choice((1, 700, 5_000, 1 << 20)))
            except OffsetOutOfRange:
                require(offset < partition.start, f"{model}: {offset} is refused though it is readable")
                offset = partition.start
                continue
            except CorruptLog as error:
                await self._raise_if_offline(partition, error)
                raise
            if chunk.cold is not None:
                cold += 1
                require(cold < 10, f"{model}: a read at {offset} stays cold however often it is warmed")
                await self._life.runtime.offload.run(chunk.cold)
                continue
            cold = 0
            try:
                if all(part.is_resident() for part in chunk.ranges):
                    data = chunk.read()
                else:
                    data = await self._life.runtime.offload.run(chunk.read)
            finally:
                chunk.release()
            require(len(data) == chunk.size, f"{model}: a read of {chunk.size} bytes got {len(data)}")
            before = offset
            try:
                batches = list(batches_in(data))
                broken = next((header for at, header in batches if not crc_fits(data, at, header)), None)
                if broken is not None:
                    raise CorruptBatch(f"the batch at {broken.base_offset} does not fit its checksum")
            except CorruptBatch as error:
                await self._raise_if_offline(partition, error)
                raise Violation(f"{model}: what was read at {offset} of {durable} is no batch: {error}") from error
            for position, header in batches:
                if header.last_offset < offset:
                    continue
                require(header.last_offset < durable, f"{model}: a reader got {header.last_offset}, past {durable}")
                body = data[position + CRC_AT : position + header.size]
                if look and self._life.world.machine.alive and not model.topic.gone:
                    model.observe(header, body)
                found.append((header, body))
                offset = header.last_offset + 1
            if offset == before:
                if offset < partition.start:
                    continue
                # The rest of a compacted log may be empty.
                require(
                    model.topic.settings.compact or model.topic.gone or model.topic.deleting,
                    f"{model}: nothing whole to read at {offset}, yet {partition.high_watermark} is durable",
                )
                break
        return found

    @staticmethod
    async def _raise_if_offline(partition: Partition, error: Exception) -> None:
        """A sync that fails takes the bytes with it, and the loop learns of it a moment later."""
        await asyncio.sleep(HEARD_SECONDS)
        if partition.offline:
            raise PartitionOffline(partition.offline) from error

    async def read(self) -> None:
        rng = self._life.stream("reader")
        for _ in range(self._life.steps):
            for model in self._life.choose(rng):
                partition = await self._life.verify(model)
                if partition is not None and partition.high_watermark > partition.start:
                    offset = rng.randint(partition.start, partition.high_watermark - 1)
                    if rng.random() < 0.5:
                        offset = max(partition.start, partition.high_watermark - rng.randint(1, 4))
                    try:
                        found = await self.batches(model, partition, offset, look=True, limit=20)
                    except (PartitionOffline, UnknownTopic) as error:
                        self._life.excuse(error, model)
                    else:
                        self._life.world.note(f"read {model} {offset} {len(found)}")
            await asyncio.sleep(rng.expovariate(1 / 0.005))
