"""The figures of an application, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import SECONDS, until

from headrace.sdk import App, PublishFailed, Reject, Retry

__all__ = ["wire"]

OF_ORDERS = {"messaging_destination_name": "orders", "messaging_consumer_group_name": "payments"}


class Figures:
    """What was said, by name and labels."""

    def __init__(self, text: str, parse: Any = families) -> None:
        self.samples = [sample for family in parse(text) for sample in family.samples]
        self.kinds = {family.name: family.type for family in parse(text)}

    def sum(self, name: str, **labels: str) -> float:
        """Of all that have these labels."""
        found = [each for each in self.samples if each.name == name and labels.items() <= each.labels.items()]
        assert found, (name, labels, sorted({each.name for each in self.samples}))
        return math.fsum(each.value for each in found)


def figures(shop: App) -> Figures:
    registry = CollectorRegistry()
    registry.register(shop.metrics)
    return Figures(generate_latest(registry).decode())


async def test_what_is_sent(wire: InMemory) -> None:
    async with app(url="kafka://one:9092") as shop:
        for number in range(5):
            await shop.send("orders", number)
        await shop.send("paid", 1)
        await shop.flush()
        wire.fails = PublishFailed("gone")
        with pytest.raises(PublishFailed):
            await shop.publish("orders", 6)
        found = figures(shop)
    assert found.kinds["messaging_client_sent_messages"] == "counter"
    every = {"messaging_system": "kafka", "server_address": "one", "server_port": "9092"}
    sent = {**every, "messaging_operation_name": "publish"}
    name = "messaging_client_sent_messages_total"
    assert found.sum(name, **sent, messaging_destination_name="orders", error_type="") == 5
    assert found.sum(name, **sent, messaging_destination_name="paid", error_type="") == 1
    assert found.sum(name, **sent, messaging_destination_name="orders", error_type="PublishFailed") == 1
    took = "messaging_client_operation_duration_seconds"
    assert found.kinds[took] == "histogram"
    # Once for what went out together.
    assert found.sum(f"{took}_count", **sent, messaging_operation_type="send", error_type="") == 2
    assert found.sum(f"{took}_bucket", **sent, le="+Inf", error_type="PublishFailed") == 1


async def test_what_is_received_processed_and_settled(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", group="payments")
    async def handle(text: str) -> Any:
        await asyncio.sleep(0.002)
        match text:
            case "later":
                return Retry("closed")
            case "never":
                raise Reject("of no use")
            case "fails":
                raise RuntimeError("broken")

    async with shop:
        brought = wire.receivers[0].bring(b"1", b"2", b"later", b"never", b"fails", b"\xff")
        await until(lambda: all(each.settled for each in brought))
        found = figures(shop)
    assert found.sum("messaging_client_consumed_messages_total", **OF_ORDERS, messaging_operation_name="receive") == 6
    name = "messaging_process_duration_seconds"
    assert found.kinds[name] == "histogram"
    counts = {
        error: found.sum(f"{name}_count", **OF_ORDERS, messaging_operation_name="process", error_type=error)
        for error in ("", "Retry", "Reject", "RuntimeError")
    }
    assert counts == {"": 2, "Retry": 1, "Reject": 1, "RuntimeError": 1}
    assert found.sum(f"{name}_sum", **OF_ORDERS, error_type="") >= 0.004
    # Buckets count all that is below them.
    assert found.sum(f"{name}_bucket", **OF_ORDERS, error_type="", le="0.001") == 0
    assert found.sum(f"{name}_bucket", **OF_ORDERS, error_type="", le="10.0") == 2
    settled = "headrace_sdk_settled_messages_total"
    assert [found.sum(settled, **OF_ORDERS, result=each) for each in ("ack", "retry", "reject")] == [2, 2, 2]
    took = "messaging_client_operation_duration_seconds_count"
    assert found.sum(took, **OF_ORDERS, messaging_operation_name="receive") == 6
    assert found.sum(took, **OF_ORDERS, messaging_operation_type="settle", messaging_operation_name="retry") == 2


async def test_what_waits_and_who_works(wire: InMemory) -> None:
    shop = app()
    go_on = asyncio.Event()

    @shop.subscribe("orders", group="payments", workers=2)
    async def handle(raw: bytes) -> None:
        await go_on.wait()

    async with shop:
        brought = wire.receivers[0].bring(*[b"x"] * 7)
        await until(lambda: shop.running[0].busy == 2)
        found = figures(shop)
        names = ("waiting_messages", "busy_messages", "workers", "paused")
        assert [found.sum(f"headrace_sdk_{name}", **OF_ORDERS) for name in names] == [7, 2, 2, 0]
        shop.running[0].change(shop.running[0].tuning.changed({"workers": 5}), paused=True)
        found = figures(shop)
        assert [found.sum(f"headrace_sdk_{name}", **OF_ORDERS) for name in names] == [7, 2, 5, 1]
        shop.running[0].change(shop.running[0].tuning)
        go_on.set()
        await until(lambda: all(each.settled for each in brought))
        assert figures(shop).sum("headrace_sdk_waiting_messages", **OF_ORDERS) == 0
        await shop.send("paid", b"1")
        assert figures(shop).sum("headrace_sdk_line_messages") == 1


async def test_batches_are_counted_once_for_all(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", group="payments", batch=4, batch_wait=1)
    async def handle(raws: list[bytes]) -> None: ...

    async with shop:
        brought = wire.receivers[0].bring(b"1", b"2", b"3", b"4")
        await until(lambda: all(each.settled for each in brought))
        found = figures(shop)
    assert found.sum("messaging_process_duration_seconds_count", **OF_ORDERS) == 1
    assert found.sum("headrace_sdk_settled_messages_total", **OF_ORDERS, result="ack") == 4


async def test_what_is_settled_first_is_counted_too(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", group="payments", at_most_once=True)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        wire.receivers[0].bring(b"1", b"2")
        await until(lambda: shop.running[0].handled == 2)
        assert figures(shop).sum("headrace_sdk_settled_messages_total", **OF_ORDERS, result="ack") == 2


async def test_prometheus_is_answered(wire: InMemory) -> None:
    shop = app(metrics="127.0.0.1:0")
    assert shop.metrics_address == ""

    def ask(accept: str) -> str:
        request = Request(f"http://{shop.metrics_address}/metrics", headers={"Accept": accept})
        with urlopen(request, timeout=SECONDS) as answer:
            return str(answer.read().decode())

    async with shop:
        await shop.publish("orders", 1)
        found = Figures(await asyncio.to_thread(ask, "text/plain"))
        assert found.sum("messaging_client_sent_messages_total") == 1
        open_found = Figures(await asyncio.to_thread(ask, "application/openmetrics-text; version=1.0.0"), openmetrics)
        assert open_found.sum("messaging_client_sent_messages_total") == 1
        host, port = shop.metrics_address.split(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=SECONDS)
    assert shop.metrics_address == ""


async def test_an_address_that_is_taken_or_is_none(wire: InMemory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await app(metrics=f"127.0.0.1:{taken.getsockname()[1]}").start()
    with pytest.raises(ValueError, match="HOST:PORT"):
        await app(metrics="9464").start()
