"""Connections over HTTP: of several doors, by real sockets; and cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served
from tests.waiting import until

from headrace.addresses import parse_address
from headrace.client import Client
from headrace.config import Config
from headrace.server import Server


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Served]:
    """A server with the doors of Kafka, NSQ and HTTP."""
    config = Config(
        data=str(tmp_path), kafka="127.0.0.1:0", http="127.0.0.1:0", nsq="127.0.0.1:0", nsq_http="off", lookup="off",
        lookup_http="off", rocketmq="off", rocketmq_namesrv="off", rocketmq_grpc="off", durability="async",
    )  # fmt: skip
    served = Served(Server(config))
    await served.server.start()
    yield served
    await served.server.stop()


async def listed(served: Served, query: str = "") -> list[dict[str, Any]]:
    status, answer = await served.ask("GET", f"/v1/clients?{query}")
    assert status == 200, answer
    assert answer["total"] >= len(answer["clients"])
    return list(answer["clients"])


async def test_connections_of_all_doors_and_a_kill(both: Served):
    place = parse_address(both.server.addresses["nsq"])
    assert place is not None
    reader, writer = await asyncio.open_connection(*place)
    writer.write(b"  V2")
    await until(lambda: len(both.broker.clients) > 0)
    async with Client(both.server.addresses["kafka"], client_id="my-app") as client:
        await client.cluster.topics()
        (nsq,) = await listed(both, "door=nsq")
        assert nsq["address"] == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert (nsq["user"], nsq["tls"]) == ("", False)
        assert nsq["age_ms"] >= 0
        kafka = await listed(both, "search=my-app&sort=age_ms")
        assert kafka
        assert {each["door"] for each in kafka} == {"kafka"}
        (http,) = await listed(both, "door=http")
        assert http["address"].startswith("127.0.0.1:")
        assert [each["id"] for each in await listed(both, "limit=1&order=desc")] > [nsq["id"]]
        # It is cut off, and no other.
        assert await both.ask("DELETE", f"/v1/clients/{nsq['id']}") == (200, {"id": nsq["id"], "killed": True})
        assert await reader.read() == b""
        assert await listed(both, "door=nsq") == []
        assert await client.cluster.topics() == []
    for gone in (nsq["id"], "x", "9" * 30):
        assert (await both.ask("DELETE", f"/v1/clients/{gone}"))[1]["error"] == "UnknownClient"
    writer.close()


async def test_who_has_gone_is_listed_no_more(both: Served):
    async with Client(both.server.addresses["kafka"], client_id="my-app") as client:
        await client.cluster.topics()
        assert await listed(both, "search=my-app")
    await until(lambda: not [each for each in both.broker.clients if each.door == "kafka"])
