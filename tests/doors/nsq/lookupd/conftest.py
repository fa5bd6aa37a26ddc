from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unguarded import Unguarded
from tests.waiting import SECONDS

from headrace.broker.metrics import Metrics
from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas import Quotas
from headrace.config import Config
from headrace.doors.door import DoorContext
from headrace.doors.http.server.client import get
from headrace.doors.nsq.lookupd.codec import LENGTH
from headrace.doors.nsq.lookupd.listener import Lookupd
from headrace.doors.nsq.presence import Presence
from headrace.runtime.clock import SystemClock

IDENTITY = {
    "hostname": "elsewhere",
    "broadcast_address": "elsewhere.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


class Peer:
    """A producer's side of the TCP protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        (size,) = LENGTH.unpack(await asyncio.wait_for(self.reader.readexactly(LENGTH.size), SECONDS))
        return await asyncio.wait_for(self.reader.readexactly(size), SECONDS)

    async def say(self, line: str, body: object = None) -> bytes:
        self.writer.write(line.encode() + b"\n")
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.writer.write(LENGTH.pack(len(data)) + data)
        return await self.answer()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), SECONDS) == b""

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Lookup:
    """The door over a stand-in broker, which it asks for little."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = 1_000_000
        self.topics: dict[str, object] = {}
        self.queues: dict[str, dict[str, object]] = {}
        self.metrics = Metrics()
        broker: Any = SimpleNamespace(
            runtime=SimpleNamespace(
                clock=SimpleNamespace(now_ms=lambda: self.now_ms, boot_seconds=SystemClock().boot_seconds)
            ),
            metrics=self.metrics,
            quotas=Quotas(QuotaSettings()),
            security=Unguarded(),
            topics=SimpleNamespace(all=self.topics, get=self.topics.get),
            queues=SimpleNamespace(of=lambda topic: self.queues.get(topic, {})),
        )
        self.presence = Presence("here", 0, "here.example", 4150, 4151)
        config = Config(**settings)
        self.door = Lookupd(DoorContext(broker, config, config), self.presence)
        self.peers: list[Peer] = []

    async def start(self) -> None:
        await self.door.http.listen("127.0.0.1", 0)
        await self.door.listen("127.0.0.1", 0)

    async def stop(self) -> None:
        for peer in self.peers:
            peer.writer.close()
        await self.door.stop()
        await self.door.http.stop()

    async def connect(self, magic: bytes = b"  V1") -> Peer:
        peer = Peer(*await asyncio.open_connection(*self.door.address))
        self.peers.append(peer)
        peer.writer.write(magic)
        return peer

    async def producer(self, **identity: Any) -> Peer:
        peer = await self.connect()
        assert json.loads(await peer.say("IDENTIFY", {**IDENTITY, **identity}))["version"]
        return peer

    async def get(self, path: str) -> Any:
        said = await get(f"http://127.0.0.1:{self.door.http.address[1]}{path}", timeout=SECONDS)
        assert said.status == 200, said
        return json.loads(said.body)


@pytest.fixture
async def lookups() -> AsyncIterator[Callable[..., Any]]:
    made: list[Lookup] = []

    async def make(**settings: Any) -> Lookup:
        lookup = Lookup(**settings)
        made.append(lookup)
        await lookup.start()
        return lookup

    yield make
    for lookup in made:
        await lookup.stop()


@pytest.fixture
async def lookup(lookups: Callable[..., Any]) -> Lookup:
    return await lookups()
