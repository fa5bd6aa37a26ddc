"""Consumers in a group, of confluent-kafka, and what tests wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE = 30.0
# Members of the classic protocol say these; those of the consumer protocol are told them by the broker.
CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}


def make_topic(address: str, name: str, partitions: int = 6) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, partitions)]).values():
        future.result(20)


def produce(address: str, topic: str, count: int, partitions: int = 6, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(20) == 0


class Member:
    """A confluent-kafka consumer that notes what happens to it."""

    def __init__(self, address: str, topics: Sequence[str] = ("t",), **config: Any) -> None:
        self.seen: list[int] = []
        self.assignments = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                **(CLASSIC if "group_protocol" not in config else {}),
                "topic.metadata.refresh.interval.ms": 500,
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        self.consumer.subscribe(list(topics), on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and not message.error():
            self.seen.append(int(message.value()))

    @property
    def position(self) -> int:
        """How much it has read of its partitions, and would commit."""
        return sum(max(0, each.offset) for each in self.consumer.position(self.consumer.assignment()))

    @property
    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}


def poll_all(members: Sequence[Member]) -> None:
    for member in members:
        member.poll()


def shared(members: Sequence[Member], partitions: int = 6, topic: str = "t") -> bool:
    """Whether the members own every partition once, and each of them some."""
    owned = [each for member in members for each in member.owned]
    return len(owned) == partitions and len(set(owned)) == partitions and all(member.owned for member in members)
