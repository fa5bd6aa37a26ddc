"""Quotas at the Kafka door: replies first, then nothing is read; and changes while clients are connected."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kio.schema.errors import ErrorCode
from tests.doors.kafka.secured import authenticate, secured_door
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields
from tests.waiting import SECONDS, until

from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind

ANONYMOUS = make_entity([("user", "ANONYMOUS")])
PING = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


async def test_a_change_lets_those_go_on_that_wait(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_throttle_max_ms=3_600_000) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.ask("produce", 9, **produce_fields(topic, batch_of(b"before")))
        quotas = door.broker.quotas
        quotas.apply(ANONYMOUS, {Kind.PRODUCE: 1})
        reply = await wire.ask("produce", 9, **produce_fields(topic, batch_of(b"a")))
        assert reply.throttle_time.total_seconds() > 50, "the cached admission is no longer valid"
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"b")))
        assert [connection.held for connection in door.connections] == [True]
        quotas.apply(ANONYMOUS, {})
        reply = await asyncio.wait_for(wire.receive("produce", 9), SECONDS)
        assert not reply.throttle_time
        assert topic.partitions[0].end == 3


async def test_users_and_client_ids_together(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        door.broker.quotas.apply(ANONYMOUS, {Kind.PRODUCE: 1})
        door.broker.quotas.apply(
            make_entity([("user", "ANONYMOUS"), ("client-id", "test")]), {Kind.PRODUCE: 1_000_000, Kind.CONSUME: 1_000}
        )
        for _ in range(3):
            reply = await wire.ask("produce", 9, **produce_fields(topic, batch_of(bytes(1_500))))
            assert not reply.throttle_time
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 2)))
        assert 0.4 < reply.throttle_time.total_seconds() < 0.7


async def test_a_percentage_of_the_loop(tmp_path: Path) -> None:
    """Charged after each turn, and told by the next reply, whatever it is about."""
    async with open_door(tmp_path, quota_throttle_max_ms=60_000) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        # So little that a microsecond of the loop is more than the longest wait.
        door.broker.quotas.apply(ANONYMOUS, {Kind.REQUEST: 0.00001})
        fields = {
            "metadata": (12, {**PING}),
            "produce": (9, produce_fields(topic, batch_of(b"a"))),
            "fetch": (12, fetch_fields((topic, 0, 0))),
        }
        # What the first took is known after it; every further one is held back, until quotas change.
        for _ in range(2):
            await wire.ask("metadata", 12, **PING)
        throttled = {}
        for api, (version, asked) in fields.items():
            door.broker.quotas.apply(make_entity([("user", "nobody")]), {Kind.REQUEST: 1})
            reply = await wire.ask(api, version, **asked)
            throttled[api] = reply.throttle_time.total_seconds()
            assert [connection.held for connection in door.connections] == [True]
        assert throttled == {"metadata": 60, "produce": 60, "fetch": 60}
        door.broker.quotas.apply(ANONYMOUS, {})
        assert not (await wire.ask("produce", 9, **produce_fields(topic, batch_of(b"a")))).throttle_time
        assert all(connection.timed is None for connection in door.connections)


async def test_topics_that_are_made_too_fast(tmp_path: Path) -> None:
    """Clients that know the error are told it, the others are held back; both are told for how long."""
    async with open_door(tmp_path, quota_throttle_max_ms=200) as door, await Wire.open(door) as wire:
        door.broker.quotas.apply(ANONYMOUS, {Kind.MUTATE: 1})

        async def create(version: int, name: str, partitions: int) -> tuple[ErrorCode, float]:
            topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
            topic |= {"assignments": [], "configs": []}
            reply = await wire.ask("create_topics", version, topics=[topic], timeout=30_000, validate_only=False)
            return reply.topics[0].error_code, reply.throttle_time.total_seconds()

        assert await create(7, "a", 8) == (ErrorCode.none, 0)
        assert await create(7, "b", 8) == (ErrorCode.none, 0.2)
        assert await create(7, "c", 1) == (ErrorCode.throttling_quota_exceeded, 0.2)
        assert await create(5, "d", 1) == (ErrorCode.none, 0.2)
        assert sorted(door.broker.topics.all) == ["a", "b", "d"]
        reply = await wire.ask("delete_topics", 6, topics=[{"name": "a", "topic_id": None}], timeout=30_000)
        assert reply.responses[0].error_code is ErrorCode.throttling_quota_exceeded
        topic = {"name": "a", "count": 9, "assignments": None}
        reply = await wire.ask("create_partitions", 3, topics=[topic], timeout=30_000, validate_only=False)
        assert reply.results[0].error_code is ErrorCode.throttling_quota_exceeded
        door.broker.quotas.apply(ANONYMOUS, {})
        reply = await wire.ask("delete_topics", 6, topics=[{"name": "a", "topic_id": None}], timeout=30_000)
        assert reply.responses[0].error_code is ErrorCode.none


async def test_connections_of_an_address(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_address_connections=1) as door, await Wire.open(door) as wire:
        await wire.ask("metadata", 12, **PING)
        async with await Wire.open(door) as refused:
            assert await refused.closed() == b""
        assert door.metrics.connections_refused == 1
        door.broker.quotas.apply(make_entity([("ip", "127.0.0.1")]), {Kind.CONNECTIONS: 2, Kind.CONNECT: 1})
        async with await Wire.open(door) as other:
            await other.ask("metadata", 12, **PING)
        await until(lambda: door.broker.quotas.connections.of_address("127.0.0.1") == 1)
        # The second within a second is accepted, and waits.
        async with await Wire.open(door) as late:
            late.send("metadata", 12, **PING)
            await until(lambda: len(door.connections) == 2)
            assert [connection.held for connection in door.connections] == [False, True]
            await asyncio.wait_for(late.receive("metadata", 12), SECONDS)


async def test_connections_of_a_user(tmp_path: Path) -> None:
    async with secured_door(tmp_path, quota_user_connections=1) as door:
        async with await Wire.open(door) as first, await Wire.open(door) as other, await Wire.open(door) as second:
            for wire, user in ((first, "ann"), (other, "bob"), (second, "ann")):
                assert (await authenticate(wire, user)).error_code is ErrorCode.none
            assert await second.closed() == b""
            for wire in (first, other):
                await wire.ask("metadata", 12, **PING)
        await until(lambda: not door.connections)
        async with await Wire.open(door) as again:
            assert (await authenticate(again, "ann")).error_code is ErrorCode.none
            await again.ask("metadata", 12, **PING)
