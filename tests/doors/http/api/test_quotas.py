from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
from tests.doors.http.api.conftest import Served

from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import Inside, Open
from headrace.doors.http.api.routes import ENDPOINTS


async def put(served: Served, entity: dict[str, str], **quotas: float | None):
    return await served.ask("PUT", "/v1/quotas", {"entity": entity, "quotas": quotas})


async def test_set_list_and_delete(served: Served):
    ann = {"user": "ann"}
    assert await put(served, ann, producer_byte_rate=1000, topics_max=0) == (
        200,
        {"entity": ann, "quotas": {"producer_byte_rate": 1000, "topics_max": 0}},
    )
    both = {"user": "ann", "client_id": "<default>"}
    assert (await put(served, both, request_percentage=2.5))[0] == 200
    assert (await put(served, {"ip": "<default>"}, connections_max=7))[0] == 200
    status, listed = await served.ask("GET", "/v1/quotas")
    assert status == 200
    assert [each["entity"] for each in listed["quotas"]] == [{"ip": "<default>"}, ann, both]
    assert listed["next"] is None

    _, listed = await served.ask("GET", "/v1/quotas?user=ann&limit=1")
    assert [each["entity"] for each in listed["quotas"]] == [ann]
    _, listed = await served.ask("GET", f"/v1/quotas?user=ann&limit=1&after={quote(listed['next'])}")
    assert [each["entity"] for each in listed["quotas"]] == [both]
    assert listed["next"] is None
    _, listed = await served.ask("GET", f"/v1/quotas?client_id={quote('<default>')}")
    assert [each["entity"] for each in listed["quotas"]] == [both]

    assert (await put(served, ann, producer_byte_rate=None))[1]["quotas"] == {"topics_max": 0}
    assert await served.ask("DELETE", "/v1/quotas?user=ann") == (200, {"entity": ann, "deleted": True})
    assert await served.ask("DELETE", "/v1/quotas?user=ann") == (200, {"entity": ann, "deleted": False})
    assert len(served.broker.quotas.table.entities) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "word"),
    [
        ("GET", "/v1/quotas?limit=0", None, "limit"),
        ("GET", "/v1/quotas?after=x", None, "after"),
        ("GET", "/v1/quotas?after=%5B1%5D", None, "after"),
        ("PUT", "/v1/quotas", {"quotas": {"producer_byte_rate": 1}}, "empty"),
        ("PUT", "/v1/quotas", {"entity": {"user": "a"}, "quotas": {"bytes": 1}}, "'bytes'"),
        ("PUT", "/v1/quotas", {"entity": {"user": "a"}, "quotas": {"producer_byte_rate": "1"}}, "number"),
        ("PUT", "/v1/quotas", {"entity": {"user": "a"}, "quotas": {"producer_byte_rate": True}}, "number"),
        ("PUT", "/v1/quotas", {"entity": {"user": "a"}, "quotas": {"producer_byte_rate": 0}}, "from 1"),
        ("PUT", "/v1/quotas", {"entity": {"group": "a"}, "quotas": {}}, "group"),
        ("DELETE", "/v1/quotas", None, "empty"),
        ("DELETE", "/v1/quotas?ip=x", None, "'x'"),
    ],
)
async def test_what_goes_wrong(served: Served, method: str, path: str, body: object, word: str):
    status, error = await served.ask(method, path, body)
    assert status == 400
    assert word in error["message"]


async def test_who_publishes_too_much_is_refused(served: Served):
    await served.topic("orders")
    await put(served, {"user": "ANONYMOUS"}, producer_byte_rate=100)
    path, body = "/v1/topics/orders/messages", {"value": "x" * 1_000}
    assert (await served.ask("POST", path, body))[0] == 200
    status, error = await served.ask("POST", path, body)
    assert (status, error["error"]) == (429, "QuotaExceeded")
    assert "producer_byte_rate" in error["message"]
    assert 7 <= int(served.last_headers["Retry-After"]) <= 9
    status, error = await served.ask("POST", "/v1/half", {"topic": "orders", "value": "x", "group": "g"})
    assert status == 429
    # The way out is never closed.
    await put(served, {"user": "ANONYMOUS"}, producer_byte_rate=None)
    assert (await served.ask("POST", path, body))[0] == 200
    assert served.broker.topics.existing("orders").partitions[0].end == 2


