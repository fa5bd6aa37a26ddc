"""The relay in front of a real Apache Kafka: nothing of it is Headrace's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from tests import apache

from headrace.client import EARLIEST, Client
from headrace.client.errors import ProducerFenced
from headrace.outbox import Outbox
from headrace.outbox.errors import RelayFenced
from headrace.outbox.publisher import KafkaPublisher
from headrace.outbox.relay import Relay, Settings
from headrace.outbox.store import Message, Store

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache.running() as address:
        yield address


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = create_engine(f"sqlite:///{tmp_path / 'application.db'}")
    Outbox().create_all(made)
    return made


class Killed(BaseException):
    """Ends a relay where it stands."""


class DyingPublisher(KafkaPublisher):
    """Dies before or behind the first commit of messages, with everything sent."""

    late = False

    async def publish(self, messages: list[Message], position: int, identity: str) -> None:
        if self.late or not messages:
            await super().publish(messages, position, identity)
            if not messages:
                return
            raise Killed
        assert self._producer is not None
        self._producer.begin()
        for each in messages:
            await self._producer.send(each.topic, each.value, partition=each.partition)
        await self._producer.flush()
        raise Killed


def add(engine: Engine, topic: str, values: list[bytes]) -> None:
    with engine.begin() as connection:
        for value in values:
            Outbox().add(connection, topic, value, partition=0)


async def drain(engine: Engine, publisher: KafkaPublisher, name: str) -> None:
    store = Store(engine, Outbox().tables)
    relay = Relay(store, publisher, name, Settings(messages_max=50, poll=0.01, park=True))
    task = asyncio.create_task(relay.run())
    async with asyncio.timeout(60):
        while store.status().waiting:
            if task.done():
                task.result()
            await asyncio.sleep(0.02)
    relay.stop()
    await task


async def committed(client: Client, topic: str) -> list[bytes | None]:
    async with client.consumer(committed=True) as consumer:
        await consumer.assign({(topic, 0): EARLIEST})
        return [record.value async for record in consumer.records(await consumer.end_offsets())]


@pytest.mark.parametrize("late", [False, True])
async def test_each_message_once_whenever_the_relay_dies(kafka: str, engine: Engine, late: bool):
    name = f"orders-{late}"
    values = [b"%d" % number for number in range(300)]
    async with Client(kafka, timeout=10.0) as client:
        await client.admin.create_topic(name, 1)
        add(engine, name, values[:200])
        dying = DyingPublisher(client, name)
        dying.late = late
        with pytest.raises(Killed):
            await Relay(Store(engine, Outbox().tables), dying, name, Settings(messages_max=50))._work()
        add(engine, name, values[200:])
        async with Client(kafka, timeout=10.0) as another:
            await drain(engine, KafkaPublisher(another, name), name)
        # The one that died was only asleep.
        if late:
            with pytest.raises(RelayFenced):
                await KafkaPublisher.publish(dying, [Message(1, name, 0, None, b"late", [], 0)], 1, "")
        else:
            assert dying._producer is not None
            with pytest.raises(ProducerFenced):
                await dying._producer.commit()
        assert await committed(client, name) == values


async def test_what_is_refused_is_parked(kafka: str, engine: Engine):
    async with Client(kafka, timeout=10.0) as client:
        await client.admin.create_topic("small", 1, {"max.message.bytes": "1000"})
        add(engine, "small", [b"1", b"2", b"x" * 2_000, b"3"])
        await drain(engine, KafkaPublisher(client, "small"), "small")
        assert await committed(client, "small") == [b"1", b"2", b"3"]
        [(message, why)] = Store(engine, Outbox().tables).refused(10)
        assert message.id == 3
        assert "MESSAGE_TOO_LARGE" in why
