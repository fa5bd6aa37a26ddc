"""A client of one cluster: the one object that commands, benchmarks and jobs start from."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.client.admin import Admin
from headrace.client.cluster import Cluster
from headrace.client.credentials import Credentials

if TYPE_CHECKING:
    from headrace.client.consumer import Consumer
    from headrace.client.producer import Producer
    from headrace.client.transactional import TransactionalProducer
    from headrace.client.transactions import Transactions


class Client:
    """Connects to a Kafka cluster: Headrace's, or Apache Kafka's own.

    async with Client("127.0.0.1:9092") as client:
        await client.admin.create_topic("greetings", 3)
        async with client.producer() as producer:
            await producer.send("greetings", b"hello", key=b"k")
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        client_id: str | None = "headrace",
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
    ) -> None:
        self.cluster = Cluster(
            bootstrap,
            tls=tls,
            credentials=credentials,
            client_id=client_id,
            timeout=timeout,
            connect_timeout=connect_timeout,
        )
        self.admin = Admin(self.cluster)

    @cached_property
    def transactions(self) -> Transactions:
        from headrace.client.transactions import Transactions

        return Transactions(self.cluster)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.cluster.close()

    def producer(self, **options: Any) -> Producer:
        """A producer; the options are those of `Producer`."""
        from headrace.client.producer import Producer

        return Producer(self.cluster, **options)

    def transactional(self, transactional_id: str, **options: Any) -> TransactionalProducer:
        """A producer of transactions; the options are those of `TransactionalProducer` and `Producer`."""
        from headrace.client.transactional import TransactionalProducer

        return TransactionalProducer(self.cluster, transactional_id, **options)

    def consumer(self, **options: Any) -> Consumer:
        """A consumer; the options are those of `Consumer`."""
        from headrace.client.consumer import Consumer

        return Consumer(self.cluster, **options)
