from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest
from tests.broker.timer.stage import read_records
from tests.doors.http.api.conftest import Served

from headrace.doors.http.server import listener


async def prepare(served: Served, topic: str = "orders", **fields: Any) -> str:
    status, answer = await served.ask("POST", "/v1/half", {"topic": topic, "group": "shop", **fields})
    assert status == 201, answer
    assert answer["state"] == "prepared"
    return str(answer["id"])


async def seen(served: Served, topic: str = "orders") -> list[Any]:
    (partition,) = served.broker.topics.all[topic].partitions
    return [each[1:] for each in await read_records(served.broker.runtime, partition)]


async def test_prepare_commit_and_roll_back(served: Served):
    await served.topic("orders")
    headers = [{"name": "trace", "value": "7"}, {"name": "raw", "value_base64": "/w=="}, {"name": "none"}]
    id = await prepare(served, key="k", value="v", headers=headers, timeout_ms=60_000)
    raw = await prepare(served, key_base64="/w==", value_base64=b64encode(b"\xfe").decode(), partition=0)
    void = await prepare(served)
    assert await seen(served) == []

    status, shown = await served.ask("GET", f"/v1/half/{id}")
    assert status == 200
    expected = {
        **{"id": id, "state": "prepared", "topic": "orders", "partition": None, "group": "shop", "timeout_ms": 60_000},
        **{"checks": 0, "key": "k", "value": "v"},
        "headers": [headers[0], headers[1], {"name": "none", "value": None}],
    }
    assert {name: shown[name] for name in expected} == expected
    assert shown["next_check_ms"] == shown["prepared_ms"] + 60_000

    committed = {"id": id, "state": "committed", "topic": "orders", "partition": 0, "offset": 0}
    assert await served.ask("POST", f"/v1/half/{id}/commit") == (200, committed)
    assert await served.ask("POST", f"/v1/half/{id}/commit", {}) == (200, committed)
    assert await served.ask("GET", f"/v1/half/{id}") == (200, committed)
    status, error = await served.ask("POST", f"/v1/half/{id}/rollback")
    assert (status, error["error"]) == (409, "HalfDecided")
    assert await served.ask("POST", f"/v1/half/{void}/rollback") == (200, {"id": void, "state": "rolled-back"})
    await served.ask("POST", f"/v1/half/{raw}/commit")
    assert await seen(served) == [
        (b"k", b"v", [("trace", b"7"), ("raw", b"\xff"), ("none", None)]),
        (b"\xff", b"\xfe", []),
    ]


async def test_list(served: Served):
    await served.topic("a")
    await served.topic("b")
    ids = [await prepare(served, "ab"[n % 2], value=str(n)) for n in range(4)]
    status, listed = await served.ask("GET", "/v1/half")
    assert status == 200
    assert [each["id"] for each in listed["half"]] == ids
    assert (listed["pending"], listed["parked"], listed["next"]) == (4, 0, None)
    _, page = await served.ask("GET", "/v1/half?topic=a&group=shop&limit=1")
    assert [each["id"] for each in page["half"]] == [ids[0]]
    _, page = await served.ask("GET", f"/v1/half?topic=a&limit=1&after={page['next']}")
    assert [each["id"] for each in page["half"]] == [ids[2]]
    assert (await served.ask("GET", "/v1/half?group=nobody"))[1]["half"] == []


async def test_large_messages(served: Served):
    await served.topic("orders")
    value = "x" * 1_000_000
    id = await prepare(served, value_base64=b64encode(value.encode()).decode())
    assert (await served.ask("GET", f"/v1/half/{id}"))[1]["value"] == value
    status, error = await served.ask("POST", "/v1/half", {"topic": "orders", "group": "shop", "value": value + value})
    assert (status, error["error"]) == (413, "BatchTooLarge")
    status, error = await served.ask("POST", "/v1/half", {"topic": "orders", "group": "shop", "value": value * 3})
    assert (status, error["error"]) == (413, "RequestTooLarge")


async def test_checks(served: Served):
    await served.topic("orders")
    waiting = asyncio.create_task(served.ask("GET", "/v1/half/checks?group=shop&wait_ms=20000"))
    id = await prepare(served, key="k", value="v", timeout_ms=100)
    status, answer = await waiting
    assert status == 200
    (check,) = answer["checks"]
    assert (check["id"], check["topic"], check["checks"]) == (id, "orders", 1)
    assert (check["key"], check["value"], check["partition"]) == ("k", "v", None)
    assert await served.ask("GET", "/v1/half/checks?group=shop&wait_ms=10") == (200, {"checks": []})


