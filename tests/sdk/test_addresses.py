"""Which doors a URL leads to: never those of another broker, and never one that was guessed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import headrace
from headrace.client import Client
from headrace.sdk import App, Unsuited, UnsupportedPublish, system
from headrace.sdk.system import Address, parse
from headrace.webhooks.hook import Hook
from headrace.webhooks.pusher import prepare


@pytest.fixture(scope="module")
def mine() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def other() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker:
        yield broker


def reader(url: str, topic: str) -> App:
    app = App("shop", url)

    @app.subscribe(topic)
    async def handle(raw: bytes) -> None: ...

    return app


async def topics(broker: headrace.Broker) -> set[str]:
    async with Client(broker.kafka) as client:
        return set(await client.cluster.refresh(None))


@pytest.mark.parametrize(
    ("url", "nsq", "http"),
    [
        ("headrace://h", "h:4150", ""),
        ("headrace://h:9092", "h:4150", ""),
        ("headrace://h:9092?http=i", "h:4150", "i:9080"),
        ("headrace://h:19092", "", ""),
        ("headrace://h:19092?http=h:1", "", "h:1"),
        ("headrace://h:19092?nsq=i", "i:4150", ""),
        ("headrace://h?nsq=off&http=off", "off", "off"),
        ("headrace://[::1]?nsq=[::1]:7", "[::1]:7", ""),
    ],
)
def test_only_the_usual_ports_belong_together(url: str, nsq: str, http: str) -> None:
    address = parse(url)
    assert (address.nsq, address.http) == (nsq, http)


def test_the_url_of_an_embedded_broker_says_where_each_door_is(mine: headrace.Broker) -> None:
    assert parse(mine.url) == Address("headrace", kafka=mine.kafka, nsq=mine.nsq, http=mine.http)
    with headrace.Broker(nsq="off", http="off") as closed:
        assert closed.url == f"headrace://{closed.kafka}?nsq=off&http=off"


@pytest.mark.parametrize("leaves_out", ["nothing", "http"])
async def test_a_queue_is_made_on_the_broker_of_the_url_and_on_no_other(
    mine: headrace.Broker, other: headrace.Broker, leaves_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another broker runs where brokers usually do.
    monkeypatch.setattr(system, "HTTP_PORT", int(other.http.rpartition(":")[2]))
    topic = f"orders-{leaves_out}"
    url = mine.url if leaves_out == "nothing" else f"headrace://{mine.kafka}?nsq={mine.nsq}"
    async with reader(url, topic):
        pass
    assert topic in await topics(mine)
    assert topic not in await topics(other)


async def test_doors_of_two_brokers_are_refused_and_nothing_is_made(
    mine: headrace.Broker, other: headrace.Broker
) -> None:
    mixed = (
        (
            f"headrace://{mine.kafka}?nsq={mine.nsq}&http={other.http}",
            f"at {other.http} belongs to the broker",
        ),
        (f"headrace://{mine.kafka}?nsq={other.nsq}&http={mine.http}", f"at {other.nsq} belongs to the broker"),
        (f"headrace://{mine.kafka}?nsq={mine.nsq}&http={mine.kafka}", "does not answer|belongs to no Headrace"),
    )
    for url, words in mixed:
        with pytest.raises(Unsuited, match=words):
            await reader(url, "mixed").start()
        with pytest.raises(Unsuited, match=words):
            await prepare(url, "mixed", Hook("http://127.0.0.1:1/", group="g", filter="a = b"))
    assert "mixed" not in await topics(mine) | await topics(other)


async def test_a_door_that_is_missing_is_named_before_anything_is_made(mine: headrace.Broker) -> None:
    for url, words in (
        (f"headrace://{mine.kafka}", r"needs the NSQ door: .* does not give its address\. Add nsq=HOST:PORT"),
        (f"headrace://{mine.kafka}?nsq=off", "needs the NSQ door: .* turns it off"),
        (f"headrace://{mine.kafka}?nsq={mine.nsq}&http=off", "over the HTTP door, which is off"),
    ):
        with pytest.raises(Unsuited, match=words):
            await reader(url, "missing").start()
        hook = Hook("http://127.0.0.1:1/", group="g", filter="a = b")
        with pytest.raises(Unsuited, match=r"NSQ door|HTTP door"):
            await prepare(url, "missing", hook)
    assert "missing" not in await topics(mine)


async def test_a_broker_without_an_http_door_says_so() -> None:
    with headrace.Broker(http="off") as broker:
        with pytest.raises(Unsuited, match="over the HTTP door, which is off"):
            await reader(f"headrace://{broker.kafka}?nsq={broker.nsq}", "orders").start()
        # What needs no queue goes on.
        async with App("shop", f"headrace://{broker.kafka}") as shop:
            await shop.publish("orders", b"now")
            with pytest.raises(UnsupportedPublish, match="a delayed message needs the NSQ door"):
                await shop.publish("orders", b"later", delay=60)


async def test_an_nsqd_is_not_taken_for_a_headrace(mine: headrace.Broker) -> None:
    async with plain_nsqd() as nsqd:
        with pytest.raises(Unsuited, match=f"{nsqd} is not a Headrace"):
            await reader(f"headrace://{mine.kafka}?nsq={nsqd}&http={mine.http}", "plain").start()


@asynccontextmanager
async def plain_nsqd() -> AsyncIterator[str]:
    from tests.sdk.test_nsq import nsqd

    async with nsqd() as (_, _, address):
        yield address
