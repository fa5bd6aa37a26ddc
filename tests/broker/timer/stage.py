"""A timer over the native log on a simulated machine, the one way into it, and what its clients know."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker.broker import Broker
from headrace.broker.publish import Message
from headrace.broker.reading import read
from headrace.broker.security import Session
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Partition, Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SESSION = Session()

Found = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


async def read_records(runtime: Runtime, partition: Partition) -> list[Found]:
    """Everything that a reader sees: time, key, value, headers."""
    if not partition.loaded:
        await partition.load()
    found: list[Found] = []
    position = partition.start
    while position < partition.high_watermark:
        data = await read(runtime, partition, position, 1 << 20)
        for at, header in batches_in(data):
            if header.last_offset < position:
                continue
            for _, timestamp, key, value, headers in records.parse(data[at : at + header.size], 1 << 24):
                found.append((timestamp, key, value, headers))
            position = header.last_offset + 1
    return found


class Life:
    """One life of a log and a timer."""

    def __init__(self, runtime: Runtime, **settings: object) -> None:
        self.runtime = runtime
        # Days pass in these tests: upkeep looks less often than four times a second.
        seldom = {
            "checkpoint_ms": HOUR,
            "compaction_check_ms": DAY,
            "retention_check_ms": DAY,
            "journal_bytes": 1 << 18,
        }
        self.config = Config(**{**seldom, **settings})  # type: ignore[arg-type]
        self.log = NativeLog(runtime, self.config)
        self.log.upkeep._checkpoint_often = self._checkpoint_seldom  # type: ignore[method-assign]
        # Only what a delayed message meets on its way is started.
        self.broker = Broker(runtime, self.log, self.config)
        self.topics = self.broker.topics
        self.timer = self.broker.timer

    async def _checkpoint_seldom(self) -> None:
        while await self.log.upkeep._pause(HOUR / 1_000):
            await self.log.upkeep.checkpoint()

    async def start(self) -> None:
        await self.log.start()
        await self.topics.start()
        await self.timer.start()

    async def stop(self) -> None:
        await self.timer.stop()
        await self.log.stop()

    async def start_again(self) -> None:
        """The next life on the same data, after a stop."""
        Life.__init__(self, self.runtime)
        await self.start()

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    async def topic(self, name: str = "t", partitions: int = 1, **config: str) -> Topic:
        topic = self.log.topics.get(name)
        if topic is None:
            topic = await self.topics.create(name, partitions, config)
        for partition in topic.partitions:
            if not partition.loaded:
                await partition.load()
        return topic

    async def schedule(
        self, topic: Topic, partition: int, values: list[bytes], due_ms: int, *, keyed: bool = True
    ) -> list[str]:
        """Publish messages for later, and wait until that is durable; the ids of those that wait."""
        messages = [
            Message(b"key of " + value if keyed else None, value, [("h", value)], partition, due_ms) for value in values
        ]
        places = await self.broker.publisher.publish(SESSION, topic.name, messages)
        return [place.timer for place in places if place.timer]

    async def fired(self, topic: Topic) -> dict[bytes, list[int]]:
        """When each value was fired, by the time of its record."""
        found: dict[bytes, list[int]] = {}
        for partition in topic.partitions:
            for timestamp, key, value, headers in await read_records(self.runtime, partition):
                assert value is not None
                assert key == b"key of " + value
                assert headers == [("h", value)]
                found.setdefault(value, []).append(timestamp)
        return found


@dataclass
class Promises:
    """What the clients of a timer know, over all lives."""

    due: dict[bytes, int] = field(default_factory=dict)
    """Everything that was ever asked for."""
    acknowledged: dict[bytes, str] = field(default_factory=dict)
    """By value, the id."""
    cancelling: set[bytes] = field(default_factory=set)
    cancelled: set[bytes] = field(default_factory=set)

    def check(self, fired: dict[bytes, list[int]], *, now: int) -> None:
        """Nothing lost, nothing early, nothing twice."""
        for value, times in fired.items():
            assert value in self.due, f"{value!r} was never scheduled"
            assert len(times) == 1, f"{value!r} was fired {len(times)} times: {times}"
            assert times[0] >= self.due[value], f"{value!r} was fired {self.due[value] - times[0]} ms early"
            assert value not in self.cancelled, f"{value!r} was cancelled, and fired"
        for value in self.acknowledged:
            if self.due[value] < now and value not in self.cancelling:
                assert value in fired, f"{value!r} was due at {self.due[value]} and is lost"
