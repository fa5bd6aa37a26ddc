"""LogProducer: everything that a producer can do to a log, with what it was answered written into the account."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, OutOfOrderSequence, ProducerFenced, StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Appended, Durability, Partition, Write
from simulation.history import require
from simulation.log.model import CRC_AT, Append, Entry, Outcome, PartitionModel

if TYPE_CHECKING:
    from simulation.log.life import LogLife

# How long an append may take before it counts as stuck.
PATIENCE_S = 120.0

Content = list[tuple[bytes | None, bytes | None]]


class LogProducer:
    """The appends of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life
        self._outstanding: dict[asyncio.Future[None], Append] = {}
        self._futures: dict[int, asyncio.Future[None]] = {}

    async def produce(self, number: int) -> None:
        rng = self._life.stream(f"producer {number}")
        first = await self.reserve()
        for _ in range(self._life.steps):
            draw = rng.random()
            chosen = self._life.choose(rng, rng.randint(2, 4) if draw < 0.3 else 1)
            for model in chosen:
                await self._life.verified(model)
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
                    self._append_plainly(rng, model, partition)
            else:
                model, partition = targets[0]
                if first is not None and rng.random() < 0.4:
                    self._append_idempotently(rng, model, partition, first)
                else:
                    self._append_plainly(rng, model, partition)
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
        require(first >= self._life.account.reserved, f"the number {first} was handed out twice")
        self._life.account.reserved = first + 3
        return first

    def batch(
        self,
        rng: random.Random,
        model: PartitionModel,
        producer: tuple[int, int, int] = (-1, -1, -1),
        attributes: int = 0,
    ) -> tuple[bytearray, Content]:
        """A batch, small or large, and its keys and values."""
        now = self._life.runtime.clock.now_ms()
        draw = rng.random()
        size = (
            rng.randint(0, 200) if draw < 0.6 else rng.randint(200, 2_000) if draw < 0.9 else rng.randint(2_000, 9_000)
        )
        count = 1 if rng.random() < 0.6 else rng.randint(2, 5)
        content: Content = []
        for _ in range(count):
            key = b"key %d" % rng.randrange(8) if model.topic.settings.compact else None
            value = None if key and rng.random() < 0.15 else rng.randbytes(8) + bytes(size // count)
            content.append((key, value))
        batch = records.build(
            [(now, key, value, []) for key, value in content],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            attributes=attributes,
        )
        return bytearray(batch), content

    def _append_plainly(self, rng: random.Random, model: PartitionModel, partition: Partition) -> None:
        parts = [self.batch(rng, model) for _ in range(rng.randint(2, 3) if rng.random() < 0.1 else 1)]
        buffer = bytearray(b"".join(part for part, _ in parts))
        append = Append()
        answer = self.send(append, model, partition, buffer, [content for _, content in parts])
        if answer is not None:
            self.enter(append, model, partition, answer)
            self.follow(append, answer.durable)

    def send(
        self,
        append: Append,
        model: PartitionModel,
        partition: Partition,
        buffer: bytearray,
        contents: Sequence[Content],
    ) -> Appended | None:
        """Call the log. Until it returns, what is sent is an attempt: a crash inside of the call may leave it there."""
        self._prepare(append, model, buffer, contents)
        try:
            return partition.append(buffer, self._done(append))
        except HeadraceError as error:
            model.attempts.clear()
            self._life.excuse(error, model)
            return None

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
                self._send_again(model, partition, last)
                return
            if draw < 0.2:
                batch, _ = self.batch(rng, model, (producer, epoch, sequence + 7))
                self._expect_refusal(model, partition, batch, OutOfOrderSequence)
                return
            if draw < 0.25:
                epoch, sequence = epoch + 1, 0
            elif draw < 0.3 and epoch > 0:
                batch, _ = self.batch(rng, model, (producer, epoch - 1, 0))
                self._expect_refusal(model, partition, batch, ProducerFenced)
                return
        batch, content = self.batch(rng, model, (producer, epoch, sequence))
        append = Append()
        answer = self.send(append, model, partition, batch, [content])
        if answer is not None:
            require(not answer.duplicate, f"{model}: a new batch of producer {producer} was taken for a duplicate")
            self.enter(append, model, partition, answer)
            self.follow(append, answer.durable)

    def _send_again(self, model: PartitionModel, partition: Partition, last: Entry) -> None:
        append = Append()
        answer = self.send(append, model, partition, bytearray(last.sent), [last.records])
        if answer is None:
            return
        self._life.world.note(f"again {model} {last.base} {answer}")
        if answer.duplicate:
            require(answer.base_offset == last.base, f"{last}: its duplicate was answered with {answer.base_offset}")
            # Two requests wait for the same batch: an acknowledgement of either is one of the batch.
            append.entries = [last]
            model.attempts.clear()
            self.follow(append, answer.durable, last.append)
            return
        require(not last.relied_on, f"{last}: sent again by its producer, it was stored twice")
        self.enter(append, model, partition, answer)
        self.follow(append, answer.durable)

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
        parts = [self.batch(rng, model) for model, _ in targets]
        append = Append()
        writes = [Write(partition, part) for (_, partition), (part, _) in zip(targets, parts, strict=True)]
        for (model, _), (part, content) in zip(targets, parts, strict=True):
            self._prepare(append, model, part, [content])
        try:
            answers = self._life.log.append(writes, self._done(append))
        except HeadraceError as error:
            for model, _ in targets:
                model.attempts.clear()
            for model, _ in targets:
                if model.topic.deleting or model.topic.gone:
                    return
            self._life.excuse(error)
            return
        for (model, partition), answer in zip(targets, answers, strict=True):
            self.enter(append, model, partition, answer)
        self.follow(append, all(answer.durable for answer in answers))

    def _done(self, append: Append) -> Callable[[Exception | None], None]:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[id(append)] = settled

        def done(error: Exception | None) -> None:
            if not self._life.world.alive:
                return
            require(not settled.done(), "an append was answered twice")
            settled.set_result(None)
            self._outstanding.pop(settled, None)
            self._life.world.note(f"answered {error!r}")
            if error is None:
                append.outcome = Outcome.ACKNOWLEDGED
                for entry in append.entries:
                    entry.append.outcome = Outcome.ACKNOWLEDGED
            else:
                append.outcome = Outcome.FAILED
                for entry in append.entries:
                    if entry.append is append:
                        entry.partition.fail(entry)
                if not any(entry.partition.topic.deleting or entry.partition.topic.gone for entry in append.entries):
                    self._life.excuse(error)

        return done

    def follow(self, append: Append, durable: bool, original: Append | None = None) -> None:
        """An append was taken; whether that is its answer already."""
        settled = self._futures.pop(id(append))
        require(not settled.done(), "an append was answered before it returned")
        if durable:
            # From now on a call back is a second answer.
            settled.set_result(None)
            append.outcome = Outcome.ACKNOWLEDGED
            if original is not None:
                original.outcome = Outcome.ACKNOWLEDGED
        else:
            self._outstanding[settled] = append

    def _prepare(self, append: Append, model: PartitionModel, buffer: bytearray, contents: Sequence[Content]) -> None:
        """Write down what is about to be sent."""
        for (position, header), content in zip(list(batches_in(buffer)), contents, strict=True):
            whole = bytes(buffer[position : position + header.size])
            entry = Entry(
                model,
                -1,
                header.record_count,
                self._life.log.epoch,
                whole[CRC_AT:],
                header.max_timestamp,
                append,
                (header.producer_id, header.producer_epoch, header.base_sequence),
                whole,
                content,
            )
            model.attempts.append(entry)
            append.entries.append(entry)

    def enter(self, append: Append, model: PartitionModel, partition: Partition, answer: Appended) -> None:
        """Write down where the batches of an append went."""
        base = answer.base_offset
        for entry in [entry for entry in append.entries if entry.partition is model]:
            self._life.world.note(f"append {model} {base} {entry.count}")
            entry.base = base
            model.add(entry)
            base = entry.end
        require(partition.end == base, f"{model}: after an append up to {base} the end is {partition.end}")

    async def writes_again(self, rng: random.Random) -> bool:
        for model in self._life.choose(rng, 100):
            partition = await self._life.verified(model)
            if partition is None or model.topic.durability is Durability.MEMORY:
                continue
            batch, content = self.batch(rng, model)
            append = Append()
            answer = self.send(append, model, partition, batch, [content])
            if answer is None:
                return False
            settled = self._futures[id(append)]
            self.enter(append, model, partition, answer)
            self.follow(append, answer.durable)
            if not answer.durable:
                await asyncio.wait([settled], timeout=PATIENCE_S)
            return append.outcome is Outcome.ACKNOWLEDGED
        # Nothing to try it with: the log finds out by itself within a second.
        await asyncio.sleep(5)
        return True
