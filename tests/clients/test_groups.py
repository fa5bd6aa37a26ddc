"""Consumer groups as three unchanged clients live in them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from bench.peers import free_port
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PyPartition
from tests.clients.members import PATIENCE, Member, make_topic, poll_all, produce, shared
from tests.serve_process import CLOSED
from tests.waiting import wait_until

from headrace.embedded import Broker

QUICK = {"group_min_session_timeout_ms": 500}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_confluent_members_come_and_go(headrace_broker: Broker, members: list[Member], assignor: str) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    produce(address, "t", 300)
    for count in (1, 2, 3):
        members.append(Member(address, partition_assignment_strategy=assignor))
        wait_until(lambda: shared(members), f"{count} members share", turn=lambda: poll_all(members))
    leaver = members[0]
    leaver.consumer.close()
    seen_by_leaver = leaver.seen
    del members[0]
    wait_until(lambda: shared(members), "the others took over", turn=lambda: poll_all(members))
    produce(address, "t", 300, first=300)
    everything = set(range(600))
    wait_until(
        lambda: {*seen_by_leaver, *(n for m in members for n in m.seen)} == everything,
        "every message was seen",
        turn=lambda: poll_all(members),
    )


@pytest.mark.headrace(**QUICK)
def test_static_member_restarts_without_a_rebalance(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    for name in ("one", "two"):
        members.append(Member(address, group_instance_id=name))
        wait_until(lambda: shared(members), "the members share", turn=lambda: poll_all(members))
    stays, restarts = members
    owned, assignments = restarts.owned, stays.assignments
    for _ in range(2):
        members.remove(restarts)
        restarts.consumer.close()
        restarts = Member(address, group_instance_id="two")
        members.append(restarts)
        wait_until(lambda: shared(members), "the member is back", turn=lambda: poll_all(members))
        assert restarts.owned == owned
    assert stays.assignments == assignments, "the other member was made to rebalance"


@pytest.mark.headrace(**QUICK)
def test_static_leader_restarts_without_a_rebalance(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    for name in ("leads", "follows"):
        members.append(Member(address, group_instance_id=name))
        wait_until(lambda: shared(members), "the members share", turn=lambda: poll_all(members))
    leads, follows = members
    owned, assignments = leads.owned, follows.assignments
    leads.consumer.close()
    members[0] = Member(address, group_instance_id="leads")
    wait_until(lambda: shared(members), "the leader is back", turn=lambda: poll_all(members))
    assert members[0].owned == owned
    assert follows.assignments == assignments


def test_pattern_subscription_sees_a_new_topic(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "pattern-1", 2)
    members.append(Member(address, ["^pattern-.*"]))
    wait_until(lambda: len(members[0].owned) == 2, "the first topic is there", turn=lambda: poll_all(members))
    make_topic(address, "pattern-2", 3)
    make_topic(address, "other", 1)
    wait_until(lambda: len(members[0].owned) == 5, "the second topic is there", turn=lambda: poll_all(members))
    assert {topic for topic, _ in members[0].owned} == {"pattern-1", "pattern-2"}


FROZEN = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "session.timeout.ms": 1500,
                     "heartbeat.interval.ms": 200, "client.id": "frozen"})
consumer.subscribe(["t"])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment()), flush=True)
"""


@pytest.mark.headrace(**QUICK)
def test_frozen_member_loses_its_session_and_comes_back(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    members.append(Member(address, session_timeout_ms=1500))
    process = subprocess.Popen([sys.executable, "-c", FROZEN, address], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(members[0].owned) == 3, "both share", turn=lambda: poll_all(members))
        assert process.stdout is not None
        wait_until(lambda: process.stdout.readline().strip() == "3", "it knows", turn=lambda: poll_all(members))
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: len(members[0].owned) == 6, "the frozen one was dropped", turn=lambda: poll_all(members))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(members[0].owned) == 3, "it thawed and came back", turn=lambda: poll_all(members))
    finally:
        process.kill()
        process.wait(10)


