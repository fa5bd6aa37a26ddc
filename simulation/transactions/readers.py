"""Readers of a simulated broker with transactions: of committed records, of all records, and of groups' offsets."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from headrace.client import wire
from simulation.history import Place
from simulation.kafka.client import KafkaClient
from simulation.kafka.reader import SessionReader

if TYPE_CHECKING:
    from simulation.transactions.campaign import TransactionLife


class Reader(SessionReader["TransactionLife"]):
    """A reader of committed records, or of all of them."""

    def on_request(self) -> None:
        history = self._life.known.history
        self._since = {place: history.view(place).stable for place in self._positions}

    def take(self, place: Place, fetched: wire.Fetched, position: int) -> int:
        return self._life.take(place, fetched, position, self._since[place], self._committed)[1]


class GroupOffsetReader:
    """Asks where groups stand, whether a transaction may change that or not."""

    def __init__(self, life: TransactionLife) -> None:
        self._life = life
        self._rng = life.stream("group onlooker")
        self._client = KafkaClient(life, "group-onlooker")

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            copy = self._rng.choice(self._life.known.copies)
            await self._client.attempt(
                partial(self._life.committed_offset, group=copy.group, place=copy.place, stable=False)
            )
            await asyncio.sleep(self._rng.expovariate(1 / 0.02))
        self._client.close()
