"""A transport inside the test: what was settled, and how, is looked at afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.sdk import App, Message
from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.system import System
from headrace.sdk.transport import ConsumerConfig, Deliver, PublishFailed


@dataclass
class Held:
    """A delivery that remembers what became of it."""

    message: Message
    settled: list[tuple[Any, ...]] = field(default_factory=list)

    def ack(self, sent: Sequence[Outgoing] = ()) -> None:
        self.settled.append(("ack", *sent))

    def retry(self, after: float | None, reason: str) -> None:
        self.settled.append(("retry", after, reason))

    def reject(self, reason: str) -> None:
        self.settled.append(("reject", reason))


@dataclass
class Receiver:
    deliver: Deliver
    config: ConsumerConfig
    orders: bool = False
    credits: list[int] = field(default_factory=list)
    drained: bool = False
    closed: bool = False

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


class InMemory:
    """Takes the place of both wires."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.calls: list[int] = []
        self.receivers: list[Receiver] = []
        self.fails: Exception | None = None
        self.orders = False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

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
        receiver = Receiver(deliver, config, self.orders)
        self.receivers.append(receiver)
        return receiver


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    """Every application of the test is connected to this."""
    transport = InMemory()
    monkeypatch.setattr(System, "_make", lambda self, wire: transport)
    # There is no broker that could keep a registry.
    monkeypatch.setattr(App, "_go_live", AsyncMock(return_value=None))
    return transport


def app(**settings: Any) -> App:
    return App("shop.orders", **{"grace": 5.0, **settings})
