"""Topics to read: made and filled by a Kafka client, looked at by ours."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client import Client

T = TypeVar("T")


async def decided(client: Client) -> None:
    """Wait until readers know of all that was committed: Apache Kafka answers a commit before the partitions do."""
    while await client.transactions.list_all(states=["PrepareCommit", "PrepareAbort"]):
        await asyncio.sleep(0.01)


class Topics:
    """The topics of one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._numbers = itertools.count()

    def create(self, partitions: int = 1, **config: str) -> str:
        """A new topic's name."""
        name = f"events-{next(self._numbers)}"
        # Records have times of long ago here, and would go whenever retention comes by.
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.address})
        for future in admin.create_topics([NewTopic(name, partitions, config=settings)]).values():
            future.result(10)
        return name

    def fill(
        self, topic: str, values: Iterable[bytes], *, partition: int = 0, codec: str = "none", **more: object
    ) -> None:
        producer = Producer({"bootstrap.servers": self.address, "compression.type": codec, "linger.ms": 5})
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
            producer.poll(0)
        assert producer.flush(20) == 0

    def ask(self, what: Callable[[Client], Awaitable[T]]) -> T:
        """Ask the broker through our own client."""

        async def asking() -> T:
            async with Client(self.address) as client:
                return await what(client)

        return asyncio.run(asking())

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        found = self.ask(lambda client: client.admin.committed(group))
        return {partition: entry.offset for partition, entry in found.items()}
