"""The broker's own topics through every door: clients read them, and no API of any protocol changes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, batch_of, produce_fields
from tests.doors.nsq.nsqd import wired as nsq

from headrace.addresses import parse_address
from headrace.broker.internal import INTERNAL, PARKED, REGISTRY, REGISTRY_CONFIG, REGISTRY_KEY_PARTS
from headrace.config import Config
from headrace.format import records
from headrace.log.interface import Topic
from headrace.sdk import registry
from headrace.server import Server

NAMES = sorted(INTERNAL | {f"{PARKED}orders-mail", REGISTRY})
TOPIC = 2
WRONG = ErrorCode.invalid_topic_exception


class Stage:
    """A server with all doors, and clients of each."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def kafka(self) -> Wire:
        return Wire(*await asyncio.open_connection(*self._address("kafka")))

    async def nsq(self) -> nsq.Wire:
        wire = nsq.Wire(*await asyncio.open_connection(*self._address("nsq")))
        wire.send(b"  V2")
        return wire

    async def http(self, door: str, method: str, path: str, body: Any = None) -> int:
        def ask() -> int:
            connection = HTTPConnection(*self._address(door), timeout=30)
            try:
                connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body or {}))
                return connection.getresponse().status
            finally:
                connection.close()

        return await asyncio.to_thread(ask)

    def _address(self, door: str) -> tuple[str, int]:
        address = parse_address(self.server.addresses[door])
        assert address is not None
        return address

    async def topic(self, name: str) -> Topic:
        """The topic as the broker makes it, if it has not."""
        topics = self.server.broker.topics
        found = topics.get(name)
        if found is None:
            found = await topics.create(name, 1 if name == REGISTRY else 2, {}, internal=True)
        for partition in found.partitions:
            await partition.load()
        return found


def standing(topic: Topic) -> Any:
    return topic.id, topic.deleted, dict(topic.config), [(each.start, each.end) for each in topic.partitions]


@asynccontextmanager
async def staged(data: Path) -> AsyncIterator[Stage]:
    doors = {"kafka": "127.0.0.1:0", "http": "127.0.0.1:0", "nsq": "127.0.0.1:0", "nsq_http": "127.0.0.1:0"}
    doors |= dict.fromkeys(("lookup", "lookup_http", "rocketmq", "rocketmq_namesrv", "rocketmq_grpc"), "off")
    server = Server(Config(data=str(data), durability="async", **doors))
    await server.start()
    try:
        yield Stage(server)
    finally:
        await server.stop()


