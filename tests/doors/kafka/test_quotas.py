"""Quotas at the Kafka door: replies first, then nothing is read; and changes while clients are connected."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields
from tests.waiting import SECONDS

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
    async with open_door(tmp_path, quota_throttle_max_ms=200) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        door.broker.quotas.apply(ANONYMOUS, {Kind.REQUEST: 0.001})
        fields = {
            "metadata": (12, {**PING}),
            "produce": (9, produce_fields(topic, batch_of(b"a"))),
            "fetch": (12, fetch_fields((topic, 0, 0))),
        }
        await wire.ask("metadata", 12, **PING)
        throttled = {}
        for api, (version, asked) in fields.items():
            for _ in range(2):
                reply = await wire.ask(api, version, **asked)
            throttled[api] = reply.throttle_time.total_seconds()
        assert throttled == {"metadata": 0.2, "produce": 0.2, "fetch": 0.2}
        door.broker.quotas.apply(ANONYMOUS, {})
        assert not (await wire.ask("produce", 9, **produce_fields(topic, batch_of(b"a")))).throttle_time
        assert all(connection.timed is None for connection in door.connections)
