"""What NSQ's HTTP API changes is recorded with who asked."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from pathlib import Path

from headrace.addresses import parse_address
from headrace.broker.audit_reader import Wanted
from headrace.config import Config
from headrace.server import Server


def post(address: str, path: str) -> int:
    place = parse_address(address)
    assert place is not None
    connection = HTTPConnection(*place, timeout=30)
    try:
        connection.request("POST", path)
        return connection.getresponse().status
    finally:
        connection.close()


async def test_what_is_changed_over_http(tmp_path: Path):
    off = ("kafka", "http", "nsq", "lookup", "lookup_http", "rocketmq", "rocketmq_namesrv", "rocketmq_grpc")
    server = Server(Config(data=str(tmp_path), nsq_http="127.0.0.1:0", audit="on", **dict.fromkeys(off, "off")))
    await server.start()
    try:
        for path in (
            "/topic/create?topic=t",
            "/topic/empty?topic=t",
            "/channel/create?topic=t&channel=c",
            "/channel/pause?topic=t&channel=c",
            "/channel/unpause?topic=t&channel=c",
            "/channel/empty?topic=t&channel=c",
            "/channel/delete?topic=t&channel=c",
            "/topic/pause?topic=t",
            "/topic/delete?topic=t",
        ):
            assert await asyncio.to_thread(post, server.addresses["nsq-http"], path) == 200, path
        await server.broker.audit.flush()
        page = await server.broker.audit_reader.page(Wanted(user="ANONYMOUS"), 100)
    finally:
        await server.stop()
    assert [(each["action"], each["name"]) for each in reversed(page.entries)] == [
        ("topic.create", "t"),
        ("topic.trim", "t"),
        ("queue.create", "t/c"),
        ("queue.pause", "t/c"),
        ("queue.resume", "t/c"),
        ("queue.empty", "t/c"),
        ("queue.delete", "t/c"),
        ("topic.alter", "t"),
        ("topic.delete", "t"),
    ]
    assert {each["host"] for each in page.entries} == {"127.0.0.1"}
