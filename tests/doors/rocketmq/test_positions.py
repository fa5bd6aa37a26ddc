"""One position for a group that pulls, pops and receives: whichever way it goes on, nothing is skipped or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.test_receive import Consumer
from tests.doors.rocketmq.test_pop import Popper
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request


class Group:
    """A group of one topic, by its requests about positions."""

    def __init__(self, raw: Raw, topic: str, group: str) -> None:
        self.raw = raw
        self.name, self.topic = group, topic
        self.popper = Popper(raw, topic, group)
        self._fields = {"consumerGroup": group, "topic": topic, "queueId": 0}

    def position(self) -> int:
        answer = self.raw.ask(Request.QUERY_CONSUMER_OFFSET, self._fields)
        return int(answer.fields["offset"]) if answer.code == Code.SUCCESS else -1

    def commit(self, offset: int) -> None:
        assert self.raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**self._fields, "commitOffset": offset}).code == 0

    def reset(self, offset: int) -> None:
        fields = {"topic": self.topic, "group": self.name, "queueId": 0, "offset": offset, "timestamp": -1}
        assert self.raw.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, {**fields, "isForce": "true"}).code == 0

    def pop(self, count: int, *, acks: bool = True) -> list[bytes]:
        _, found = self.popper.pop(maxMsgNums=count)
        if acks:
            for message in found:
                self.popper.ack(message)
        return [message.body for message in found]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def readers(raw: Raw, topic: str, group: str) -> Group:
    for body in numbers(0, 12):
        raw.sent(topic, body)
    return Group(raw, topic, group)


def test_a_group_that_pulled_pops_from_where_it_was_and_back(readers: Group) -> None:
    readers.commit(3)
    assert readers.pop(2) == numbers(3, 5)
    assert readers.position() == 5
    # What is out is not committed, and what follows it is not either.
    (five, six) = readers.popper.pop(maxMsgNums=2)[1]
    readers.popper.ack(six)
    assert readers.position() == 5
    readers.popper.ack(five)
    assert readers.position() == 7
    # The group pulls again, and comes back.
    readers.commit(9)
    assert readers.pop(2) == numbers(9, 11)
    assert readers.position() == 11
    # A client that still pulls does not know what was popped meanwhile.
    readers.commit(9)
    assert (readers.pop(5), readers.position()) == (numbers(11, 12), 12)


def test_a_reset_moves_both_ways(broker: headrace.Broker, readers: Group) -> None:
    assert readers.pop(6) == numbers(0, 6)
    readers.reset(2)
    assert readers.position() == 2
    assert readers.pop(3) == numbers(2, 5)
    readers.reset(10)
    assert readers.pop(5) == numbers(10, 12)
    # And by a tool of Kafka's.
    assert readers.position() == 12
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    to = ConsumerGroupTopicPartitions(readers.name, [TopicPartition(readers.topic, 0, 7)])
    (future,) = admin.alter_consumer_group_offsets([to]).values()
    future.result(30)
    assert readers.pop(2) == numbers(7, 9)
    assert readers.position() == 9


def test_the_handles_of_before_a_reset_settle_nothing(readers: Group) -> None:
    first = readers.popper.pop(maxMsgNums=4)[1]
    readers.popper.ack(first[0])
    assert readers.position() == 1
    readers.reset(0)
    again = readers.popper.pop(maxMsgNums=4)[1]
    assert [message.body for message in again] == numbers(0, 4)
    for message in first:
        readers.popper.ack(message)
    assert readers.position() == 0
    for message in again:
        readers.popper.ack(message)
    assert readers.position() == 4


def test_the_lag_is_the_same_in_every_tool(broker: headrace.Broker, readers: Group) -> None:
    assert readers.pop(5) == numbers(0, 5)
    assert readers.position() == 5
    consumer = KafkaConsumer({"bootstrap.servers": broker.kafka, "group.id": readers.name})
    (committed,) = consumer.committed([TopicPartition(readers.topic, 0)], 30)
    low, high = consumer.get_watermark_offsets(TopicPartition(readers.topic, 0), 30)
    consumer.close()
    assert (low, high - committed.offset) == (0, 7)
    stats = readers.raw.ask(Request.GET_CONSUME_STATS, {"consumerGroup": readers.name, "topic": readers.topic})
    assert b'"consumerOffset":5' in stats.body


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_clients_of_every_kind_go_on_over_a_restart(tmp_path: Path, ending: str) -> None:
    any_port = "127.0.0.1:0"
    flags = ("--rocketmq", any_port, "--rocketmq-grpc", any_port, "--queue-flush-ms", "1")
    with ServeProcess(tmp_path / "data", *flags) as serving:

        def restart() -> None:
            getattr(serving, ending)()
            serving.start()

        with Raw(serving.addresses["rocketmq"]) as raw:
            for body in numbers(0, 12):
                raw.sent("t", body)
            Group(raw, "t", "g").commit(2)
            restart()
        found: list[bytes] = []
        with Raw(serving.addresses["rocketmq"]) as raw:
            consumer = Consumer(serving.addresses["rocketmq-grpc"], "g", "t")
            with consumer.raw:
                wait_until(lambda: found.extend(consumer.bodies(count=3, wait=1)) or len(found) >= 3)
            assert found == numbers(2, 5)
            group = Group(raw, "t", "g")
            assert group.position() == 5
            restart()
        with Raw(serving.addresses["rocketmq"]) as raw:
            group = Group(raw, "t", "g")
            assert group.position() == 5
            group.commit(8)
            restart()
        with Raw(serving.addresses["rocketmq"]) as raw:
            group = Group(raw, "t", "g")
            assert group.pop(2) == numbers(8, 10)
            assert group.position() == 10
