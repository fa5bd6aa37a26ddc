"""Messages whose partition becomes another consumer's while they wait here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.sdk.in_memory import Held, InMemory, Receiver, app, consumer_config, wire
from tests.waiting import SECONDS

import headrace
from headrace.sdk import App, Message, consumer_thread
from headrace.sdk.exactly_once import TransactionalReceiver
from headrace.sdk.kafka import KafkaReceiver
from headrace.sdk.limits import Limits
from headrace.sdk.message import Outgoing
from headrace.sdk.puller import Puller

__all__ = ["wire"]


class Partial(Held):
    """Of a partition that can be taken away."""

    here = True

    def touch(self) -> bool:
        return self.here


def bring(receiver: Receiver, *values: bytes) -> list[Partial]:
    held = [Partial(Message("orders", value, b"key", offset=at)) for at, value in enumerate(values)]
    receiver.deliver(held)
    return held


def take_away(receiver: Receiver, held: list[Partial]) -> None:
    for each in held:
        each.here = False
    receiver.on_revoked()


async def test_what_waits_is_not_handled_after_what_another_has_begun_with(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @shop.subscribe("orders", workers=1, ordered=True)
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        begun.set()
        await go.wait()

    async with shop:
        [receiver] = wire.receivers
        gone = bring(receiver, b"a", b"b", b"c")
        await begun.wait()
        take_away(receiver, gone)
        kept = bring(receiver, b"d")
        go.set()
        async with asyncio.timeout(SECONDS):
            while not kept[0].settled:
                await asyncio.sleep(0.001)
    assert seen == [b"a", b"d"]


async def test_what_fails_is_not_tried_again_after_that(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []

    @shop.subscribe("orders", workers=1, ordered=True, attempts=0, ladder=(0.01,))
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        if raw == b"bad":
            raise ValueError

    async with shop:
        [receiver] = wire.receivers
        gone = bring(receiver, b"bad", b"next")
        async with asyncio.timeout(SECONDS):
            while len(seen) < 3:
                await asyncio.sleep(0.001)
            take_away(receiver, gone)
            tried = len(seen)
            [kept] = bring(receiver, b"other")
            while not kept.settled:
                await asyncio.sleep(0.001)
    assert len([each for each in seen if each == b"bad"]) <= tried + 1
    assert not gone[0].settled
    assert seen[-1] == b"other"


def test_a_consumer_whose_loop_is_gone_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, settings: Mapping[str, Any]) -> None:
            made.append(self)

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *_, **__: []

        def consume(self, *_: Any) -> list[Any]:
            raise RuntimeError("Event loop is closed")

    made: list[Broken] = []
    monkeypatch.setattr(consumer_thread, "Consumer", Broken)
    for kind in (Puller, TransactionalReceiver):
        monkeypatch.setattr(kind, "again_seconds", 0.05)

    async def never() -> list[threading.Thread]:
        async def ensure(message: Outgoing, origin: str) -> None:
            pass

        once = TransactionalReceiver(
            {}, consumer_config("orders", "shop"), lambda found: None, ensure, cast(Limits, None)
        )
        plain = Puller({}, "orders", lambda puller, found: None)
        plain.start(10, 10)
        return [once._thread, plain._thread]

    for thread in asyncio.run(never()):
        thread.join(5)
        assert not thread.is_alive()
    assert len(made) == 2


async def test_a_member_of_another_topic_takes_nothing_away(tmp_path: Path) -> None:
    """All subscriptions of an application are one group: they rebalance together, and go on with what they have."""
    with headrace.Broker(tmp_path) as broker:
        url = f"kafka://{broker.kafka}"
        one = App("shop", url, register=False)
        seen: list[bytes] = []

        @one.subscribe("orders", scenario="ordered")
        async def handle(raw: bytes) -> None:
            seen.append(raw)

        async with one:
            taken: list[bool] = []
            receiver = cast(KafkaReceiver, one.running[0]._receiver)
            sent = 0

            async def send() -> None:
                nonlocal sent
                sent += 1
                await one.publish("orders", b"%d" % sent)
                async with asyncio.timeout(SECONDS):
                    while len(seen) < sent:
                        await asyncio.sleep(0.001)

            await send()
            receiver.on_revoked = lambda: taken.append(True)
            other = App("shop", url, register=False)
            came = asyncio.Event()

            @other.subscribe("invoices", scenario="ordered")
            async def note(raw: bytes) -> None:
                came.set()

            async with other:
                await other.publish("invoices", b"x")
                while not came.is_set():
                    await send()
            for _ in range(20):
                await send()
            assert not taken
    assert seen == [b"%d" % each for each in range(1, sent + 1)]
