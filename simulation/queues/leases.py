"""Leased consumers of simulated queues: they settle by handles, also by those of an earlier life of the broker."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.broker.queues import Lease, Queue, Wanted
from headrace.errors import TooManyLeases
from headrace.format.records import Record
from simulation.history import Violation
from simulation.queues.model import Held, QueueModel, identity

if TYPE_CHECKING:
    from simulation.queues.campaign import QueueLife

# Shorter than a life, and longer.
INVISIBLE_MS = (30, 300, 2_000, 60_000)


class LeasedConsumer:
    """One client of a group, without a connection."""

    def __init__(self, life: QueueLife, queue: Queue, model: QueueModel, rng: random.Random) -> None:
        self._life = life
        self._queue = queue
        self._model = model
        self._rng = rng

    async def run(self) -> None:
        """Receive some, as long as the campaign wants."""
        rng = self._rng
        for _ in range(4):
            wanted = Wanted(rng.choice((1, 3, 20)), rng.choice(INVISIBLE_MS), self._accept, in_order=rng.random() < 0.2)
            try:
                leases = await self._queue.leases.receive(wanted, rng.choice((0, 50, 400)))
            except TooManyLeases:
                leases = []
            try:
                self._take(leases)
            except Violation as broken:
                self._life.known.broken = self._life.known.broken or str(broken)
                raise
            await asyncio.sleep(rng.expovariate(1 / 0.05))

    def _accept(self, record: Record) -> bool:
        self._model.start_lease(identity(record[3], record[4]))
        return True

    def _take(self, leases: list[Lease]) -> None:
        for handle, (offset, _, key, value, headers) in leases:
            name = identity(value, headers)
            self._life.world.note(f"lease {self._model.name} {handle} {name!r}")
            where = (handle.lane, offset, handle.attempt)
            self._model.deliver(name, key, where, self._life.now_ms(), is_counted=True)
            held = self._model.hold(name, handle)
            asyncio.get_running_loop().call_later(self._rng.expovariate(1 / 0.05), self._answer, held)

    def _answer(self, held: Held) -> None:
        life = self._life
        if not life.world.machine.alive or life.broker_stopped:
            return
        try:
            answer(life, self._queue, self._model, self._rng, held)
        except Violation as broken:
            life.known.broken = life.known.broken or str(broken)
            raise


def answer(life: QueueLife, queue: Queue, model: QueueModel, rng: random.Random, held: Held) -> None:
    """Do something with a handle, be it stale or not, and keep it for later."""
    draw = rng.random() if not life.last else 1.0
    handle, now = held.handle, life.now_ms()
    life.world.note(f"answer {model.name} {handle} {held.value!r} {draw:.2f}")
    if draw < 0.1:
        delay = rng.choice((0, 30, 3_000))
        if model.check_taken(held, queue.leases.give_back(handle, delay, "given back"), now):
            model.requeue(held.value, now + delay if delay else 0, handle.attempt)
    elif draw < 0.3:
        invisible = rng.choice(INVISIBLE_MS)
        changed = queue.leases.extend(handle, invisible)
        if model.check_taken(held, changed is not None, now) and changed is not None:
            model.hold(held.value, changed)
    elif draw < 0.45:
        # Forgotten: its lease ends.
        pass
    elif model.check_taken(held, not queue.leases.finish_many([handle]), now):
        model.finish(held.value)


async def answer_late(life: QueueLife) -> None:
    """Use handles that clients kept, of earlier lives too."""
    rng = life.stream("late answers")
    for name, model in life.known.queues.items():
        kept = model.handles()
        for held in rng.sample(kept, min(len(kept), 6)):
            await asyncio.sleep(rng.expovariate(1 / 0.02))
            answer(life, life.queue(*name), model, rng, held)
