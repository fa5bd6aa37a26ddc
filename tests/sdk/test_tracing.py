"""Trace context in headers: read, carried on and begun, without OpenTelemetry and with it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import until

from headrace.sdk import Message, PublishFailed, Reject, Retry
from headrace.sdk.tracing import TraceContext, context_of, trace_id_of

__all__ = ["wire"]

TRACE, OTHER = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
SPAN = "00f067aa0ba902b7"


def parent(trace_id: str = TRACE, flags: str = "01") -> dict[str, bytes]:
    return {"traceparent": f"00-{trace_id}-{SPAN}-{flags}".encode()}


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        (f"00-{TRACE}-{SPAN}-01\n", False),
        ("", False),
    ],
)
def test_what_is_a_trace(said: str, understood: bool) -> None:
    headers = {"traceparent": said.encode()}
    assert (context_of(headers) is not None) == understood
    assert trace_id_of(headers) == (TRACE if understood else "")


@given(st.binary(max_size=80))
def test_whatever_stands_there_is_read_or_not(said: bytes) -> None:
    context_of({"traceparent": said})


@given(st.binary(min_size=16, max_size=16).filter(any), st.sampled_from((b"00", b"01")), st.binary())
def test_what_is_written_is_read(trace_id: bytes, flags: bytes, state: bytes) -> None:
    written = TraceContext(trace_id.hex().encode(), flags, state)
    assert context_of(written.below()) == written


# --- without OpenTelemetry --------------------------------------------------------------------------------------------


async def test_what_is_sent_outside_of_any_trace_begins_one(wire: InMemory) -> None:
    async with app() as shop:
        await shop.publish("orders", b"1")
        await shop.publish("orders", b"2", headers={"traceparent": "mine"})
        await shop.publish("orders", b"3")
    first, second, third = (each.headers for each in wire.sent)
    assert second["traceparent"] == b"mine"
    assert len({trace_id_of(first), trace_id_of(third), ""}) == 3


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 50, 150), (1.0, 200, 200)])
async def test_a_share_of_it(wire: InMemory, share: float, least: int, most: int) -> None:
    async with app(traces=share) as shop:
        for _ in range(200):
            await shop.send("orders", b"1")
    assert least <= sum("traceparent" in each.headers for each in wire.sent) <= most


async def test_whoever_seeds_the_random_numbers_does_not_repeat_traces(wire: InMemory) -> None:
    async with app() as shop:
        for _ in range(2):
            random.seed(7)
            await shop.publish("orders", b"1")
    assert len({trace_id_of(each.headers) for each in wire.sent}) == 2


def test_a_forked_process_does_not_repeat_them() -> None:
    script = """if True:
        import os
        from headrace.sdk.tracing import TracePropagator
        def one():
            headers = {}
            TracePropagator(1.0).publish("t", None, headers)
            print(headers["traceparent"].decode(), flush=True)
        if os.fork() == 0:
            one()
            os._exit(0)
        os.wait()
        one()
    """
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    one, two = said.stdout.split()
    assert one != two


def test_no_share() -> None:
    with pytest.raises(ValueError, match=r"traces must be .* \(got 2\)"):
        app(traces=2)


@pytest.mark.parametrize("threads", [False, True])
async def test_what_a_handler_sends_carries_on_the_trace(wire: InMemory, threads: bool) -> None:
    shop = app(traces=0)
    loop = asyncio.get_running_loop()

    if threads:

        @shop.subscribe("orders")
        def handle(raw: bytes) -> None:
            asyncio.run_coroutine_threadsafe(shop.publish("paid", raw), loop).result(5)
    else:

        @shop.subscribe("orders")
        async def handle(raw: bytes) -> None:
            # Also from a task of its own.
            await asyncio.gather(shop.publish("paid", raw), shop.publish("paid", raw))

    async with shop:
        traced = Message("orders", b"a", headers={**parent(flags="00"), "tracestate": b"vendor=1"}, offset=0)
        brought = wire.receivers[0].bring(traced, Message("orders", b"b", offset=1))
        await until(lambda: all(each.settled for each in brought))
    carried = [each.headers for each in wire.sent if each.value == b"a"]
    assert len(carried) == (1 if threads else 2)
    for headers in carried:
        assert trace_id_of(headers) == TRACE
        assert headers["traceparent"].endswith(b"-00")
        assert headers["tracestate"] == b"vendor=1"
    spans = {headers["traceparent"].split(b"-")[2] for headers in carried}
    assert len(spans) == len(carried)
    assert SPAN.encode() not in spans
    assert [dict(each.headers) for each in wire.sent if each.value == b"b"] == [{}] * len(carried)


@pytest.mark.parametrize(("traces", "one"), [((TRACE, TRACE), True), ((TRACE, OTHER), False)])
async def test_a_batch_carries_on_what_all_of_it_belongs_to(wire: InMemory, traces: tuple[str, ...], one: bool) -> None:
    shop = app()

    @shop.subscribe("orders", batch=2, batch_wait=1)
    async def handle(raws: list[bytes]) -> None:
        await shop.publish("paid", b"1")
        await shop.publish("paid", b"2")

    async with shop:
        brought = wire.receivers[0].bring(*(Message("orders", b"x", headers=parent(each)) for each in traces))
        await until(lambda: all(each.settled for each in brought))
    found = {trace_id_of(each.headers) for each in wire.sent}
    assert (found == {TRACE}) == one
    # Several have none in common: what the handler sends has, all the same.
    assert len(found) == 1


async def test_a_plain_nsq_has_no_headers(wire: InMemory) -> None:
    for url, carried in (("nsq://localhost", False), ("nsq://localhost?envelope=1", True)):
        wire.sent.clear()
        async with app(url=url) as shop:
            await shop.publish("orders", b"1")
        assert bool(wire.sent[0].headers) == carried


def test_it_is_not_needed() -> None:
    """The framework does not import OpenTelemetry by itself."""
    script = "import sys, headrace.sdk; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "[]"


def test_what_only_shares_its_namespace_is_not_it() -> None:
    script = """if True:
        import sys, types
        sys.modules["opentelemetry"] = types.ModuleType("opentelemetry")
        from headrace.sdk.tracing import TracePropagator, tracing
        assert type(tracing(1.0, {})) is TracePropagator
    """
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


# --- with OpenTelemetry -----------------------------------------------------------------------------------------------


class Spans(InMemorySpanExporter):
    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.get_finished_spans() if each.name == name]


def provide(monkeypatch: pytest.MonkeyPatch, provider: TracerProvider) -> None:
    # It can be set only once in a process, and there are other tests.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    exporter = Spans()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provide(monkeypatch, provider)
    return exporter


def traced_by(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


async def test_the_spans_of_a_message(wire: InMemory, spans: Spans) -> None:
    shop = app(url="headrace://queue.example:1092?nsq=queue.example")

    @shop.subscribe("orders", group="payments")
    async def handle(raw: bytes) -> None:
        await shop.publish("paid", b"2", key="k")

    async with shop:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            await shop.publish("orders", b"1")
        [sent] = wire.sent
        arrived = Message("orders", b"1", b"k", sent.headers, partition=3, offset=5, attempt=2)
        [held] = wire.receivers[0].bring(arrived)
        await until(lambda: held.settled)
    publish, receive, process, onward, settle = (
        spans.named(name)[0]
        for name in ("publish orders", "receive orders", "process orders", "publish paid", "ack orders")
    )
    assert publish.parent == request.get_span_context()
    assert sent.headers["traceparent"].startswith(f"00-{traced_by(publish)}-{publish.context.span_id:016x}-".encode())
    for span in (receive, process, settle):
        assert (span.parent.trace_id, span.parent.span_id) == (publish.context.trace_id, publish.context.span_id)
        [link] = span.links
        assert link.context.span_id == publish.context.span_id
    assert onward.parent.span_id == process.context.span_id
    assert {traced_by(each) for each in (publish, receive, process, onward, settle)} == {traced_by(publish)}
    assert [each.kind for each in (publish, receive, process, onward, settle)] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
    ]
    assert dict(process.attributes) == {
        "messaging.system": "headrace",
        "server.address": "queue.example",
        "server.port": 1092,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "payments",
        "messaging.message.id": "orders/3/5",
        "messaging.headrace.message.key": "k",
        "messaging.headrace.message.attempt": 2,
    }
    assert (publish.attributes["messaging.operation.name"], publish.attributes["messaging.operation.type"]) == (
        "publish",
        "send",
    )
    assert settle.attributes["messaging.operation.type"] == "settle"
    assert receive.end_time >= receive.start_time
    assert process.end_time <= settle.end_time


async def test_a_batch_has_one_span_with_links(wire: InMemory, spans: Spans) -> None:
    shop = app()

    @shop.subscribe("orders", batch=3, batch_wait=1)
    async def handle(raws: list[bytes]) -> None: ...

    async with shop:
        brought = wire.receivers[0].bring(
            Message("orders", b"1", headers=parent(TRACE), offset=0),
            Message("orders", b"2", headers=parent(OTHER), offset=1),
            Message("orders", b"3", offset=2),
        )
        await until(lambda: all(each.settled for each in brought))
    for name in ("receive orders", "process orders", "ack orders"):
        [span] = spans.named(name)
        assert span.parent is None
        assert [f"{each.context.trace_id:032x}" for each in span.links] == [TRACE, OTHER]
        assert [each.attributes["messaging.message.id"] for each in span.links] == ["orders/-1/0", "orders/-1/1"]
        assert span.attributes["messaging.batch.message_count"] == 3


async def test_what_fails_is_seen_in_its_span(wire: InMemory, spans: Spans) -> None:
    shop = app()

    @shop.subscribe("orders")
    async def handle(text: str) -> Any:
        match text:
            case "later":
                return Retry("closed")
            case "never":
                raise Reject("of no use")
            case "fails":
                raise RuntimeError("broken")

    async with shop:
        brought = wire.receivers[0].bring(b"later", b"never", b"fails")
        await until(lambda: all(each.settled for each in brought))
        wire.fails = PublishFailed("the broker is gone")
        with pytest.raises(PublishFailed):
            await shop.publish("paid", b"1")
    found = {
        each.attributes["error.type"]: each.status.description
        for each in (*spans.named("process orders"), *spans.named("publish paid"))
        if each.status.status_code is StatusCode.ERROR
    }
    assert found == {
        "Retry": "closed",
        "Reject": "of no use",
        "RuntimeError": "RuntimeError: broken",
        "PublishFailed": "the broker is gone",
    }
    assert len(spans.named("retry orders")) == 2
    assert len(spans.named("reject orders")) == 1


async def test_a_handler_in_a_thread_is_inside_of_its_span(wire: InMemory, spans: Spans) -> None:
    shop = app()
    seen = []

    @shop.subscribe("orders")
    def handle(raw: bytes) -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("user")))

    async with shop:
        headers = {**parent(), "baggage": b"user=7"}
        [held] = wire.receivers[0].bring(Message("orders", b"1", headers=headers))
        await until(lambda: held.settled)
        # Nothing of it stays behind in the worker.
        [other] = wire.receivers[0].bring(Message("orders", b"1"))
        await until(lambda: other.settled)
    first, second = spans.named("process orders")
    assert seen == [(first.context.span_id, "7"), (second.context.span_id, None)]
    assert traced_by(first) == TRACE
    assert second.parent is None


async def test_a_context_of_ones_own_is_not_touched(wire: InMemory, spans: Spans) -> None:
    async with app() as shop:
        await shop.publish("orders", b"1", headers=parent())
    assert wire.sent[0].headers == parent()
    assert spans.named("publish orders") == []


async def test_what_is_not_sampled_is_carried_on_as_such(wire: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, TracerProvider(ALWAYS_OFF))
    async with app() as shop:
        await shop.publish("orders", b"1")
    said = context_of(wire.sent[0].headers)
    assert said is not None
    assert not int(said.flags, 16) & 1


async def test_without_its_sdk_the_plain_way_is_taken(wire: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert context.get_current() is not None
    async with app() as shop:
        await shop.publish("orders", b"1")
    assert trace_id_of(wire.sent[0].headers)
