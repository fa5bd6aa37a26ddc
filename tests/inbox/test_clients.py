"""The recipes of docs/inbox.md with real clients: each message is delivered again, and takes effect once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.cli.nsq import NsqConsumer
from tests.inbox.conftest import effect, happened, inbox, metadata
from tests.postgres import Postgres

from headrace.embedded import Broker
from headrace.inbox import message_id, nsq_message_id

MESSAGES = [str(number) for number in range(20)]


@pytest.fixture
def filled(headrace_broker: Broker) -> Broker:
    producer = Producer({"bootstrap.servers": headrace_broker.kafka})
    for each in MESSAGES:
        producer.produce("orders", each)
    producer.flush(30)
    return headrace_broker


def take(broker: Broker, count: int, handle: Callable[[str, int, int, str], None], positions: dict) -> int:
    """Handle so many messages as a member of the group, and go without a word. The first offset that came."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            each.offset = positions.get((each.topic, each.partition), each.offset)
        consumer.assign(partitions)

    consumer.subscribe(["orders"], on_assign=assigned)
    first = -1
    try:
        while count:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None, message.error()
            first = message.offset() if first < 0 else first
            handle(message.topic(), message.partition(), message.offset(), message.value().decode())
            count -= 1
    finally:
        consumer.close()
    return first


def test_confluent_kafka(filled: Broker, engine: Engine):
    def handle(topic: str, partition: int, offset: int, value: str) -> None:
        with Session(engine) as session, inbox.at(session, "billing", topic, partition, offset) as fresh:
            if fresh:
                session.execute(effect(value))

    assert take(filled, 12, handle, {}) == 0
    # Nothing was committed at the broker, so all of it comes again...
    assert take(filled, 15, handle, {}) == 0
    assert happened(engine) == MESSAGES[:15]
    # ... except where the database is asked.
    with Session(engine) as session:
        positions = inbox.positions(session, "billing")
    assert take(filled, 5, handle, positions) == 15
    assert happened(engine) == MESSAGES


async def test_aiokafka(filled: Broker, postgres: Postgres):
    engine = create_async_engine(postgres.url(postgres.new_database()))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)

    async def take(last: int, ask: bool) -> list[int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=filled.kafka,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )

        class Assigned(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: list[AioPartition]) -> None:
                pass

            async def on_partitions_assigned(self, assigned: list[AioPartition]) -> None:
                async with AsyncSession(engine) as session:
                    positions = await inbox.positions(session, "billing") if ask else {}
                for each in assigned:
                    if (each.topic, each.partition) in positions:
                        consumer.seek(each, positions[each.topic, each.partition])

        consumer.subscribe(["orders"], listener=Assigned())
        await consumer.start()
        offsets = [-1]
        try:
            while offsets[-1] < last:
                message = await consumer.getone()
                offsets.append(message.offset)
                async with (
                    AsyncSession(engine) as session,
                    inbox.at(session, "billing", message.topic, message.partition, message.offset) as fresh,
                ):
                    if fresh:
                        await session.execute(effect(message.value.decode()))
        finally:
            await consumer.stop()
        return offsets[1:]

    assert await take(11, ask=False) == list(range(12))
    assert await take(14, ask=False) == list(range(15))
    # aiokafka delivers while the listener waits for the database: a few may come before the seek.
    assert (await take(19, ask=True))[-5:] == list(range(15, 20))
    async with engine.connect() as connection:
        assert await connection.run_sync(lambda plain: happened(plain.engine)) == MESSAGES
    await engine.dispose()


@pytest.mark.headrace(nsq="127.0.0.1:0")
def test_a_queue(filled: Broker, engine: Engine):
    def take(count: int, settles: bool) -> list[str]:
        ids = []
        with NsqConsumer(filled.nsq, "orders", "billing") as consumer:
            for _ in range(count):
                delivery, body = consumer.next()
                ids.append(nsq_message_id("orders", delivery))
                with Session(engine) as session, inbox.once(session, "billing", ids[-1]) as fresh:
                    if fresh:
                        session.execute(effect(body.decode()))
                if settles:
                    consumer.say(f"FIN {delivery}")
        return ids

    before = take(20, settles=False)
    assert sorted(take(20, settles=True)) == sorted(before)
    assert sorted(before) == sorted(message_id("orders", 0, offset) for offset in range(20))
    assert sorted(happened(engine)) == sorted(MESSAGES)
