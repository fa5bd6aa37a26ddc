"""A Kafka door with sockets, and a client that speaks single frames: kio writes the requests and reads the replies."""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from tests import brokers
from tests.device import Device
from tests.doors.kafka.local_client import KEYS, build
from tests.waiting import SECONDS

from headrace.broker.membership import Membership
from headrace.doors.capacity import Capacity
from headrace.doors.door import DoorContext
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.registry import API_VERSIONS, APIS, Api, not_offered
from headrace.format import records
from headrace.log.interface import Topic


@asynccontextmanager
async def open_door(
    data: Path | Device, tls: ssl.SSLContext | None = None, membership: Membership | None = None, **settings: Any
) -> AsyncIterator[KafkaDoor]:
    """A broker on `data` with an open Kafka door."""
    async with brokers.running(
        data, membership, node_id=1, **{"durability": "async", "kafka": "127.0.0.1:0", **settings}
    ) as broker:
        capacity = Capacity()
        capacity.limits = broker.quotas.connections
        door = KafkaDoor(DoorContext(broker, broker.config, broker.config, capacity, tls=tls))
        await door.start()
        try:
            yield door
        finally:
            await door.stop()


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation = 0

    @classmethod
    async def open(cls, door: KafkaDoor, tls: ssl.SSLContext | None = None) -> Wire:
        """Connect to the door."""
        return await cls.at(*door.address, tls)

    @classmethod
    async def at(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Wire:
        """Connect to an address."""
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def frame(self, api: str, version: int, client: bytes | None = b"test", **fields: Any) -> bytes:
        """A whole request."""
        self.correlation += 1
        out = io.BytesIO()
        kind = load_request_schema(KEYS[api], version)
        entity_writer(kind)(out, build(kind, fields))
        return frame(KEYS[api], version, self.correlation, out.getvalue(), client)

    def send(self, api: str, version: int, **fields: Any) -> None:
        """Send a request and leave its reply for later."""
        self.writer.write(self.frame(api, version, **fields))

    async def receive(self, api: str, version: int, correlation: int | None = None) -> Any:
        """The next reply, which must be the one to `correlation` (the last request sent)."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        raw = await self.reader.readexactly(size)
        assert int.from_bytes(raw[:4], "big") == (self.correlation if correlation is None else correlation)
        key = KEYS[api]
        at = 5 if version >= _api(key).flexible and key != API_VERSIONS else 4
        entity, used = entity_reader(load_response_schema(KEYS[api], version))(raw, at)
        assert at + used == size
        return entity

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Send a request and wait for its reply."""
        self.send(api, version, **fields)
        return await asyncio.wait_for(self.receive(api, version), SECONDS)

    async def produce(
        self, version: int, topic: Topic, batch: bytes | None, index: int = 0, acks: int = -1, **more: Any
    ) -> Any:
        """Produce one batch to one partition; what was answered for that partition."""
        reply = await self.ask("produce", version, **(produce_fields(topic, batch, index, acks) | more))
        return reply.responses[0].partition_responses[0]

    async def closed(self) -> bytes:
        """Whatever comes before the door closes the connection."""
        return await asyncio.wait_for(self.reader.read(), SECONDS)


def _api(key: int) -> Api:
    api = APIS.get(key) or not_offered(key)
    assert api is not None
    return api


def frame(key: int, version: int, correlation: int, body: bytes, client: bytes | None = b"test") -> bytes:
    """A whole request of any API, even one that there is not."""
    api = APIS.get(key) or not_offered(key)
    flexible = api is not None and version >= api.flexible
    raw = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + correlation.to_bytes(4, "big")
    raw += b"\xff\xff" if client is None else len(client).to_bytes(2, "big") + client
    raw += (b"\0" if flexible else b"") + body
    return len(raw).to_bytes(4, "big") + raw


def produce_fields(topic: Topic, batch: bytes | None, index: int = 0, acks: int = -1) -> dict[str, Any]:
    """The fields of a Produce for one partition, for all versions."""
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 1000,
        "topic_data": [
            {"name": topic.name, "topic_id": topic.id, "partition_data": [{"index": index, "records": batch}]}
        ],
    }


def fetch_fields(*reads: tuple[Topic, int, int], **more: Any) -> dict[str, Any]:
    """The fields of a Fetch from (topic, partition, offset), for all versions."""
    topics = [
        {
            "topic": topic.name,
            "topic_id": topic.id,
            "partitions": [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}],
        }
        for topic, index, offset in reads
    ]
    fields: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return fields | more


def batch_of(*values: bytes, **more: Any) -> bytes:
    """A batch of records with these values, of now."""
    now = time.time_ns() // 1_000_000
    return bytes(records.build([(now, None, value, []) for value in values], **more))


def values(reply: Any, topic: int = 0, partition: int = 0) -> list[bytes | None]:
    """The values of the records that a partition was answered with."""
    raw = reply.responses[topic].partitions[partition].records or b""
    found: list[bytes | None] = []
    at = 0
    while at + 12 <= len(raw):
        size = int.from_bytes(raw[at + 8 : at + 12], "big") + 12
        if at + size > len(raw):
            break
        found += [each[3] for each in records.parse(raw[at : at + size], 1 << 30)]
        at += size
    return found