@pytest.mark.parametrize("name", NAMES)
async def test_no_kafka_api_changes_it(tmp_path: Path, name: str) -> None:
    async with staged(tmp_path) as stage, await stage.kafka() as wire:
        made = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
        reply = await wire.ask("create_topics", 7, topics=[made], timeout=1000, validate_only=False)
        assert reply.topics[0].error_code in (WRONG, ErrorCode.invalid_partitions)
        topic = await stage.topic(name)
        before = standing(topic)
        codes: dict[str, ErrorCode] = {}
        reply = await wire.ask("delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=1000)
        codes["delete by name"] = reply.responses[0].error_code
        reply = await wire.ask("delete_topics", 6, topics=[{"name": None, "topic_id": topic.id}], timeout=1000)
        codes["delete by id"] = reply.responses[0].error_code
        more = {"name": name, "count": 5, "assignments": None}
        reply = await wire.ask("create_partitions", 3, topics=[more], timeout=1000, validate_only=False)
        codes["grow"] = reply.results[0].error_code
        for setting, value in (
            ("cleanup.policy", "compact,delete"),
            ("max.message.bytes", "7"),
            ("durability", "async"),
            ("min.cleanable.dirty.ratio", "0.9"),
            ("queues.paused", "true"),
        ):
            given = {"resource_type": TOPIC, "resource_name": name}
            whole = given | {"configs": [{"name": setting, "value": value}]}
            reply = await wire.ask("alter_configs", 2, resources=[whole], validate_only=False)
            codes[f"alter {setting}"] = reply.responses[0].error_code
            one = given | {"configs": [{"name": setting, "config_operation": 0, "value": value}]}
            reply = await wire.ask("incremental_alter_configs", 1, resources=[one], validate_only=False)
            codes[f"incrementally alter {setting}"] = reply.responses[0].error_code
        asked = [{"name": name, "partitions": [{"partition_index": 0, "offset": -1}]}]
        reply = await wire.ask("delete_records", 2, topics=asked, timeout=1000)
        codes["trim"] = reply.topics[0].partitions[0].error_code
        reply = await wire.ask("produce", 13, **produce_fields(topic, batch_of(b"garbage")))
        codes["produce"] = reply.responses[0].partition_responses[0].error_code
        producer = await wire.ask("init_producer_id", 5, transactional_id="t", transaction_timeout=1000)
        who = {"transactional_id": "t", "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        topics = [{"name": name, "partitions": [0]}]
        reply = await wire.ask(
            "add_partitions_to_txn",
            3,
            v3_and_below_topics=topics,
            **{f"v3_and_below_{key}": value for key, value in who.items()},
        )
        codes["transaction"] = reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        assert {key: code for key, code in codes.items() if code is not WRONG} == (
            {"produce": ErrorCode.invalid_record} if name == REGISTRY else {}
        )
        assert name == "__transaction_state" or standing(topic) == before


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__consumer_offsets", REGISTRY}))
async def test_no_marker_is_written_to_it(tmp_path: Path, name: str) -> None:
    async with staged(tmp_path) as stage, await stage.kafka() as wire:
        topic = await stage.topic(name)
        marker = {
            "producer_id": 5,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [{"name": name, "partition_indexes": [0]}],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        reply = await wire.ask("write_txn_markers", 1, markers=[marker])
        assert reply.markers[0].topics[0].partitions[0].error_code is WRONG
        assert topic.partitions[0].end == 0


@pytest.mark.parametrize("name", NAMES)
async def test_no_nsq_command_changes_it(tmp_path: Path, name: str) -> None:
    async with staged(tmp_path) as stage:
        topic = await stage.topic(name)
        before = standing(topic)
        for command in (
            nsq.pub(name, b"x"),
            nsq.mpub(name, b"x"),
            nsq.dpub(name, 5, b"x"),
            f"SUB {name} mine\n".encode(),
        ):
            async with await stage.nsq() as wire:
                assert (await wire.refused(command)).startswith("E_BAD_TOPIC"), command
        for path in ("create", "delete", "empty", "pause", "unpause"):
            assert await stage.http("nsq-http", "POST", f"/topic/{path}?topic={name}") in (400, 404), path
        for path in ("/pub", "/mpub"):
            assert await stage.http("nsq-http", "POST", f"{path}?topic={name}", b"x") == 400
        assert await stage.http("nsq-http", "POST", f"/channel/create?topic={name}&channel=mine") in (400, 401, 404)
        assert standing(topic) == before


@pytest.mark.parametrize("name", NAMES)
async def test_no_http_request_changes_it(tmp_path: Path, name: str) -> None:
    async with staged(tmp_path) as stage:
        topic = await stage.topic(name)
        await stage.server.broker.topics.create("mine", 1)
        before = standing(topic)
        messages = f"/v1/topics/{name}/messages"
        assert await stage.http("http", "POST", messages, {"value": "x"}) == 400
        assert await stage.http("http", "POST", f"{messages}?raw=1", b"x") == 400
        half = {"topic": name, "value": "x", "group": "g"}
        assert await stage.http("http", "POST", "/v1/half", half) == 400
        # Nor do dead letters go there.
        dead = {"settings": {"dead_letter_topic": name}}
        assert await stage.http("http", "PUT", "/v1/topics/mine/queues/q", dead) == 400
        assert stage.server.broker.queues.get("mine", "q") is None
        assert await stage.http("http", "PUT", "/v1/topics/mine/queues/q", {}) in (200, 201)
        assert await stage.http("http", "PATCH", "/v1/topics/mine/queues/q", dead) == 400
        # The queue itself is kept in one of them.
        assert name == "__queues" or standing(topic) == before


async def test_how_long_events_are_kept_is_for_their_readers(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, await stage.kafka() as wire:
        topic = await stage.topic("__deliveries")
        config = {"name": "retention.ms", "config_operation": 0, "value": "60000"}
        resource = {"resource_type": TOPIC, "resource_name": "__deliveries", "configs": [config]}
        reply = await wire.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert reply.responses[0].error_code is ErrorCode.none
        assert topic.settings.retention_ms == 60_000


def test_the_registry_is_the_frameworks() -> None:
    assert (registry.TOPIC, registry.KEY_PARTS) == (REGISTRY, REGISTRY_KEY_PARTS)
    assert dict(registry.TOPIC_CONFIG) == dict(REGISTRY_CONFIG)


async def test_the_registry_takes_its_own_records_alone(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, await stage.kafka() as wire:
        topic = await stage.topic(REGISTRY)
        assert (topic.settings.compact, topic.settings.log_append_time, len(topic.partitions)) == (True, True, 1)

        async def produce(key: bytes | None, value: bytes | None, compression: int = 0) -> ErrorCode:
            batch = records.build([(5, key, value, [])], compression=compression)
            reply = await wire.ask("produce", 13, **produce_fields(topic, bytes(batch)))
            return ErrorCode(reply.responses[0].partition_responses[0].error_code)

        keys = (["app", "shop"], ["sends", "shop", "t"], ["instance", "shop", "1"], ["live", "shop", "t/g", "rate"])
        for raw in map(registry.write_key, keys):
            assert await produce(raw, b"{}") is ErrorCode.none
            assert await produce(raw, b"{}", compression=4) is ErrorCode.none
            assert await produce(raw, None) is ErrorCode.none
        for bad in (b"", b"x", b"[]", b'["app"]', b'["app",1]', b'{"app":1}', b'["other","a"]', b"[" * 100_000):
            assert await produce(bad, b"{}") is ErrorCode.invalid_record, bad[:20]
        for garbage in (b"", b"garbage", b"[]", b"\xff"):
            assert await produce(b'["app","shop"]', garbage) is ErrorCode.invalid_record
        assert topic.partitions[0].end == 12


async def test_naming_the_registry_makes_it_as_the_framework_would(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, await stage.kafka() as wire:
        asked = {"topics": [{"name": REGISTRY, "topic_id": None}], "allow_auto_topic_creation": True}
        reply = await wire.ask("metadata", 12, include_topic_authorized_operations=False, **asked)
        assert reply.topics[0].error_code is ErrorCode.none
        topic = stage.server.broker.topics.get(REGISTRY)
        assert topic is not None
        assert dict(topic.config) == dict(REGISTRY_CONFIG)
