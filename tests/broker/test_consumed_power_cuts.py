"""`retention=consumed` through power cuts: nothing goes that some queue has not settled, and in the end all goes.

A producer writes large messages to a topic with two queues. Their consumers finish most of them, put some off for long
(these are moved to the queue's parking), and hold some until the power ends. What was acknowledged to the producer and
not finished must come to each queue in a later life.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.longer import seeds

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.log.interface import EARLIEST, Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import Plan
from simulation.world import Ending, World

QUEUES = ("first", "second")
CONFIG = {"retention": "consumed", "segment.bytes": "1048576", "consumed.pinned.segments": "1"}
SIZE = 100_000
LONG_MS = 600_000


class Promises:
    """What the clients know."""

    def __init__(self) -> None:
        self.written = 0
        self.acknowledged: set[bytes] = set()
        self.finished: dict[str, set[bytes]] = {name: set() for name in QUEUES}

    def open(self, queue: str) -> set[bytes]:
        return self.acknowledged - self.finished[queue]


class StubConsumer:
    """A consumer that does with each message what chance says."""

    def __init__(self, promises: Promises, queue: str, rng: random.Random | None) -> None:
        self.seen: set[bytes] = set()
        self.consumer: Any = None
        self._promises = promises
        self._queue = queue
        self._rng = rng

    def deliver(self, claimed: Any) -> None:
        asyncio.get_running_loop().call_soon(self._settle, claimed.lane, claimed.messages())

    def _settle(self, lane: int, messages: list[Any]) -> None:
        for offset, attempt, _, _, value, _ in messages:
            self.seen.add(value[:8])
            draw = 0.0 if self._rng is None else self._rng.random()
            if draw < 0.85:
                if self.consumer.finish(lane, offset, attempt):
                    self._promises.finished[self._queue].add(value[:8])
            elif draw < 0.95:
                self.consumer.requeue(lane, offset, attempt, LONG_MS)

    def gone(self, reason: str) -> None:
        raise AssertionError(reason)


async def start(runtime: Runtime) -> tuple[Broker, NativeLog, Topic]:
    config = Config(
        consumed_check_ms=60, consumed_free_bytes=1, consumed_quiet_ms=500, queue_flush_ms=20, checkpoint_ms=300,
        journal_bytes=1 << 20,
    )  # fmt: skip
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config)
    await broker.start()
    topic = broker.topics.get("t") or await broker.topics.create("t", 1, CONFIG)
    await topic.partitions[0].load()
    return broker, log, topic


async def produce(topic: Topic, promises: Promises, rng: random.Random) -> None:
    for _ in range(200):
        value = b"%08d" % promises.written
        promises.written += 1
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        try:
            topic.partitions[0].append(records.build([(1_000, None, value.ljust(SIZE), [])]), done.set_result)
        except HeadraceError:
            continue
        if await done is None:
            promises.acknowledged.add(value)
        await asyncio.sleep(rng.uniform(0, 0.03))


async def subscribe(
    broker: Broker, topic: Topic, promises: Promises, rng: random.Random | None
) -> dict[str, StubConsumer]:
    sinks = {}
    for name in QUEUES:
        queue = await broker.queues.ensure(topic, name, EARLIEST)
        sinks[name] = sink = StubConsumer(promises, name, rng)
        sink.consumer = queue.subscribe(sink)
        sink.consumer.ready(50)
    return sinks


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_many_lives(seed: int) -> None:
    world = World(seed)
    promises = Promises()
    rng = world.stream("lives")
    for number in range(6):

        async def live(runtime: Runtime, number: int = number) -> None:
            broker, _, topic = await start(runtime)
            chance = world.stream(f"clients {number}")
            await subscribe(broker, topic, promises, chance)
            await produce(topic, promises, chance)
            await asyncio.sleep(100_000)

        world.run(live, Plan(crash_after=rng.choice([0.05, 0.5, 2, 6]) * rng.uniform(0.5, 1.5)))

    async def last(runtime: Runtime) -> None:
        broker, log, topic = await start(runtime)
        due = {name: promises.open(name) for name in QUEUES}
        sinks = await subscribe(broker, topic, promises, None)
        await asyncio.sleep(LONG_MS / 1_000 + 60)
        for name in QUEUES:
            assert due[name] <= sinks[name].seen, f"{len(due[name] - sinks[name].seen)} messages are lost to {name}"
        assert any(name.startswith("__parked") for name in log.topics), "nothing was moved"
        for each in log.topics.values():
            if each.config.get("retention") == "consumed":
                assert (each.partitions[0].size(), each.partitions[0].start) == (0, each.partitions[0].end), each.name
        await broker.stop()
        await log.stop()

    assert world.run(last) is Ending.DONE
    assert promises.acknowledged, "the test never got going"
