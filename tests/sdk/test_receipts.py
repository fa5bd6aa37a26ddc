"""What `publish` gives back, delays of any length, and messages that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import until

import headrace
from headrace.client import EARLIEST, Client
from headrace.sdk import App, Message, Receipt, Unsuited, UnsupportedPublish
from headrace.sdk.message import Outgoing
from headrace.sdk.system import System
from headrace.sdk.testing import Harness

__all__ = ["wire"]

YEAR = 365 * 86_400


@pytest.fixture(scope="module")
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker(num_partitions=3) as running:
        yield running


@pytest.mark.parametrize("kind", ["headrace", "kafka", "memory"])
async def test_a_receipt_says_where_the_message_is(broker: headrace.Broker, kind: str) -> None:
    urls = {"headrace": broker.url, "kafka": f"kafka://{broker.kafka}", "memory": "memory://receipts?partitions=3"}
    topic = f"placed-{kind}"
    shop = App("shop", urls[kind], register=False)
    came: dict[str, bytes] = {}

    @shop.subscribe(topic)
    async def handle(raw: bytes, message: Message) -> None:
        came[message.id] = raw

    async with shop:
        sent = [await shop.send(topic, b"%d" % each, key=each) for each in range(20)]
        # What is sent as one has no receipts, and does not disturb those of others.
        together = asyncio.ensure_future(shop.publish_batch(topic, [b"a", b"b", b"c"], keys=[1, 2, 3]))
        sent += [await shop.send(topic, b"%d" % each, key=each) for each in range(20, 40)]
        receipts = [await each for each in sent]
        await together
        await until(lambda: len(came) == 43)
    assert [came[each.id] for each in receipts] == [b"%d" % each for each in range(40)]
    assert {each.partition for each in receipts} == {0, 1, 2}
    assert {each.timer for each in receipts} == {""}


@pytest.mark.parametrize("url", ["headrace", "memory://cancelled"])
async def test_a_delayed_message_can_be_cancelled(broker: headrace.Broker, url: str) -> None:
    async with App("shop", broker.url if url == "headrace" else url, register=False) as shop:
        later = await shop.publish("reminders", b"x", delay=timedelta(hours=30))
        assert (later.topic, later.id) == ("reminders", "")
        assert later.timer
        assert await shop.cancel(later)
        assert not await shop.cancel(later)
        # Of what was stored elsewhere.
        other = await shop.publish("reminders", b"y", delay=60)
        assert await shop.cancel(Receipt("reminders", timer=other.timer))
        with pytest.raises(ValueError, match="has no timer"):
            await shop.cancel(await shop.publish("reminders", b"z"))


async def test_a_delay_may_be_of_years_and_not_beyond_the_timer(broker: headrace.Broker) -> None:
    async with App("shop", broker.url, register=False) as shop:
        for delay in (3_601, 20 * YEAR):
            assert await shop.cancel(await shop.publish("far", b"x", delay=delay))
        with pytest.raises(UnsupportedPublish, match=r"25 years at most \(got 946080000.0 s\)"):
            await shop.publish("far", b"x", delay=30 * YEAR)


def test_the_sync_face_has_both(broker: headrace.Broker) -> None:
    with App("shop", broker.url, register=False).blocking() as shop:
        later = shop.publish("sync", b"x", delay=90)
        assert shop.cancel(later)
        assert shop.publish("sync", b"y", key="k").id.startswith("sync/")


async def test_kafka_has_nothing_to_cancel(broker: headrace.Broker) -> None:
    async with App("shop", f"kafka://{broker.kafka}", register=False) as shop:
        with pytest.raises(Unsuited, match="has no timer"):
            await shop.cancel(Receipt("t", timer="1"))


async def test_in_a_test_a_message_is_cancelled_too() -> None:
    shop = App("shop", "memory://unused")
    came: list[bytes] = []

    @shop.subscribe("orders")
    async def handle(raw: bytes) -> None:
        came.append(raw)

    async with Harness(shop) as harness:
        first = await harness.publish("orders", b"first", delay=5)
        await harness.publish("orders", b"second", delay=timedelta(seconds=6))
        assert await shop.cancel(first)
        await harness.advance(10)
    assert came == [b"second"]


# --- what can never be sent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["task", "ordered", "exactly-once"])
async def test_a_handler_that_wants_what_the_system_cannot_do_is_not_tried_again(
    broker: headrace.Broker, scenario: str
) -> None:
    shop = App("shop", f"kafka://{broker.kafka}", register=False)
    tried: list[int] = []
    topic = f"delays-{scenario}"

    @shop.subscribe(topic, scenario=scenario, ladder=(0.01,))
    async def handle(raw: bytes) -> None:
        tried.append(1)
        await shop.publish("reminders", raw, delay=60)

    async with shop:
        await shop.publish(topic, b"x", key="k")
        async with Client(broker.kafka) as client:
            while f"{topic}.shop.dead" not in await client.cluster.refresh(None):
                await asyncio.sleep(0.02)
            async with client.consumer() as consumer:
                places = range(len((await client.cluster.topic(f"{topic}.shop.dead")).partitions))
                await consumer.assign({(f"{topic}.shop.dead", each): EARLIEST for each in places})
                while not (found := [each async for each in consumer.records(await consumer.end_offsets())]):
                    await asyncio.sleep(0.02)
    assert len(tried) == 1
    reason = dict(found[0].headers)["headrace-error"].decode()
    assert reason.startswith("UnsupportedPublish: reminders: ")


# --- flush ------------------------------------------------------------------------------------------------------------


async def test_a_flush_waits_for_a_wire_that_is_opened_meanwhile(
    wire: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = {"kafka": asyncio.Event(), "nsq": asyncio.Event()}
    out: list[bytes] = []

    class Slow(InMemory):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def publish(self, messages: list[Outgoing], *, receipts: bool = False) -> list[Receipt]:  # type: ignore[override]
            await go[self.name].wait()
            out.extend(each.value for each in messages)
            return [Receipt(each.topic) for each in messages]

    monkeypatch.setattr(System, "_make", lambda self, wire: Slow(wire))
    async with app() as shop:
        await shop.send("orders", b"now")
        flushing = asyncio.create_task(shop.flush())
        await asyncio.sleep(0)
        # The first delayed message opens the other wire while the flush waits for the first.
        await shop.send("orders", b"later", delay=5)
        go["kafka"].set()
        await until(lambda: out == [b"now"])
        for _ in range(20):
            await asyncio.sleep(0)
        assert not flushing.done()
        go["nsq"].set()
        await flushing
    assert out == [b"now", b"later"]
