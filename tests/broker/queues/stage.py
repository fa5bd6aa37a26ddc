"""A consumer that keeps what it gets, and messages for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.queues import Consumer, Queue
from headrace.format import records
from headrace.log.interface import Topic

Headers = list[tuple[str, bytes | None]]


class Keeper:
    """A sink that keeps its deliveries."""

    consumer: Consumer

    def __init__(self) -> None:
        self.got: list[tuple[int, int, int, bytes | None, bytes | None, Headers]] = []
        """Lane, offset, attempt, key, value, headers."""
        self.ended: str | None = None

    def deliver(self, claimed: Any) -> None:
        self.got += [
            (claimed.lane, offset, attempt, key, value, headers)
            for offset, attempt, _, key, value, headers in claimed.messages()
        ]

    def gone(self, reason: str) -> None:
        self.ended = reason

    @property
    def values(self) -> list[bytes | None]:
        return [each[4] for each in self.got]

    def finish(self, *values: bytes) -> None:
        """Settle the last delivery of each value; all that came where none is named."""
        for lane, offset, attempt in self._last(values):
            assert self.consumer.finish(lane, offset, attempt)

    def requeue(self, *values: bytes, delay_ms: int = 0, error: str = "") -> None:
        for lane, offset, attempt in self._last(values):
            assert self.consumer.requeue(lane, offset, attempt, delay_ms, error)

    def _last(self, values: Sequence[bytes]) -> list[tuple[int, int, int]]:
        last = {each[4]: each[:3] for each in self.got}
        return [last[value] for value in values or list(last)]


def consume(queue: Queue, credit: int = 100, **how: Any) -> Keeper:
    """A new consumer with credit."""
    keeper = Keeper()
    keeper.consumer = queue.subscribe(keeper, label="keeper", **how)
    keeper.consumer.ready(credit)
    return keeper


async def publish(
    topic: Topic,
    *values: bytes,
    key: bytes | None = None,
    partition: int = 0,
    headers: Headers | None = None,
    codec: int = 0,
) -> None:
    """One batch."""
    await publish_keyed(topic, [(key, value) for value in values], partition=partition, headers=headers, codec=codec)


async def publish_keyed(
    topic: Topic,
    messages: Sequence[tuple[bytes | None, bytes]],
    *,
    partition: int = 0,
    headers: Headers | None = None,
    codec: int = 0,
) -> None:
    where = topic.partitions[partition]
    if not where.loaded:
        await where.load()
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        assert error is None
        durable.set_result(None)

    batch = records.build([(1_000, key, value, headers or []) for key, value in messages], compression=codec)
    if not where.append(batch, done).durable:
        await durable


async def settled(broker: Broker) -> None:
    """Turn the loop until nothing that could happen at once is left."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
