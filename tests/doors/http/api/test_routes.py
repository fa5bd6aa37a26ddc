"""Whatever is asked under /v1, the answer is JSON, and a mistake is the client's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.longer import examples

from headrace.broker.broker import Broker
from headrace.config import Config
from headrace.doors.http.api.operations import paths_of
from headrace.doors.http.api.routes import ENDPOINTS, RestApi
from headrace.doors.http.server.messages import Request
from headrace.format import records
from headrace.server import Server

PATHS = paths_of(ENDPOINTS)
METHODS = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS", "")
WORDS = ("orders", "mail", "orders.mail.dead", "none", "", "..", "#ephemeral", "a b", "\N{SNOWMAN}", "x" * 300)
FIELDS = (
    *("from", "settings", "topic", "origin", "queue", "since_ms", "until_ms", "key", "key_base64", "error", "limit"),
    *("error_pattern", "rate", "dry_run", "all_queues", "next", "positions", "ends", "time_ms", "timeout_ms", "filter"),
    *("backoff_ms", "max_attempts", "order_by_key", "dead_key", "deliveries", "dead_letter_topic", "0", "1"),
    *("group", "value", "value_base64", "headers", "partition", "name"),
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=10,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8).map(lambda given: json.dumps(given).encode())
queries = st.lists(
    st.tuples(st.sampled_from(("limit", "topic", "after", "x")), st.sampled_from((*WORDS, "1", "-1", "9" * 30)))
).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))


@st.composite
def paths(draw: st.DrawFn) -> str:
    path = draw(st.sampled_from(list(PATHS)))
    return "/".join(draw(st.sampled_from(WORDS)) if each.startswith("{") else each for each in path.split("/"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Broker]]:
    closed = dict.fromkeys(("kafka", "http", "nsq", "nsq_http", "nsq_https", "lookup", "lookup_http"), "off")
    closed |= {"rocketmq": "off", "rocketmq_namesrv": "off", "rocketmq_grpc": "off"}
    config = Config(data=str(tmp_path_factory.mktemp("data")), durability="async", **closed)  # type: ignore[arg-type]
    server = Server(config)

    async def start() -> None:
        await server.start()
        topic = await server.broker.topics.create("orders", 2)
        await topic.partitions[0].load()
        topic.partitions[0].append(records.build([(server.broker.runtime.clock.now_ms(), b"k", b"v", [])] * 3))
        await server.broker.topics.create("orders.mail.dead", 1)
        # What is for later stays there.
        await server.broker.timer.load()
        assert server.broker.timer._running is not None
        server.broker.timer._running.cancel()

    with asyncio.Runner() as runner:
        runner.run(start())
        yield runner, server.broker
        runner.run(server.stop())


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(METHODS), path=paths(), query=queries, body=bodies | st.binary(max_size=50))
def test_anything_is_answered(running: tuple[asyncio.Runner, Broker], method: str, path: str, query: str, body: bytes):
    runner, broker = running
    response = runner.run(RestApi(broker).answer(Request(method, path, query, body)))
    assert response.content_type == "application/json"
    said: Any = json.loads(response.body)
    if response.status in (200, 201):
        assert isinstance(said, dict)
    else:
        assert response.status in (400, 404, 405, 409), said
        assert set(said) == {"error", "message"}


HEADERS = (
    *("content-type", "headrace-key", "headrace-partition", "headrace-delay", "headrace-deliver-at", "headrace-x"),
    *("headrace-dedup-id", "headrace-header-a", "headrace-header-", "traceparent", "ce-specversion", "ce-id"),
    *("ce-source", "ce-type", "ce-time", "ce-a", "ce-", "ce-a_b"),
)
KINDS = (
    *("application/x-ndjson", "application/cloudevents+json", "application/cloudevents-batch+json; charset=utf-8"),
    *("application/cloudevents+xml", "text/plain", "application/json"),
)
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
OPTIONS = ("key", "partition", "delay", "deliver_at", "dedup_id", "dedup", "header.a", "header.", "x")
TEXTS = (
    "",
    "0",
    "1",
    "-1",
    "30s",
    "9" * 30,
    "1e9",
    "2030-01-01T00:00:00Z",
    "event",
    "%ff",
    "%",
    "1.0",
    '"a\\"',
    "x" * 2_000,
)

texts = st.sampled_from(TEXTS) | st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=8)
options = st.lists(st.tuples(st.sampled_from(OPTIONS), st.sampled_from(TEXTS)), max_size=2).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
attributes = st.sampled_from(("data", "data_base64", "datacontenttype", "time", "partitionkey", "a", "A"))
events = st.dictionaries(attributes, values, max_size=4).map(lambda given: {**EVENT, **given})
lines = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("value", "value_json", "key", "delay", "deliver_at", "dedup_id"), values | texts)
)
contents = (
    st.binary(max_size=30)
    | (events | st.lists(events, max_size=3) | values).map(lambda given: json.dumps(given).encode())
    | st.lists(lines, max_size=3).map(lambda given: b"\n".join(json.dumps(each).encode() for each in given))
)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    headers=st.dictionaries(st.sampled_from(HEADERS), texts, max_size=2),
    kind=st.sampled_from(KINDS) | st.none(),
    query=options,
    body=contents,
)
def test_any_message_is_answered(
    running: tuple[asyncio.Runner, Broker], headers: dict[str, str], kind: str | None, query: str, body: bytes
):
    """And what is answered with an error was not stored."""
    runner, broker = running
    given = {**headers, **({"content-type": kind} if kind is not None else {})}
    before = _stored(broker)
    response = runner.run(RestApi(broker).answer(Request("POST", "/topics/orders", query, body, given)))
    said: Any = json.loads(response.body)
    if response.status != 200:
        assert response.status in (400, 415), said
        assert set(said) == {"error", "message"}
        assert before == _stored(broker)


def _stored(broker: Broker) -> tuple[int, int]:
    """How many messages came, for now and for later."""
    return sum(partition.end for partition in broker.log.topics["orders"].partitions), broker.timer.scheduled


def test_every_route_says_what_it_takes(running: tuple[asyncio.Runner, Broker]):
    runner, broker = running
    for route, handlers in PATHS.items():
        path = "/".join("x" if each.startswith("{") else each for each in route.split("/"))
        response = runner.run(RestApi(broker).answer(Request("TRACE", path, "", b"")))
        assert response.status == 405
        allowed = dict(response.headers)["Allow"].split(", ")
        assert [each for each in allowed if each != "HEAD"] == list(handlers)
