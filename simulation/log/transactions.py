"""Transactions at the level of the log: batches that wait for a decision, markers that bring it, readers of what is
committed.

What was decided is read from the batches themselves: a transactional batch has the fate that the next marker of its
producer gives it, and none while there is no marker. So nothing is kept beside the record of appends, and after a crash
what is left of the log decides what must hold: committed readers stop before the first batch without a fate, and of
those before it they learn which were aborted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import CorruptBatch, OffsetOutOfRange, PartitionOffline, UnknownTopic
from headrace.format import records
from headrace.format.aborted import Aborted
from headrace.format.batch import TRANSACTIONAL, BatchHeader, batches_in
from headrace.format.markers import control_type
from headrace.log.interface import Chunk, Partition
from headrace.log.partition import NativePartition
from simulation.history import Violation, require
from simulation.log.model import Entry, PartitionModel, fates

if TYPE_CHECKING:
    from simulation.log.life import LogLife

PRODUCERS = 3

Batch = tuple[BatchHeader, bytes]
"""A header, and everything from the checksum on."""


def check(model: PartitionModel, partition: NativePartition, batches: Sequence[Batch]) -> None:
    """Hold what a partition reports of transactions against the batches that are in it, all of them durable."""
    decided = fates(batches)
    undecided = [base for base, fate in decided.items() if fate is None]
    stable = partition.last_stable
    # The log may have been trimmed into the middle of a batch.
    first = max(min(undecided, default=partition.high_watermark), partition.start)
    require(stable <= first, f"{model}: committed readers get to {stable}, but a transaction is open since {first}")
    if partition.start == 0:
        require(stable == first, f"{model}: committed readers stop at {stable}, but nothing is open before {first}")
    aborted = Aborted(partition.aborted(partition.start, stable))
    for header, _ in batches:
        if header.is_transactional and not header.is_control and header.last_offset < stable:
            is_aborted = aborted.has(header.producer_id, header.base_offset)
            fate = decided[header.base_offset]
            require(
                is_aborted is not fate,
                f"{model}: the transaction of the batch at {header.base_offset} was "
                f"{'committed' if fate else 'aborted'}, and the log reports the opposite",
            )


class TransactionWorkload:
    """The transactions of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life

    async def produce(self) -> None:
        """Begin, go on with and end transactions; those of earlier lives too."""
        life = self._life
        rng = life.stream("transactions")
        first = await life.producer.reserve()
        if first is None:
            return
        for _ in range(life.steps):
            for model in life.choose(rng):
                await life.verify(model)
                partition = life.usable(model)
                if partition is not None:
                    self._step(rng, model, partition, first + rng.randrange(PRODUCERS))
            if rng.random() < 0.5:
                await asyncio.sleep(0 if rng.random() < 0.5 else rng.expovariate(1 / 0.005))

    def _step(self, rng: random.Random, model: PartitionModel, partition: Partition, producer: int) -> None:
        open_ = {
            entry.producer[0]: entry
            for entry in model.entries
            if entry.header.is_transactional and not entry.header.is_control
        }
        for entry in model.entries:
            last = open_.get(entry.producer[0])
            if entry.header.is_control and last is not None and last.base < entry.base:
                del open_[entry.producer[0]]
        if open_ and rng.random() < 0.35:
            ended = rng.choice(list(open_.values()))
            # An epoch that is raised with the end is the second generation's way, and a fencing coordinator's.
            self._end(rng, model, partition, ended.producer[0], _epoch(model, ended.producer[0]) + rng.randrange(2))
            return
        epoch, sequence = _next(model, producer)
        batch = self._life.producer.batch(rng, model, (producer, epoch, sequence), TRANSACTIONAL)
        self._life.producer.append(model, partition, batch)

    def _end(self, rng: random.Random, model: PartitionModel, partition: Partition, producer: int, epoch: int) -> None:
        kind = records.COMMIT if rng.random() < 0.5 else records.ABORT
        batch = records.control(kind, self._life.log.epoch, producer, epoch, self._life.now_ms())
        self._life.producer.append(model, partition, batch)

    # --- reading ---

    async def read(self) -> None:
        """A reader of what is committed, somewhere in the log."""
        life = self._life
        rng = life.stream("committed reader")
        for _ in range(life.steps):
            for model in life.choose(rng):
                partition = await life.verify(model)
                if partition is not None and partition.last_stable > partition.start:
                    offset = rng.randint(partition.start, partition.last_stable - 1)
                    try:
                        await self._read(model, partition, offset)
                    except (PartitionOffline, UnknownTopic) as error:
                        life.excuse(error, model)
            await asyncio.sleep(rng.expovariate(1 / 0.005))

    async def _read(self, model: PartitionModel, partition: Partition, offset: int) -> None:
        life = self._life
        rng = life.stream(f"committed {model} {offset}")
        while True:
            try:
                chunk = partition.read(offset, rng.choice((700, 5_000, 1 << 20)), committed=True)
            except OffsetOutOfRange:
                return
            if chunk.cold is None:
                break
            await life.runtime.offload.run(chunk.cold)
        stable, durable = partition.last_stable, partition.high_watermark
        aborted = Aborted(chunk.aborted)
        # As of the read: what comes meanwhile does not count.
        decided = _markers(model, durable)
        raw = await self._bytes(chunk)
        if not life.world.machine.alive or model.topic.gone or model.topic.deleting:
            return
        try:
            batches = list(batches_in(raw))
        except CorruptBatch as error:
            raise Violation(f"{model}: what was read at {offset} is no batch: {error}") from error
        for _, header in batches:
            if header.last_offset < offset:
                continue
            require(
                header.last_offset < min(stable, chunk.before),
                f"{model}: a committed reader got {header.last_offset}, past {stable} or {chunk.before}",
            )
            if header.is_control or not header.is_transactional:
                continue
            marker = next((each for each in decided.get(header.producer_id, ()) if each[0] > header.last_offset), None)
            require(marker is not None, f"{model}: the batch at {header.base_offset} was read, and nothing decided it")
            assert marker is not None
            require(
                aborted.has(header.producer_id, header.base_offset) is not marker[1],
                f"{model}: the batch at {header.base_offset} contradicts the marker at {marker[0]}",
            )
        life.world.note(f"committed {model} {offset} {len(batches)}")

    async def _bytes(self, chunk: Chunk) -> bytes:
        try:
            return await self._life.runtime.offload.run(chunk.read) if chunk.ranges else chunk.read()
        finally:
            chunk.release()


def _markers(model: PartitionModel, durable: int) -> dict[int, list[tuple[int, bool]]]:
    """Offset and decision of the durable markers of each producer, in their order."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for entry in model.entries:
        if entry.header.is_control and entry.end <= durable:
            found.setdefault(entry.producer[0], []).append((entry.base, control_type(entry.sent)[0]))
    return found


def _epoch(model: PartitionModel, producer: int) -> int:
    return max(entry.producer[1] for entry in model.entries if entry.producer[0] == producer)


def _next(model: PartitionModel, producer: int) -> tuple[int, int]:
    """Epoch and sequence of a producer's next batch: a new epoch, which may have come with a marker, begins at 0."""
    mine = [entry for entry in model.entries if entry.producer[0] == producer]
    epoch = max((entry.producer[1] for entry in mine), default=0)
    data: list[Entry] = [entry for entry in mine if not entry.header.is_control and entry.producer[1] == epoch]
    return epoch, data[-1].producer[2] + data[-1].count if data else 0