def test_restart_needs_no_rejoin(tmp_path: Path, members: list[Member]) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = Broker(data=tmp_path, kafka=address)
    with broker:
        make_topic(address, "t")
        for _ in range(2):
            members.append(Member(address, session_timeout_ms=20_000, enable_auto_commit=False))
        # Only then are there messages: what one member had read alone would be read again by the other.
        wait_until(lambda: shared(members), "both share", turn=lambda: poll_all(members))
        produce(address, "t", 60)
        wait_until(lambda: sum(len(m.seen) for m in members) == 60, "all is read", turn=lambda: poll_all(members))
        for member in members:
            member.consumer.commit(asynchronous=False)
        assigned = [member.assignments for member in members]
    with Broker(data=tmp_path, kafka=address):
        produce(address, "t", 60, first=60)
        wait_until(lambda: sum(len(m.seen) for m in members) == 120, "reading goes on", turn=lambda: poll_all(members))
        for member in members:
            member.consumer.commit(asynchronous=False)
        assert [member.assignments for member in members] == assigned
        assert sorted(n for m in members for n in m.seen) == list(range(120)), "nothing was read twice"


def test_commits_survive_kill(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    program = Path(sys.executable).parent / "headrace"
    command = [str(program), "serve", "--data", str(tmp_path), "--kafka", address, "--http", "off"]

    def serve() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **CLOSED}
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        return process

    process = serve()
    try:
        make_topic(address, "t", 1)
        produce(address, "t", 100, partitions=1)
        where = [TopicPartition("t", 0)]
        for round_ in range(1, 6):
            consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
            for offset in range(round_ * 10, round_ * 10 + 10):
                consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
            process.kill()
            process.wait(10)
            process = serve()
            (committed,) = consumer.committed(where, timeout=20)
            assert committed.offset == round_ * 10 + 9
            consumer.close()
    finally:
        process.kill()
        process.wait(10)


def test_confluent_admin(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    admin = AdminClient({"bootstrap.servers": address})
    members.append(Member(address, client_id="described"))
    wait_until(lambda: shared(members), "it owns all", turn=lambda: poll_all(members))
    (described,) = [future.result(20) for future in admin.describe_consumer_groups(["g"]).values()]
    assert described.state == ConsumerGroupState.STABLE
    assert (described.partition_assignor, described.members[0].client_id) == ("range", "described")
    assert len(described.members[0].assignment.topic_partitions) == 6

    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20)
    assert [each.group_id for each in listed.valid] == ["g"]
    assert admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(20).valid == []

    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["g"])["g"].result(20)
    members[0].consumer.close()
    members.clear()

    wanted = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 2, 7)])
    (altered,) = [future.result(20) for future in admin.alter_consumer_group_offsets([wanted]).values()]
    assert altered.topic_partitions[0].error is None
    asked = ConsumerGroupTopicPartitions("g")
    (offsets,) = [future.result(20) for future in admin.list_consumer_group_offsets([asked]).values()]
    assert {(each.partition, each.offset) for each in offsets.topic_partitions} >= {(2, 7)}
    admin.delete_consumer_groups(["g"])["g"].result(20)
    assert admin.list_consumer_groups().result(20).valid == []


# --- kafka-python -----------------------------------------------------------------------------------------------------


