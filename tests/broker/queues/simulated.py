"""A broker on a simulated machine, with virtual time, and consumers that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.durable import submit
from headrace.broker.queues import Queue
from headrace.broker.queues.delivery import Claimed
from headrace.broker.reading import read
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Partition, Topic, Write
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.world import World

Play = Callable[["Stage"], Awaitable[None]]


class Taker:
    """A consumer that keeps what it gets."""

    def __init__(self, queue: Queue, credit: int = 1_000, **options: Any) -> None:
        self.got: list[tuple[int, int, int]] = []
        """Lane, offset and attempt of each, in the order of delivery."""
        self.values: list[bytes] = []
        self.gone_because: str | None = None
        self.consumer = queue.subscribe(self, **options)
        self.consumer.ready(credit)

    def deliver(self, claimed: Claimed) -> None:
        for offset, attempt, _, _, value, _ in claimed.messages():
            self.got.append((claimed.lane, offset, attempt))
            self.values.append(value or b"")

    def gone(self, reason: str) -> None:
        self.gone_because = reason

    def take(self) -> list[bytes]:
        """The values that came since the last look."""
        values, self.values = self.values, []
        return values

    def finish(self, *values: int) -> None:
        """Settle deliveries by their number."""
        for number in values or range(len(self.got)):
            self.consumer.finish(*self.got[number])


class Stage:
    """One life of a broker."""

    def __init__(self, runtime: Runtime, broker: Broker) -> None:
        self.runtime = runtime
        self.broker = broker
        self.queues = broker.queues

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    async def topic(self, name: str = "t", partitions: int = 1, **config: str) -> Topic:
        return await self.broker.topics.create(name, partitions, config)

    async def queue(self, topic: Topic, name: str = "q", **settings: object) -> Queue:
        queue = await self.queues.ensure(topic, name)
        if settings:
            await self.queues.configure(queue, settings)
        return queue

    async def send(self, topic: Topic, *values: bytes, key: bytes | None = None, partition: int = 0) -> int:
        """Append messages in one batch; the first offset."""
        return await self.append(topic.partitions[partition], [(self.now(), key, value, []) for value in values])

    async def append(self, partition: Partition, rows: list[Any]) -> int:
        return await self.append_batch(partition, records.build(rows))

    async def append_batch(self, partition: Partition, batch: bytearray) -> int:
        (appended,) = await submit(self.broker.log, [Write(partition, batch)])
        return appended.base_offset

    async def rest(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)

    async def letters(self, name: str = "t.q.dead") -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """Value and headers of the dead letters."""
        found = []
        topic = self.broker.topics.all.get(name)
        for partition in topic.partitions if topic is not None else ():
            if not partition.loaded:
                await partition.load()
            if partition.high_watermark > partition.start:
                raw = await read(self.runtime, partition, partition.start, 1 << 20)
                for at, header in batches_in(raw):
                    for _, _, _, value, headers in records.parse(raw[at : at + header.size], 1 << 20):
                        found.append((value, dict(headers)))
        return found


def play(*acts: Play, **settings: Any) -> None:
    """Each act is a life of the broker on the same disk, ended by a clean stop."""
    world = World(1)

    async def life(act: Play, runtime: Runtime) -> None:
        config = Config(data="simulated", **settings)
        log = NativeLog(runtime, config)
        await log.start()
        broker = Broker(runtime, log, config)
        await broker.start()
        await act(Stage(runtime, broker))
        await broker.stop()
        await log.stop()

    for act in acts:
        world.run(lambda runtime, act=act: life(act, runtime))  # type: ignore[misc]
