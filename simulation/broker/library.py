"""Headrace's own client library against the simulated broker: its retries, its sequence numbers, its reading.

The other producers and readers of the simulator are made by hand, so that they see every answer. These are what
applications use, and hide broken connections: what they deliver must be as good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.client import EARLIEST, Client
from headrace.client.send_buffer import Delivery
from simulation.broker.history import Sent
from simulation.history import Place, require
from simulation.kafka.client import HOST, PATIENCE_S, PORT

if TYPE_CHECKING:
    from simulation.broker.campaign import BrokerLife


class Library:
    """A producer and a consumer of `headrace.client` in one life."""

    def __init__(self, life: BrokerLife, places: list[Place]) -> None:
        self._life = life
        self._places = places
        self._name = f"library{life.world.lives}"
        self._rng = life.stream("library")

    async def run(self, steps: int) -> None:
        async with Client(f"{HOST}:{PORT}", timeout=PATIENCE_S, connect_timeout=PATIENCE_S) as client:
            await self._produce(client, steps)
            await self._consume(client)

    async def _produce(self, client: Client, steps: int) -> None:
        rng = self._rng
        sent: list[tuple[Place, Sent, Delivery]] = []
        linger = rng.choice((0.0, 0.005))
        async with client.producer(linger=linger, batch_bytes=rng.choice((200, 4_000))) as producer:
            for number in range(steps * 2):
                place = rng.choice(self._places)
                record = Sent(f"{self._name}-{number}", self._name, number)
                self._life.histories[place].send(record)
                delivery = await producer.send(
                    place[0],
                    f"{record.value} {'.' * rng.choice((0, 100))}".encode(),
                    partition=place[1],
                    timestamp=self._life.now_ms(),
                )
                sent.append((place, record, delivery))
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.expovariate(1 / 0.005))
                if rng.random() < 0.2:
                    await self._await_deliveries(sent)
            await self._await_deliveries(sent)

    async def _await_deliveries(self, sent: list[tuple[Place, Sent, Delivery]]) -> None:
        for place, record, delivery in sent:
            offset = (await delivery).offset
            self._life.world.note(f"delivered {place} {offset} {record.value}")
            self._life.histories[place].acknowledge(record, offset)
        sent.clear()

    async def _consume(self, client: Client) -> None:
        async with client.consumer(max_wait=0.05, partition_bytes=self._rng.choice((300, 1 << 20))) as consumer:
            await consumer.assign(dict.fromkeys(self._places, EARLIEST))
            until = await consumer.end_offsets()
            async for chunk in consumer.chunks(until):
                history = self._life.histories[chunk.topic, chunk.partition]
                records = [
                    (record.offset, (record.value or b"").decode().partition(" ")[0])
                    for record in consumer.parse(chunk)
                ]
                position = history.read(chunk.offset, records, chunk.high_watermark)
                require(position == chunk.next_offset, f"{history}: {position} is not the next")