class PyMember(threading.Thread):
    """A kafka-python consumer that polls in a thread of its own."""

    def __init__(self, address: str, assignor: type) -> None:
        super().__init__(daemon=True)
        self.consumer = KafkaConsumer(
            "t",
            bootstrap_servers=address,
            group_id="g",
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignor],
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
        )
        self.seen: list[int] = []
        self.owned: set[Any] = set()
        self.stopping = False
        self.start()

    def run(self) -> None:
        while not self.stopping:
            # Longer than joining may take: kafka-python 3.0.12 forgets an assignment that arrives after its poll has
            # given up, and is silent from then on.
            for records in self.consumer.poll(timeout_ms=3000).values():
                self.seen += [int(record.value) for record in records]
            self.owned = set(self.consumer.assignment())
        self.consumer.close()

    def stop(self) -> None:
        self.stopping = True
        self.join(20)


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, CooperativeStickyAssignor])
def test_kafka_python_members_come_and_go(headrace_broker: Broker, assignor: type) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    produce(address, "t", 120)
    members = [PyMember(address, assignor)]
    try:
        wait_until(lambda: len(members[0].owned) == 6, "one owns all")
        members.append(PyMember(address, assignor))
        wait_until(lambda: [len(m.owned) for m in members] == [3, 3], "two share")
        members[0].stop()
        wait_until(lambda: len(members[1].owned) == 6, "the other took over")
        produce(address, "t", 60, first=120)
        wait_until(lambda: {n for m in members for n in m.seen} == set(range(180)), "every message was seen")
    finally:
        for member in members:
            member.stop()


def test_kafka_python_admin(headrace_broker: Broker) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    produce(address, "t", 60)
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="g", enable_auto_commit=False)
    consumer.assign([PyPartition("t", 0)])
    consumer.commit({PyPartition("t", 0): OffsetAndMetadata(4, "note", -1)})
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        assert "g" in str(admin.list_groups())
        offsets = admin.list_group_offsets("g")
        assert "4" in str(offsets)
        admin.alter_group_offsets("g", {PyPartition("t", 1): OffsetAndMetadata(9, "", -1)})
        assert "offset=9" in str(admin.list_group_offsets("g"))
        admin.delete_group_offsets("g", [PyPartition("t", 1)])
        assert "offset=9" not in str(admin.list_group_offsets("g"))
        admin.delete_groups(["g"])
        assert "'g'" not in str(admin.list_groups())
    finally:
        admin.close()


# --- aiokafka ---------------------------------------------------------------------------------------------------------


async def test_aiokafka_members_come_and_go(headrace_broker: Broker) -> None:
    address = headrace_broker.kafka
    await asyncio.to_thread(make_topic, address, "t")

    async def new_member() -> AIOKafkaConsumer:
        member = AIOKafkaConsumer(
            "t",
            bootstrap_servers=address,
            group_id="g",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
        )
        await member.start()
        return member

    async def settled(*shares: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while [len(member.assignment()) for member in members] != list(shares):
                await asyncio.sleep(0.05)

    members = [await new_member()]
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    try:
        await settled(6)
        members.append(await new_member())
        await settled(3, 3)
        await members.pop(0).stop()
        await settled(6)
        for number in range(12):
            await producer.send_and_wait("t", str(number).encode(), partition=number % 6)
        seen: list[int] = []
        async with asyncio.timeout(PATIENCE):
            while len(seen) < 12:
                for records in (await members[0].getmany(timeout_ms=500)).values():
                    seen += [int(record.value) for record in records]
        assert sorted(seen) == list(range(12))
        await members[0].commit()
        assert await members[0].committed(AioPartition("t", 0)) == 2
    finally:
        await producer.stop()
        for member in members:
            await member.stop()


def test_many_groups_at_once(headrace_broker: Broker) -> None:
    """Thirty groups commit side by side, and each finds its own again."""
    address = headrace_broker.kafka
    make_topic(address, "t", 1)
    consumers = [Consumer({"bootstrap.servers": address, "group.id": f"group-{n}"}) for n in range(30)]
    for number, consumer in enumerate(consumers):
        consumer.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
    for number, consumer in enumerate(consumers):
        (committed,) = consumer.committed([TopicPartition("t", 0)], timeout=20)
        assert committed.offset == number
        consumer.close()
    admin = AdminClient({"bootstrap.servers": address})
    assert len(admin.list_consumer_groups().result(20).valid) == 30
