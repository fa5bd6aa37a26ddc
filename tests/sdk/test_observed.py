"""Seen from outside on a real broker, over both wires: one trace through three services, and what each says of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.request import urlopen

import pytest
import structlog.testing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from tests.waiting import SECONDS

import headrace
from headrace.sdk import App, Message
from headrace.sdk.tracing import trace_id_of

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(params=["headrace", "kafka"])
def url(request: pytest.FixtureRequest, headrace_broker: headrace.Broker) -> str:
    return headrace_broker.url if request.param == "headrace" else f"kafka://{headrace_broker.kafka}"


class Services:
    """Orders are paid for at the second attempt, what is paid for is delivered in batches, and both are told."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.apps = [App(name, url, register=False, **settings) for name in ("orders", "paying", "shipping")]
        self.seen: dict[str, list[Message]] = {}
        orders, paying, shipping = self.apps

        @paying.subscribe("orders", ladder=(0.05,))
        async def pay(raw: bytes, message: Message) -> None:
            self.seen.setdefault("pay", []).append(message)
            if message.attempt == 1:
                raise RuntimeError("closed")
            await paying.publish("paid", raw)

        @shipping.subscribe("paid", scenario="stream")
        def ship(raws: list[bytes], messages: list[Message]) -> None:
            # Not async: in a thread.
            future = asyncio.run_coroutine_threadsafe(shipping.publish("shipped", raws[0]), self.loop)
            future.result(10)

        @orders.subscribe("shipped")
        async def tell(raw: bytes, message: Message) -> None:
            self.seen.setdefault("tell", []).append(message)

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with asyncio.timeout(40), self.apps[0], self.apps[1], self.apps[2]:
            await self.apps[0].publish("orders", b"1", key="k")
            while not self.seen.get("tell"):
                await asyncio.sleep(0.01)


async def test_one_trace_without_opentelemetry(url: str) -> None:
    services = Services(url)
    await services.run()
    first, second = services.seen["pay"]
    [last] = services.seen["tell"]
    assert first.headers["traceparent"] == second.headers["traceparent"]
    assert trace_id_of(first.headers) == trace_id_of(last.headers) != ""
    assert first.headers["traceparent"] != last.headers["traceparent"]


async def test_one_trace_with_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    services = Services(url)
    await services.run()
    spans = exporter.get_finished_spans()
    [root] = [each for each in spans if each.parent is None]
    assert root.name == "publish orders"
    assert {each.context.trace_id for each in spans} == {root.context.trace_id}
    by_name: dict[str, list[Any]] = {}
    for each in spans:
        by_name.setdefault(each.name, []).append(each)
    assert {name: len(found) for name, found in by_name.items()} == {
        "publish orders": 1,
        "receive orders": 2,
        "process orders": 2,
        "retry orders": 1,
        "ack orders": 1,
        "publish paid": 1,
        "receive paid": 1,
        "process paid": 1,
        "ack paid": 1,
        "publish shipped": 1,
        "receive shipped": 1,
        "process shipped": 1,
        "ack shipped": 1,
    }
    attempts = [each.attributes["messaging.headrace.message.attempt"] for each in by_name["process orders"]]
    assert sorted(attempts) == [1, 2]
    # The retry is the same message, though another record where there is no queue.
    assert {each.attributes["messaging.message.id"] for each in by_name["process orders"]} == {"orders/0/0"}
    [shipped], [ship] = by_name["publish shipped"], by_name["process paid"]
    assert shipped.parent.span_id == ship.context.span_id


async def test_lines_and_figures_say_the_same(url: str) -> None:
    services = Services(url, log_sample=1)
    with structlog.testing.capture_logs() as lines:
        await services.run()
    said = [(each["app"], each["id"], each["attempt"], each["result"]) for each in lines if each["event"] == "handled"]
    assert sorted(said) == [
        ("orders", "shipped/0/0", 1, "ack"),
        ("paying", "orders/0/0", 1, "retry"),
        ("paying", "orders/0/0", 2, "ack"),
        ("shipping", "paid/0/0", 1, "ack"),
    ]
    assert len({each["trace"] for each in lines if each["event"] == "handled"}) == 1
    registry = CollectorRegistry()
    registry.register(services.apps[1].metrics)
    system = "headrace" if url.startswith("headrace") else "kafka"
    server = {"messaging_system": system, "server_address": "127.0.0.1"}
    port = url.partition("?")[0].rpartition(":")[2]
    orders = {**server, "messaging_destination_name": "orders", "messaging_consumer_group_name": "paying"}
    orders["server_port"] = port
    results = {
        result: registry.get_sample_value("headrace_sdk_settled_messages_total", {**orders, "result": result})
        for result in ("ack", "retry", "reject")
    }
    assert results == {"ack": 1, "retry": 1, "reject": None}
    consumed = {**orders, "messaging_operation_name": "receive"}
    assert registry.get_sample_value("messaging_client_consumed_messages_total", consumed) == 2


async def test_what_a_queue_is_to_keep_is_set(headrace_broker: headrace.Broker) -> None:
    def ask() -> Any:
        with urlopen(f"http://{headrace_broker.http}/v1/topics/orders/queues/shop", timeout=SECONDS) as answer:
            return json.load(answer)

    shop = App("shop", headrace_broker.url, register=False)

    @shop.subscribe("orders", traced=0.25)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        assert (await asyncio.to_thread(ask))["settings"]["deliveries"] == 0.25
    with pytest.raises(ValueError, match=r"traced must be .* \(got 2\)"):
        shop.subscribe("orders", traced=2)


async def test_what_goes_with_a_transaction_belongs_to_the_trace(headrace_broker: headrace.Broker) -> None:
    shop = App("shop", headrace_broker.url, register=False)
    seen: list[Message] = []

    @shop.subscribe("orders", scenario="exactly-once")
    async def pay(raw: bytes) -> None:
        await shop.publish("paid", raw)

    @shop.subscribe("paid", scenario="stream")
    async def tell(raw: bytes, message: Message) -> None:
        seen.append(message)

    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    async with asyncio.timeout(60), shop:
        await shop.publish("orders", b"1", headers=headers)
        while not seen:
            await asyncio.sleep(0.01)
        registry = CollectorRegistry()
        registry.register(shop.metrics)
        samples = [each for family in registry.collect() for each in family.samples]
    assert trace_id_of(seen[0].headers) == "4bf92f3577b34da6a3ce929d0e0e4736"
    sent = [each for each in samples if each.name == "messaging_client_sent_messages_total"]
    assert {each.labels["messaging_destination_name"]: each.value for each in sent} == {"orders": 1, "paid": 1}