READING = [
    "/v1/topics/orders/queues/q/peek",
    "/v1/topics/orders/queues/q/messages",
    "/v1/topics/orders/messages?limit=10",
    "/v1/topics/orders/tail?cursor={cursor}&wait_ms=0",
    "/v1/topics/orders/partitions/0/messages/100",
    "/v1/topics/orders/partitions/0/messages/100/value",
    "/v1/topics/orders/search?key=k",
    "/v1/dead-letters/orders/messages",
    "/v1/half/{half}",
    "/v1/half/checks?group=g&wait_ms=0",
]


async def status_of(served: Served, path: str) -> int:
    """Of an answer in whatever form."""

    def ask() -> int:
        connection = HTTPConnection(*served.server.addresses["http"].split(":"), timeout=30)  # type: ignore[arg-type]
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("path", READING)
async def test_who_reads_too_much_is_refused(served: Served, path: str):
    topic = await served.topic("orders", 100)
    await served.broker.queues.ensure(topic, "q")
    await served.ask("POST", "/v1/topics/orders/messages", {"value": "x" * 1_000, "key": "k"})
    _, half = await served.ask("POST", "/v1/half", {"topic": "orders", "value": "x" * 1_000, "group": "g"})
    _, page = await served.ask("GET", "/v1/topics/orders/messages?limit=1")
    path = path.format(half=half["id"], cursor=quote(page["tail"]))
    await put(served, {"user": "<default>"}, consumer_byte_rate=1)
    assert await status_of(served, path) == 200
    # What was sent is not taken back: whoever asks again must wait for it.
    status, error = await served.ask("GET", path)
    assert (status, error["error"]) == (429, "QuotaExceeded")
    assert "consumer_byte_rate" in error["message"]
    assert int(served.last_headers["Retry-After"]) >= 1
    assert (await served.ask("GET", "/v1/queues"))[0] == 200
    await put(served, {"user": "<default>"}, consumer_byte_rate=None)
    assert await status_of(served, path) == 200


def test_whatever_shows_messages_counts_them():
    """Who may read a topic may be sent its messages: a route with that right declares it, or stands here."""
    counts_alone = {"/v1/dead-letters/{topic}", "/v1/audit"}
    for each in ENDPOINTS:
        rights = each.operation.rights
        reads = not isinstance(rights, Inside | Open) and any(
            right.operation is Operation.READ and right.resource is Resource.TOPIC for right in rights
        )
        if each.operation.method == "GET" and reads and each.operation.path not in counts_alone:
            assert each.operation.reads_messages, each.operation.path


async def test_who_takes_too_much_of_the_loop_is_refused(served: Served):
    await served.topic("orders")
    await put(served, {"user": "ANONYMOUS"}, request_percentage=0.001)
    statuses = [(await served.ask("GET", "/v1/queues"))[0] for _ in range(5)]
    assert statuses[0] == 200
    assert statuses[1:] == [429] * 4
    assert (await served.ask("DELETE", "/v1/quotas?user=ANONYMOUS"))[0] == 200
    assert (await served.ask("GET", "/v1/queues"))[0] == 200


async def test_connections_that_come_too_fast_are_answered_later(served: Served):
    assert (await put(served, {"ip": "127.0.0.1"}, connection_creation_rate=2))[0] == 200
    loop = asyncio.get_running_loop()
    began = loop.time()
    # Each on a connection of its own.
    for _ in range(4):
        assert (await served.ask("GET", "/v1/cluster"))[0] == 200
    assert loop.time() - began >= 0.8
    assert served.broker.quotas.figures[Kind.CONNECT].throttled >= 2
