"""The way to the log, with a real broker: messages and position in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.client import EARLIEST, Client, Record
from headrace.client.coordinator import Coordinator
from headrace.client.errors import UnsupportedApi
from headrace.embedded import Broker
from headrace.format.partitioning import partition_of
from headrace.outbox.errors import InDoubt, MessageRefused, OutboxError, RelayFenced, Unavailable
from headrace.outbox.publisher import KafkaPublisher
from headrace.outbox.store import Message

ME, ANOTHER = "a" * 32, "b" * 32


def message(number: int, value: bytes = b"a hat", topic: str = "orders", **others: object) -> Message:
    given = {"partition": None, "key": None, "headers": [], "added_ms": 1_700_000_000_000, **others}
    return Message(number, topic, value=value, **given)  # type: ignore[arg-type]


@pytest.fixture
async def client(headrace_broker: Broker) -> AsyncIterator[Client]:
    async with Client(headrace_broker.kafka, timeout=3.0) as made:
        await made.admin.create_topic("orders", 3)
        yield made


@pytest.fixture
async def publisher(client: Client) -> AsyncIterator[KafkaPublisher]:
    made = KafkaPublisher(client, "shop")
    await made.start()
    yield made
    await made.close()


async def committed(client: Client, topic: str = "orders") -> list[Record]:
    partitions = (await client.cluster.topic(topic)).partitions
    async with client.consumer(committed=True) as consumer:
        await consumer.assign({(topic, each.index): EARLIEST for each in partitions})
        return [record async for record in consumer.records(await consumer.end_offsets())]


async def test_messages_and_position(client: Client, publisher: KafkaPublisher):
    assert await publisher.position(ME) is None
    headers = [("from", b"shop"), ("none", None)]
    await publisher.publish(
        [message(1, key=b"42", headers=headers), message(2, b"boots", partition=1), message(3, None)],  # type: ignore[arg-type]
        3,
        ME,
    )
    assert await publisher.position(ME) == 3
    found = {record.value: record for record in await committed(client)}
    assert set(found) == {b"a hat", b"boots", None}
    assert found[b"a hat"].partition == partition_of(b"42", 3)
    assert found[b"a hat"][3:] == (1_700_000_000_000, b"42", b"a hat", headers)
    assert found[b"boots"].partition == 1
    await publisher.publish([message(4)], 4, ME)
    assert await publisher.position(ME) == 4


async def test_in_order(client: Client, publisher: KafkaPublisher):
    for start in (0, 300):
        await publisher.publish([message(each, b"%d" % each, partition=0) for each in range(start, start + 300)], 1, ME)
    assert [int(record.value or b"") for record in await committed(client)] == list(range(600))


async def test_a_name_that_is_used_twice(publisher: KafkaPublisher):
    await publisher.publish([message(1)], 1, ANOTHER)
    with pytest.raises(InDoubt, match="another outbox"):
        await publisher.position(ME)
    assert await publisher.position("") == 1


async def test_an_offset_that_no_outbox_has_committed(client: Client, publisher: KafkaPublisher):
    await client.admin.commit("outbox-shop", {("headrace-outbox", 0): 0}, "hello")
    with pytest.raises(InDoubt, match="hello"):
        await publisher.position(ME)


async def test_whoever_begins_shuts_out_the_others(client: Client, publisher: KafkaPublisher):
    await publisher.publish([message(1)], 1, ME)
    heir = KafkaPublisher(client, "shop")
    await heir.start()
    with pytest.raises(RelayFenced):
        await publisher.publish([message(2)], 2, ME)
    assert await heir.position(ME) == 1
    await heir.publish([message(2)], 2, ME)
    await heir.close()
    assert len(await committed(client)) == 2


async def test_what_was_under_way_is_undone(client: Client, publisher: KafkaPublisher):
    """Everything was sent, the position too, and then the process died before the commit."""
    assert publisher._producer is not None
    publisher._producer.begin()
    await publisher._producer.send("orders", b"half")
    await publisher._producer.flush()
    await publisher._producer.send_offsets("outbox-shop", {("headrace-outbox", 0): (0, f"1 {ME}")})
    heir = KafkaPublisher(client, "shop")
    await heir.start()
    assert await heir.position(ME) is None
    await heir.publish([message(1)], 1, ME)
    await heir.close()
    assert [record.value for record in await committed(client)] == [b"a hat"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_message_that_is_too_large(client: Client, publisher: KafkaPublisher, alone: bool):
    """In a batch with others, all of them are suspects."""
    await client.admin.create_topic("small", 2, {"max.message.bytes": "1000"})
    before = [] if alone else [message(2, b"small", "small", partition=0)]
    sent = [message(1), *before, message(3, b"x" * 2_000, "small", partition=0), message(4, b"", "small", partition=1)]
    with pytest.raises(MessageRefused, match=r"max\.message\.bytes") as refused:
        await publisher.publish(sent, 4, ME)
    assert refused.value.suspects == ([3] if alone else [2, 3])
    assert await committed(client) == []
    assert await publisher.position(ME) is None
    await publisher.publish([message(1), message(4, b"", "small")], 2, ME)
    assert len(await committed(client)) == 1


async def test_a_partition_that_is_not_there(client: Client, publisher: KafkaPublisher):
    with pytest.raises(MessageRefused, match="3 partitions") as refused:
        await publisher.publish([message(1), message(2, partition=7), message(3)], 3, ME)
    assert refused.value.suspects == [2]
    assert await committed(client) == []


@pytest.mark.headrace(auto_create_topics=False)
async def test_a_topic_that_is_not_there(client: Client, publisher: KafkaPublisher):
    with pytest.raises(MessageRefused, match="nowhere") as refused:
        await publisher.publish([message(1), message(2, topic="nowhere")], 2, ME)
    assert refused.value.suspects == [2]
    await publisher.publish([message(1)], 1, ME)


async def test_a_broker_without_transactions(client: Client, monkeypatch: pytest.MonkeyPatch):
    async def agree(self: Coordinator) -> None:
        raise UnsupportedApi("this client needs API 24")

    monkeypatch.setattr(Coordinator, "agree", agree)
    with pytest.raises(OutboxError, match="transactions, which this broker has not"):
        await KafkaPublisher(client, "shop").start()


async def test_no_broker():
    async with Client("127.0.0.1:1", timeout=0.3) as client:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await KafkaPublisher(client, "shop").start()
