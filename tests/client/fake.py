"""A cluster of fake brokers that misbehave to order: the part of Kafka that a producer and a consumer need, in memory.

The brokers keep what Kafka promises an idempotent producer (sequence numbers, the last five batches), so that a lost or
a doubled record is the client's fault. `fault` is asked before each request and says what goes wrong with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.serial import entity_reader

from headrace.client import messages
from headrace.format import records
from headrace.format.batch import HEADER
from headrace.format.schema import struct_writer

APIS = {
    0: ("produce", 8),
    1: ("fetch", 11),
    2: ("list_offsets", 7),
    3: ("metadata", 12),
    18: ("api_versions", 3),
    22: ("init_producer_id", 4),
}
NOT_LEADER, OUT_OF_ORDER, DUPLICATE = 6, 45, 46

# What can go wrong with a request: nothing, a break before or after it was handled, or an error code for it.
CUT_BEFORE, CUT_AFTER = "cut before", "cut after"
Fault = str | int | None


@dataclass
class Log:
    """One partition."""

    leader: int = 0
    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    producers: dict[int, deque[tuple[int, int, int]]] = field(default_factory=dict)
    """Per producer id the last five (first sequence, count, base offset)."""

    def append(self, batch: bytearray) -> tuple[int, int]:
        """The error code and the base offset."""
        header = HEADER.unpack_from(batch)
        producer, _, sequence, count = header[9:]
        records.check(batch, False, 1 << 24)
        if producer >= 0:
            known = self.producers.get(producer)
            for first, size, base in known or ():
                if (first, size) == (sequence, count):
                    return 0, base
            if known and sequence != (known[-1][0] + known[-1][1]) & 0x7FFFFFFF:
                return OUT_OF_ORDER, -1
            self.producers.setdefault(producer, deque(maxlen=5)).append((sequence, count, self.end))
        base = self.end
        batch[:8] = base.to_bytes(8, "big")
        self.batches.append(bytes(batch))
        self.end += count
        return 0, base

    def records(self) -> list[Any]:
        return [record for batch in self.batches for record in records.parse(batch, 1 << 24)]


class FakeCluster:
    """Brokers on the loopback interface that share their logs."""

    apis: ClassVar = APIS

    def __init__(self, nodes: int = 1, partitions: int = 1) -> None:
        self.topics: dict[str, list[Log]] = {"t": [Log() for _ in range(partitions)]}
        self.fault: Callable[[int, int], Fault] = lambda node, api: None
        self.asked: list[tuple[int, int]] = []
        self._count = nodes
        self._next_producer = 1000
        self._grew = asyncio.Condition()
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.ports: list[int] = []

    async def __aenter__(self) -> FakeCluster:
        for node in range(self._count):
            server = await asyncio.start_server(
                lambda reader, writer, node=node: self._serve(node, reader, writer), "127.0.0.1", 0, limit=1 << 24
            )
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in self._servers:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    async def appended(self, end: int) -> None:
        """Wait until the first partition has this end."""
        async with self._grew:
            await self._grew.wait_for(lambda: self.topics["t"][0].end >= end)

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, correlation = int.from_bytes(frame[:2], "big"), frame[4:8]
                name, version = self.apis[key][0], int.from_bytes(frame[2:4], "big")
                self.asked.append((node, key))
                kind = messages._load(name, version, "request")
                flexible = kind.__header_schema__.__flexible__
                body = frame[10 + int.from_bytes(frame[8:10], "big") + (1 if flexible else 0) :]
                request, _ = entity_reader(kind)(body, 0)
                fault = self.fault(node, key)
                if fault == CUT_BEFORE:
                    return
                reply = await getattr(self, name)(node, request, fault if isinstance(fault, int) else 0)
                if fault == CUT_AFTER:
                    return
                if reply is None:
                    continue
                response = messages._load(name, version, "response")
                out = bytearray(response.__header_schema__.__flexible__)
                struct_writer(response)(out, reply)
                payload = correlation + out
                writer.write(len(payload).to_bytes(4, "big") + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def api_versions(self, node: int, request: Any, error: int) -> dict[str, Any]:
        keys = [{"api_key": key, "min_version": 0, "max_version": version} for key, (_, version) in self.apis.items()]
        return {"api_keys": keys}

    async def metadata(self, node: int, request: Any, error: int) -> dict[str, Any]:
        names = list(self.topics) if request.topics is None else [each.name for each in request.topics]
        topics = []
        for name in names:
            partitions = [
                {"partition_index": index, "leader_id": log.leader, "replica_nodes": [log.leader]}
                for index, log in enumerate(self.topics.get(name, []))
            ]
            code = error or (0 if name in self.topics else 3)
            topics.append({"error_code": code, "name": name, "partitions": [] if code else partitions})
        brokers = [{"node_id": index, "host": "127.0.0.1", "port": port} for index, port in enumerate(self.ports)]
        return {"brokers": brokers, "controller_id": 0, "topics": topics}

    async def init_producer_id(self, node: int, request: Any, error: int) -> dict[str, Any]:
        self._next_producer += 1
        return {"error_code": error, "producer_id": self._next_producer, "producer_epoch": 0}

    async def produce(self, node: int, request: Any, error: int) -> dict[str, Any] | None:
        responses = []
        for topic in request.topic_data:
            partitions = []
            for each in topic.partition_data:
                log = self.topics[topic.name][each.index]
                code, base = (error, -1) if error else (0, -1)
                if not code and log.leader != node:
                    code = NOT_LEADER
                if not code:
                    code, base = log.append(bytearray(each.records))
                partitions.append({"index": each.index, "error_code": code, "base_offset": base})
            responses.append({"name": topic.name, "partition_responses": partitions})
        async with self._grew:
            self._grew.notify_all()
        return {"responses": responses} if request.acks else None

    async def list_offsets(self, node: int, request: Any, error: int) -> dict[str, Any]:
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                log = self.topics[topic.name][each.partition_index]
                code = error or (0 if log.leader == node else NOT_LEADER)
                offset = log.end if each.timestamp == -1 else 0
                partitions.append({"partition_index": each.partition_index, "error_code": code, "offset": offset})
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    async def fetch(self, node: int, request: Any, error: int) -> dict[str, Any]:
        responses = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                log = self.topics[topic.topic][each.partition]
                code = error or (0 if log.leader == node else NOT_LEADER)
                if not code and not 0 <= each.fetch_offset <= log.end:
                    code = 1
                found = b""
                if not code:
                    for batch in log.batches:
                        header = HEADER.unpack_from(batch)
                        if header[0] + header[6] >= each.fetch_offset and len(found) < each.partition_max_bytes:
                            found += batch
                partitions.append(
                    {
                        "partition_index": each.partition,
                        "error_code": code,
                        "high_watermark": log.end,
                        "last_stable_offset": log.end,
                        "aborted_transactions": None,
                        "records": found,
                    }
                )
            responses.append({"topic": topic.topic, "partitions": partitions})
        if not any(each["records"] for topic in responses for each in topic["partitions"]):
            await asyncio.sleep(0.01)
        return {"responses": responses}
