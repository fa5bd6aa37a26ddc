"""One life of a log under load: start, look at what survived, do everything that a broker does, stop or be stopped.

Several tasks share the log: some append (one partition or several at once, with and without idempotence, tiny batches
and large ones), one writes transactions, others read, one administers, one fills the disk. Each draws what to do from
its own seeded stream and records what it was promised in the model.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from headrace.errors import PartitionOffline, StorageFailed, UnknownTopic
from headrace.log.interface import Durability, Partition
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.history import require
from simulation.life import Life, gather, small_config
from simulation.log.administrator import Administrator
from simulation.log.model import LogModel, Outcome, PartitionModel
from simulation.log.producer import LogProducer
from simulation.log.reader import LogReader
from simulation.log.searcher import LogSearcher
from simulation.log.transactions import TransactionWorkload, check
from simulation.world import World


class LogLife(Life):
    """The tasks of one life, and what they share."""

    def __init__(
        self,
        world: World,
        known: LogModel,
        runtime: Runtime,
        steps: int = 0,
        durabilities: tuple[Durability, ...] = tuple(Durability),
        *,
        last: bool = True,
        **config: Any,
    ) -> None:
        super().__init__(world, runtime)
        self.known = known
        self.steps = steps
        self.durabilities = durabilities
        self.log = NativeLog(runtime, replace(small_config(world.stream("config")), **config))
        self._last = last
        self._verifying: dict[PartitionModel, asyncio.Task[None]] = {}
        self.producer = LogProducer(self)
        self.reader = LogReader(self)
        self.searcher = LogSearcher(self)
        self.transactions = TransactionWorkload(self)
        self.administrator = Administrator(self)

    # --- the life itself ---

    async def run(self) -> None:
        full = self.stream("full start")
        # A new directory cannot be made on a full disk.
        begins_full = self.known.cluster_id is not None and full.random() < 0.15
        before = self.known.epoch
        if begins_full:
            self.administrator.limit(full)
        await self.or_exit(self.log.start())
        self.check_catalogue()
        if begins_full:
            # Nothing is appended in the new epoch before it is durable: without room another start may find it unused.
            self.known.epoch = before
        rng = self.rng
        for partition in self.known.partitions():
            if rng.random() < 0.7:
                await self.verify(partition)
        tasks = [self.producer.produce(number) for number in range(rng.randint(1, 4))]
        tasks += [self.reader.read(), self.administrator.administer(), self.searcher.search()]
        if rng.random() < 0.6:
            tasks += [self.transactions.produce(), self.transactions.read()]
        if begins_full:
            tasks.append(self.administrator.make_room(full))
        elif rng.random() < 0.2:
            tasks.append(self.administrator.fill())
        await gather(tasks)
        await self.producer.drain()
        if rng.random() < 0.5:
            for partition in self.known.partitions():
                await self.verify(partition)
        if not self._last:
            await self.maybe_crash_idle()
        self.world.note("stop")
        # A crash inside of the stop may come after the mark that it was clean.
        self.known.started = False
        await self.or_exit(self.log.stop())

    def check_catalogue(self) -> None:
        """The topics after a start are those that were created and not deleted."""
        log, known = self.log, self.known
        require(known.cluster_id in (None, log.cluster_id), "the cluster id changed")
        known.cluster_id = log.cluster_id
        if known.epoch is not None:
            least = known.epoch + known.unclean
            require(log.epoch >= least, f"the epoch is {log.epoch} after this start; it should be {least} at least")
        known.epoch, known.started, known.unclean = log.epoch, True, False
        for name, topic in log.topics.items():
            require(topic.id not in known.deleted, f"the deleted topic {name} came back")
            model = known.topics.get(name)
            require(model is not None and not model.gone, f"the topic {name} was never created, or was deleted")
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
        for name, model in list(known.topics.items()):
            if name not in log.topics:
                require(
                    not model.certain or model.deleting,
                    f"the topic {name} was created and is missing",
                )
                model.gone = True
                del known.topics[name]

    async def verify(self, model: PartitionModel) -> Partition | None:
        """The partition, once it was compared after this start; None where it is gone or cannot serve."""
        partition = self.partition(model)
        if partition is None:
            return None
        if not model.verified:
            task = self._verifying.get(model)
            if task is None:
                task = self._verifying[model] = asyncio.ensure_future(self._compare(model, partition))
            await task
        return self.usable(model)

    def usable(self, model: PartitionModel) -> Partition | None:
        """The partition, if it was verified and serves."""
        partition = self.partition(model)
        if partition is None or not model.verified or partition.offline or model.topic.gone:
            return None
        return partition

    async def _compare(self, model: PartitionModel, partition: Partition) -> None:
        try:
            await partition.load()
            start, end, readable = partition.start, partition.end, partition.high_watermark
            flushed = self.log.local(partition).flushed
            require(
                end == flushed == readable,
                f"{model}: after a start {readable} is readable, {flushed} is flushed, the end is {end}",
            )
            found = await self.reader.batches(model, partition, start, look=False)
            # Retention may have moved on while the partition was read.
            found = [(header, body) for header, body in found if header.last_offset >= partition.start]
            check(model, self.log.local(partition), found)
            model.verify(partition.start, end, found, self.runtime.clock.now_ms())
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
        if isinstance(error, StorageFailed) and self.disk_refuses:
            return
        if isinstance(error, PartitionOffline) and self.disk_fails:
            return
        raise error

    def choose(self, rng: random.Random, count: int = 1) -> list[PartitionModel]:
        partitions = [each for each in self.known.partitions() if each.topic.certain and not each.topic.deleting]
        return rng.sample(partitions, min(count, len(partitions)))
