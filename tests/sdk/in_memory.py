"""A transport inside the test: what was settled, and how, is looked at afterwards."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.sdk import App, Message, transport
from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.scenario import Tuning
from headrace.sdk.system import System
from headrace.sdk.transport import ConsumerConfig, Deliver, Delivery, PublishFailed


def consumer_config(topic: str, group: str, **tuning: Any) -> ConsumerConfig:
    """What a subscription asks for that retries without end, and at once."""
    found = Tuning(**{"attempts": 0, "ladder": (), **tuning})
    return ConsumerConfig(topic, group, found, found.credit)


class Held(Delivery):
    """A delivery that remembers what became of it."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.settled: list[tuple[Any, ...]] = []

    @property
    def identity(self) -> Hashable:
        return id(self)

    def ack(self) -> None:
        self.settled.append(("ack",))

    def ack_with(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        for each in together:
            assert isinstance(each, Held)
            each.settled.append(("ack", *(sent if each is self else ())))

    def retry(self, after: float | None, reason: str) -> None:
        self.settled.append(("retry", after, reason))

    def reject(self, reason: str) -> None:
        self.settled.append(("reject", reason))


class Receiver(transport.Receiver):
    def __init__(self, config: ConsumerConfig, deliver: Deliver, orders: bool = False) -> None:
        super().__init__(config, deliver)
        self.deliver = deliver
        self.orders = orders
        self.credits: list[int] = []
        self.drained = False
        self.closed = False

    def limit(self, credit: int) -> None:
        self.credits.append(credit)

    async def drain(self) -> None:
        self.drained = True

    async def close(self) -> None:
        self.closed = True

    def bring(self, *values: bytes | Message) -> list[Held]:
        """Messages have come."""
        held = [
            Held(value if isinstance(value, Message) else Message(self.config.topic, value, offset=index))
            for index, value in enumerate(values)
        ]
        self.deliver(held)
        return held


class InMemory(transport.Transport):
    """Takes the place of both wires."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.calls: list[int] = []
        self.receivers: list[Receiver] = []
        self.fails: Exception | None = None
        self.orders = False

    async def partitions(self, topic: str) -> int:
        return 4

    async def check(self, message: Outgoing) -> None:
        if len(message.value) > 1_000:
            raise PublishFailed(f"{message.topic} takes up to 1000 bytes")

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        self.calls.append(len(messages))
        if self.fails is not None:
            raise self.fails
        self.sent += messages
        return [Receipt(each.topic, 0, number) for number, each in enumerate(messages)]

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> Receiver:
        receiver = Receiver(config, deliver, self.orders)
        self.receivers.append(receiver)
        return receiver


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    """Every application of the test is connected to this."""
    made = InMemory()
    monkeypatch.setattr(System, "_make", lambda self, wire: made)
    # There is no broker that could keep a registry.
    monkeypatch.setattr(App, "_go_live", AsyncMock(return_value=None))
    return made


def app(**settings: Any) -> App:
    return App("shop.orders", **{"grace": 5.0, **settings})
