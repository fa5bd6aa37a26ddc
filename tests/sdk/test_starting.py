"""The beginning of an application's life, where not all goes well, or everything comes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.sdk.in_memory import InMemory, Receiver, app, wire
from tests.waiting import SECONDS

from headrace.sdk import Unsuited
from headrace.sdk.message import Outgoing, Receipt
from headrace.sdk.system import System
from headrace.sdk.transport import ConsumerConfig, Deliver

__all__ = ["wire"]


async def test_what_is_sent_first_by_several_goes_through_one_line(
    wire: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[InMemory] = []

    class Slow(InMemory):
        async def open(self) -> None:
            await asyncio.sleep(0.01)

        async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
            await asyncio.sleep(0.05)
            return await super().publish(messages, receipts=receipts)

    def make(self: System, wire: str) -> InMemory:
        made.append(Slow())
        return made[-1]

    monkeypatch.setattr(System, "_make", make)
    async with app() as shop:
        sent = await asyncio.gather(*(shop.send("orders", b"%d" % each) for each in range(5)))
        await shop.flush()
        assert all(each.done() for each in sent)
    assert len(made) == 1


async def test_a_start_that_failed_can_be_made_again(wire: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = app()
    seen: list[bytes] = []

    @shop.subscribe("orders")
    async def one(raw: bytes) -> None:
        seen.append(raw)

    @shop.subscribe("bills")
    async def two(raw: bytes) -> None:
        pass

    with monkeypatch.context() as patch:
        first = wire.subscribe

        async def subscribe(config: ConsumerConfig, deliver: Deliver) -> Receiver:
            if config.topic == "bills":
                raise Unsuited("there are no bills")
            return await first(config, deliver)

        patch.setattr(wire, "subscribe", subscribe)
        with pytest.raises(Unsuited):
            await shop.start()
    assert not shop.running
    wire.receivers.clear()
    async with shop:
        assert len(shop.running) == 2
        [held] = wire.receivers[0].bring(b"a")
        async with asyncio.timeout(SECONDS):
            while not held.settled:
                await asyncio.sleep(0.001)
    assert seen == [b"a"]


async def test_a_handler_may_stop_the_application(wire: InMemory) -> None:
    shop = app()
    ended = asyncio.Event()

    @shop.subscribe("orders")
    async def handle(raw: bytes) -> None:
        await shop.stop()
        await shop.publish("done", raw)
        ended.set()

    for _ in range(2):
        ended.clear()
        await asyncio.wait_for(shop.start(), SECONDS)
        [held] = wire.receivers[-1].bring(b"a")
        await asyncio.wait_for(ended.wait(), SECONDS)
        await asyncio.wait_for(shop.stop(), SECONDS)
        assert not shop.running
        assert held.settled == [("ack",)]
        assert wire.receivers[-1].closed


async def test_a_handler_may_end_what_is_served(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders")
    async def handle(raw: bytes) -> None:
        await shop.stop()

    serving = asyncio.create_task(shop.serve())
    async with asyncio.timeout(SECONDS):
        while not wire.receivers:
            await asyncio.sleep(0.001)
        [held] = wire.receivers[0].bring(b"a")
        await serving
    assert held.settled == [("ack",)]
