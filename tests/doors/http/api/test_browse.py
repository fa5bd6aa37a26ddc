"""Messages over HTTP: pages in the order of times over partitions, filters, forms, masks, tails."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.addresses import parse_address
from headrace.broker.browse import browse
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow
from headrace.doors.http.api.handlers import browse as handlers
from headrace.format import records
from headrace.log.interface import Topic

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


async def put(served: Served, topic: Topic, index: int, *rows: Row) -> None:
    topic.partitions[index].append(records.build(list(rows)))
    await served.settled(topic)


async def get(served: Served, path: str, **query: object) -> dict[str, Any]:
    status, answer = await served.ask("GET", f"{path}?{urlencode(query)}")
    assert status == 200, answer
    return dict(answer)


async def every(served: Served, **query: object) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = await get(served, "/v1/topics/t/messages", after=after, **query)
        found += page["messages"]
        after = page["next"]
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in found]


@pytest.fixture
async def mixed(served: Served) -> Served:
    """Two partitions whose times alternate: even ones on 0, odd ones on 1."""
    topic = await served.topic("t", partitions=2)
    for index in (0, 1):
        rows: list[Row] = [(1_000 + 2 * n + index, str(2 * n + index).encode(), b"x", []) for n in range(10)]
        await put(served, topic, index, *rows[:4])
        await put(served, topic, index, *rows[4:])
    return served


@pytest.mark.parametrize("limit", [1, 3, 20, 100])
async def test_pages_are_in_the_order_of_times(mixed: Served, limit: int):
    oldest = [(n % 2, n // 2) for n in range(20)]
    assert places(await every(mixed, limit=limit)) == oldest
    assert places(await every(mixed, limit=limit, newest="true")) == oldest[::-1]
    assert places(await every(mixed, limit=limit, partition=1)) == oldest[1::2]


async def test_ranges(mixed: Served):
    assert places(await every(mixed, **{"from": "end-2"})) == [(0, 8), (1, 8), (0, 9), (1, 9)]
    assert places(await every(mixed, **{"from": "8"})) == [(0, 8), (1, 8), (0, 9), (1, 9)]
    assert places(await every(mixed, **{"from": "ms:1017", "until": 1018})) == [(1, 8), (0, 9)]
    assert places(await every(mixed, **{"from": "latest"})) == []
    assert (await mixed.ask("GET", "/v1/topics/t/messages?from=x"))[0] == 400
    assert (await mixed.ask("GET", "/v1/topics/t/messages?partition=2"))[0] == 400
    assert (await mixed.ask("GET", "/v1/topics/t/messages?after=b.0:1"))[0] == 400


async def test_a_page_looks_at_so_many_messages(mixed: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(browse.Browser.page, "__kwdefaults__", {"newest": False, "looked_max": 5})
    page = await get(mixed, "/v1/topics/t/messages", key="19")
    assert (page["messages"], page["looked"]) == ([], 5)
    assert places(await every(mixed, key="19")) == [(1, 9)]


async def test_a_gap_and_a_batch_that_cannot_be_read_are_stepped_over(served: Served):
    topic = await served.topic("t")
    await put(served, topic, 0, (1, None, b"first", []))
    broken = records.build([(2, None, b"second", [])])
    broken[61:] = b"\xff" * (len(broken) - 61)
    from crc32c import crc32c

    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    topic.partitions[0].append(broken)
    await put(served, topic, 0, (3, None, b"third", []))
    assert [each["value"] for each in await every(served)] == ["first", "third"]
    assert [each["value"] for each in await every(served, newest="true")] == ["third", "first"]


# --- filters and forms ------------------------------------------------------------------------------------------------


@pytest.fixture
async def orders(served: Served) -> Served:
    topic = await served.topic("t")
    values = [
        {"id": 1, "customer": {"id": 42, "card": "4111"}, "items": [{"sku": "a"}], "total": 5},
        {"id": 2, "customer": {"id": 7, "card": "5500"}, "items": [], "total": 50.5, "error": None},
        {"id": 3, "paid": True, "customer": None},
    ]
    rows: list[Row] = [
        (n, f"eu-{n}".encode(), json.dumps(value).encode(), [("kind", b"order"), ("n", str(n).encode())])
        for n, value in enumerate(values)
    ]
    await put(served, topic, 0, *rows, (3, None, b"\xff\x00", []), (4, b"tomb", None, []))
    return served


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"key": "eu-1"}, [1]),
        ({"key_contains": "u-"}, [0, 1, 2]),
        ({"value_contains": "4111"}, [0]),
        ({"header": "kind"}, [0, 1, 2]),
        ({"header": "n=2"}, [2]),
        ({"key_contains": "eu", "header": "n=0"}, [0]),
        ({"where": "value.customer.id = 42"}, [0]),
        ({"where": "value.customer.id != 42"}, [1, 2, 3, 4]),
        ({"where": "value.total >= 5 and value.total < 50.5"}, [0]),
        ({"where": "value.items[0].sku = 'a' or value.paid = true"}, [0, 2]),
        ({"where": "value.items[*].sku in ('b', 'a')"}, [0]),
        ({"where": "not (header.n in ('0','1')) and key ~ 'eu'"}, [2]),
        ({"where": "header.n >= 1"}, [1, 2]),
        ({"where": "value.customer is null"}, [2, 3, 4]),
        ({"where": "value.error is not null"}, []),
        ({"where": "value is null"}, [4]),
        ({"where": "offset > 1 and size > 0 and partition = 0 and timestamp <= 3"}, [2, 3]),
        ({"where": 'key = "eu-0" OR key = "eu-1"'}, [0, 1]),
    ],
)
async def test_filters(orders: Served, query: dict[str, str], found: list[int]):
    assert [each["offset"] for each in await every(orders, **query)] == found


@pytest.mark.parametrize(
    "where",
    ["", " ", "value.", "key =", "= 1", "key = x", "key ! 1", "(key = '1'", "key in ()", "nothing = 1", "key is 1",
     "__import__('os')", "value.a..b = 1", "not " * 30 + "key = '1'", "(" * 30, "key = '1' key = '2'", "key = 'x"],
)  # fmt: skip
async def test_what_is_no_expression(orders: Served, where: str):
    status, answer = await orders.ask("GET", f"/v1/topics/t/messages?where={quote(where)}")
    if where == "":
        assert status == 200
    else:
        assert (status, answer["error"]) == (400, "InvalidSearch"), answer
        assert "where" in answer["message"]


async def test_forms_and_cuts(orders: Served):
    async def first(offset: int, **query: object) -> dict[str, Any]:
        found = await get(orders, "/v1/topics/t/messages", **{"from": offset, "limit": 1}, **query)
        return dict(found["messages"][0])

    assert json.loads((await first(0))["value"])["id"] == 1
    assert (await first(0, form="json"))["value_json"]["customer"]["id"] == 42
    assert (await first(3))["value_base64"] == "/wA="
    assert (await first(3, form="json"))["value_base64"] == "/wA="
    assert (await first(3, form="hex"))["value_hex"] == "ff00"
    assert (await first(4, form="hex"))["value"] is None
    cut = await first(0, value_max=5)
    whole = json.dumps({"id": 1, "customer": {"id": 42, "card": "4111"}, "items": [{"sku": "a"}], "total": 5})
    assert (cut["value"], cut["value_bytes"]) == (whole[:5], len(whole))
    assert cut["whole"] == "/v1/topics/t/partitions/0/messages/0"
    assert (await get(orders, cut["whole"]))["value"] == whole
    assert (await orders.ask("GET", "/v1/topics/t/partitions/0/messages/99"))[0] == 404
    assert (await orders.ask("GET", "/v1/topics/t/messages?form=x"))[0] == 400


def download(served: Served, path: str) -> tuple[int, str, bytes]:
    address = parse_address(served.server.addresses["http"])
    assert address is not None
    connection = HTTPConnection(*address, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


async def test_a_value_as_a_file(orders: Served):
    found = await asyncio.to_thread(download, orders, "/v1/topics/t/partitions/0/messages/3/value")
    assert found == (200, "application/octet-stream", b"\xff\x00")


# --- masks ------------------------------------------------------------------------------------------------------------


async def test_masks_hide_fields_and_filters_do_not_see_them(tmp_path: Path):
    async with serving(tmp_path, authorization="on") as served:
        security = served.broker.security
        reader = allow("ANONYMOUS", Operation.READ, Resource.TOPIC, "t")
        topic = await served.topic("t", mask="key,header:token,customer.card,items[*].price")
        value = {"customer": {"card": "4111", "name": "x"}, "items": [{"price": 1}, {"price": 2, "n": 3}]}
        rows: list[Row] = [
            (1, b"secret", json.dumps(value).encode(), [("token", b"abc"), ("a", b"b")]),
            (2, None, b"no json 4111", []),
            (3, None, b'{"other": 1}', []),
        ]
        await put(served, topic, 0, *rows)
        security.set_rules([reader])
        first, second, third = await every(served)
        assert json.loads(first["value"]) == {
            "customer": {"card": "***", "name": "x"}, "items": [{"price": "***"}, {"price": "***", "n": 3}]
        }  # fmt: skip
        assert (first["key"], first["headers"][0]["value"], first["headers"][1]["value"]) == ("***", "***", "b")
        assert (second["value"], third["value"]) == ("***", '{"other": 1}')
        assert [each.get("masked", False) for each in (first, second, third)] == [True, True, False]
        for probe in ({"value_contains": "4111"}, {"where": "value.customer.card ~ '4'"}, {"key": "secret"}):
            assert await every(served, **probe) == []
        path = "/v1/topics/t/partitions/0/messages/0"
        assert "4111" not in (await get(served, path))["value"]
        assert "4111" not in str(await served.ask("GET", "/v1/topics/t/search?id=t/0/0"))
        for refused in (f"{path}?unmask=true", f"{path}/value", "/v1/topics/t/messages?unmask=true"):
            assert (await served.ask("GET", refused))[0] == 401, refused
        security.set_rules([reader, allow("ANONYMOUS", Operation.ALTER_CONFIGS, Resource.TOPIC, "t")])
        assert (await every(served, unmask="true"))[0]["key"] == "secret"
        assert "4111" not in (await every(served))[0]["value"], "who may see them asks for them"
        assert (await asyncio.to_thread(download, served, path + "/value"))[0] == 200


async def test_a_mask_that_makes_no_sense(served: Served):
    status, answer = await served.ask("PUT", "/v1/topics/t", {"settings": {"mask": "a..b"}})
    assert (status, answer["error"]) == (400, "InvalidTopicConfig")


# --- tails ------------------------------------------------------------------------------------------------------------


async def test_a_tail_waits_and_goes_on(served: Served):
    topic = await served.topic("t", 5, partitions=2)
    path = "/v1/topics/t/tail"
    start = await get(served, path, wait_ms=0)
    assert (start["messages"], start["skipped"]) == ([], 0)
    asking = asyncio.ensure_future(get(served, path, cursor=start["next"], wait_ms=30_000))
    await put(served, topic, 1, (9, b"k", b"new", []))
    found = await asking
    assert [each["value"] for each in found["messages"]] == ["new"]
    again = await get(served, path, cursor=found["next"], wait_ms=0)
    assert again["messages"] == []
    await put(served, topic, 0, (9, b"a", b"1", []), (9, b"b", b"2", []))
    filtered = await get(served, path, cursor=again["next"], key="b")
    assert [each["value"] for each in filtered["messages"]] == ["2"]


async def test_a_tail_that_is_too_slow_leaves_out_and_counts(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers, "TAIL_RECORDS", 4)
    topic = await served.topic("t", partitions=2)
    start = await get(served, "/v1/topics/t/tail", wait_ms=0)
    for index in (0, 1):
        await put(served, topic, index, *[(n, None, str(n).encode(), []) for n in range(10)])
    found = await get(served, "/v1/topics/t/tail", cursor=start["next"])
    assert found["skipped"] == 16
    assert [each["value"] for each in found["messages"]] == ["8", "8", "9", "9"]


async def test_a_page_leads_to_a_tail(served: Served):
    topic = await served.topic("t", 3)
    for newest in ("true", "false"):
        page = await get(served, "/v1/topics/t/messages", newest=newest)
        await put(served, topic, 0, (9, None, b"new", []))
        found = await get(served, "/v1/topics/t/tail", cursor=page["tail"])
        assert [each["value"] for each in found["messages"]] == ["new"]
