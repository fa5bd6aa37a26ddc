"""Readers that find their nsqds: several brokers, registered with the look-up door of one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.waiting import SECONDS, until

import headrace
from headrace.sdk import App, Unsuited
from headrace.sdk.nsq_lookup import LookupReceiver, _addresses
from headrace.sdk.system import parse


@pytest.fixture(autouse=True)
def eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS", "POLL_EAGERLY_SECONDS"):
        monkeypatch.setattr(f"headrace.sdk.nsq_lookup.{name}", 0.05)


@pytest.fixture
async def lookup() -> AsyncIterator[headrace.Broker]:
    async with headrace.Broker(nsq="off", lookup="127.0.0.1:0", lookup_http="127.0.0.1:0") as broker:
        yield broker


def nsqd(lookup: headrace.Broker) -> headrace.Broker:
    return headrace.Broker(nsq_http="127.0.0.1:0", lookupd_tcp=lookup.lookup)


async def test_every_nsqd_that_has_the_topic_is_read_as_they_come_and_go(lookup: headrace.Broker) -> None:
    seen: list[str] = []
    async with nsqd(lookup) as one, nsqd(lookup) as two:
        shop = App("shop.found", f"nsq://{one.nsq}?lookup={lookup.lookup_http}")

        @shop.subscribe("orders", credit=10)
        async def handle(text: str) -> None:
            seen.append(text)

        async with App("sender", f"nsq://{one.nsq}") as first, App("sender", f"nsq://{two.nsq}") as second:
            await first.publish("orders", "before")
            async with shop:
                await until(lambda: seen == ["before"])
                receiver: Any = shop.running[0]._receiver
                assert set(receiver._found) == {one.nsq}
                # Another has the topic now.
                await second.publish("orders", "from the second")
                await until(lambda: len(seen) == 2)
                assert [each._credit for each in receiver._found.values()] == [5, 5]
                await shop.publish("orders", "to the first")
                await until(lambda: len(seen) == 3)
                shop.running[0].change(shop.running[0].tuning, paused=True)
                assert [each._credit for each in receiver._found.values()] == [0, 0]
                shop.running[0].change(shop.running[0].tuning)
                await asyncio.to_thread(two.stop)
                # Its share comes back when it is gone.
                await until(lambda: [each._credit for each in receiver._found.values()] == [10])
                assert set(receiver._found) == {one.nsq}
    assert seen == ["before", "from the second", "to the first"]


async def test_a_topic_that_comes_later_begins_with_the_channel(
    lookup: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Late enough that another channel would have taken everything.
    monkeypatch.setattr("headrace.sdk.nsq_lookup.POLL_EAGERLY_SECONDS", 1.5)
    seen: list[str] = []
    async with nsqd(lookup) as one:
        shop = App("shop.early", f"nsq://{one.nsq}?lookup={lookup.lookup_http}")
        other = App("shop.other", f"nsq://{one.nsq}")

        @shop.subscribe("orders")
        @other.subscribe("orders")
        async def handle(text: str) -> None:
            seen.append(text)

        async with shop:
            receiver: Any = shop.running[0]._receiver
            assert receiver._found == {}
            async with other:
                await other.publish("orders", "first")
                await until(lambda: seen)
                assert receiver._found == {}
                await until(lambda: len(seen) == 2)


async def test_a_connection_is_let_go_only_when_it_is_lost_and_nobody_knows_of_it(
    lookup: headrace.Broker, tmp_path: Path
) -> None:
    seen: list[str] = []
    one = headrace.Broker(tmp_path, nsq_http="127.0.0.1:0", lookupd_tcp=lookup.lookup)
    await asyncio.to_thread(one.start)
    doors = {"nsq": one.nsq, "nsq_http": one.nsq_http}
    # One look-up of two is enough.
    shop = App("shop.kept", f"nsq://{one.nsq}?lookup=127.0.0.1:1,{lookup.lookup_http}")

    @shop.subscribe("orders")
    async def handle(text: str) -> None:
        seen.append(text)

    async with shop:
        await shop.publish("orders", "found")
        await until(lambda: seen)
        receiver: Any = shop.running[0]._receiver
        [before] = receiver._found.values()
        await asyncio.to_thread(tombstone, lookup, "orders", one.nsq_http)
        await asyncio.sleep(0.2)
        assert list(receiver._found.values()) == [before]
        # Those who could say that it is gone for good are gone themselves.
        await asyncio.to_thread(lookup.stop)
        await asyncio.to_thread(one.stop)
        await asyncio.sleep(0.2)
        again = headrace.Broker(tmp_path, **doors)
        await asyncio.to_thread(again.start)
        try:
            await shop.publish("orders", "again")
            await until(lambda: len(seen) == 2)
            assert list(receiver._found.values()) == [before]
        finally:
            await shop.stop()
            await asyncio.to_thread(again.stop)


def tombstone(lookup: headrace.Broker, topic: str, node: str) -> None:
    """Let a look-up no longer tell of a producer."""
    url = f"http://{lookup.lookup_http}/topic/tombstone?topic={topic}&node={node}"
    with urlopen(Request(url, method="POST"), timeout=SECONDS):
        pass
    with urlopen(f"http://{lookup.lookup_http}/lookup?topic={topic}", timeout=SECONDS) as answer:
        assert json.loads(answer.read())["producers"] == []


async def test_where_no_lookup_answers_that_is_said(lookup: headrace.Broker) -> None:
    async with nsqd(lookup) as one:
        shop = App("shop.lost", f"nsq://{one.nsq}?lookup=127.0.0.1:1")

        @shop.subscribe("orders")
        async def handle(text: str) -> None: ...

        with pytest.raises(Unsuited, match=r"no nsqlookupd answers at 127\.0\.0\.1:1"):
            await shop.start()


def test_urls_and_answers() -> None:
    assert parse("nsq://a?lookup=b,c:1").lookup == ("b:4161", "c:1")
    assert parse("nsq://a").lookup == ()
    producers = [{"broadcast_address": "a", "tcp_port": 1}, {"broadcast_address": "::1", "tcp_port": 2}, {}]
    for answer in ({"producers": producers}, {"status_code": 200, "data": {"producers": producers}}):
        assert list(_addresses(answer)) == ["a:1", "[::1]:2"]
    for nothing in ({}, [], None, {"data": None}, {"producers": None}):
        assert list(_addresses(nothing)) == []


@pytest.mark.parametrize("one", [None, 7, {}, {"broadcast_address": 7, "tcp_port": 1}, {"broadcast_address": "a"}])
def test_what_is_no_nsqd_is_passed_over(one: Any) -> None:
    good = {"broadcast_address": "b", "tcp_port": 4150}
    assert list(_addresses({"producers": [one, good]})) == ["b:4150"]


async def test_what_goes_wrong_once_does_not_end_the_looking(
    lookup: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    polled = LookupReceiver._poll
    polls: list[bool] = []

    async def poll(self: LookupReceiver) -> bool:
        polls.append(True)
        if len(polls) == 2:
            raise RuntimeError("never heard of")
        return await polled(self)

    monkeypatch.setattr(LookupReceiver, "_poll", poll)
    async with nsqd(lookup) as one:
        shop = App("shop.looks.on", f"nsq://{one.nsq}?lookup={lookup.lookup_http}")

        @shop.subscribe("orders")
        async def handle(text: str) -> None:
            seen.append(text)

        async with shop:
            await until(lambda: len(polls) > 2)
            await shop.publish("orders", "after")
            await until(lambda: seen == ["after"])
