"""One life of a log under load: start, look at what survived, do everything that a broker does, stop or be stopped.

Several tasks share the log: some append (one partition or several at once, with and without idempotence, tiny batches
and large ones), one reads, one administers, one fills the disk. Each draws what to do from its own seeded stream and
writes into the account what it was promised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.config import Config
from headrace.errors import (
    HeadraceError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionOffline,
    ProducerFenced,
    StorageFailed,
    UnknownTopic,
)
from headrace.ground import Ground
from headrace.kernels import records
from headrace.log.batch import BatchHeader, batches_in, crc_fits, header_at
from headrace.log.interface import Appended, Durability, FileRange, Log, Partition, Topic, TopicSettings, Write
from headrace.simulator.promises import Account, Append, Entry, Outcome, PartitionModel, TopicModel, require
from headrace.simulator.world import World

CRC_AT = 17
# How long an append may take before it counts as stuck.
PATIENCE_S = 120.0


class StartedLog(Log, Protocol):
    """A log as the workload runs it."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


LogFactory = Callable[[Ground, Config], StartedLog]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a campaign does."""

    durabilities: tuple[Durability, ...] = (Durability.SYNC, Durability.ASYNC, Durability.MEMORY)
    steps: int = 60
    """Steps of each task in a life."""
    full_disk: bool = True
    compaction: bool = True
    retention: bool = True


def small_config(rng: random.Random) -> Config:
    """Limits so small that every path is met within a few hundred appends."""
    return Config(
        data="simulated",
        journal_bytes=rng.choice((16_384, 65_536)),
        tail_bytes=rng.choice((8_192, 32_768)),
        direct_bytes=rng.choice((2_048, 4_096, 1 << 20)),
        open_files_max=rng.choice((4, 64)),
        checkpoint_ms=rng.choice((20, 200, 2_000)),
        retention_check_ms=rng.choice((50, 500)),
        compaction_check_ms=rng.choice((30, 300)),
        message_max_bytes=65_536,
    )


class Life:
    """The tasks of one life, and what they share."""

    def __init__(self, world: World, account: Account, shape: Shape, ground: Ground, log: StartedLog) -> None:
        self.world = world
        self.account = account
        self.shape = shape
        self.ground = ground
        self.log = log
        self.sync_errors = world.disk.plan.sync_error_chance > 0 or bool(world.disk.plan.sync_errors_at)
        self._verifying: dict[PartitionModel, asyncio.Task[None]] = {}
        self._outstanding: dict[asyncio.Future[None], None] = {}
        self._futures: dict[int, asyncio.Future[None]] = {}
        self.full = False

    def stream(self, purpose: str) -> random.Random:
        return self.world.stream(f"{purpose} {self.world.lives}")

    # --- the life itself ---

    async def run(self) -> None:
        await self.log.start()
        self.check_catalogue()
        rng = self.stream("life")
        for partition in self.account.partitions():
            if rng.random() < 0.7:
                await self.verified(partition)
        tasks = [self._producing(number) for number in range(rng.randint(1, 4))]
        tasks += [self._reading(), self._administering()]
        if self.shape.full_disk and rng.random() < 0.2:
            tasks.append(self._filling())
        await gather([asyncio.ensure_future(task) for task in tasks])
        if self._outstanding:
            _, late = await asyncio.wait(self._outstanding, timeout=PATIENCE_S)
            require(not late, f"{len(late)} appends were neither acknowledged nor refused within {PATIENCE_S:.0f} s")
        if rng.random() < 0.5:
            for partition in self.account.partitions():
                await self.verified(partition)
        self.world.note("stop")
        await self.log.stop()

    def check_catalogue(self) -> None:
        """The topics after a start are those that were created and not deleted."""
        log, account = self.log, self.account
        require(account.cluster_id in (None, log.cluster_id), "the cluster id changed")
        account.cluster_id = log.cluster_id
        require(account.epoch is None or log.epoch >= account.epoch, f"the epoch fell to {log.epoch}")
        account.epoch = log.epoch
        for name, topic in log.topics.items():
            require(topic.id not in account.deleted, f"the deleted topic {name} came back")
            model = account.topics.get(name)
            require(model is not None and not model.gone, f"nobody asked for the topic {name}, or it was deleted")
            assert model is not None
            require(model.id in (None, topic.id), f"the topic {name} came back with another id")
            model.id, model.certain = topic.id, True
            # A delete that was under way when the last life ended did not happen after all.
            model.deleting = False
            count = len(topic.partitions)
            allowed = {len(model.partitions), model.growing_to or 0}
            require(count in allowed, f"the topic {name} has {count} partitions instead of {sorted(allowed)}")
            while len(model.partitions) < count:
                model.partitions.append(PartitionModel(model, len(model.partitions)))
            model.growing_to = None
            require(topic.settings.durability is model.durability, f"the topic {name} changed its durability")
        for name, model in list(account.topics.items()):
            if name not in log.topics:
                require(
                    not model.certain or model.deleting,
                    f"the topic {name} was created and is missing",
                )
                model.gone = True
                del account.topics[name]

    async def verified(self, model: PartitionModel) -> Partition | None:
        """The partition, once it was compared after this start; None where it is gone or cannot serve."""
        partition = self.partition(model)
        if partition is None:
            return None
        if not model.verified:
            task = self._verifying.get(model)
            if task is None:
                task = self._verifying[model] = asyncio.ensure_future(self._verify(model, partition))
            await task
        return partition if not partition.offline and not model.topic.gone else None

    async def _verify(self, model: PartitionModel, partition: Partition) -> None:
        try:
            if not partition.loaded:
                await partition.load()
            start, end, durable = partition.start, partition.end, partition.durable
            require(end == durable, f"{model}: after a start {durable} is durable, yet the end is {end}")
            found = await self.read_from(model, partition, start, look=False)
            # Retention may have moved on while the partition was read.
            found = [(header, body) for header, body in found if header.last_offset >= partition.start]
            model.verify(partition.start, end, found, self.ground.clock.now_ms())
            self._check_producers(model, partition)
        except (PartitionOffline, UnknownTopic, StorageFailed) as error:
            self.excuse(error, model)

    def _check_producers(self, model: PartitionModel, partition: Partition) -> None:
        """The last batch of each producer, sent again, is known as a duplicate."""
        for entry in list(model.producers.values()):
            if entry.append.outcome is Outcome.FAILED:
                continue
            answer = partition.append(bytearray(entry.sent))
            self.world.note(f"duplicate {model} {entry.base} {answer.base_offset}")
            require(
                answer.duplicate and answer.base_offset == entry.base,
                f"{entry}: sent again by its producer, it was taken for a new batch at {answer.base_offset}",
            )

    def partition(self, model: PartitionModel) -> Partition | None:
        topic = self.log.topics.get(model.topic.name)
        if topic is None or topic.id != model.topic.id or model.index >= len(topic.partitions):
            return None
        return topic.partitions[model.index]

    def excuse(self, error: Exception, model: PartitionModel | None = None) -> None:
        """Take an error that the faults of this life explain; raise any other."""
        self.world.note(f"refused {type(error).__name__}")
        if model is not None and (model.topic.deleting or model.topic.gone):
            return
        if isinstance(error, StorageFailed) and (self.full or self.sync_errors):
            return
        if isinstance(error, PartitionOffline) and self.sync_errors:
            return
        raise error

    # --- appending ---

    def _choose(self, rng: random.Random, count: int = 1) -> list[PartitionModel]:
        partitions = [each for each in self.account.partitions() if each.topic.certain and not each.topic.deleting]
        return rng.sample(partitions, min(count, len(partitions)))

    async def _producing(self, number: int) -> None:
        rng = self.stream(f"producer {number}")
        first = await self._reserve()
        for _ in range(self.shape.steps):
            draw = rng.random()
            chosen = self._choose(rng, rng.randint(2, 4) if draw < 0.15 else 1)
            targets = [(model, partition) for model in chosen if (partition := await self.verified(model)) is not None]
            if not targets:
                await asyncio.sleep(0.01)
                continue
            # Nothing is awaited between this check and the append.
            targets = [(model, partition) for model, partition in targets if model.verified and not partition.offline]
            if len(targets) > 1:
                self._append_atomically(rng, targets)
            elif targets:
                model, partition = targets[0]
                if first is not None and rng.random() < 0.4:
                    self._append_idempotently(rng, model, partition, first)
                else:
                    self._append_plainly(rng, model, partition)
            if rng.random() < 0.3:
                await asyncio.sleep(0 if rng.random() < 0.3 else rng.expovariate(1 / 0.005))
            if rng.random() < 0.2 and self._outstanding:
                await asyncio.wait(list(self._outstanding), timeout=PATIENCE_S)

    async def _reserve(self) -> int | None:
        try:
            first = await self.log.reserve("producer ids", 3)
        except StorageFailed as error:
            self.excuse(error)
            return None
        require(first >= self.account.reserved, f"the number {first} was handed out twice")
        self.account.reserved = first + 3
        return first

    def _batch(
        self, rng: random.Random, model: PartitionModel, producer: tuple[int, int, int] = (-1, -1, -1)
    ) -> tuple[bytearray, list[tuple[bytes | None, bytes | None]]]:
        now = self.ground.clock.now_ms()
        draw = rng.random()
        size = (
            rng.randint(0, 200) if draw < 0.6 else rng.randint(200, 2_000) if draw < 0.9 else rng.randint(2_000, 9_000)
        )
        count = 1 if rng.random() < 0.6 else rng.randint(2, 5)
        content: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(count):
            key = b"key %d" % rng.randrange(8) if model.topic.settings.compact else None
            value = None if key and rng.random() < 0.15 else rng.randbytes(8) + bytes(size // count)
            content.append((key, value))
        batch = records.build(
            [(now, key, value, []) for key, value in content],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        return bytearray(batch), content

    def _append_plainly(self, rng: random.Random, model: PartitionModel, partition: Partition) -> None:
        parts = [self._batch(rng, model) for _ in range(rng.randint(2, 3) if rng.random() < 0.1 else 1)]
        buffer = bytearray(b"".join(part for part, _ in parts))
        append = Append()
        try:
            answer = partition.append(buffer, self._done(append))
        except HeadraceError as error:
            self.excuse(error, model)
            return
        self._enter(append, model, partition, buffer, [content for _, content in parts], answer)
        self._follow(append, answer.durable)

    def _append_idempotently(self, rng: random.Random, model: PartitionModel, partition: Partition, first: int) -> None:
        producer = first + rng.randrange(3)
        last = model.producers.get(producer)
        epoch, sequence = 0, 0
        if last is not None:
            epoch, sequence = last.producer[1], last.producer[2] + last.count
            draw = rng.random()
            if draw < 0.15:
                self._send_again(model, partition, last)
                return
            if draw < 0.2:
                batch, _ = self._batch(rng, model, (producer, epoch, sequence + 7))
                self._expect_refusal(model, partition, batch, OutOfOrderSequence)
                return
            if draw < 0.25:
                epoch, sequence = epoch + 1, 0
            elif draw < 0.3 and epoch > 0:
                batch, _ = self._batch(rng, model, (producer, epoch - 1, 0))
                self._expect_refusal(model, partition, batch, ProducerFenced)
                return
        batch, content = self._batch(rng, model, (producer, epoch, sequence))
        append = Append()
        try:
            answer = partition.append(batch, self._done(append))
        except HeadraceError as error:
            self.excuse(error, model)
            return
        require(not answer.duplicate, f"{model}: a new batch of producer {producer} was taken for a duplicate")
        self._enter(append, model, partition, batch, [content], answer)
        self._follow(append, answer.durable)

    def _send_again(self, model: PartitionModel, partition: Partition, last: Entry) -> None:
        append = Append()
        try:
            answer = partition.append(bytearray(last.sent), self._done(append))
        except HeadraceError as error:
            self.excuse(error, model)
            return
        self.world.note(f"again {model} {last.base} {answer}")
        if answer.duplicate:
            require(answer.base_offset == last.base, f"{last}: its duplicate was answered with {answer.base_offset}")
            # Two requests wait for the same batch: an acknowledgement of either is one of the batch.
            append.entries = [last]
            self._follow(append, answer.durable, last.append)
            return
        require(not last.relied_on, f"{last}: sent again by its producer, it was stored twice")
        buffer = bytearray(last.sent)
        self._enter(append, model, partition, buffer, [last.records], answer)
        self._follow(append, answer.durable)

    def _expect_refusal(
        self, model: PartitionModel, partition: Partition, batch: bytearray, refusal: type[HeadraceError]
    ) -> None:
        end = partition.end
        try:
            partition.append(batch)
        except refusal:
            require(partition.end == end, f"{model}: a refused batch moved the end")
        except HeadraceError as error:
            self.excuse(error, model)
        else:
            require(False, f"{model}: a batch that breaks its producer's sequence was taken ({refusal.__name__})")

    def _append_atomically(self, rng: random.Random, targets: list[tuple[PartitionModel, Partition]]) -> None:
        # Memory topics cannot be part of a promise that outlives the process.
        targets = [each for each in targets if each[0].topic.durability is not Durability.MEMORY]
        if not targets:
            return
        parts = [self._batch(rng, model) for model, _ in targets]
        append = Append()
        writes = [Write(partition, part) for (_, partition), (part, _) in zip(targets, parts, strict=True)]
        try:
            answers = self.log.append(writes, self._done(append))
        except HeadraceError as error:
            for model, _ in targets:
                if model.topic.deleting or model.topic.gone:
                    return
            self.excuse(error)
            return
        for (model, partition), (part, content), answer in zip(targets, parts, answers, strict=True):
            self._enter(append, model, partition, part, [content], answer)
        self._follow(append, all(answer.durable for answer in answers))

    def _done(self, append: Append) -> Callable[[Exception | None], None]:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[id(append)] = settled

        def done(error: Exception | None) -> None:
            if not self.world.alive:
                return
            require(not settled.done(), "an append was answered twice")
            settled.set_result(None)
            self._outstanding.pop(settled, None)
            self.world.note(f"answered {error!r}")
            if error is None:
                append.outcome = Outcome.ACKNOWLEDGED
                for entry in append.entries:
                    entry.append.outcome = Outcome.ACKNOWLEDGED
            else:
                append.outcome = Outcome.FAILED
                if not any(entry.partition.topic.deleting or entry.partition.topic.gone for entry in append.entries):
                    self.excuse(error)

        return done

    def _follow(self, append: Append, durable: bool, original: Append | None = None) -> None:
        settled = self._futures.pop(id(append))
        if durable:
            append.outcome = Outcome.ACKNOWLEDGED
            if original is not None:
                original.outcome = Outcome.ACKNOWLEDGED
        elif not settled.done():
            self._outstanding[settled] = None

    def _enter(
        self,
        append: Append,
        model: PartitionModel,
        partition: Partition,
        buffer: bytearray,
        contents: Sequence[list[tuple[bytes | None, bytes | None]]],
        answer: Appended,
    ) -> None:
        """Write down where the batches of an append went."""
        base = answer.base_offset
        for (position, header), content in zip(list(batches_in(buffer)), contents, strict=True):
            whole = bytes(buffer[position : position + header.size])
            entry = Entry(
                model,
                base,
                header.record_count,
                self.log.epoch,
                whole[CRC_AT:],
                header.max_timestamp,
                append,
                (header.producer_id, header.producer_epoch, header.base_sequence),
                whole,
                content,
            )
            self.world.note(f"append {model} {base} {header.crc}")
            model.add(entry)
            append.entries.append(entry)
            base = entry.end
        require(partition.end == base, f"{model}: after an append up to {base} the end is {partition.end}")

    # --- reading ---

    async def read_from(
        self, model: PartitionModel, partition: Partition, offset: int, *, look: bool, limit: int = 1 << 30
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from `offset` up to the high watermark. `look`: as a reader of this life, who then relies on them."""
        found: list[tuple[BatchHeader, bytes]] = []
        rng = self.stream(f"read {model} {offset}")
        while offset < partition.durable and len(found) < limit:
            durable = partition.durable
            try:
                chunk = partition.read(offset, rng.choice((1, 700, 5_000, 1 << 20)))
            except OffsetOutOfRange:
                require(offset < partition.start, f"{model}: {offset} is refused though it is readable")
                offset = partition.start
                continue
            parts = []
            for part in chunk.parts:
                if not isinstance(part, FileRange):
                    parts.append(part)
                    continue
                try:
                    if part.file.resident(part.position, part.length):
                        parts.append(part.file.read(part.position, part.length))
                    else:
                        parts.append(await self.ground.offload.run(part.file.read, part.position, part.length))
                finally:
                    part.file.unpin()
            data = b"".join(parts)
            require(len(data) == chunk.size, f"{model}: a read of {chunk.size} bytes got {len(data)}")
            before = offset
            for position, header in batches_in(data):
                require(crc_fits(data, position, header), f"{model}: the batch read at {header.base_offset} is corrupt")
                if header.last_offset < offset:
                    continue
                require(header.last_offset < durable, f"{model}: a reader got {header.last_offset}, past {durable}")
                body = data[position + CRC_AT : position + header.size]
                if look and self.world.alive and not model.topic.gone:
                    model.saw(header, body)
                found.append((header, body))
                offset = header.last_offset + 1
            if offset == before:
                if offset < partition.start:
                    continue
                # The rest of a compacted log may be empty.
                require(
                    model.topic.settings.compact or model.topic.gone or model.topic.deleting,
                    f"{model}: nothing whole to read at {offset}, yet {partition.durable} is durable",
                )
                break
        return found

    async def _reading(self) -> None:
        rng = self.stream("reader")
        for _ in range(self.shape.steps):
            for model in self._choose(rng):
                partition = await self.verified(model)
                if partition is not None and partition.durable > partition.start:
                    offset = rng.randint(partition.start, partition.durable - 1)
                    if rng.random() < 0.5:
                        offset = max(partition.start, partition.durable - rng.randint(1, 4))
                    try:
                        found = await self.read_from(model, partition, offset, look=True, limit=20)
                    except (PartitionOffline, UnknownTopic) as error:
                        self.excuse(error, model)
                    else:
                        self.world.note(f"read {model} {offset} {len(found)}")
            await asyncio.sleep(rng.expovariate(1 / 0.005))

    # --- administering ---

    async def _administering(self) -> None:
        rng = self.stream("administrator")
        for step in range(self.shape.steps // 3):
            if not self._choose(rng) or (step < 3 and self.world.lives == 1):
                await self._create(rng)
            else:
                await rng.choices(
                    (self._create, self._delete, self._grow, self._alter, self._trim), weights=(3, 1, 1, 1, 4)
                )[0](rng)
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    def _settings(self, rng: random.Random) -> TopicSettings:
        durability = rng.choice(self.shape.durabilities)
        settings = TopicSettings(
            durability=durability,
            segment_bytes=rng.choice((2_000, 8_000, 30_000)),
            segment_ms=rng.choice((100, 7 * 24 * 3600 * 1000)),
            index_interval_bytes=rng.choice((256, 4_096)),
            retention_ms=-1,
            delete=False,
        )
        draw = rng.random()
        if self.shape.compaction and draw < 0.25 and durability is not Durability.MEMORY:
            return replace(settings, compact=True, min_cleanable_dirty_ratio=0.1, delete_retention_ms=50)
        if self.shape.retention and draw < 0.4 and durability is not Durability.MEMORY:
            by_time = rng.random() < 0.5
            return replace(
                settings,
                delete=True,
                retention_ms=rng.choice((50, 1_000)) if by_time else -1,
                retention_bytes=-1 if by_time else rng.choice((1_000, 20_000)),
            )
        return settings

    async def _create(self, rng: random.Random) -> None:
        name = f"topic-{rng.randrange(8)}"
        if name in self.account.topics or len(self.account.topics) >= 6:
            return
        settings = self._settings(rng)
        config = {"made": str(rng.random())}
        model = TopicModel(name, None, settings, config)
        model.partitions = [PartitionModel(model, index, verified=True) for index in range(rng.randint(1, 3))]
        self.account.topics[name] = model
        try:
            topic = await self.log.create(name, len(model.partitions), config, settings)
        except StorageFailed as error:
            self.excuse(error)
            require(name not in self.log.topics, f"the creation of {name} failed, yet it is there")
            model.deleting = True
            return
        model.id, model.certain = topic.id, True
        self.world.note(f"created {name} {topic.id.hex}")

    async def _delete(self, rng: random.Random) -> None:
        models = [model for model in self.account.topics.values() if model.certain and not model.deleting]
        if not models:
            return
        model = rng.choice(models)
        model.deleting = True
        try:
            await self.log.delete(model.name)
        except StorageFailed as error:
            self.excuse(error)
            return
        model.gone = True
        assert model.id is not None
        self.account.deleted.add(model.id)
        del self.account.topics[model.name]
        self.world.note(f"deleted {model.name}")

    async def _grow(self, rng: random.Random) -> None:
        model = self._some_topic(rng)
        if model is None or len(model.partitions) >= 5:
            return
        model.growing_to = len(model.partitions) + 1
        try:
            topic = await self.log.alter(model.name, partitions=model.growing_to)
        except (StorageFailed, UnknownTopic) as error:
            self.excuse(error, model.partitions[0])
            return
        self._grown(model, topic)

    def _grown(self, model: TopicModel, topic: Topic) -> None:
        require(len(topic.partitions) == model.growing_to, f"{model.name} did not grow to {model.growing_to}")
        model.partitions.append(PartitionModel(model, len(model.partitions), verified=True))
        model.growing_to = None
        self.world.note(f"grew {model.name}")

    async def _alter(self, rng: random.Random) -> None:
        model = self._some_topic(rng)
        if model is None:
            return
        settings = replace(model.settings, segment_bytes=rng.choice((2_000, 8_000, 30_000)))
        try:
            await self.log.alter(model.name, config=(model.config, settings))
        except (StorageFailed, UnknownTopic) as error:
            self.excuse(error, model.partitions[0])
            return
        model.settings = settings

    def _some_topic(self, rng: random.Random) -> TopicModel | None:
        models = [model for model in self.account.topics.values() if model.certain and not model.deleting]
        return rng.choice(models) if models else None

    async def _trim(self, rng: random.Random) -> None:
        for model in self._choose(rng):
            partition = await self.verified(model)
            if partition is None or partition.durable <= partition.start:
                continue
            before = rng.randint(partition.start, partition.durable)
            model.trim_asked = max(model.trim_asked, before)
            try:
                start = await partition.trim(before)
            except (StorageFailed, PartitionOffline, UnknownTopic) as error:
                self.excuse(error, model)
                continue
            require(start >= before, f"{model}: a trim to {before} answered {start}")
            model.trimmed = max(model.trimmed, before)
            self.world.note(f"trimmed {model} {start}")

    # --- faults ---

    async def _filling(self) -> None:
        """The disk fills up for a while; when there is room again, writes go on."""
        rng = self.stream("full disk")
        await asyncio.sleep(rng.expovariate(1 / 0.2))
        storage = self.world.storage
        self.full = True
        storage.capacity = storage.used + rng.choice((0, 500, 20_000, 100_000))
        self.world.note(f"full at {storage.capacity}")
        await asyncio.sleep(rng.expovariate(1 / 0.5))
        storage.capacity = None
        self.world.note("room again")
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await self._writes_again(rng):
            require(asyncio.get_running_loop().time() < deadline, "the disk has room again, but writes are refused")
            await asyncio.sleep(0.5)
        self.full = False

    async def _writes_again(self, rng: random.Random) -> bool:
        for model in self._choose(rng, 100):
            partition = await self.verified(model)
            if partition is None or not model.verified or partition.offline:
                continue
            batch, content = self._batch(rng, model)
            append = Append()
            try:
                answer = partition.append(batch, self._done(append))
            except StorageFailed as error:
                self.excuse(error, model)
                return False
            settled = self._futures[id(append)]
            self._enter(append, model, partition, batch, [content], answer)
            self._follow(append, answer.durable)
            if not answer.durable:
                await asyncio.wait([settled], timeout=PATIENCE_S)
            return append.outcome is Outcome.ACKNOWLEDGED
        return True


async def gather(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all; the first error ends the others. `asyncio.gather` leaves them running."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
