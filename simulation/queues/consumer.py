"""Consumers of simulated queues: they settle what they get, sooner or later, or do not."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.broker.queues import Queue
from headrace.broker.queues.delivery import Claimed
from headrace.format import headers as header_names
from simulation.history import Violation, require
from simulation.queues.model import QueueModel, identity

if TYPE_CHECKING:
    from simulation.queues.campaign import QueueLife

# Only what is not due for a while is worth moving to a queue's parking.
DELAYS_MS = (0, 0, 30, 400, 3_000, 20_000)


class QueueConsumer:
    """One consumer."""

    def __init__(self, life: QueueLife, queue: Queue, model: QueueModel, rng: random.Random) -> None:
        self._life = life
        self._model = model
        self._rng = rng
        self.over = False
        self.consumer = queue.subscribe(self, label=f"consumer-{rng.randrange(1000)}")

    def deliver(self, claimed: Claimed) -> None:
        try:
            self._take(claimed)
        except Violation as broken:
            self._life.known.broken = self._life.known.broken or str(broken)
            raise

    def _take(self, claimed: Claimed) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        for offset, attempt, _, key, value, headers in claimed.messages():
            where = (claimed.lane, offset, attempt)
            name = identity(value, headers)
            self._life.world.note(f"deliver {self._model.name} {where} {name!r}")
            only = dict(headers).get(header_names.FOR_QUEUE)
            mine = only is None or only == self._model.name.partition("/")[2].encode()
            require(mine, f"{self._model.name}: {name!r} was sent back to {only!r} alone")
            self._model.deliver(name, key, where, self._life.now_ms())
            loop.call_later(rng.expovariate(1 / 0.02), self._answer, name, where)

    def gone(self, reason: str) -> None:
        self.over = True

    def _answer(self, name: bytes, where: tuple[int, int, int]) -> None:
        if self.over or not self._life.world.machine.alive:
            return
        draw = self._rng.random() if not self._life.last else 1.0
        consumer, model = self.consumer, self._model
        if draw < 0.12:
            delay = self._rng.choice(DELAYS_MS)
            if consumer.requeue(*where, delay, "refused by the consumer"):
                model.requeue(name, self._life.now_ms() + delay if delay else 0)
        elif draw < 0.2:
            consumer.touch(*where)
            asyncio.get_running_loop().call_later(self._rng.expovariate(1 / 0.1), self._answer, name, where)
        elif draw < 0.25:
            # Forgotten: it times out.
            pass
        elif draw < 0.27:
            self.close()
        elif consumer.finish(*where):
            model.finish(name)

    def close(self) -> None:
        self.over = True
        self.consumer.close()
