"""The harness for users' tests: what a test sees of applications, and a time that moves when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.sdk.in_memory import consumer_config

from headrace.format.partitioning import partition_of
from headrace.sdk import App, Message, PublishFailed, Reject, Retry, Unsuited
from headrace.sdk.memory import ManualClock, MemoryBroker, MemoryDelivery, MemoryReceiver, remove_broker
from headrace.sdk.message import Outgoing
from headrace.sdk.scenario import NSQ
from headrace.sdk.testing import Harness

# Nothing listens there: what went anywhere else than to the harness would fail.
NOWHERE = "headrace://127.0.0.1:1"


@dataclass
class Order:
    id: int
    item: str = "tea"


def outcomes(harness: Harness) -> list[tuple[bytes, int, str]]:
    return [(each.message.value, each.message.attempt, each.outcome) for each in harness.handled]


async def test_what_came_of_a_message_is_seen() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    async def pay(order: Order, message: Message) -> None:
        if order.item == "sand":
            raise Reject("not sold here")
        await shop.publish("paid", order, key=str(order.id), headers={"of": message.key or b""})

    async with Harness(shop) as harness:
        await harness.publish("orders", Order(1), key="k")
        await harness.publish("orders", Order(2, "sand"), headers={"trace": "t"})
        await harness.publish("orders", b"{")
        await harness.publish("paid", b"by somebody else")
        await harness.settled()
        assert harness.sent("paid", Order) == [Order(1)]
        [message] = harness.sent("paid")
        assert (message.key, message.headers["of"], message.offset) == (b"1", b"k", 0)
        sand, bad = harness.dead("orders")
        assert (sand.message.value, sand.reason, sand.group) == (b'{"id":2,"item":"sand"}', "not sold here", "shop")
        assert (sand.message.topic, sand.message.offset, sand.message.attempt) == ("orders", 1, 1)
        assert sand.message.headers["trace"] == b"t"
        assert not any(name.startswith("headrace-") for name in sand.message.headers)
        assert "not a Order" in bad.reason
        assert harness.dead("orders", "shop") == [sand, bad]
        assert harness.dead("orders", "other") == harness.dead("paid") == []
        assert [each.outcome for each in harness.handled] == ["ack", "reject", "reject"]
    assert shop.url == NOWHERE


async def test_retries_come_when_time_passes_each_at_its_time() -> None:
    shop = App("shop", NOWHERE)
    came: list[tuple[int, float]] = []

    @shop.subscribe("orders", attempts=4, ladder=(1.0, 60.0))
    async def pay(raw: bytes, message: Message) -> None:
        came.append((message.attempt, harness.now - began))
        raise RuntimeError("closed")

    async with Harness(shop) as harness:
        began = harness.now
        await harness.publish("orders", b"x")
        await harness.settled()
        assert came == [(1, 0.0)]
        await harness.advance(0.5)
        assert len(came) == 1
        await harness.advance(3_600)
        assert [(attempt, round(at, 3)) for attempt, at in came] == [(1, 0.0), (2, 1.0), (3, 61.0), (4, 121.0)]
        assert round(harness.now - began, 3) == 3_600.5
        [letter] = harness.dead("orders")
        assert (letter.message.attempt, letter.reason) == (4, "RuntimeError: closed")


async def test_a_retry_that_says_when() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    async def pay(raw: bytes, message: Message) -> Any:
        return Retry("later", after=30) if message.attempt == 1 else None

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await harness.advance(29.9)
        assert outcomes(harness) == [(b"x", 1, "retry")]
        assert harness.handled[0].reason == "later"
        await harness.advance(0.2)
        assert outcomes(harness)[1:] == [(b"x", 2, "ack")]


async def test_delays() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    async def order(raw: bytes) -> None:
        await shop.publish("cancel", raw, delay=900)

    @shop.subscribe("cancel")
    async def cancel(raw: bytes) -> None:
        await shop.publish("cancelled", raw)

    async with Harness(shop) as harness:
        await harness.publish("orders", b"7")
        await harness.settled()
        [later] = harness.delayed("cancel")
        assert (later.message.value, later.seconds) == (b"7", 900)
        assert harness.sent("cancel") == harness.sent("cancelled") == []
        await harness.advance(899)
        assert harness.sent("cancelled") == []
        await harness.advance(1)
        assert [each.value for each in harness.sent("cancelled")] == [b"7"]
        assert harness.delayed("cancel") == []


async def test_a_key_that_fails_holds_back_its_own_and_no_other() -> None:
    shop = App("shop", NOWHERE)
    seen: list[tuple[str, int]] = []

    @shop.subscribe("events", scenario="ordered", ordered_by="of", ladder=(5.0,))
    async def handle(event: dict[str, Any], message: Message) -> None:
        if event["n"] == 1 and message.attempt < 3:
            raise RuntimeError("not yet")
        seen.append((event["of"], event["n"]))

    async with Harness(shop, partitions=3) as harness:
        for number in range(3):
            for of in ("a", "b") if number != 1 else ("a",):
                await harness.publish("events", {"of": of, "n": number})
        await harness.settled()
        assert sorted(seen) == [("a", 0), ("b", 0), ("b", 2)]
        await harness.advance(5)
        assert len(seen) == 3
        await harness.advance(5)
        assert seen[3:] == [("a", 1), ("a", 2)]
        # By the payload's field, as the application itself would send it.
        assert {each.message.partition for each in harness.handled if each.message.key == b"a"} == {
            partition_of(b"a", 3)
        }


async def test_a_handler_that_hangs_is_named_and_times_out() -> None:
    shop = App("shop", NOWHERE, grace=0.05)
    tried: list[int] = []

    @shop.subscribe("orders", timeout=60, timeout_max=90, attempts=2, ladder=(10.0,))
    async def hang(raw: bytes, message: Message) -> None:
        tried.append(message.attempt)
        await asyncio.Event().wait()

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        with pytest.raises(TimeoutError, match=r"1 messages are not settled after 0.05 s: orders/0/0 \(delivery 1\)"):
            await harness.settled(timeout=0.05)
        # Its lease is extended while it runs, but not for ever.
        await harness.advance(119, settle=False)
        assert [each.attempt for each in harness._broker.unsettled] == [1]
        await harness.advance(1 + 10, settle=False)
        assert [each.attempt for each in harness._broker.unsettled] == [2]
        await harness.advance(60, settle=False)
        [letter] = harness.dead("orders")
        assert letter.reason == "not settled after 2 attempts"
    # Delivered again while its handler runs, it is not handled twice.
    assert tried == [1]


async def test_other_retries_hold_at_once() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    async def pay(raw: bytes) -> None:
        raise RuntimeError("closed")

    async with Harness(shop) as harness:
        [running] = shop.running
        running.change(running.tuning.changed({"attempts": 2, "ladder": (7.0,)}))
        await running.match_retries()
        await harness.publish("orders", b"x")
        await harness.advance(6.9)
        assert harness.dead("orders") == []
        await harness.advance(0.1)
        assert len(harness.dead("orders")) == 1


async def test_a_delivery_whose_time_begins_anew_is_not_taken_away() -> None:
    clock = ManualClock(1_000.0)
    broker = MemoryBroker(clock)
    came: list[MemoryDelivery] = []
    receiver = MemoryReceiver(broker, consumer_config("orders", "shop", timeout=60), came.extend, NSQ, "shop", 1)
    broker.join(receiver)
    broker.publish([Outgoing("orders", b"x")], "shop", 1)
    await asyncio.sleep(0)
    [delivery] = came
    clock.now += 50
    assert delivery.touch()
    clock.now += 50
    broker.turn()
    assert broker.unsettled == [delivery.message]
    clock.now += 10
    broker.turn()
    assert not delivery.touch()
    delivery.ack()
    assert [each.attempt for each in broker.unsettled] == [2]


async def test_batches_of_a_stream() -> None:
    shop = App("shop", NOWHERE)
    sizes: list[int] = []

    @shop.subscribe("lines", scenario="stream", batch=100)
    async def count(lines: list[int]) -> Any:
        sizes.append(len(lines))
        return Retry("once more") if len(sizes) == 1 else None

    async with Harness(shop) as harness:
        await asyncio.gather(*(harness.publish("lines", number) for number in range(250)))
        await harness.settled()
        assert sizes == [100, 100, 50]
        await harness.advance(0.5)
        assert sizes == [100, 100, 50, 100]


async def test_a_stream_is_divided_by_partitions() -> None:
    apps = [App("shop", NOWHERE) for _ in range(2)]
    seen: list[set[int]] = [set(), set()]
    for number, shop in enumerate(apps):

        @shop.subscribe("lines", scenario="stream")
        async def count(raw: bytes, message: Message, number: int = number) -> None:
            seen[number].add(message.partition)

    async with Harness(*apps, partitions=4) as harness:
        for number in range(40):
            await harness.publish("lines", number)
        await harness.settled()
    assert seen == [{0, 2}, {1, 3}]


async def test_partitions_that_are_chosen_by_hand() -> None:
    shop = App("shop", NOWHERE)
    seen: list[tuple[int, int]] = []

    @shop.subscribe("lines", partitions=(1, 2), ladder=(1.0,))
    async def read(raw: bytes, message: Message) -> None:
        seen.append((message.partition, message.attempt))
        if message.attempt == 1:
            raise RuntimeError("once more")

    async with Harness(shop, partitions=4) as harness:
        for index in range(4):
            await harness.publish("lines", b"x", partition=index)
        await harness.advance(1)
    assert sorted(seen) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    with pytest.raises(Unsuited, match="has 2 partitions, and not 2"):
        await Harness(shop, partitions=2).__aenter__()


async def test_every_instance_of_a_fanout_once_whatever_it_says() -> None:
    apps = [App("shop", NOWHERE) for _ in range(2)]
    seen: list[int] = []
    for number, shop in enumerate(apps):

        @shop.subscribe("prices", scenario="fanout")
        async def take(raw: bytes, number: int = number) -> None:
            seen.append(number)
            raise RuntimeError("lost on this one")

    async with Harness(*apps) as harness:
        await harness.publish("prices", b"x")
        await harness.advance(600)
        assert sorted(seen) == [0, 1]
        assert harness.dead("prices") == []


async def test_exactly_once_sends_what_a_handler_that_succeeds_has_sent() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders", scenario="exactly-once")
    async def pay(raw: bytes, message: Message) -> None:
        await shop.publish("paid", b"%s by %d" % (raw, message.attempt))
        assert harness.sent("paid") == []
        if message.attempt == 1:
            raise RuntimeError("after it was sent")

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await harness.settled()
        assert harness.sent("paid") == []
        await harness.advance(60)
        assert [each.value for each in harness.sent("paid")] == [b"x by 2"]


async def test_exactly_once_is_undone_where_it_cannot_be_sent() -> None:
    shop = App("shop", NOWHERE)
    tried = 0

    @shop.subscribe("orders", scenario="exactly-once", workers=1)
    async def pay(raw: bytes) -> None:
        nonlocal tried
        tried += 1
        if tried == 3:
            harness.accept("paid")
        await shop.publish("paid", raw)

    async with Harness(shop) as harness:
        harness.refuse("paid", "no room")
        await harness.publish("orders", b"x")
        await harness.settled()
        assert [each.value for each in harness.sent("paid")] == [b"x"]
    assert tried == 3


async def test_publishing_can_be_made_to_fail() -> None:
    shop = App("shop", NOWHERE)
    async with Harness(shop) as harness:
        harness.refuse("paid", "no room")
        with pytest.raises(PublishFailed, match="paid: no room"):
            await shop.publish("paid", b"x")
        harness.accept("paid")
        await shop.publish("paid", b"y")
        with pytest.raises(PublishFailed, match="letters, digits"):
            await shop.publish("what is this", b"x")
        with pytest.raises(PublishFailed, match="no partition 3"):
            await shop.publish("paid", b"x", partition=3)
        assert [each.value for each in harness.sent("paid")] == [b"y"]


class Database: ...


async def test_what_handlers_are_given_can_be_replaced() -> None:
    shop = App("shop", NOWHERE)
    life: list[str] = []

    async def database() -> AsyncIterator[Database]:
        life.append("opened")
        yield Database()

    shop.provide(Database, database)
    seen: list[Database] = []

    @shop.subscribe("orders")
    async def pay(raw: bytes, database: Database) -> None:
        seen.append(database)

    fake = MagicMock()
    async with Harness(shop, given={Database: fake}) as harness:
        await harness.publish("orders", b"x")
        await harness.settled()
    assert seen == [fake]
    assert life == []
    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await harness.settled()
    assert life == ["opened"]
    assert type(seen[1]) is Database


async def test_no_port_is_opened_even_where_the_application_has_one() -> None:
    shop = App("shop", NOWHERE, metrics="127.0.0.1:0")
    async with Harness(shop):
        assert shop.metrics_address == ""


def test_applications_on_the_loops_of_several_threads() -> None:
    shop, bank = App("shop", "memory://threads"), App("bank", "memory://threads")
    paid: list[bytes] = []
    all_paid = threading.Event()

    @shop.subscribe("orders")
    async def order(raw: bytes) -> None:
        await shop.publish("bills", raw)

    @bank.subscribe("bills")
    def pay(raw: bytes) -> None:
        paid.append(raw)
        if len(paid) == 200:
            all_paid.set()

    try:
        with shop.blocking() as one, bank.blocking() as two:
            for number in range(100):
                one.publish("orders", b"%d" % number)
                two.publish("orders", b"%d" % (number + 100))
            assert all_paid.wait(20)
    finally:
        remove_broker("threads")
    assert sorted(paid) == sorted(b"%d" % number for number in range(200))


async def test_one_test_sees_nothing_of_another() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    async def pay(raw: bytes) -> None:
        await shop.publish("paid", raw)

    for payload in (b"1", b"2"):
        async with Harness(shop) as harness:
            await harness.publish("orders", payload)
            await harness.settled()
            assert [each.value for each in harness.sent("paid")] == [payload]


async def test_handlers_at_most_once_are_waited_for_too() -> None:
    shop = App("shop", NOWHERE)
    done: list[bytes] = []

    @shop.subscribe("orders", at_most_once=True)
    async def pay(raw: bytes) -> None:
        await asyncio.sleep(0.02)
        done.append(raw)

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await harness.settled()
        assert done == [b"x"]


async def test_a_limit_of_the_rate_makes_no_test_wait() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders", scenario="burst", rate=0.1)
    async def pay(raw: bytes) -> None: ...

    async with Harness(shop) as harness:
        for _ in range(20):
            await harness.publish("orders", b"x")
        await harness.settled()
        assert len(harness.handled) == 20


async def test_what_a_stop_leaves_is_anothers() -> None:
    one, two = App("shop", "memory://left", grace=0.01), App("shop", "memory://left")
    seen: list[tuple[str, int]] = []

    @one.subscribe("orders")
    async def hang(raw: bytes) -> None:
        seen.append(("one", 1))
        await asyncio.Event().wait()

    @two.subscribe("orders")
    async def pay(raw: bytes, message: Message) -> None:
        seen.append(("two", message.attempt))

    async with one:
        await one.publish("orders", b"x")
        while not seen:
            await asyncio.sleep(0.001)
    async with two:
        while len(seen) < 2:
            await asyncio.sleep(0.001)
    assert seen == [("one", 1), ("two", 2)]


def test_the_sync_face() -> None:
    shop = App("shop", NOWHERE)

    @shop.subscribe("orders")
    def pay(order: Order, message: Message) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        if message.attempt == 1:
            return Retry("later", after=60)
        return None

    with Harness(shop).blocking() as harness:
        harness.publish("orders", Order(1))
        harness.settled()
        assert [each.outcome for each in harness.handled] == ["retry"]
        harness.advance(60)
        assert [each.outcome for each in harness.handled] == ["retry", "ack"]
        assert harness.sent("orders") == harness.dead("orders") == harness.delayed("orders") == []


async def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="needs an application"):
        Harness()
    shop = App("shop", NOWHERE)

    @shop.subscribe("o" * 65)
    async def pay(raw: bytes) -> None: ...

    with pytest.raises(Unsuited, match="at most 64 characters"):
        await Harness(shop).__aenter__()
    assert shop.url == NOWHERE
    async with Harness(App("idle", NOWHERE)) as harness:
        with pytest.raises(ValueError, match="go back"):
            await harness.advance(-1)
    for url in ("memory://x?partitions=0", "memory://x?nsq=1"):
        with pytest.raises(ValueError, match=r"partitions|option"):
            App("shop", url)
