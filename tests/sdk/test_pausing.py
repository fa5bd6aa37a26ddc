"""Subscriptions that are paused, over both wires: what they have fetched is neither lost nor handled twice."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waiting import until

import headrace
from headrace.client import Client
from headrace.sdk import App, Message


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, for its application and its topic."""
    return "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


async def test_what_waits_through_a_pause_is_neither_lost_nor_delivered_twice(
    broker: headrace.Broker, fresh: str
) -> None:
    shop = App(fresh, broker.url)
    seen: list[tuple[bytes, int]] = []

    @shop.subscribe(fresh, timeout=2.0, workers=1, attempts=3)
    async def handle(raw: bytes, message: Message) -> None:
        seen.append((raw, message.attempt))

    async with shop:
        [running] = shop.running
        running.change(running.tuning.changed({"rate": 10.0}))
        for number in range(30):
            await shop.publish(fresh, b"%d" % number)
        await until(lambda: len(seen) >= 3)
        running.change(running.tuning, paused=True)
        done = len(seen)
        assert running.waiting > 10
        # Twice as long as a message may stay unsettled.
        await asyncio.sleep(4.2)
        assert len(seen) == done
        running.change(running.tuning.changed({"rate": 0.0}))
        await until(lambda: len(seen) >= 30)
        await asyncio.sleep(0.2)
    assert sorted(seen) == sorted((b"%d" % number, 1) for number in range(30))


async def test_what_was_taken_back_meanwhile_is_not_handled_here_too(broker: headrace.Broker, fresh: str) -> None:
    shop = App(fresh, broker.url)
    seen: list[tuple[bytes, int]] = []

    @shop.subscribe(fresh, timeout=1.0)
    async def handle(raw: bytes, message: Message) -> None:
        seen.append((raw, message.attempt))

    async with shop:
        [running] = shop.running
        running.change(running.tuning, paused=True)
        # As it was when the pause came: fetched, and not begun.
        receiver: Any = running._receiver
        receiver.limit(10)
        for number in range(5):
            await shop.publish(fresh, b"%d" % number)
        await until(lambda: running.waiting == 5)
        receiver.limit(0)
        held: list[Any] = list(running._ready)
        # Nobody says that it is still wanted, as in a process that was stopped for a while.
        assert running._keeping is not None
        running._keeping.cancel()
        await asyncio.sleep(1.5)
        for each in held:
            each.touch()
        await until(lambda: len(receiver._taken_back) == 5)
        running.change(running.tuning)
        await until(lambda: len(seen) >= 5)
        await asyncio.sleep(0.2)
    assert sorted(seen) == [(b"%d" % number, 2) for number in range(5)]


@pytest.mark.parametrize("several", [False, True])
async def test_what_went_to_another_instance_in_a_pause_is_not_handled_here_too(
    broker: headrace.Broker, fresh: str, several: bool
) -> None:
    seen: list[list[int]] = [[], []]
    apps = [App(fresh, f"kafka://{broker.kafka}", register=False) for _ in range(2)]
    for shop, mine in zip(apps, seen, strict=True):

        async def handle(number: int, mine: list[int] = mine) -> None:
            mine.append(number)

        async def handle_all(numbers: list[int], mine: list[int] = mine) -> None:
            mine += numbers

        shop.subscribe(fresh, scenario="stream", batch=10)(handle_all if several else handle)
    async with Client(broker.kafka) as client:
        await client.admin.create_topic(fresh, 4)
    async with apps[0] as one:
        [running] = one.running
        receiver: Any = running._receiver
        running.change(running.tuning, paused=True)
        # As it was when the pause came: fetched, and not begun.
        receiver.limit(1_000)
        for number in range(100):
            await one.publish(fresh, number, partition=number % 4)
        await until(lambda: running.waiting == 100)
        receiver.limit(0)
        async with apps[1]:
            await until(lambda: len(seen[1]) == 50)
            running.change(running.tuning)
            await until(lambda: len(seen[0]) >= 50)
            await until(lambda: running.waiting == 0)
            # What was let go does not count against the credit.
            assert receiver._pullers[0]._fetched == receiver._pullers[0]._through
    assert sorted(seen[0] + seen[1]) == list(range(100))
