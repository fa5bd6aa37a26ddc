"""Administrator: topics come, grow, change, are trimmed and go; the disk fills up and is freed again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import PartitionOffline, StorageFailed, UnknownTopic
from headrace.log.interface import Durability, TopicSettings
from simulation.history import require
from simulation.log.model import PartitionModel, TopicModel
from simulation.log.producer import PATIENCE_S

if TYPE_CHECKING:
    from simulation.log.life import LogLife


class Administrator:
    """The administrator of one life."""

    def __init__(self, life: LogLife) -> None:
        self._life = life

    async def administer(self) -> None:
        rng = self._life.stream("administrator")
        for step in range(self._life.steps // 3):
            if not self._life.choose(rng) or (step < 3 and self._life.world.lives == 1):
                await self._create(rng)
            else:
                await rng.choices(
                    (self._create, self._delete, self._grow, self._alter, self._trim), weights=(3, 1, 1, 1, 4)
                )[0](rng)
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    def _settings(self, rng: random.Random) -> TopicSettings:
        durability = rng.choice(self._life.durabilities)
        settings = TopicSettings(
            durability=durability,
            segment_bytes=rng.choice((2_000, 8_000, 30_000)),
            segment_ms=rng.choice((100, 7 * 24 * 3600 * 1000)),
            index_interval_bytes=rng.choice((256, 4_096)),
            retention_ms=-1,
            delete=False,
            index=rng.choice(("", "key", "key,tags")),
        )
        draw = rng.random()
        if draw < 0.25 and durability is not Durability.MEMORY:
            return replace(settings, compact=True, min_cleanable_dirty_ratio=0.1, delete_retention_ms=50)
        if draw < 0.4 and durability is not Durability.MEMORY:
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
        if name in self._life.known.topics or len(self._life.known.topics) >= 6:
            return
        settings = self._settings(rng)
        config = {"made": str(rng.random())}
        model = TopicModel(name, None, settings, config)
        model.partitions = [PartitionModel(model, index, verified=True) for index in range(rng.randint(1, 3))]
        self._life.known.topics[name] = model
        try:
            topic = await self._life.log.create(name, len(model.partitions), config, settings)
        except StorageFailed as error:
            self._life.excuse(error)
            require(name not in self._life.log.topics, f"the creation of {name} failed, yet it is there")
            model.deleting = True
            return
        model.id, model.certain = topic.id, True
        self._life.world.note(f"created {name} {topic.id.hex}")

    async def _delete(self, rng: random.Random) -> None:
        model = self._some_topic(rng)
        if model is None:
            return
        model.deleting = True
        try:
            await self._life.log.delete(model.name)
        except StorageFailed as error:
            self._life.excuse(error)
            return
        model.gone = True
        assert model.id is not None
        self._life.known.deleted.add(model.id)
        del self._life.known.topics[model.name]
        self._life.world.note(f"deleted {model.name}")

    async def _grow(self, rng: random.Random) -> None:
        model = self._some_topic(rng)
        if model is None or len(model.partitions) >= 5:
            return
        model.growing_to = len(model.partitions) + 1
        try:
            topic = await self._life.log.alter(model.name, partitions=model.growing_to)
        except (StorageFailed, UnknownTopic) as error:
            self._life.excuse(error, model.partitions[0])
            return
        require(len(topic.partitions) == model.growing_to, f"{model.name} did not grow to {model.growing_to}")
        model.partitions.append(PartitionModel(model, len(model.partitions), verified=True))
        model.growing_to = None
        self._life.world.note(f"grew {model.name}")

    async def _alter(self, rng: random.Random) -> None:
        model = self._some_topic(rng)
        if model is None:
            return
        settings = replace(model.settings, segment_bytes=rng.choice((2_000, 8_000, 30_000)))
        settings = replace(settings, index=rng.choice((settings.index, "", "key", "key,tags", "id")))
        try:
            await self._life.log.alter(model.name, config=(model.config, settings))
        except (StorageFailed, UnknownTopic) as error:
            self._life.excuse(error, model.partitions[0])
            return
        model.settings = settings

    def _some_topic(self, rng: random.Random) -> TopicModel | None:
        models = [model for model in self._life.known.topics.values() if model.certain and not model.deleting]
        return rng.choice(models) if models else None

    async def _trim(self, rng: random.Random) -> None:
        for model in self._life.choose(rng):
            partition = await self._life.verify(model)
            if partition is None or partition.high_watermark <= partition.start:
                continue
            before = rng.randint(partition.start, partition.high_watermark)
            model.trim_asked = max(model.trim_asked, before)
            try:
                start = await partition.trim(before)
            except (StorageFailed, PartitionOffline, UnknownTopic) as error:
                self._life.excuse(error, model)
                continue
            require(start >= before, f"{model}: a trim to {before} answered {start}")
            model.trimmed = max(model.trimmed, before)
            self._life.world.note(f"trimmed {model} {start}")

    async def fill(self) -> None:
        """The disk fills up for a while; when there is room again, writes go on."""
        rng = self._life.stream("full disk")
        await asyncio.sleep(rng.expovariate(1 / 0.2))
        self.limit(rng)
        await self.make_room(rng)

    def limit(self, rng: random.Random) -> None:
        """The disk has little room from now on."""
        self._life.limit_disk(rng, (0, 500, 20_000, 100_000))

    async def make_room(self, rng: random.Random) -> None:
        """After a while; then writes go on."""
        await self._life.free_disk(rng, 0.5)
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await self._life.producer.can_write(rng):
            require(asyncio.get_running_loop().time() < deadline, "the disk has room again, but writes are refused")
            await asyncio.sleep(0.5)
        self._life.known.epoch = self._life.log.epoch
        self._life.disk_full = False
