"""What a handler of exactly-once sends, and what is sent by what it leaves behind."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import SECONDS

from headrace.sdk import PublishFailed

__all__ = ["wire"]


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_sent_after_the_handler_goes_out_by_itself(
    wire: InMemory, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """`begun`: the handler ends while it is being sent."""
    shop = app()
    ended, asked = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def partitions(topic: str) -> int:
        if topic == "late":
            asked.set()
            await ended.wait()
        return 4

    monkeypatch.setattr(wire, "partitions", partitions)

    async def later(raw: bytes) -> None:
        if not begun:
            await ended.wait()
        await shop.publish("late", raw)

    @shop.subscribe("orders", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        left.append(asyncio.create_task(later(raw)))
        if begun:
            await asked.wait()
        await shop.publish("paid", raw)

    async with shop:
        [held] = wire.receivers[0].bring(b"a")
        async with asyncio.timeout(SECONDS):
            while not held.settled:
                await asyncio.sleep(0.001)
            ended.set()
            await asyncio.gather(*left)
    assert [(each.topic, each.value) for each in held.settled[0][1:]] == [("paid", b"a")]
    assert [(each.topic, each.value) for each in wire.sent] == [("late", b"a")]


@pytest.mark.parametrize(
    ("value", "partition"), [(bytes(1_000_000), None), (b"x", 4), (b"x", -1)], ids=["large", "beyond", "before"]
)
async def test_what_a_transaction_cannot_take_is_refused_where_it_is_sent(
    wire: InMemory, value: bytes, partition: int | None
) -> None:
    shop = app()

    @shop.subscribe("orders", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        with pytest.raises(PublishFailed):
            await shop.publish("paid", value, partition=partition)
        await shop.publish("paid", raw)

    async with shop:
        [held] = wire.receivers[0].bring(b"a")
        async with asyncio.timeout(SECONDS):
            while not held.settled:
                await asyncio.sleep(0.001)
    assert [each.value for each in held.settled[0][1:]] == [b"a"]
