"""From a queue to its dead letters and back, through power cuts: every message dies once, and comes back once.

A consumer gives every message back, so that it dies; dead letters are sent back to the queue, where they are finished.
The power goes at some operation of the disk. Whatever the moment, in the end there is one letter of each message, and
one copy that came back.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.broker.timer.stage import read_records

from headrace.broker.broker import Broker
from headrace.broker.dead_letters import Selection
from headrace.broker.queues import Consumer
from headrace.broker.redrive import Order
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import PHASES, Plan
from simulation.world import Ending, World

MESSAGES, PARTITIONS = 30, 2
DEAD = "orders.mail.dead"


class RefusingConsumer:
    """Gives back what it sees for the first time, and finishes what was sent back."""

    consumer: Consumer

    def deliver(self, claimed: Any) -> None:
        messages = [
            (claimed.lane, offset, attempt, dict(headers)) for offset, attempt, _, _, _, headers in claimed.messages()
        ]
        asyncio.get_running_loop().call_soon(self._settle, messages)

    def _settle(self, messages: list[tuple[int, int, int, dict[str, Any]]]) -> None:
        for lane, offset, attempt, headers in messages:
            if "headrace-redriven" in headers:
                self.consumer.finish(lane, offset, attempt)
            else:
                self.consumer.requeue(lane, offset, attempt, 0, f"refused {offset}")

    def gone(self, reason: str) -> None:
        pass


class Life:
    """One life of a broker."""

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        self.rng = rng
        config = Config(
            data="simulated", journal_bytes=16_384, checkpoint_ms=50, queue_flush_ms=rng.choice((1, 5, 50)),
            queue_snapshot_bytes=rng.choice((1, 2_000, 1 << 20)), queue_state_partitions=2,
        )  # fmt: skip
        self.log = NativeLog(runtime, config)
        self.runtime = runtime
        self.config = config

    async def start(self) -> None:
        await self.log.start()
        self.broker = Broker(self.runtime, self.log, self.config)
        await self.broker.start()
        topic = self.broker.topics.get("orders") or await self.broker.topics.create("orders", PARTITIONS)
        if self.broker.topics.get(DEAD) is None:
            await self.broker.topics.create(DEAD, 2)
        for partition in topic.partitions:
            await partition.load()
        missing = [n for n in range(MESSAGES) if topic.partitions[n % PARTITIONS].end <= n // PARTITIONS]
        queue = await self.broker.queues.ensure(topic, "mail")
        await self.broker.queues.configure(queue, {"max_attempts": 1})
        for n in missing:
            batch = records.build([(self.runtime.clock.now_ms(), b"%d" % (n % 3), b"%d" % n, [])])
            topic.partitions[n % PARTITIONS].append(batch)
        sink = RefusingConsumer()
        sink.consumer = queue.subscribe(sink)
        sink.consumer.ready(self.rng.choice((1, 5, 100)))

    async def work(self, seconds: float) -> None:
        """Send back now this, now that."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            selection = self.rng.choice((Selection(), Selection(key=b"1"), Selection(error="refused 1")))
            await self.step(Order(DEAD, selection, limit=self.rng.randrange(1, 8)))
            await asyncio.sleep(self.rng.uniform(0, 0.05))

    async def step(self, order: Order) -> int:
        try:
            return len((await self.broker.redrive.step(order)).results)
        except HeadraceError:
            # A topic or a queue that is being made; or the power is going.
            return 0

    async def finish(self) -> None:
        """Until all is settled, and nothing is left to be sent back."""
        queue = self.broker.queues.get("orders", "mail")
        assert queue is not None
        for _ in range(1_000):
            sent = await self.step(Order(DEAD))
            if not sent and queue.unsettled == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{queue.unsettled} messages stay unsettled")

    async def stop(self) -> None:
        await self.broker.stop()
        await self.log.stop()

    async def check(self) -> None:
        letters: Counter[bytes | None] = Counter()
        for partition in self.broker.topics.all[DEAD].partitions:
            letters.update(value for _, _, value, _ in await read_records(self.runtime, partition))
        copies: Counter[bytes | None] = Counter()
        returns: Counter[bytes | None] = Counter()
        for partition in self.broker.topics.all["orders"].partitions:
            for _, _, value, headers in await read_records(self.runtime, partition):
                if "headrace-redriven" in dict(headers):
                    assert dict(headers)["headrace-redriven"] == b"1"
                    returns[value] += 1
                else:
                    copies[value] += 1
        assert letters == copies, "not one letter for each message"
        assert returns == copies, "not one return for each message"
        assert len(copies) == MESSAGES


Living = Callable[[Runtime], Coroutine[Any, Any, None]]


def life_of(rng: random.Random, seconds: float) -> Living:
    async def live(runtime: Runtime) -> None:
        life = Life(runtime, rng)
        await life.start()
        await life.work(seconds)
        await life.stop()

    return live


def check(world: World, rng: random.Random) -> None:
    async def live(runtime: Runtime) -> None:
        life = Life(runtime, rng)
        await life.start()
        await life.finish()
        await life.check()
        await life.stop()

    assert world.run(live) is Ending.DONE


@pytest.mark.parametrize("seed", range(2))
def test_power_cut_at_some_operation(seed: int):
    whole = World(seed)
    assert whole.run(life_of(whole.stream("life"), 2.0)) is Ending.DONE
    rng = random.Random(seed)
    for at in sorted(rng.sample(range(1, whole.machine.disk.operations), 15)):
        world = World(seed)
        world.run(life_of(world.stream("life"), 2.0), Plan(crash_at=at, phase=rng.choice(PHASES)))
        check(world, rng)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_many_short_lives(seed: int, kill: bool):
    world = World(seed)
    rng = world.stream("lives")
    for number in range(8):
        world.run(life_of(world.stream(f"life {number}"), 10.0), Plan(kill=kill, crash_after=rng.uniform(0.01, 0.6)))
    check(world, rng)
