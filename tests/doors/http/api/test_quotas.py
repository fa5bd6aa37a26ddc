from __future__ import annotations

from urllib.parse import quote

import pytest
from tests.doors.http.api.conftest import Served


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
