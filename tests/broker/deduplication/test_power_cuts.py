"""Publishes with ids through power cuts: what was acknowledged is there, and what was sent again is there once.

Clients publish, plainly and with a delay, to every kind of partition, and repeat what they got no answer to (and some
that they did) until it is acknowledged: the same id in this life or a later one. In the end every id that was
acknowledged is in its topic exactly once, and every other at most once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.broker.deduplication.stage import Life
from tests.longer import LONGER, seeds

from headrace.broker.durable import durable
from headrace.errors import HeadraceError
from headrace.log.interface import Topic
from headrace.runtime import Runtime
from simulation.faults import PHASES, Plan
from simulation.world import Ending, World

PARTITIONS = 2


@dataclass
class Promises:
    """What the clients know, over all lives."""

    sent: list[bytes] = field(default_factory=list)
    acknowledged: set[bytes] = field(default_factory=set)
    again: int = 0
    """Publishes that were answered as duplicates."""

    def check(self, found: Counter[bytes]) -> None:
        """Nothing lost, nothing twice."""
        twice = [id for id, count in found.items() if count > 1]
        assert not twice, f"{twice[:5]} are there more than once"
        lost = [id for id in self.acknowledged if not found[id]]
        assert not lost, f"{lost[:5]} were acknowledged and are lost"


class Client:
    """Publishes as a stream of random numbers says. An id is the message's value too."""

    def __init__(self, life: Life, promises: Promises, rng: random.Random) -> None:
        self.life = life
        self.promises = promises
        self.rng = rng

    def ids(self) -> list[bytes]:
        promises, rng = self.promises, self.rng
        unknown = [id for id in promises.sent[-20:] if id not in promises.acknowledged]
        if unknown and rng.random() < 0.7:
            chosen = rng.sample(unknown, rng.randrange(1, min(len(unknown), 3) + 1))
        elif promises.sent and rng.random() < 0.3:
            chosen = rng.sample(promises.sent[-20:], 1)
        else:
            chosen = []
        for _ in range(rng.randrange(0 if chosen else 1, 3)):
            chosen.append(b"%d" % len(promises.sent))
            promises.sent.append(chosen[-1])
        return chosen

    async def publish(self, topic: Topic) -> None:
        rng, life = self.rng, self.life
        ids = self.ids()
        partition = rng.choice(topic.partitions)
        batch = life.batch(*((id, id) for id in ids))
        waiter, done = durable(None)
        chance = rng.random()
        if chance < 0.25:
            due = life.now() + rng.randrange(1, 3_000)
            (stored,) = life.deduplication.publish_timed([], [(partition, batch, due)], done)
        elif chance < 0.5:
            # For now and for later, at several times, to every partition: all or nothing.
            now = [(each, life.batch(*((id, id) for id in ids[:1]))) for each in topic.partitions]
            due = life.now() + rng.randrange(1, 3_000)
            later = [(each, life.batch((id, id)), due + rng.randrange(100)) for each in topic.partitions for id in ids]
            (stored, *_) = life.deduplication.publish_timed(now, later, done)
        else:
            (stored,) = life.deduplication.publish([(partition, batch)], done)
        await waiter
        self.promises.again += bool(stored.duplicates)
        self.promises.acknowledged.update(ids)

    async def run(self, steps: int, pause: float) -> None:
        topic = await self.life.topic()
        await self.life.broker.timer.load()
        for _ in range(steps):
            await self.publish(topic)
            await asyncio.sleep(self.rng.uniform(0, pause))


def check_at_the_end(world: World, promises: Promises) -> None:
    """One more life: repeat everything that is not known to be there, and look."""

    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        topic = await life.topic(partitions=PARTITIONS)
        await life.broker.timer.load()
        await asyncio.sleep(10)
        promises.check(Counter(await life.values(topic)))
        for id in promises.sent:
            await life.publish(topic.partitions[0], (id, id))
        promises.acknowledged.update(promises.sent)
        promises.check(Counter(await life.values(topic)))
        await life.stop()

    assert world.run(live) is Ending.DONE


def many_lives(seed: int, durability: str) -> None:
    world = World(seed)
    promises = Promises()
    rng = world.stream("lives")
    number = 0
    while number < 10 or len(promises.acknowledged) <= 20 or promises.again <= 3:
        number += 1
        assert number < 50, "the test never got going"

        async def live(runtime: Runtime, number: int = number) -> None:
            life = Life(runtime)
            await life.start()
            await life.topic(partitions=PARTITIONS, durability=durability)
            clients = [Client(life, promises, world.stream(f"client {number} {each}")) for each in range(3)]
            await asyncio.gather(*(each.run(50, rng.choice([0.0005, 0.005])) for each in clients))

        plan = Plan(kill=rng.random() < 0.3)
        # Some end while the timer still reads what it had, most of them later.
        plan.crash_after = rng.uniform(0.002, rng.choice([0.1, 0.6]))
        world.run(live, plan)
    check_at_the_end(world, promises)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_many_lives(seed: int, durability: str):
    """With ids an `async` topic keeps its promises through a power cut too, for the journal has both."""
    many_lives(seed, durability)


@pytest.mark.long
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", range(100, 100 + 100 * LONGER))
def test_many_more_lives(seed: int, durability: str):
    many_lives(seed, durability)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_power_cut_at_every_operation(seed: int):
    def scenario(world: World, promises: Promises) -> object:
        async def live(runtime: Runtime) -> None:
            life = Life(runtime)
            await life.start()
            await life.topic(partitions=PARTITIONS)
            await Client(life, promises, world.stream("client")).run(15, 0.01)
            await life.stop()

        return live

    whole = World(seed)
    assert whole.run(scenario(whole, Promises())) is Ending.DONE  # type: ignore[arg-type]
    count = whole.machine.disk.operations
    rng = random.Random(seed)
    for at in sorted(rng.sample(range(1, count), min(8, count - 1))):
        world = World(seed)
        promises = Promises()
        live = scenario(world, promises)
        world.run(live, Plan(crash_at=at, phase=rng.choice(PHASES)))  # type: ignore[arg-type]
        check_at_the_end(world, promises)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_failing_syncs(seed: int):
    world = World(seed)
    promises = Promises()

    async def prepare(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        await life.topic(partitions=PARTITIONS)
        await life.broker.timer.load()
        await life.stop()

    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        client = Client(life, promises, world.stream("client"))
        for _ in range(80):
            try:
                await client.run(1, 0.01)
            except HeadraceError:
                await asyncio.sleep(0.1)

    assert world.run(prepare) is Ending.DONE
    world.run(live, Plan(sync_error_chance=0.05, crash_after=100))
    assert len(promises.acknowledged) > 20
    check_at_the_end(world, promises)
