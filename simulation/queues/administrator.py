"""What an administrator does to simulated queues: change, pause, empty, move aside, send back, grow, fill the disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.broker.queues import Queue
from headrace.broker.redrive import FAILED, REDRIVEN, Order
from headrace.errors import UnknownQueue, UnknownTopic
from simulation.history import require
from simulation.queues.model import QueueModel, sent_back

if TYPE_CHECKING:
    from simulation.queues.campaign import QueueLife

PARTITIONS_MAX = 4
ROOM_WITHIN_S = 30.0
# Those that keep no order of keys: their messages may be moved aside.
MOVABLE = (("kept", "plain"), ("kept", "mortal"), ("kept", "choosy"), ("cached", "mortal"), ("eaten", "plain"))
# A queue that is being purged may settle letters that come back meanwhile, so that one is not among these.
MORTAL = (("kept", "mortal"), ("kept", "ordered"), ("kept", "strict"), ("cached", "mortal"), ("eaten", "plain"))


class QueueAdministrator:
    """The administrator of one life."""

    def __init__(self, life: QueueLife) -> None:
        self._life = life
        self._known = life.known
        self._broker = life.broker
        self._queues = life.broker.queues

    async def administer(self, steps: int) -> None:
        rng = self._life.stream("administrator")
        choices: list[tuple[float, Callable[[random.Random], Awaitable[None]]]] = [
            (0.25, self._configure),
            (0.35, self._pause),
            (0.42, self._purge),
            (0.5, self._trim),
            (0.62, self._park),
            (0.76, self._redrive),
            (0.81, self._grow),
            (1.0, self._recreate),
        ]
        for _ in range(steps):
            await asyncio.sleep(rng.expovariate(1 / 0.05))
            draw = rng.random()
            await self._life.attempt(next(work for bound, work in choices if draw < bound)(rng))

    def _any(self, rng: random.Random) -> tuple[tuple[str, str], QueueModel, Queue]:
        name = rng.choice(list(self._known.queues))
        return name, self._known.queues[name], self._life.queue(*name)

    async def _configure(self, rng: random.Random) -> None:
        _, model, queue = self._any(rng)
        changes: dict[str, object] = {"timeout_ms": rng.choice((200, 300, 500))}
        if not model.settings.get("order_by_key"):
            changes["backoff_ms"] = rng.choice(([], [20], [1, 200]))
        model.start_configure(changes)
        await self._queues.configure(queue, changes)
        model.configure()

    async def _pause(self, rng: random.Random) -> None:
        _, _, queue = self._any(rng)
        await self._queues.pause(queue, True)
        await asyncio.sleep(rng.expovariate(1 / 0.05))
        await self._queues.pause(queue, False)

    async def _purge(self, rng: random.Random) -> None:
        """Everything that was acknowledged before is settled after; what came meanwhile may be."""
        queue, model = self._life.queue("wide", "plain"), self._known.queues["wide", "plain"]
        if rng.random() < 0.5:
            return
        before = dict(self._known.acknowledged)
        model.start_purge(self._known.all_of("wide"))
        try:
            await self._queues.empty(queue)
        except Exception:
            model.stop_purge()
            raise
        model.purge(value for value in self._known.all_of("wide") if value in before)

    async def _trim(self, rng: random.Random) -> None:
        partition = self._life.topic("cached").partitions[0]
        if partition.loaded and rng.random() < 0.3:
            await partition.trim(rng.randint(partition.start, partition.high_watermark))

    async def _park(self, rng: random.Random) -> None:
        """Let stragglers go to the parking of their queue, as `retention=consumed` does where they hold it up."""
        queue = self._life.queue(*rng.choice(MOVABLE))
        lane = rng.randrange(len(queue.topic.partitions))
        if lane in queue.lanes:
            end = rng.randint(0, max(0, queue.lanes[lane].ledger.cursor))
            moved = await self._queues.park_below(queue, lane, end)
            self._life.world.note(f"parked {queue.topic.name}/{queue.name} {lane} {end} {moved}")

    async def _redrive(self, rng: random.Random) -> None:
        """Redrive: a letter that was sent back is a message like any other, of its queue alone."""
        topic, name = rng.choice(MORTAL)
        order = Order(f"{topic}.{name}.dead", limit=rng.choice((1, 3, 1_000)))
        try:
            step = await self._broker.redrive.step(order)
        except UnknownTopic:
            return
        for result in step.results:
            letter = result.letter
            again = sent_back(letter.value, b"%d" % (letter.redriven + 1), name.encode())
            self._life.world.note(f"sent back {again!r} {result.outcome} {result.reason}")
            require(
                self._life.disk_refuses or result.outcome != FAILED,
                f"{again!r} was not sent back: {result.reason}",
            )
            if result.outcome == REDRIVEN:
                require(again not in self._known.acknowledged, f"{again!r} was sent back twice")
                self._known.keys[again] = letter.key
                self._known.acknowledged[again] = None

    async def _grow(self, rng: random.Random) -> None:
        topic = self._life.topic("kept")
        count = len(topic.partitions) + 1
        if count > PARTITIONS_MAX:
            return
        self._known.partitions["kept"] = (count - 1, count)
        await self._broker.topics.grow("kept", count)
        self._known.partitions["kept"] = (count, count)

    async def _recreate(self, rng: random.Random) -> None:
        """A queue that is made and deleted again."""
        name = f"passing-{rng.randrange(3)}"
        there = self._known.passing.get(name, False)
        if there is None:
            # An error came in between; the broker knows.
            there = self._queues.get("kept", name) is not None
        self._known.passing[name] = None
        if there:
            try:
                await self._queues.delete("kept", name)
            except UnknownQueue:
                require(False, f"the queue {name} was made and is not there")
        else:
            await self._queues.ensure(self._life.topic("kept"), name)
        self._known.passing[name] = not there

    async def fill(self) -> None:
        """The disk fills up for a while; when there is room again, queues can be changed again."""
        rng = self._life.stream("full disk")
        await asyncio.sleep(rng.expovariate(1 / 0.2))
        self._life.limit_disk(rng)
        await self._life.free_disk(rng, 0.5)
        if self._life.disk_fails:
            return
        waited = 0.0
        queue = self._life.queue("kept", "plain")
        while not await self._life.attempt(self._queues.pause(queue, False)) or not self._sees_all(queue):
            waited += 0.5
            require(waited < ROOM_WITHIN_S, "the disk has room again, but queues cannot be changed, or do not grow")
            await asyncio.sleep(0.5)

    @staticmethod
    def _sees_all(queue: Queue) -> bool:
        return all(partition.index in queue.lanes for partition in queue.topic.partitions)
