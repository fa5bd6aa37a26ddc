"""Headrace's own client library in transactions against the simulated broker.

The other transactional clients of the simulator are made by hand. This one is what applications use: it hides retries
and broken connections, and reports of a commit only that it is done, that it can only be aborted, or that it is not
known yet. What it reports goes into the same history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.client import Client
from headrace.client.errors import ClientError, TransactionAbortable, TransactionUnresolved
from headrace.client.send_buffer import Delivery
from headrace.client.transactional import TransactionalProducer
from simulation.history import Place, Violation
from simulation.kafka.client import HOST, PATIENCE_S, PORT
from simulation.transactions.history import Attempt, Owner, Written

if TYPE_CHECKING:
    from simulation.transactions.campaign import TransactionLife

TRANSACTIONAL_ID = "library"
UNRESOLVED_MAX = 50


class TransactionLibrary:
    """A transactional producer of `headrace.client` in one life."""

    def __init__(self, life: TransactionLife, places: list[Place]) -> None:
        self._life = life
        self._places = places
        self._history = life.known.history
        self._name = f"library@{life.world.lives}"
        self._rng = life.stream("library")
        self._number = 0

    async def run(self, steps: int) -> None:
        rng = self._rng
        # One coroutine has all that closes itself: the end of a life closes it as often as it takes.
        async with Client(f"{HOST}:{PORT}", timeout=PATIENCE_S, connect_timeout=PATIENCE_S) as client:
            owner = self._history.claim(TRANSACTIONAL_ID, self._name)
            options = {"linger": rng.choice((0.0, 0.005)), "batch_bytes": rng.choice((200, 4_000))}
            try:
                async with client.transactional(TRANSACTIONAL_ID, transaction_timeout=20.0, **options) as producer:
                    self._history.on_claimed(owner)
                    for number in range(steps // 3):
                        await self._transaction(producer, owner, number)
                        if rng.random() < 0.5:
                            await asyncio.sleep(rng.expovariate(1 / 0.01))
            except ClientError as error:
                self._life.world.note(f"{self._name}: {error!r}")
                if not self._life.disk_refuses:
                    raise Violation(f"{self._name}: {error!r}") from error

    async def _transaction(self, producer: TransactionalProducer, owner: Owner, number: int) -> None:
        attempt = self._history.begin(f"{self._name}.{number}", owner)
        producer.begin()
        try:
            sent = [await self._send(producer, attempt) for _ in range(self._rng.choice((1, 3, 8)))]
            if self._rng.random() < 0.7:
                await producer.flush()
                for written, delivery in sent:
                    self._history.acknowledge(written, (await delivery).offset)
                if self._rng.random() < 0.8:
                    self._history.start_commit(attempt)
                    await self._until_answered(producer.commit)
                    self._history.commit(attempt)
                    return
        except TransactionAbortable as error:
            self._life.world.note(f"{self._name}: {error!r}")
        await self._until_answered(producer.abort)
        self._history.abort(attempt)

    async def _send(self, producer: TransactionalProducer, attempt: Attempt) -> tuple[Written, Delivery]:
        place = self._rng.choice(self._places)
        self._number += 1
        written = self._history.send(attempt, place, f"{attempt.name}/{self._number}", self._number)
        delivery = await producer.send(
            place[0],
            f"{written.value} {'.' * self._rng.choice((0, 100))}".encode(),
            key=written.value.encode(),
            partition=place[1],
            timestamp=self._life.now_ms(),
        )
        return written, delivery

    async def _until_answered(self, end: Callable[[], Awaitable[None]]) -> None:
        # A partition that a failing disk took offline stays so for the rest of this life.
        most = 3 if self._life.disk_fails else UNRESOLVED_MAX
        for _ in range(most):
            try:
                await end()
                return
            except TransactionUnresolved as error:
                self._life.world.note(f"{self._name}: {error!r}")
                await asyncio.sleep(self._rng.expovariate(1 / 0.05))
        raise ClientError(f"an end was not answered {most} times")
