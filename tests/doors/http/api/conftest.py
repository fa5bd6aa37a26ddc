"""A whole server with its HTTP door open, on the test's own loop, and somebody who asks it."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.device import Device
from tests.doors.http.api.described import check_answer
from tests.waiting import until

from headrace.addresses import parse_address
from headrace.broker.broker import Broker
from headrace.broker.queues import Consumer, Queue
from headrace.broker.security.credentials import ITERATIONS_MIN, Mechanism, derive
from headrace.broker.security.users import User
from headrace.config import Config
from headrace.format import records
from headrace.log.interface import Topic
from headrace.server import Server

Delivery = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class Sink:
    """Takes messages, and keeps them."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Delivery]] = []
        self.reason = ""

    def deliver(self, claimed: Any) -> None:
        self.messages += [(claimed.lane, each) for each in claimed.messages()]

    def gone(self, reason: str) -> None:
        self.reason = reason


def add_user(broker: Broker, name: str, password: str) -> None:
    made = derive(password.encode(), {Mechanism.SHA_256: (b"salt" * 6, ITERATIONS_MIN)})
    broker.security.users.by_name[name] = User(name, tuple(made))


def basic(user: str, password: str) -> dict[str, str]:
    """The header of Basic authentication."""
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


class Served:
    """The server, and what a test does to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.headers: dict[str, str] = {}
        """Of each request."""
        self.last_headers: Mapping[str, str] = {}
        """Of the last answer."""

    async def restart(self) -> None:
        """Stop cleanly, and start again on the same data."""
        await self.server.stop()
        self.server = Server(self.server.config)
        await self.server.start()

    @property
    def broker(self) -> Broker:
        return self.server.broker

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        address = parse_address(self.server.addresses["http"])
        assert address is not None
        connection = HTTPConnection(*address, timeout=30)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, content, self.headers | headers)
            response = connection.getresponse()
            raw = response.read()
            assert response.headers["Content-Type"] == "application/json", raw
            self.last_headers = response.headers
            check_answer(method, path, response.status, raw)
            return response.status, json.loads(raw) if raw else None
        finally:
            connection.close()

    async def topic(self, name: str, count: int = 0, partitions: int = 1, **config: str) -> Topic:
        """A topic with messages `0`, `1`, ... on each partition, whose keys are their last digits."""
        topic = await self.broker.topics.create(name, partitions, config)
        for partition in topic.partitions:
            await partition.load()
            now = self.broker.runtime.clock.now_ms()
            if count:
                partition.append(
                    records.build([(now, str(n % 10).encode(), str(n).encode(), []) for n in range(count)])
                )
        await self.settled(topic)
        return topic

    async def settled(self, topic: Topic) -> None:
        """Wait until what was appended may be read."""
        for partition in topic.partitions:
            while partition.high_watermark < partition.end:
                await asyncio.sleep(0.001)

    async def consume(self, queue: Queue, count: int, credit: int = 1_000_000) -> tuple[Consumer, Sink]:
        """A consumer that has got `count` messages."""
        sink = Sink()
        consumer = queue.subscribe(sink, label="tester")
        consumer.ready(credit)
        await until(lambda: len(sink.messages) >= count)
        return consumer, sink


@asynccontextmanager
async def serving(data: Path | Device, **settings: Any) -> AsyncIterator[Served]:
    """A server on `data` whose HTTP door alone is open."""
    config = Config(
        data=str(data), kafka="off", http="127.0.0.1:0", nsq="off", nsq_http="off", lookup="off",
        lookup_http="off", rocketmq="off", rocketmq_namesrv="off", rocketmq_grpc="off",
        durability="async", **{"auto_create_topics": False, **settings},
    )  # fmt: skip
    served = Served(Server(config, data.runtime() if isinstance(data, Device) else None))
    await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as served:
        yield served
