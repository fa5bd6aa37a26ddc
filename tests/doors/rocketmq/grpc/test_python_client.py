"""RocketMQ's own Python client, unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc
from tests.doors.rocketmq.grpc.test_send import read_all
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.messages import read_properties


class Maker:
    """Makes clients, and stops them."""

    def __init__(self, rocketmq: ModuleType, address: str) -> None:
        self.api = rocketmq
        self._configuration = rocketmq.ClientConfiguration(address, rocketmq.Credentials(), request_timeout=30)
        self._started: list[Any] = []

    def start(self, kind: str, *arguments: Any, **more: Any) -> Any:
        client = getattr(self.api, kind)(self._configuration, *arguments, **more)
        client.startup()
        self._started.append(client)
        return client

    def message(self, topic: str, body: bytes, **fields: Any) -> Any:
        message = self.api.Message()
        message.topic, message.body = topic, body
        for name, value in fields.items():
            setattr(message, name, value)
        return message

    def stop(self) -> None:
        for client in self._started:
            client.shutdown()


@pytest.fixture
def own_loop() -> Iterator[None]:
    """A loop for the thread of the test: the client asks asyncio for one, as at the start of a program, and a test that
    ran before may have left none."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def maker(rocketmq: ModuleType, broker: headrace.Broker, own_loop: None) -> Iterator[Maker]:
    made = Maker(rocketmq, broker.rocketmq_grpc)
    yield made
    made.stop()


def test_every_kind_of_message(maker: Maker, raw: Raw, topic: str) -> None:
    producer = maker.start("Producer", (topic,))
    normal = maker.message(topic, b"normal", tag="red", keys="k")
    normal.add_property("color", "blue")
    receipt = producer.send(normal)
    (found,) = read_all(raw, topic)
    properties = read_properties(found.properties)
    assert (found.body, properties["TAGS"], properties["KEYS"], properties["color"]) == (b"normal", "red", "k", "blue")
    assert properties["UNIQ_KEY"] == receipt.message_id
    producer.send(maker.message(topic, b"fifo", message_group="g"))
    producer.send_async(maker.message(topic, b"async")).result(30)
    due = int(time.time()) + 2
    producer.send(maker.message(topic, b"later", delivery_timestamp=due))
    recalled = producer.send(maker.message(topic, b"recalled", delivery_timestamp=due))
    assert producer.recall_message(topic, recalled.recall_handle) == recalled.message_id
    wait_until(lambda: len(read_all(raw, topic)) == 4)
    assert {each.body for each in read_all(raw, topic)} == {b"normal", b"fifo", b"async", b"later"}


def test_transactions_end_or_are_asked_about(maker: Maker, raw: Raw, topic: str) -> None:
    resolution = maker.api.TransactionResolution

    class Checker(maker.api.TransactionChecker):  # type: ignore[misc, name-defined]
        def check(self, message: Any) -> Any:
            return resolution.COMMIT if message.body == b"asked" else resolution.ROLLBACK

    producer = maker.start("Producer", (topic,), Checker())
    for body in (b"committed", b"rolled back", b"asked", b"given up"):
        transaction = producer.begin_transaction()
        producer.send(maker.message(topic, body), transaction)
        if body == b"committed":
            transaction.commit()
        elif body == b"rolled back":
            transaction.rollback()
    wait_until(lambda: len(read_all(raw, topic)) == 2)
    assert {each.body for each in read_all(raw, topic)} == {b"committed", b"asked"}


def test_simple_consumer(maker: Maker, topic: str, group: str) -> None:
    producer = maker.start("Producer", (topic,))
    for number in range(6):
        producer.send(maker.message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd"))
    expression = maker.api.FilterExpression("even")
    consumer = maker.start("SimpleConsumer", group, {topic: expression}, await_duration=5)
    found: list[bytes] = []

    def receive() -> bool:
        for message in consumer.receive(4, 15):
            if message.body == b"2" and message.delivery_attempt == 1:
                consumer.change_invisible_duration(message, 1)
            else:
                found.append(message.body)
                consumer.ack(message)
        return len(found) == 3

    wait_until(receive)
    assert sorted(found) == [b"0", b"2", b"4"]


def test_priorities(maker: Maker, raw: Raw, topic: str, group: str) -> None:
    fields = {
        "topic": topic,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "attributes": "+message.type=PRIORITY",
    }
    raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields)
    producer = maker.start("Producer", (topic,))
    for priority in (0, 2, 1):
        producer.send(maker.message(topic, b"%d" % priority, priority=priority))
    consumer = maker.start("SimpleConsumer", group, {topic: maker.api.FilterExpression("*")}, await_duration=5)
    found: list[Any] = []
    while len(found) < 3:
        found += consumer.receive(8, 15)
    assert [(each.body, each.priority) for each in found] == [(b"2", 2), (b"1", 1), (b"0", 0)]


def test_push_consumer(maker: Maker, topic: str, group: str) -> None:
    result = maker.api.ConsumeResult
    found: list[tuple[bytes, int]] = []

    class Listener(maker.api.MessageListener):  # type: ignore[misc, name-defined]
        def consume(self, message: Any) -> Any:
            found.append((message.body, message.delivery_attempt))
            return result.FAILURE if message.body == b"again" and message.delivery_attempt == 1 else result.SUCCESS

    maker.start("PushConsumer", group, Listener(), {topic: maker.api.FilterExpression("*")})
    producer = maker.start("Producer", (topic,))
    for body in (b"one", b"again", b"two"):
        producer.send(maker.message(topic, body))
    wait_until(lambda: len(found) == 4)
    assert sorted(found) == [(b"again", 1), (b"again", 2), (b"one", 1), (b"two", 1)]


def test_a_client_that_ends_is_forgotten(maker: Maker, broker: headrace.Broker, topic: str) -> None:
    producer = maker.start("Producer", (topic,))
    client_id = producer.client_id
    metadata = (("x-mq-client-id", client_id),)
    with RawGrpc(broker.rocketmq_grpc) as raw_client:
        wait_until(lambda: raw_client.ask("Heartbeat", metadata, client_type=1).status.code == 20000)
        maker.stop()
        maker._started.clear()
        assert raw_client.ask("Heartbeat", metadata, client_type=1).status.code == 40015
