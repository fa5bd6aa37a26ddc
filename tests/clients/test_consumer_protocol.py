"""Kafka 4's consumer protocol, spoken by librdkafka: members come and go, a broker stops and starts, offsets stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.clients.members import Member, make_topic, poll_all, produce, shared
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.embedded import Broker

NEW = {"group_protocol": "consumer"}
QUICK = {"group_consumer_heartbeat_interval_ms": 200, "group_consumer_session_timeout_ms": 10_000}

quick = pytest.mark.headrace(**QUICK)


def offsets(address: str, group: str = "g") -> int:
    """How much a group has committed in all."""
    admin = AdminClient({"bootstrap.servers": address})
    (listed,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return sum(each.offset for each in listed.result(20).topic_partitions)


@quick
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(headrace_broker: Broker, members: list[Member], assignor: str) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    produce(address, "t", 300)
    for count in (1, 2, 3):
        members.append(Member(address, group_remote_assignor=assignor, **NEW))
        wait_until(lambda: shared(members), f"{count} members share", turn=lambda: poll_all(members))
    leaver = members.pop(0)
    leaver.consumer.close()
    wait_until(lambda: shared(members), "the others took over", turn=lambda: poll_all(members))
    produce(address, "t", 300, first=300)
    everybody = [leaver, *members]
    wait_until(
        lambda: {number for member in everybody for number in member.seen} == set(range(600)),
        "every message was seen",
        turn=lambda: poll_all(members),
    )
    # librdkafka may ask for the first offset again after an outdated answer, and then reads a partition a second time.
    wait_until(
        lambda: sum(each.position for each in members) == 600,
        "every member has read its partitions to their ends",
        turn=lambda: poll_all(members),
    )
    while members:
        members.pop().consumer.close()
    assert offsets(address) == 600


@pytest.mark.headrace(group_consumer_heartbeat_interval_ms=200, group_consumer_session_timeout_ms=1_500)
def test_a_static_member_is_awaited(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    for name in ("i", "j"):
        members.append(Member(address, group_instance_id=name, **NEW))
    wait_until(lambda: shared(members), "both share", turn=lambda: poll_all(members))
    before, undisturbed = members[0].owned, members[1].assignments
    members.pop(0).consumer.close()
    members.insert(0, Member(address, group_instance_id="i", **NEW))
    wait_until(lambda: members[0].owned == before, "it has what it had", turn=lambda: poll_all(members))
    assert members[1].assignments == undisturbed
    members.pop(0).consumer.close()
    wait_until(lambda: len(members[0].owned) == 6, "it stayed away too long", turn=lambda: poll_all(members))


@quick
def test_topics_come_and_grow(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "a-1", 2)
    make_topic(address, "b", 2)
    members.append(Member(address, ["^a-[0-9]+"], **NEW))

    def owned() -> list[tuple[str, int]]:
        return sorted(members[0].owned)

    wait_until(lambda: owned() == [("a-1", 0), ("a-1", 1)], "the pattern's topic", turn=lambda: poll_all(members))
    make_topic(address, "a-22", 1)
    wait_until(lambda: ("a-22", 0) in owned(), "a new topic", turn=lambda: poll_all(members))
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_partitions([NewPartitions("a-22", 3)])["a-22"].result(20)
    wait_until(lambda: ("a-22", 2) in owned(), "new partitions", turn=lambda: poll_all(members))
    admin.delete_topics(["a-22"])["a-22"].result(20)
    wait_until(lambda: len(owned()) == 2, "the topic is gone", turn=lambda: poll_all(members))


@quick
def test_administrators_see_it(headrace_broker: Broker, members: list[Member]) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t")
    produce(address, "t", 60)
    members.append(Member(address, client_id="one", **NEW))
    members.append(Member(address, client_id="two", **NEW))
    wait_until(
        lambda: shared(members) and sum(len(each.seen) for each in members) >= 60,
        "all is read",
        turn=lambda: poll_all(members),
    )
    admin = AdminClient({"bootstrap.servers": address})

    def stable() -> bool:
        poll_all(members)
        (described,) = [future.result(20) for future in admin.describe_consumer_groups(["g"]).values()]
        return described.state == ConsumerGroupState.STABLE

    wait_until(stable, "it is stable")
    (described,) = [future.result(20) for future in admin.describe_consumer_groups(["g"]).values()]
    assert (described.type, described.partition_assignor) == (ConsumerGroupType.CONSUMER, "uniform")
    assert {each.client_id: len(each.assignment.topic_partitions) for each in described.members} == {"one": 3, "two": 3}
    assert {each.client_id: len(each.target_assignment.topic_partitions) for each in described.members} == {
        "one": 3,
        "two": 3,
    }

    def of_type(kind: ConsumerGroupType) -> list[str]:
        return [each.group_id for each in admin.list_consumer_groups(types={kind}).result(20).valid]

    assert (of_type(ConsumerGroupType.CONSUMER), of_type(ConsumerGroupType.CLASSIC)) == (["g"], [])
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["g"])["g"].result(20)
    while members:
        members.pop().consumer.close()
    admin.delete_consumer_groups(["g"])["g"].result(20)
    assert admin.list_consumer_groups().result(20).valid == []


@quick
def test_an_empty_group_changes_its_protocol(headrace_broker: Broker, members: list[Member]) -> None:
    """And keeps its offsets; while somebody is in it, members of the other protocol are refused."""
    address = headrace_broker.kafka
    make_topic(address, "t")
    for turn, (protocol, other) in enumerate([({}, NEW), (NEW, {}), ({}, NEW)]):
        produce(address, "t", 60, first=60 * turn)
        member = Member(address, **protocol)
        members.append(member)
        wait_until(lambda member=member: len(member.seen) == 60, "all is read", turn=lambda: poll_all(members))
        assert set(member.seen) == set(range(60 * turn, 60 * turn + 60)), "it goes on where the others were"

        refused = Member(address, **other)
        message = refused.consumer.poll(20)
        assert message is not None
        assert message.error() is not None
        refused.consumer.close()
        members.pop().consumer.close()
    assert offsets(address) == 180


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_needs_no_rejoin(tmp_path: Path, members: list[Member], killed: bool) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in (QUICK | {"durability": "sync"}).items()]
    with ServeProcess(tmp_path / "data", *options) as broker:
        make_topic(broker.kafka, "t")
        for _ in range(2):
            members.append(Member(broker.kafka, enable_auto_commit=False, **NEW))
        wait_until(lambda: shared(members), "both share", turn=lambda: poll_all(members))
        produce(broker.kafka, "t", 60)
        wait_until(lambda: sum(len(m.seen) for m in members) == 60, "all is read", turn=lambda: poll_all(members))
        for member in members:
            member.consumer.commit(asynchronous=False)
        assigned = [member.assignments for member in members]
        if killed:
            broker.kill()
        else:
            broker.stop()
        broker.start()
        produce(broker.kafka, "t", 60, first=60)
        wait_until(lambda: sum(len(m.seen) for m in members) == 120, "reading goes on", turn=lambda: poll_all(members))
        for member in members:
            member.consumer.commit(asynchronous=False)
        assert [member.assignments for member in members] == assigned
        assert sorted(n for m in members for n in m.seen) == list(range(120)), "nothing was read twice"
        assert offsets(broker.kafka) == 120


def test_a_member_that_falls_silent(tmp_path: Path, members: list[Member]) -> None:
    """Its partitions go to the others; when it comes back it is fenced, and joins again by itself."""
    with Broker(
        data=tmp_path, group_consumer_heartbeat_interval_ms=200, group_consumer_session_timeout_ms=1_500
    ) as broker:
        make_topic(broker.kafka, "t")
        members.append(Member(broker.kafka, **NEW))
        members.append(Member(broker.kafka, max_poll_interval_ms=1_000, **NEW))
        wait_until(lambda: shared(members), "both share", turn=lambda: poll_all(members))
        # It does not poll, so its client leaves for it.
        wait_until(lambda: len(members[0].owned) == 6, "the other has all", turn=lambda: poll_all(members[:1]))
        wait_until(lambda: shared(members), "it is back", turn=lambda: poll_all(members))


def test_transactions_of_a_member(headrace_broker: Broker) -> None:
    """Offsets committed within a transaction carry the member's epoch."""
    address = headrace_broker.kafka
    make_topic(address, "t")
    make_topic(address, "out")
    produce(address, "t", 60)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    producer.init_transactions(20)
    moved = 0
    while moved < 60:
        taken = consumer.consume(20, 5)
        producer.begin_transaction()
        for message in taken:
            producer.produce("out", message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
        )
        producer.commit_transaction(20)
        moved += len(taken)
    stale = consumer.consumer_group_metadata()
    consumer.close()
    assert offsets(address) == 60
    producer.begin_transaction()
    with pytest.raises(KafkaException):
        producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], stale, 20)
