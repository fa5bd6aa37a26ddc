from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

import pytest
from tests.doors.nsq.lookupd.conftest import IDENTITY, Lookup
from tests.waiting import SECONDS

HERE = {
    "remote_address": "here.example:4150",
    "hostname": "here",
    "broadcast_address": "here.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


async def ask(lookup: Lookup, method: str, path: str) -> tuple[int, Any, dict[str, str]]:
    def blocking() -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection(*lookup.door.http.address, timeout=SECONDS)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        is_json = headers["content-type"] == "application/json; charset=utf-8"
        return response.status, json.loads(body) if is_json else body, headers

    return await asyncio.to_thread(blocking)


async def test_this_broker_is_a_producer_without_registering(lookup: Lookup):
    lookup.topics.update({"orders": 1, "x.ephemeral": 1, "__consumer_offsets": 1, "long" * 20: 1})
    lookup.queues["orders"] = {"mail": 1, "bill#ephemeral": 1}
    lookup.queues["x.ephemeral"] = {"c": 1}
    assert await lookup.get("/topics") == {"topics": ["orders", "x#ephemeral"]}
    assert await lookup.get("/channels?topic=orders") == {"channels": ["bill#ephemeral", "mail"]}
    assert await lookup.get("/lookup?topic=orders") == {"channels": ["bill#ephemeral", "mail"], "producers": [HERE]}
    assert await lookup.get("/lookup?topic=x%23ephemeral") == {"channels": ["c"], "producers": [HERE]}
    peer = await lookup.producer()
    await peer.say("REGISTER orders other")
    assert (await lookup.get("/lookup?topic=orders"))["channels"] == ["bill#ephemeral", "mail", "other"]
    host, port = peer.writer.get_extra_info("sockname")
    there = {"remote_address": f"{host}:{port}", **IDENTITY}
    assert await lookup.get("/nodes") == {
        "producers": [
            {**HERE, "tombstones": [False, False], "topics": ["orders", "x#ephemeral"]},
            {**there, "tombstones": [False], "topics": ["orders"]},
        ]
    }
    assert set(await lookup.get("/debug")) == {"client::", "topic:orders:", "channel:orders:other"}


async def test_tombstones(lookup: Lookup):
    lookup.topics["orders"] = 1
    peer = await lookup.producer()
    await peer.say("REGISTER orders")
    assert (await ask(lookup, "POST", "/topic/tombstone?topic=orders&node=elsewhere.example:4151"))[0] == 200
    assert (await lookup.get("/lookup?topic=orders"))["producers"] == [HERE]
    assert (await ask(lookup, "POST", "/topic/tombstone?topic=orders&node=here.example:4151"))[0] == 200
    assert (await lookup.get("/lookup?topic=orders"))["producers"] == []
    assert [each["tombstones"] for each in (await lookup.get("/nodes"))["producers"]] == [[True], [True]]
    lookup.now_ms += 45_000
    assert len((await lookup.get("/lookup?topic=orders"))["producers"]) == 2


async def test_topics_and_channels_by_hand(lookup: Lookup):
    status, body, headers = await ask(lookup, "POST", "/topic/create?topic=orders")
    assert (status, body) == (200, b"")
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert await lookup.get("/lookup?topic=orders") == {"channels": [], "producers": []}
    assert (await ask(lookup, "POST", "/channel/create?topic=mail&channel=c"))[0] == 200
    assert await lookup.get("/topics") == {"topics": ["mail", "orders"]}
    assert await lookup.get("/channels?topic=mail") == {"channels": ["c"]}
    assert (await ask(lookup, "POST", "/channel/delete?topic=mail&channel=c"))[0] == 200
    assert (await ask(lookup, "POST", "/channel/delete?topic=mail&channel=c"))[:2] == (
        404,
        {"message": "CHANNEL_NOT_FOUND"},
    )
    assert (await ask(lookup, "POST", "/topic/delete?topic=mail"))[0] == 200
    assert await lookup.get("/topics") == {"topics": ["orders"]}


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a%20b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=%24", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=%24&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/topic/tombstone?node=t", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_errors(lookup: Lookup, method: str, path: str, status: int, message: str):
    answered, body, headers = await ask(lookup, method, path)
    assert (answered, body) == (status, {"message": message})
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"


async def test_ping_and_info(lookup: Lookup):
    assert (await ask(lookup, "GET", "/ping"))[:2] == (200, b"OK")
    assert (await ask(lookup, "GET", "/info"))[:2] == (200, {"version": "1.3.0"})


async def test_the_bound_is_told(lookups):
    lookup = await lookups(lookup_registrations_max=0)
    status, body, _ = await ask(lookup, "POST", "/topic/create?topic=t")
    assert status == 503
    assert "lookup_registrations_max" in body["message"]
