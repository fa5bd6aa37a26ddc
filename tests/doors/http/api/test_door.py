from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unguarded import Unguarded
from tests.waiting import SECONDS

from headrace.broker.metrics import Metrics
from headrace.config import Config
from headrace.doors.door import DoorContext
from headrace.doors.http.api.handlers import pages as handlers
from headrace.doors.http.door import HttpDoor
from headrace.runtime.clock import SystemClock
from headrace.version import VERSION


class Door:
    """A door over a stand-in broker: the HTTP door asks it for little."""

    def __init__(self, **settings: Any) -> None:
        self.ready = True
        self.metrics = b"# TYPE up gauge\nup 1\n"
        self.counts = Metrics()
        broker: Any = SimpleNamespace(
            node_id=7,
            cluster_id="<c>",
            log=SimpleNamespace(topics={}, is_replicated=False),
            metrics=self.counts,
            figures=self.figures,
            queues=SimpleNamespace(all=list),
            runtime=SimpleNamespace(hostname="here", clock=SystemClock()),
            membership=None,
            security=Unguarded(),
            quotas=SimpleNamespace(is_active=False),
        )
        config = Config(http="127.0.0.1:0", **settings)
        broker.config = config
        self.door = HttpDoor(DoorContext(broker, config, config, is_ready=lambda: self.ready))

    def figures(self) -> bytes:
        if not self.metrics:
            raise RuntimeError("no figures")
        return self.metrics

    async def __aenter__(self) -> Door:
        await self.door.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.door.stop()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.door.address)

    async def ask(self, request: bytes) -> bytes:
        """All that the door says to `request` until it closes the connection."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
        return answer

    async def get(self, path: str) -> bytes:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())


@pytest.fixture(autouse=True)
def _figures(monkeypatch: pytest.MonkeyPatch) -> None:
    async def render(broker: Any, *, partitions: bool, queue_ages: Any) -> bytes:
        return b"partition\n" if partitions else broker.figures()

    monkeypatch.setattr(handlers, "render", render)


async def test_the_pages():
    async with Door() as door:
        assert (await door.get("/healthz")).startswith(b"HTTP/1.1 200")
        metrics = await door.get("/metrics")
        assert metrics.endswith(door.metrics)
        assert b"version=0.0.4" in metrics
        assert (await door.get("/metrics?partitions=1")).endswith(b"partition\n")
        assert (await door.get("/metrics?partitions=0")).endswith(door.metrics)
        page = await door.get("/")
        assert b"node 7" in page
        assert b"&lt;c&gt;" in page
        assert (await door.get("/nothing")).startswith(b"HTTP/1.1 404")


async def test_ready_only_while_every_door_accepts():
    async with Door() as door:
        assert (await door.get("/readyz")).startswith(b"HTTP/1.1 200")
        door.ready = False
        assert (await door.get("/readyz")).startswith(b"HTTP/1.1 503")
        assert (await door.get("/healthz")).startswith(b"HTTP/1.1 200")


async def test_other_methods_are_refused():
    async with Door() as door:
        answer = await door.ask(b"DELETE /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405")
        assert b"allow: get, head" in answer.lower()


async def test_a_handler_that_fails_does_not_take_the_connection_with_it():
    async with Door() as door:
        door.metrics = b""
        answer = await door.ask(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"HTTP/1.1 200" in answer


async def test_connections_beyond_the_bound_are_closed():
    async with Door(connections_max=2) as door:
        open_ones = [await door.connect() for _ in range(2)]
        for reader, writer in open_ones:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"ok\n")
        counts = door.counts.door("http")
        assert (counts.connections, counts.connections_refused) == (2, 0)
        reader, writer = await door.connect()
        try:
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        except ConnectionResetError:
            pass
        writer.close()
        assert (counts.connections, counts.connections_refused) == (2, 1)
        open_ones[0][1].close()
        await open_ones[0][1].wait_closed()
        assert (await door.get("/healthz")).startswith(b"HTTP/1.1 200")
        open_ones[1][1].close()


async def test_the_door_says_which_broker_it_belongs_to() -> None:
    async with Door() as door:
        head, _, body = (await door.get("/v1/cluster")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body) == {"cluster_id": "<c>", "node_id": 7, "version": VERSION}
