"""The timer through power cuts: nothing lost, nothing early, fired exactly once.

A client schedules messages, near and far, and cancels some. One test ends the power at each operation of the disk in
turn; the other runs through many lives, of moments and of days, by seed. What was acknowledged must have been fired
when its time has passed, once, and what was cancelled never.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.broker.timer.stage import DAY, HOUR, MINUTE, Life, Promises
from tests.longer import seeds

from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from simulation.faults import PHASES, Plan
from simulation.world import Ending, World

SETTLING = 5_000


class Client:
    """Schedules and cancels as a stream of random numbers says."""

    def __init__(self, life: Life, promises: Promises, rng: random.Random) -> None:
        self.life = life
        self.promises = promises
        self.rng = rng

    def delay(self) -> int:
        rng = self.rng
        scale = rng.choice([5, 200, 2_000, 20_000, 2 * MINUTE, 2 * HOUR, 3 * DAY])
        return rng.randrange(1, scale)

    async def schedule(self) -> None:
        promises, life, rng = self.promises, self.life, self.rng
        topic = await life.topic(partitions=2)
        due = life.now() + self.delay()
        values = [b"%d" % (len(promises.due) + index) for index in range(rng.randrange(1, 4))]
        for value in values:
            promises.due[value] = due
        ids = await life.schedule(topic, rng.randrange(2), values, due)
        promises.acknowledged.update(zip(values, ids, strict=False))

    async def cancel(self) -> None:
        promises = self.promises
        waiting = [value for value in promises.acknowledged if value not in promises.cancelling]
        if not waiting:
            return
        value = self.rng.choice(waiting)
        late = self.life.now() >= promises.due[value]
        promises.cancelling.add(value)
        if await self.life.timer.cancel(promises.acknowledged[value]):
            promises.cancelled.add(value)
        else:
            assert late or self.life.now() >= promises.due[value], f"{value!r} waits, but was not found"
            promises.cancelling.discard(value)

    async def run(self, steps: int, pause: float) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.2:
                await self.cancel()
            else:
                await self.schedule()
            await asyncio.sleep(self.rng.uniform(0, pause))


def check_at_the_end(world: World, promises: Promises) -> None:
    """One more life, long enough for everything to come due."""

    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        topic = await life.topic(partitions=2)
        until = max(promises.due.values(), default=0) + SETTLING
        await asyncio.sleep(max(until - life.now(), 0) / 1_000)
        promises.check(await life.fired(topic), now=life.now())
        assert life.timer.pending == 0
        assert await life.timer.list() == []
        await life.stop()

    assert world.run(live) is Ending.DONE


def one_scenario(promises: Promises, rng: random.Random, steps: int) -> object:
    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        await life.topic(partitions=2)
        client = Client(life, promises, rng)
        await client.run(steps, 0.3)
        # Over the borders of a minute and an hour, for buckets to be emptied and moved down.
        await asyncio.sleep(2 * 3_600)
        await client.run(steps, 0.3)
        await asyncio.sleep(4 * 24 * 3_600)
        await life.stop()

    return live


def operations(seed: int) -> int:
    world = World(seed)
    promises = Promises()
    assert world.run(one_scenario(promises, world.stream("client"), 12)) is Ending.DONE  # type: ignore[arg-type]
    count = world.machine.disk.operations
    check_at_the_end(world, promises)
    assert len(promises.acknowledged) > 20
    return count


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_power_cut_at_every_operation(seed: int) -> None:
    count = operations(seed)
    rng = random.Random(seed)
    # All of them in the long run; here as many as fit into a test, drawn anew for each seed.
    for at in sorted(rng.sample(range(1, count), min(12, count - 1))):
        world = World(seed)
        promises = Promises()
        live = one_scenario(promises, world.stream("client"), 12)
        world.run(live, Plan(crash_at=at, phase=rng.choice(PHASES)))  # type: ignore[arg-type]
        check_at_the_end(world, promises)


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_many_lives(seed: int) -> None:
    world = World(seed)
    promises = Promises()
    rng = world.stream("lives")
    for number in range(8):

        async def live(runtime: Runtime, number: int = number) -> None:
            life = Life(runtime)
            await life.start()
            await Client(life, promises, world.stream(f"client {number}")).run(40, rng.choice([0.01, 1, 600]))
            await asyncio.sleep(1_000_000)

        world.run(live, Plan(crash_after=rng.choice([0.02, 0.2, 5, 100, 5_000, 100_000]) * rng.uniform(0.5, 1)))
    assert promises.acknowledged, "the test never got going"
    check_at_the_end(world, promises)


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_power_cuts_while_firing(seed: int) -> None:
    """Short lives in which something is always being fired."""
    world = World(seed)
    promises = Promises()
    rng = world.stream("lives")
    for number in range(12):

        async def live(runtime: Runtime, number: int = number) -> None:
            life = Life(runtime)
            await life.start()
            topic = await life.topic(partitions=2)
            for step in range(1_000):
                values = [b"%d %d %d" % (number, step, index) for index in range(3)]
                due = life.now() + rng.randrange(1, 60)
                promises.due.update(dict.fromkeys(values, due))
                promises.acknowledged.update(
                    zip(values, await life.schedule(topic, step % 2, values, due), strict=False)
                )

        world.run(live, Plan(crash_after=rng.uniform(0.05, 0.3)))
    assert len(promises.acknowledged) > 100
    check_at_the_end(world, promises)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_power_cuts_while_messages_move_down(seed: int) -> None:
    """What waits in a bucket of an hour is moved to buckets of minutes; the power goes at every operation of
    that, a third of them for each seed."""
    rng = random.Random(seed)
    for at in range(1 + seed, 40, 3):
        world = World(seed)
        promises = Promises()

        async def fill(runtime: Runtime, promises: Promises = promises) -> None:
            life = Life(runtime)
            await life.start()
            topic = await life.topic(partitions=2)
            hour = life.now() // HOUR * HOUR + 3 * HOUR
            for step in range(20):
                due = hour + rng.randrange(HOUR)
                values = [b"%d %d" % (step, index) for index in range(5)]
                promises.due.update(dict.fromkeys(values, due))
                promises.acknowledged.update(
                    zip(values, await life.schedule(topic, step % 2, values, due), strict=False)
                )
            await life.stop()

        async def move(runtime: Runtime) -> None:
            life = Life(runtime)
            await life.start()
            await asyncio.sleep(60)
            assert life.timer.buckets.moved > 0
            await life.stop()

        assert world.run(fill) is Ending.DONE
        first = min(promises.due.values())
        world.time += (first - first % HOUR - 3 * MINUTE) / 1_000 - ms_of(world) / 1_000 - rng.uniform(0, 2)
        ending = world.run(move, Plan(crash_at=at, phase=rng.choice(PHASES)))
        check_at_the_end(world, promises)
        if ending is Ending.DONE:
            assert at > 10, "nothing was moved"
            return


def ms_of(world: World) -> int:
    """What the calendar of the next life begins with."""
    found = []

    async def look(runtime: Runtime) -> None:
        found.append(runtime.clock.now_ms())

    world.run(look)
    return found[0]


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_failing_syncs(seed: int) -> None:
    world = World(seed)
    promises = Promises()

    async def prepare(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        await life.topic(partitions=2)
        await life.stop()

    async def live(runtime: Runtime) -> None:
        life = Life(runtime)
        await life.start()
        client = Client(life, promises, world.stream("client"))
        for _ in range(60):
            try:
                await client.run(1, 2)
            except HeadraceError:
                await asyncio.sleep(1)

    assert world.run(prepare) is Ending.DONE

    world.run(live, Plan(sync_error_chance=0.05, crash_after=1_000))
    check_at_the_end(world, promises)
