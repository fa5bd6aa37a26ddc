"""Produce in a group: when each acks is answered, and what becomes of it when the commit does not come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, batch_of, produce_fields
from tests.doors.replicated import ReplicatedBroker, leading
from tests.waiting import SECONDS, until

from headrace.doors.door import DoorContext
from headrace.doors.kafka.door import KafkaDoor
from headrace.log.interface import Topic

VERSIONS = range(3, 14)


@asynccontextmanager
async def opened(data: Path) -> AsyncIterator[tuple[ReplicatedBroker, KafkaDoor, Wire, Topic]]:
    """A leader whose commits the test makes, once its topic is there."""
    async with leading(data, kafka="127.0.0.1:0") as node:
        topic = await node.broker.topics.create("rain", 2)
        door = KafkaDoor(DoorContext(node.broker, node.config, node.config))  # type: ignore[arg-type]
        await door.start()
        try:
            async with await Wire.open(door) as wire:
                # Twice: the request is cached then.
                for _ in range(2):
                    assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none
                await until(lambda: node.journal.committed == node.journal.last.sequence)
                node.commits = False
                yield node, door, wire, topic
        finally:
            node.commits = True
            await door.stop()


async def answer(wire: Wire, version: int = 9) -> Any:
    reply = await asyncio.wait_for(wire.receive("produce", version), SECONDS)
    return reply.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_acks_one_waits_for_this_node_and_acks_all_for_the_commit(tmp_path: Path, version: int) -> None:
    async with opened(tmp_path) as (node, _, wire, topic):
        for expected in (2, 3):
            # The second is a hit in the request cache.
            assert (await wire.produce(version, topic, batch_of(b"b"), acks=1)).base_offset == expected
        assert topic.partitions[0].high_watermark == 2, "nothing was committed for it"
        before = node.journal.flushed
        wire.send("produce", version, **produce_fields(topic, batch_of(b"c"), acks=-1) | {"timeout": 60_000})
        waits = asyncio.create_task(answer(wire, version))
        await until(lambda: node.journal.flushed > before)
        assert not waits.done()
        node.commit()
        assert (await waits).base_offset == 4
        assert topic.partitions[0].high_watermark == 5


@pytest.mark.parametrize("isr", [(1, 2), (1,)])
async def test_a_commit_that_does_not_come_is_not_waited_for_longer_than_the_client_allows(
    tmp_path: Path, isr: tuple[int, ...]
) -> None:
    code = ErrorCode.request_timed_out if len(isr) > 1 else ErrorCode.not_enough_replicas_after_append
    async with opened(tmp_path) as (node, _, wire, topic):
        node.group.change(isr=isr)
        # One from the cache, one with two partitions by the general way, one that waits on, and their order stays.
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"b")) | {"timeout": 100})
        fields = produce_fields(topic, batch_of(b"c")) | {"timeout": 100}
        more = {"index": 1, "records": batch_of(b"d")}
        fields["topic_data"][0]["partition_data"].append(more)
        wire.send("produce", 9, **fields)
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"e")) | {"timeout": 60_000})
        wire.correlation -= 2
        assert (await answer(wire)).error_code is code
        wire.correlation += 1
        reply = await asyncio.wait_for(wire.receive("produce", 9), SECONDS)
        assert [each.error_code for each in reply.responses[0].partition_responses] == [code, code]
        node.commit()
        wire.correlation += 1
        last = await answer(wire)
        assert (last.error_code, last.base_offset) == (ErrorCode.none, 4)
        # What had expired was committed all the same, which nothing hears.
        assert (await wire.produce(9, topic, batch_of(b"f"), acks=1)).base_offset == 5


async def test_too_few_replicas_refuse_before_the_append(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, _, wire, topic):
        node.log.set_enough(False)
        for acks in (1, -1):
            refused = await wire.produce(9, topic, batch_of(b"b"), acks=acks)
            assert refused.error_code is ErrorCode.not_enough_replicas
        node.log.set_enough(True)
        assert (await wire.produce(9, topic, batch_of(b"b"), acks=1)).base_offset == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_deposed_leader_names_the_next_one(tmp_path: Path, version: int) -> None:
    async with opened(tmp_path) as (node, _, wire, topic):
        before = node.journal.flushed
        wire.send("produce", version, **produce_fields(topic, batch_of(b"b")) | {"timeout": 60_000})
        await until(lambda: node.journal.flushed > before)
        node.group.change(leader=2, epoch=8)
        node.follow(2, 8)
        waited = await asyncio.wait_for(wire.receive("produce", version), SECONDS)
        wire.send("produce", version, **produce_fields(topic, batch_of(b"c")))
        for reply in (waited, await asyncio.wait_for(wire.receive("produce", version), SECONDS)):
            partition = reply.responses[0].partition_responses[0]
            assert partition.error_code is ErrorCode.not_leader_or_follower
            if version >= 10:
                assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 8)
                (place,) = reply.node_endpoints
                assert (place.node_id, place.host, place.port, place.rack) == (2, "node2.test", 9092, "green")
        node.lead()
