"""Clients of Go and Node, unchanged, beside librdkafka: what one writes the other reads, in groups, in transactions."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.abroad.clients import PATIENCE, Client, ClientFailed, Message
from tests.clients.trio import Confluent, How
from tests.clients.trio import Message as Sent
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

MESSAGES = [
    Message("a value", "a key", {"name": "header"}),
    Message(None, "deleted"),
    Message("no key"),
    Message("", ""),
    Message("long " * 1_000, "k", {"one": "1", "two": "2"}),
]


def create(broker: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
    made[topic].result(PATIENCE)


def read(broker: str, topic: str, count: int) -> list[Message]:
    """By librdkafka."""
    found = Confluent().read(broker, topic, count)
    return [
        Message(
            None if each.value is None else each.value.decode(),
            None if each.key is None else each.key.decode(),
            {name: (value or b"").decode() for name, value in each.headers},
        )
        for each in found
    ]


def plain(found: list[Message]) -> list[tuple[str | None, str | None, dict[str, str]]]:
    return [(each.value, each.key, each.headers) for each in found]


def committed(broker: str, group: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": group})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return sum(max(0, each.offset) for each in consumer.committed(asked, PATIENCE))
    finally:
        consumer.close()


def test_what_it_writes_is_read(client: Client, broker: str, topic: str) -> None:
    create(broker, topic)
    ways = [{"acks": 0}, {"acks": 1}, {"acks": -1}, {"idempotent": True}]
    for index, codec in enumerate(client.codecs):
        for way in (ways[index % len(ways)], ways[-1]):
            client.produce(broker, topic, MESSAGES, compression=codec, **way)
    expected = plain(MESSAGES) * 2 * len(client.codecs)
    assert plain(read(broker, topic, len(expected))) == expected


def test_it_reads_what_was_written(client: Client, broker: str, topic: str) -> None:
    create(broker, topic)
    for codec in client.codecs:
        sent = [
            Sent(
                None if each.value is None else each.value.encode(),
                None if each.key is None else each.key.encode(),
                tuple((name, value.encode()) for name, value in each.headers.items()),
            )
            for each in MESSAGES
        ]
        Confluent().write(broker, topic, sent, How(compression=codec))
    found = client.consume(broker, topic, len(MESSAGES) * len(client.codecs), group=f"{topic}-readers")
    assert plain(found) == plain(MESSAGES) * len(client.codecs)
    assert [each.offset for each in found] == list(range(len(found)))
    assert committed(broker, f"{topic}-readers", topic, 1) == len(found)


def test_large_messages(client: Client, broker: str, topic: str) -> None:
    create(broker, topic, **{"max.message.bytes": "4000000"})
    client.produce(broker, topic, [Message("0123456789")], times=300_000)
    [found] = client.consume(broker, topic, 1, group=f"{topic}-readers")
    assert found.value == "0123456789" * 300_000
    with pytest.raises(ClientFailed, match=r"(?i)large"):
        client.produce(broker, topic, [Message("0123456789")], times=500_000)


def test_transactions(client: Client, broker: str, topic: str) -> None:
    create(broker, topic)
    for number in range(4):
        client.produce(
            broker,
            topic,
            [Message(f"{number}")],
            transactional_id=f"{topic}-id",
            abort=number % 2 == 1,
            idempotent=True,
        )
    found = client.consume(broker, topic, 2, group=f"{topic}-readers", committed=True)
    assert [each.value for each in found] == ["0", "2"]
    everything = client.consume(broker, topic, 4, group=f"{topic}-all")
    assert [each.value for each in everything] == ["0", "1", "2", "3"]


def test_members_come_and_go(client: Client, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic, 4)
    group = f"{topic}-group"
    asking = {"broker": broker, "topic": topic, "group": group}
    admin = AdminClient({"bootstrap.servers": broker})

    def settled(members: int) -> bool:
        described = admin.describe_consumer_groups([group])[group].result(PATIENCE)
        return described.state == ConsumerGroupState.STABLE and len(described.members) == members

    def send(first: int) -> None:
        client.produce(broker, topic, [Message(f"{first + each}", partition=each % 4) for each in range(20)])

    with client.reading(tmp_path / "one", **asking) as one:
        send(0)
        wait_until(lambda: len(one.found()) == 20)
        with client.reading(tmp_path / "two", **asking) as two:
            wait_until(lambda: settled(2))
            send(20)
            wait_until(lambda: len(one.found()) + len(two.found()) >= 40)
            # They share the partitions.
            assert two.found()
            one.stop()
            wait_until(lambda: settled(1))
            send(40)
            wait_until(lambda: len(one.found()) + len(two.found()) >= 60)
            two.stop()
        found = [each.value for each in one.found() + two.found()]
    assert sorted(found, key=int) == [f"{each}" for each in range(60)]
    assert committed(broker, group, topic, 4) == 60


def test_a_pattern_is_followed(client: Client, broker: str, topic: str) -> None:
    if client.name == "sarama":
        pytest.skip("Sarama has no patterns")
    for name in ("one", "two"):
        create(broker, f"{topic}-{name}")
        client.produce(broker, f"{topic}-{name}", [Message(name)])
    found = client.consume(broker, f"^{topic}-.*", 2, pattern=True, group=f"{topic}-readers")
    assert sorted(each.value or "" for each in found) == ["one", "two"]


def test_administration(client: Client, broker: str, topic: str) -> None:
    [said] = client(do="administer", broker=broker, topic=topic, group=f"{topic}-group")
    assert said == {"retention": "86400000", "by_time": 4, "start": 3, "lag": 4, "left": False}


@pytest.mark.go
@pytest.mark.parametrize("version", ["0.11.0.0", "2.1.0"])
def test_sarama_as_an_old_client(go_programs: Path, broker: str, topic: str, version: str) -> None:
    create(broker, topic)
    sarama = Client("sarama", [f"{go_programs}/sarama"], ["none", "gzip", "snappy", "lz4"])
    for codec in sarama.codecs:
        sarama.produce(broker, topic, MESSAGES, compression=codec, version=version)
    found = sarama.consume(broker, topic, len(MESSAGES) * 4, group=f"{topic}-readers", version=version)
    assert plain(found) == plain(MESSAGES) * 4


@pytest.mark.go
def test_franz_goes_on_without_the_new_consumer_protocol(go_programs: Path, broker: str, topic: str) -> None:
    franz = Client("franz", [f"{go_programs}/franz"], [])
    create(broker, topic)
    franz.produce(broker, topic, [Message("x")])
    group = f"{topic}-readers"
    assert [each.value for each in franz.consume(broker, topic, 1, group=group, new_protocol=True)] == ["x"]
    assert committed(broker, group, topic, 1) == 1
