"""Two brokers of which one registers with the other, and unchanged clients that find them by their look-up."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.nsq.clients import Client
from tests.waiting import SECONDS, wait_until

import headrace

CLIENTS = Path(__file__).parents[3] / "clients/nsq"
ANY = "127.0.0.1:0"


def ask(address: str, path: str, body: bytes | None = None) -> Any:
    method = "GET" if body is None else "POST"
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{address}{path}", body, method=method), timeout=SECONDS
    ) as answer:
        said = answer.read()
    return json.loads(said) if said[:1] in b"{[" and said else said


@pytest.fixture
def known() -> Iterator[headrace.Broker]:
    """The broker whose look-up the other registers with."""
    with headrace.Broker(nsq_http=ANY, lookup=ANY, lookup_http=ANY, kafka="off", durability="async") as broker:
        yield broker


@pytest.fixture
def telling(known: headrace.Broker) -> Iterator[headrace.Broker]:
    with headrace.Broker(nsq_http=ANY, lookupd_tcp=known.lookup, kafka="off", durability="async") as broker:
        wait_until(lambda: len(ask(known.lookup_http, "/nodes")["producers"]) == 2)
        yield broker


@pytest.fixture(params=["pynsq", "gnsq"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param, [sys.executable, str(CLIENTS / f"{request.param}_client.py")])


def ports(known: headrace.Broker, topic: str) -> list[int]:
    return sorted(each["tcp_port"] for each in ask(known.lookup_http, f"/lookup?topic={topic}")["producers"])


def port(address: str) -> int:
    return int(address.split(":")[1])


def test_topics_and_channels_are_told_as_they_come_and_go(known: headrace.Broker, telling: headrace.Broker):
    ask(telling.nsq_http, "/topic/create?topic=t", b"")
    wait_until(lambda: "t" in ask(known.lookup_http, "/topics")["topics"])
    assert ports(known, "t") == [port(telling.nsq)]
    ask(telling.nsq_http, "/channel/create?topic=t&channel=c", b"")
    wait_until(lambda: ask(known.lookup_http, "/channels?topic=t")["channels"] == ["c"])
    ask(known.nsq_http, "/topic/create?topic=t", b"")
    assert ports(known, "t") == sorted([port(known.nsq), port(telling.nsq)])
    ask(telling.nsq_http, "/topic/delete?topic=t", b"")
    wait_until(lambda: ports(known, "t") == [port(known.nsq)])


def test_a_broker_that_stops_is_no_longer_told(known: headrace.Broker, telling: headrace.Broker):
    ask(telling.nsq_http, "/topic/create?topic=t", b"")
    wait_until(lambda: "t" in ask(known.lookup_http, "/topics")["topics"])
    telling.stop()
    wait_until(lambda: ports(known, "t") == [])


def test_a_new_topic_begins_with_the_channels_that_are_known(known: headrace.Broker, telling: headrace.Broker):
    ask(known.nsq_http, "/topic/create?topic=t", b"")
    for channel in ("c", "d", "e%23ephemeral"):
        ask(known.nsq_http, f"/channel/create?topic=t&channel={channel}", b"")
    ask(telling.nsq_http, "/pub?topic=t", b"first")
    (topic,) = ask(telling.nsq_http, "/stats?format=json")["topics"]
    assert [(each["channel_name"], each["depth"]) for each in topic["channels"]] == [("c", 1), ("d", 1)]


def test_a_consumer_finds_all_brokers_of_a_topic(known: headrace.Broker, telling: headrace.Broker, client: Client):
    for broker, body in ((known, b"here"), (telling, b"there")):
        ask(broker.nsq_http, "/pub?topic=t", body)
    wait_until(lambda: len(ports(known, "t")) == 2)
    found = client.read("t", "c", 2, lookup=known.lookup_http, in_flight=2)
    assert sorted(message.body for message in found) == ["here", "there"]


def test_a_tombstone_keeps_consumers_away(known: headrace.Broker, telling: headrace.Broker):
    for broker in (known, telling):
        ask(broker.nsq_http, "/topic/create?topic=t", b"")
    wait_until(lambda: len(ports(known, "t")) == 2)
    ask(known.lookup_http, f"/topic/tombstone?topic=t&node={telling.nsq_http}", b"")
    assert ports(known, "t") == [port(known.nsq)]
