"""A broker on a simulated machine whose clients publish with ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.deduplication import Stored
from headrace.broker.durable import durable
from headrace.broker.reading import read
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Partition, Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.world import Ending, World

NAME = "headrace-dedup-id"
WINDOW = {"deduplication.window.ms": "600000"}
Act = Callable[["Life"], Awaitable[None]]
# Value, id, and when it is to be delivered.
Row = tuple[bytes, bytes | None] | tuple[bytes, bytes | None, int]


class Life:
    """One life of a broker."""

    def __init__(self, runtime: Runtime, **settings: Any) -> None:
        self.runtime = runtime
        self.config = Config(data="simulated", **settings)
        self.log = NativeLog(runtime, self.config)
        self.broker = Broker(runtime, self.log, self.config)
        self.deduplication = self.broker.deduplication

    async def start(self) -> None:
        await self.log.start()
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.log.stop()

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    async def topic(self, name: str = "t", partitions: int = 1, **config: str) -> Topic:
        """The topic, with a window unless it says otherwise, ready to be published to."""
        topic = self.broker.topics.get(name)
        if topic is None:
            config = {**WINDOW, **{each.replace("_", "."): value for each, value in config.items()}}
            topic = await self.broker.topics.create(name, partitions, config)
        for partition in topic.partitions:
            if not partition.loaded:
                await partition.load()
        await self.deduplication.loader(topic).load()
        return topic

    def batch(self, *rows: Row, **options: Any) -> bytearray:
        built = []
        for value, id, *due in rows:
            headers = [(NAME, id)] if id is not None else []
            headers += [("headrace-deliver-at", str(due[0]).encode())] if due else []
            built.append((self.now(), None, value, headers))
        return records.build(built, **options)

    async def publish(self, partition: Partition, *rows: Row, **options: Any) -> Stored:
        """Publish one batch, and wait until it is durable."""
        waiter, done = durable(None)
        (stored,) = self.deduplication.publish([(partition, self.batch(*rows, **options))], done)
        await waiter
        return stored

    async def values(self, topic: Topic) -> list[bytes]:
        """Everything that a reader sees."""
        return [value for partition in topic.partitions for _, value in await self.read(partition)]

    async def read(self, partition: Partition) -> list[tuple[int, bytes]]:
        """Offset and value."""
        found = []
        if not partition.loaded:
            await partition.load()
        position = partition.start
        while position < partition.high_watermark:
            data = await read(self.runtime, partition, position, 1 << 20)
            for at, header in batches_in(data):
                if header.last_offset < position:
                    continue
                for offset, _, _, value, _ in records.parse(data[at : at + header.size], 1 << 24):
                    found.append((offset, value or b""))
                position = header.last_offset + 1
        return found


def duplicates(stored: Stored) -> list[tuple[int, int, int]]:
    """Number, partition and offset of each."""
    found = stored.duplicates.tolist()
    return [(found[at], found[at + 2], found[at + 3]) for at in range(0, len(found), 4)]


def play(*acts: Act, **settings: Any) -> None:
    """Each act is a life of the broker on the same disk, ended by a clean stop."""
    world = World(1)

    async def live(act: Act, runtime: Runtime) -> None:
        life = Life(runtime, **settings)
        await life.start()
        await act(life)
        await life.stop()

    for act in acts:
        assert world.run(lambda runtime, act=act: live(act, runtime)) is Ending.DONE  # type: ignore[misc]
