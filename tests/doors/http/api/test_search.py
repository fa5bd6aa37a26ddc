from __future__ import annotations

from base64 import b64encode

import pytest
from tests.doors.http.api.conftest import Served

from headrace.broker.publish import Message
from headrace.broker.security import Session

WHEN = 1_700_000_000_000


async def publish(served: Served, topic: str, count: int, value: bytes = b"v") -> None:
    headers = [("KEYS", b"any all"), ("TAGS", b"t"), ("color", b"a=b")]
    messages = [Message(b"k%d" % (each % 3), value, [*headers, ("UNIQ_KEY", b"U%d" % each)]) for each in range(count)]
    await served.broker.publisher.publish(Session(), topic, messages)


def offsets(answer: dict) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in answer["messages"]]


async def test_a_search(served: Served):
    await served.topic("orders")
    await publish(served, "orders", 7)
    status, answer = await served.ask("GET", "/v1/topics/orders/search?key=k1")
    assert (status, offsets(answer), answer["next"]) == (200, [(0, 1), (0, 4)], None)
    first = answer["messages"][0]
    assert (first["id"], first["key"], first["value"]) == ("orders/0/1", "k1", "v")
    assert {each["name"]: each["value"] for each in first["headers"]}["UNIQ_KEY"] == "U1"
    assert (answer["searched"], answer["of"]) == (7, 7)
    for query, expected in (
        ("key=any", range(7)),
        ("unique_key=U3", [3]),
        ("id=U3", [3]),
        ("id=orders/0/2", [2]),
        ("id=0/2", [2]),
        ("id=0/9", []),
        ("id=9/0", []),
        ("id=others/0/2", []),
        ("tag=t&key=k0", [0, 3, 6]),
        ("header=color%3Da%3Db&key=k2", [2, 5]),
        ("header=color%3Da", []),
        (f"key_base64={b64encode(b'k1').decode().rstrip('=')}%3D", [1, 4]),
        ("key=k1&since=2100-01-01T00:00:00Z", []),
        ("key=k1&until=1000", []),
        ("key=k1&since=1000&until=2100-01-01T00:00:00Z", [1, 4]),
    ):
        status, answer = await served.ask("GET", f"/v1/topics/orders/search?{query}")
        assert (status, offsets(answer)) == (200, [(0, each) for each in expected]), query


async def test_pages(served: Served):
    await served.topic("orders")
    await publish(served, "orders", 5)
    found, after = [], ""
    while after is not None:
        status, answer = await served.ask("GET", f"/v1/topics/orders/search?tag=t&limit=2&after={after}")
        assert status == 200
        assert len(answer["messages"]) <= 2
        assert "index" in answer.get("hint", "index")
        found, after = found + offsets(answer), answer["next"]
    assert found == [(0, each) for each in range(5)]


async def test_large_messages(served: Served):
    await served.topic("orders", **{"max.message.bytes": "8000000"})
    for value in (b"x" * 3_000_000, b"y" * 5_000_000, b"z"):
        await publish(served, "orders", 1, value)
    path = "/v1/topics/orders/search?key=all"
    _, answer = await served.ask("GET", path)
    assert [len(each["value"]) for each in answer["messages"]] == [3_000_000]
    _, answer = await served.ask("GET", f"{path}&after={answer['next']}")
    (cut,) = answer["messages"]
    assert (cut["cut"], cut["value_bytes"], cut["key_bytes"], "headers" in cut) == (True, 5_000_000, 2, False)
    _, answer = await served.ask("GET", f"{path}&after={answer['next']}")
    assert (answer["messages"][0]["value"], answer["next"]) == ("z", None)


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("orders/search", 400, "give key"),
        ("orders/search?key=", 400, "the value of key must have 1 to"),
        ("none/search?key=k", 404, "none"),
        ("orders/search?key=k&limit=0", 400, "limit"),
        ("orders/search?key=k&limit=1001", 400, "1000"),
        ("orders/search?key=k&after=x", 400, "after"),
        ("orders/search?key=k&after=1:-1", 400, "after"),
        ("orders/search?key=k&since=soon", 400, "since must be milliseconds"),
        ("orders/search?key=k&since=5&until=4", 400, "ends (4) before it begins (5)"),
        ("orders/search?header=x", 400, "NAME=VALUE"),
        ("orders/search?header=%3Dx", 400, "NAME=VALUE"),
        ("orders/search?id=0/1&key=k", 400, "nothing else"),
        ("orders/search?keys=k", 400, "keys"),
    ],
)
async def test_what_goes_wrong(served: Served, path: str, status: int, word: str):
    await served.topic("orders")
    answered, error = await served.ask("GET", f"/v1/topics/{path}")
    assert answered == status
    assert word in error["message"]


async def test_an_after_beyond_all_partitions_finds_nothing(served: Served):
    await served.topic("orders")
    assert (await served.ask("GET", "/v1/topics/orders/search?key=k&after=7:0"))[1]["messages"] == []
