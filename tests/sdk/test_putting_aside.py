"""Messages that go to another topic over Kafka's wire, while the broker is out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sdk.in_memory import consumer_config
from tests.waiting import SECONDS

import headrace
from headrace.client import EARLIEST, Admin, BrokerError, Client, ClientError
from headrace.client.admin import ConfigEntry
from headrace.format.error_codes import ErrorCode
from headrace.sdk import App, Message, Reject, exactly_once
from headrace.sdk.background import BackgroundTasks
from headrace.sdk.exactly_once import Chunk, TransactionalReceiver
from headrace.sdk.kafka import KafkaDelivery, KafkaReceiver, KafkaTransport
from headrace.sdk.limits import Limits
from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.puller import Puller, Track
from headrace.sdk.system import parse
from headrace.sdk.transport import TooLarge


class Cluster:
    """Answers after so many failures."""

    def __init__(self, failures: float) -> None:
        self.failures = failures
        self.sent: list[Outgoing] = []

    async def ensure_aside(self, message: Outgoing, origin: str) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise ClientError("no connection")

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        self.sent += messages
        return [Receipt(each.topic) for each in messages]


class CountingConsumer:
    """In the place of a consumer."""

    settled = 0

    def holds(self, track: Track) -> bool:
        return True

    def settle(self, *_: Any) -> None:
        self.settled += 1


def rejected(cluster: Cluster) -> tuple[KafkaReceiver, CountingConsumer]:
    receiver = KafkaReceiver(cast(KafkaTransport, cluster), consumer_config("orders", "shop"), lambda found: None)
    puller = CountingConsumer()
    message = Message("orders", b"a", partition=0, offset=7)
    KafkaDelivery(receiver, cast(Puller, puller), Track(0), message).reject("no")
    return receiver, puller


async def test_a_message_is_put_aside_when_the_broker_is_back() -> None:
    cluster = Cluster(2)
    receiver, puller = rejected(cluster)
    async with asyncio.timeout(SECONDS):
        while not puller.settled:
            await asyncio.sleep(0.001)
    assert [each.topic for each in cluster.sent] == ["orders.shop.dead"]
    await receiver.close()


async def test_a_stop_does_not_wait_for_ever_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackgroundTasks.finish, "__defaults__", (0.05,))
    receiver, puller = rejected(Cluster(float("inf")))
    await asyncio.sleep(0)
    await asyncio.wait_for(receiver.close(), SECONDS)
    assert not puller.settled


async def test_with_exactly_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(BackgroundTasks.finish, "__defaults__", (0.05,))
    cluster = Cluster(2)
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    config, limits = consumer_config("orders", "shop"), cast(Limits, None)
    receiver = TransactionalReceiver(nowhere, config, lambda found: None, cluster.ensure_aside, limits)
    try:
        chunk = Chunk([Message("orders", b"a")])
        receiver.bury(chunk, Message("orders", b"a"), "no")
        async with asyncio.timeout(SECONDS):
            while not chunk.done.is_set():
                await asyncio.sleep(0.001)
        cluster.failures = float("inf")
        receiver.bury(Chunk([Message("orders", b"a")]), Message("orders", b"b"), "no")
        await asyncio.sleep(0)
    finally:
        await asyncio.wait_for(receiver.close(), SECONDS)


async def test_what_is_too_large_for_its_topic_goes_to_the_letters_and_then_without_its_value() -> None:
    class Small(Cluster):
        async def ensure_aside(self, message: Outgoing, origin: str) -> None:
            if message.value:
                raise TooLarge(f"{message.topic} takes up to 10 bytes", message, 161)

    cluster = Small(0)
    config = consumer_config("orders", "shop", attempts=3, ladder=(0.0,))
    receiver = KafkaReceiver(cast(KafkaTransport, cluster), config, lambda found: None)
    puller = CountingConsumer()
    message = Message("orders", bytes(100), b"key", {"own": b"header"}, 0, 7)
    KafkaDelivery(receiver, cast(Puller, puller), Track(0), message).retry(None, "not yet")
    async with asyncio.timeout(SECONDS):
        while not puller.settled:
            await asyncio.sleep(0.001)
    [letter] = cluster.sent
    assert (letter.topic, letter.value, letter.key) == ("orders.shop.dead", b"", None)
    assert letter.headers["headrace-error"] == (
        b"the value (100 bytes) is at orders/0/7 only, because orders.shop.dead takes up to 10 bytes: "
        b"cannot be tried again: orders.shop.retry takes up to 10 bytes"
    )
    # Redrive would send back an empty message.
    assert "headrace-origin-queue" not in letter.headers
    assert "own" not in letter.headers
    await receiver.close()


async def test_what_is_for_one_instance_alone_is_tried_again_there() -> None:
    came: list[KafkaDelivery] = []
    config = consumer_config("orders", "shop", private=True, attempts=3, ladder=(0.0, 0.01))
    receiver = KafkaReceiver(cast(KafkaTransport, Cluster(0)), config, lambda found: came.extend(cast(Any, found)))
    puller = CountingConsumer()
    message = Message("orders", b"a", partition=0, offset=7)
    came.append(KafkaDelivery(receiver, cast(Puller, puller), Track(0), message))
    attempts = []
    async with asyncio.timeout(SECONDS):
        while not puller.settled:
            while not came:
                await asyncio.sleep(0.001)
            delivery = came.pop()
            attempts.append(delivery.message.attempt)
            delivery.retry(None, "not yet")
    assert attempts == [1, 2, 3]
    assert puller.settled == 1
    await receiver.close()


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_topic_of_what_is_put_aside_is_made_to_take_it(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """Also where the broker, when it is asked just afterwards, still says what was before."""
    settings: list[str] = []

    class Slow:
        async def ensure_topic(self, *_: Any) -> None:
            """It exists."""

        async def topic_config(self, topic: str) -> list[Any]:
            return [ConfigEntry("max.message.bytes", "1000", False, None)]

        async def alter_topic_config(self, topic: str, settings_: dict[str, str]) -> None:
            if not allowed:
                raise BrokerError(ErrorCode.topic_authorization_failed, topic)
            settings.append(f"{topic} {settings_['max.message.bytes']}")

    async def partitions(topic: str) -> int:
        return 1

    transport = KafkaTransport(parse("kafka://127.0.0.1:1"), "shop")
    admin = cast(Admin, Slow())
    transport._client = cast(Client, SimpleNamespace(admin=admin))
    transport._limits = Limits(admin)
    monkeypatch.setattr(transport, "partitions", partitions)
    # It was written when the topic took more.
    large = Outgoing("orders.shop.dead", bytes(100_000))
    if allowed:
        await transport.ensure_aside(large, "orders")
        assert settings == ["orders.shop.dead 66536", f"orders.shop.dead {100_000 + 72 + 65_536}"]
    else:
        with pytest.raises(TooLarge, match="takes messages of up to 1000 bytes"):
            await transport.ensure_aside(large, "orders")


@pytest.mark.parametrize("scenario", ["task", "exactly-once"])
async def test_the_largest_message_can_be_put_aside(tmp_path: Path, scenario: str) -> None:
    with headrace.Broker(tmp_path) as broker:
        shop = App("shop", f"kafka://{broker.kafka}", register=False)

        @shop.subscribe("orders", scenario=scenario)
        async def handle(raw: bytes) -> None:
            raise Reject("no" * 5_000)

        async with shop:
            await shop.publish("orders", bytes(1_048_000))
            async with asyncio.timeout(SECONDS), Client(broker.kafka) as client:
                found: list[int] = []
                while not found:
                    await asyncio.sleep(0.05)
                    try:
                        await client.cluster.topic("orders.shop.dead")
                    except ClientError:
                        continue
                    async with client.consumer(committed=True) as consumer:
                        await consumer.assign({("orders.shop.dead", 0): EARLIEST})
                        ends = await consumer.end_offsets()
                        found = [len(each.value or b"") async for each in consumer.records(ends)]
    assert found == [1_048_000]