async def test_a_stop_does_not_wait_for_polls(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "STOP_SECONDS", 20.0)
    waiting = asyncio.create_task(served.ask("GET", "/v1/half/checks?group=shop&wait_ms=20000"))
    while not served.broker.prepared.check_back._polls:
        await asyncio.sleep(0.001)
    began = asyncio.get_running_loop().time()
    await served.restart()
    assert await waiting == (200, {"checks": []})
    assert asyncio.get_running_loop().time() - began < 15


async def test_a_restart(served: Served):
    await served.topic("orders")
    ids = [await prepare(served, value=str(n)) for n in range(3)]
    await served.ask("POST", f"/v1/half/{ids[1]}/commit")
    await served.restart()
    assert [each["id"] for each in (await served.ask("GET", "/v1/half"))[1]["half"]] == [ids[0], ids[2]]
    _, committed = await served.ask("POST", f"/v1/half/{ids[1]}/commit")
    assert committed["offset"] == 0
    assert (await served.ask("POST", f"/v1/half/{ids[2]}/commit"))[1]["offset"] == 1
    assert [value for _, value, _ in await seen(served)] == [b"1", b"2"]


UNKNOWN = "/v1/half/" + "0" * 24


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "word"),
    [
        ("POST", "/v1/half", None, 400, "InvalidHalf", "group"),
        ("POST", "/v1/half", {"group": "shop"}, 400, "InvalidTopic", "name"),
        ("POST", "/v1/half", {"group": "shop", "topic": "none"}, 404, "UnknownTopic", "none"),
        ("POST", "/v1/half", {"group": "shop", "topic": "__queues"}, 400, "InvalidTopic", "own"),
        ("POST", "/v1/half", {"group": "shop", "topic": "orders", "partition": 7}, 404, "UnknownTopic", "7"),
        ("POST", "/v1/half", {"group": "shop", "topic": "orders", "timeout_ms": 0}, 400, "InvalidHalf", "timeout"),
        ("POST", "/v1/half", {"group": "shop", "topic": "orders", "timeout_ms": "x"}, 400, "BadRequest", "timeout_ms"),
        ("POST", "/v1/half", {"group": "shop", "topic": "orders", "value": 7}, 400, "BadRequest", "value_base64"),
        ("POST", "/v1/half", {"topic": "orders", "value_base64": "?"}, 400, "BadRequest", "Base64"),
        ("POST", "/v1/half", {"topic": "orders", "key": "a", "key_base64": "YQ=="}, 400, "BadRequest", "both"),
        ("POST", "/v1/half", {"topic": "orders", "headers": {"a": "b"}}, 400, "BadRequest", "headers"),
        ("POST", "/v1/half", {"topic": "orders", "headers": [{"value": "b"}]}, 400, "BadRequest", "name"),
        ("POST", "/v1/half", {"topic": "orders", "headers": [{"name": "a", "x": 1}]}, 400, "BadRequest", "x"),
        ("POST", "/v1/half", {"topic": "orders", "headers": [{"name": "\ud800"}]}, 400, "BadRequest", "UTF-8"),
        ("POST", "/v1/half", {"topic": "\ud800", "group": "\ud800"}, 400, "InvalidTopic", "ASCII"),
        ("POST", "/v1/half", {"topic": "orders", "body": "x"}, 400, "BadRequest", "body"),
        ("GET", "/v1/half?limit=0", None, 400, "BadRequest", "limit"),
        ("GET", "/v1/half?topic=none", None, 404, "UnknownTopic", "none"),
        ("GET", "/v1/half?after=x", None, 400, "InvalidHalf", "hexadecimal"),
        ("GET", "/v1/half/x", None, 400, "InvalidHalf", "hexadecimal"),
        ("GET", UNKNOWN, None, 404, "UnknownHalf", "0000"),
        ("POST", UNKNOWN + "/commit", None, 404, "UnknownHalf", "0000"),
        ("POST", UNKNOWN + "/rollback", None, 404, "UnknownHalf", "0000"),
        ("POST", UNKNOWN + "/commit", {"offset": 1}, 400, "BadRequest", "offset"),
        ("DELETE", UNKNOWN, None, 405, "MethodNotAllowed", "GET"),
        ("GET", "/v1/half/checks", None, 400, "InvalidHalf", "group"),
        ("GET", "/v1/half/checks?group=g&wait_ms=30001", None, 400, "BadRequest", "wait_ms"),
        ("POST", "/v1/half/checks", None, 405, "MethodNotAllowed", "GET"),
    ],
)
async def test_what_goes_wrong(served: Served, method: str, path: str, body: Any, status: int, code: str, word: str):
    await served.topic("orders")
    answered, error = await served.ask(method, path, body)
    assert (answered, error["error"]) == (status, code), error
    assert word in error["message"]
