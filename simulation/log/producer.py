"""LogProducer: everything that a producer can do to a log, with what it was answered written into the known."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, OutOfOrderSequence, ProducerFenced, StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Appended, Durability, Partition, Write
from simulation.history import require
from simulation.log.model import Append, Entry, Outcome, PartitionModel

if TYPE_CHECKING:
    from simulation.log.life import LogLife

# How long an append may take before it counts as stuck.
PATIENCE_S = 120.0


class LogProducer:
    """The appends of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life
        self._outstanding: dict[asyncio.Future[None], Append] = {}

    async def produce(self, number: int) -> None:
        rng = self._life.stream(f"producer {number}")
        first = await self.reserve()
        for _ in range(self._life.steps):
            draw = rng.random()
            chosen = self._life.choose(rng, rng.randint(2, 4) if draw < 0.3 else 1)
            for model in chosen:
                await self._life.verify(model)
            # Nothing is awaited between this look and the append.
            targets = [(model, partition) for model in chosen if (partition := self._life.usable(model)) is not None]
            if not targets:
                await asyncio.sleep(0.01)
                continue
            if len(targets) > 1 and draw < 0.15:
                self._append_atomically(rng, targets)
            elif len(targets) > 1:
                # In one turn of the loop.
                for model, partition in targets:
                    self._append_some(rng, model, partition)
            else:
                model, partition = targets[0]
                if first is not None and rng.random() < 0.4:
                    self._append_idempotently(rng, model, partition, first)
                else:
                    self._append_some(rng, model, partition)
            if rng.random() < 0.3:
                await asyncio.sleep(0 if rng.random() < 0.3 else rng.expovariate(1 / 0.005))
            if rng.random() < 0.2 and self._outstanding:
                await asyncio.wait(list(self._outstanding), timeout=PATIENCE_S)

    async def drain(self) -> None:
        """Wait until everything was answered."""
        if self._outstanding:
            await asyncio.wait(list(self._outstanding), timeout=PATIENCE_S)
            late = ", ".join(str(entry) for append in self._outstanding.values() for entry in append.entries)
            require(not late, f"neither acknowledged nor refused within {PATIENCE_S:.0f} s: {late}")

    async def reserve(self) -> int | None:
        """The first of three producer ids."""
        try:
            first = await self._life.log.reserve("producer ids", 3)
        except StorageFailed as error:
            self._life.excuse(error)
            return None
        require(first >= self._life.known.reserved, f"the number {first} was handed out twice")
        self._life.known.reserved = first + 3
        return first

    def batch(
        self,
        rng: random.Random,
        model: PartitionModel,
        producer: tuple[int, int, int] = (-1, -1, -1),
        attributes: int = 0,
    ) -> bytearray:
        """A batch, small or large."""
        draw = rng.random()
        size = (
            rng.randint(0, 200) if draw < 0.6 else rng.randint(200, 2_000) if draw < 0.9 else rng.randint(2_000, 9_000)
        )
        count = 1 if rng.random() < 0.6 else rng.randint(2, 5)
        rows: list[tuple[int, bytes | None, bytes | None, list[Any]]] = []
        for _ in range(count):
            compact, index = model.topic.settings.compact, model.topic.settings.index
            key = b"key %d" % rng.randrange(8) if compact or index else None
            value = None if compact and rng.random() < 0.15 else rng.randbytes(8) + bytes(size // count)
            rows.append((self._life.now_ms(), key, value, []))
        batch = records.build(
            rows,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            attributes=attributes,
        )
        return bytearray(batch)

    def _append_some(self, rng: random.Random, model: PartitionModel, partition: Partition) -> None:
        count = rng.randint(2, 3) if rng.random() < 0.1 else 1
        self.append(model, partition, bytearray().join(self.batch(rng, model) for _ in range(count)))

    def append(
        self, model: PartitionModel, partition: Partition, buffer: bytearray, resent: Entry | None = None
    ) -> Append | None:
        """Call the log; None where it refused. Until it returns, what is sent is an attempt: a crash inside of the call
        may leave it there. `resent` is the batch that an idempotent producer sends again."""
        append = self._prepare([(model, buffer)])
        try:
            answer = partition.append(buffer, partial(self._on_answered, append))
        except HeadraceError as error:
            model.attempts.clear()
            self._life.excuse(error, model)
            return None
        if answer.duplicate:
            require(resent is not None, f"{model}: a new batch was taken for a duplicate")
            assert resent is not None
            require(answer.base_offset == resent.base, f"{resent}: its duplicate got the offset {answer.base_offset}")
            # Two requests wait for the same batch: an acknowledgement of either is one of the batch.
            append.entries = [resent]
            model.attempts.clear()
        else:
            stored_twice = resent is not None and resent.relied_on
            require(not stored_twice, f"{resent}: sent again by its producer, it was stored twice")
            self._enter(append, model, partition, answer)
        self._follow(append, answer.durable)
        return append

    def _append_idempotently(self, rng: random.Random, model: PartitionModel, partition: Partition, first: int) -> None:
        producer = first + rng.randrange(3)
        if producer in model.retired:
            return
        last = model.producers.get(producer)
        epoch, sequence = 0, 0
        if last is not None:
            epoch, sequence = last.producer[1], last.producer[2] + last.count
            draw = rng.random()
            if draw < 0.15:
                self.append(model, partition, bytearray(last.sent), last)
                return
            if draw < 0.2:
                batch = self.batch(rng, model, (producer, epoch, sequence + 7))
                self._expect_refusal(model, partition, batch, OutOfOrderSequence)
                return
            if draw < 0.25:
                epoch, sequence = epoch + 1, 0
            elif draw < 0.3 and epoch > 0:
                batch = self.batch(rng, model, (producer, epoch - 1, 0))
                self._expect_refusal(model, partition, batch, ProducerFenced)
                return
        self.append(model, partition, self.batch(rng, model, (producer, epoch, sequence)))

    def _expect_refusal(
        self, model: PartitionModel, partition: Partition, batch: bytearray, refusal: type[HeadraceError]
    ) -> None:
        end = partition.end
        try:
            partition.append(batch)
        except refusal:
            require(partition.end == end, f"{model}: a refused batch moved the end")
        except HeadraceError as error:
            self._life.excuse(error, model)
        else:
            require(False, f"{model}: a batch that breaks its producer's sequence was taken ({refusal.__name__})")

    def _append_atomically(self, rng: random.Random, targets: list[tuple[PartitionModel, Partition]]) -> None:
        # Memory topics cannot be part of a promise that outlives the process.
        targets = [each for each in targets if each[0].topic.durability is not Durability.MEMORY]
        if not targets:
            return
        parts = [(model, self.batch(rng, model)) for model, _ in targets]
        append = self._prepare(parts)
        writes = [Write(partition, part) for (_, partition), (_, part) in zip(targets, parts, strict=True)]
        try:
            answers = self._life.log.append(writes, partial(self._on_answered, append))
        except HeadraceError as error:
            for model, _ in targets:
                model.attempts.clear()
            if not any(model.topic.deleting or model.topic.gone for model, _ in targets):
                self._life.excuse(error)
            return
        for (model, partition), answer in zip(targets, answers, strict=True):
            self._enter(append, model, partition, answer)
        self._follow(append, all(answer.durable for answer in answers))

    def _prepare(self, parts: list[tuple[PartitionModel, bytearray]]) -> Append:
        """Record what is about to be sent."""
        append = Append(asyncio.get_running_loop().create_future())
        for model, buffer in parts:
            for position, header in batches_in(buffer):
                batch = bytes(buffer[position : position + header.size])
                entry = Entry(model, append, self._life.log.epoch, batch, header)
                model.attempts.append(entry)
                append.entries.append(entry)
        return append

    def _enter(self, append: Append, model: PartitionModel, partition: Partition, answer: Appended) -> None:
        """Record where the batches of an append went."""
        base = answer.base_offset
        for entry in [entry for entry in append.entries if entry.partition is model]:
            self._life.world.note(f"append {model} {base} {entry.count}")
            entry.base = base
            model.add(entry)
            base = entry.end
        require(partition.end == base, f"{model}: after an append up to {base} the end is {partition.end}")

    def _follow(self, append: Append, durable: bool) -> None:
        """An append was taken; whether that is its answer already."""
        require(not append.answered.done(), "an append was answered before it returned")
        if durable:
            # From now on a call back is a second answer.
            append.acknowledge()
        else:
            self._outstanding[append.answered] = append

    def _on_answered(self, append: Append, error: Exception | None) -> None:
        if not self._life.world.machine.alive:
            return
        require(not append.answered.done(), "an append was answered twice")
        self._outstanding.pop(append.answered, None)
        self._life.world.note(f"answered {error!r}")
        if error is None:
            append.acknowledge()
            return
        append.fail()
        if not any(entry.partition.topic.deleting or entry.partition.topic.gone for entry in append.entries):
            self._life.excuse(error)

    async def can_write(self, rng: random.Random) -> bool:
        for model in self._life.choose(rng, 100):
            partition = await self._life.verify(model)
            if partition is None or model.topic.durability is Durability.MEMORY:
                continue
            append = self.append(model, partition, self.batch(rng, model))
            if append is None:
                return False
            if not append.answered.done():
                await asyncio.wait([append.answered], timeout=PATIENCE_S)
            return append.outcome is Outcome.ACKNOWLEDGED
        # Nothing to try it with: the log finds out by itself within a second.
        await asyncio.sleep(5)
        return True
