"""Members of the consumer protocol that do what a seed says, in a group of Headrace and in one of a real Apache Kafka:
each heartbeat is answered alike, and what is stored in the end is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from tests import apache

import headrace
from headrace.broker.groups.consumer import consumer_group as group
from headrace.broker.groups.consumer.consumer_codec import ConsumerKey, StoredConsumerGroup
from headrace.broker.groups.group_codec import read_key
from headrace.client import EARLIEST, Client
from headrace.client.messages import request

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

# Kafka gathers changes before it computes targets, and answers before it writes. Here both are told not to wait.
PROPERTIES = """\
group.consumer.assignment.interval.ms=0
group.consumer.min.assignment.interval.ms=0
group.coordinator.append.linger.ms=0
offsets.topic.num.partitions=5
"""
STEPS = 120
SIZES = {"t": 6, "u": 5}
CHOICES = (["t"], ["u"], ["t", "u"])
MEMBERS = "abcd"
# Who is a static member, by which instance id: behind its member id in the order of dynamic ones.
INSTANCES = {"b": "z"}
OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache.running(PROPERTIES) as address:
        asyncio.run(prepare(address))
        yield address


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, headrace.Broker(offsets_partitions=5) as broker:
        patch.setattr(group, "ASSIGNING_REST", 0)
        asyncio.run(prepare(broker.kafka))
        yield broker.kafka


@pytest.mark.parametrize("seed", range(6))
async def test_every_heartbeat_is_answered_as_by_kafka(kafka: str, ours: str, seed: int) -> None:
    here, there = [await Flow(f"flow-{seed}", Random(seed)).run(address) for address in (ours, kafka)]
    for step, (our, their) in enumerate(zip(here.told, there.told, strict=True)):
        assert our == their, f"step {step}, after {here.told[:step]}"
    assert here.stored == there.stored


async def prepare(address: str) -> None:
    """Make the topics, and wait until the coordinator knows of them."""
    async with Client(address) as client:
        for name, size in SIZES.items():
            await client.admin.create_topic(name, size)
    flow = Flow("first", Random(0))
    async with flow.connected(address):
        await flow.join("a", [*SIZES])
        while sum(map(len, flow.has["a"].values())) < sum(SIZES.values()):
            await flow.beat("a", flow.epochs["a"])
        await flow.beat("a", -1)


class Flow:
    """What the members of one group do and are told. Topics stand by their names, so that two brokers compare."""

    def __init__(self, group: str, random: Random) -> None:
        self.told: list[list[Any]] = []
        self.stored: dict[str, Any] = {}
        self.has: dict[str, dict[str, list[int]]] = {}
        """Who is in the group, and with what."""
        self.epochs: dict[str, int] = {}
        self._epochs_before: dict[str, int] = {}
        self._group = group
        self._random = random

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[Client]:
        async with Client(address) as client:
            # Waits for the coordinator.
            assert (await client.admin.describe_group(self._group)).state == "Dead"
            self._coordinator = await client.cluster.coordinator(self._group)
            topics = await client.cluster.topics()
            self._ids = {topic.name: topic.id for topic in topics}
            self._names = {topic.id: topic.name for topic in topics}
            yield client

    async def run(self, address: str) -> Flow:
        """Do all steps, and look at what is stored of the group in the end."""
        async with self.connected(address) as client:
            for _ in range(STEPS):
                await self._step()
                held = [(topic, index) for has in self.has.values() for topic, part in has.items() for index in part]
                assert len(held) == len(set(held)), f"two members have a partition, after {self.told}"
            await self._look_at_what_is_stored(client)
        return self

    async def _step(self) -> None:
        member, what, topics = self._random.choice(MEMBERS), self._random.random(), self._random.choice(CHOICES)
        # A static member that is there and joins again is refused by Kafka, and taken here.
        if member not in self.has or (what > 0.95 and member not in INSTANCES):
            await self.join(member, topics)
        elif what < 0.08:
            await self.beat(member, -1 if what < 0.04 or member not in INSTANCES else -2)
        elif what < 0.14:
            await self.beat(member, self.epochs[member], topics)
        elif what < 0.50:
            await self.beat(member, self.epochs[member])
        else:
            # Now and then as one that has not heard the last answer.
            epoch = self._epochs_before.get(member, 0) if what < 0.55 else self.epochs[member]
            await self.beat(member, epoch or self.epochs[member], owned=self.has[member])

    async def join(self, member: str, topics: Sequence[str]) -> None:
        await self.beat(member, 0, topics, {}, rebalance_timeout=60_000, server_assignor="range")

    async def beat(
        self,
        member: str,
        epoch: int,
        topics: Sequence[str] | None = None,
        owned: dict[str, list[int]] | None = None,
        rebalance_timeout: int = -1,
        server_assignor: str | None = None,
    ) -> None:
        asked = request(
            "consumer_group_heartbeat",
            1,
            group_id=self._group,
            member_id=member,
            member_epoch=epoch,
            instance_id=INSTANCES.get(member),
            rebalance_timeout=rebalance_timeout,
            subscribed_topic_names=topics,
            server_assignor=server_assignor,
            topic_partitions=None
            if owned is None
            else [{"topic_id": self._ids[name], "partitions": owned[name]} for name in owned],
        )
        reply = await self._coordinator.call(asked)
        # Epochs have other numbers: a group of Kafka's begins with 2, and rises twice where one leaves and one comes.
        told = [member, topics, owned, reply.error_code.name, reply.member_epoch > epoch]
        self.told.append(told)
        if reply.error_code:
            return
        if epoch < 0:
            del self.has[member], self.epochs[member]
            return
        self._epochs_before[member] = epoch
        self.epochs[member] = reply.member_epoch
        if reply.assignment is not None:
            self.has[member] = self._named({t.topic_id: t.partitions for t in reply.assignment.topic_partitions})
            told.append(self.has[member])

    async def _look_at_what_is_stored(self, client: Client) -> None:
        """Kafka's records are read as a Headrace would that finds them."""
        stored = StoredConsumerGroup()
        async with client.consumer() as consumer:
            partitions = (await client.cluster.topic(OFFSETS)).partitions
            await consumer.assign({(OFFSETS, each.index): EARLIEST for each in partitions})
            async for record in consumer.records(await consumer.end_offsets()):
                key = read_key(record.key or b"")
                if isinstance(key, ConsumerKey) and key.group_id == self._group:
                    stored.take(key, record.value)
        for member, position in stored.positions.items():
            self.stored[member] = (
                stored.members[member],
                self._named(stored.targets[member]),
                position.epoch == stored.assignment_epoch,
                # Of one that is away, Kafka keeps what it was doing.
                position.step if position.epoch >= 0 else None,
                self._named(position.assigned),
                self._named(position.revoking),
            )

    def _named(self, places: Mapping[Any, Iterable[int]]) -> dict[str, list[int]]:
        return {self._names[topic]: sorted(indexes) for topic, indexes in places.items()}
