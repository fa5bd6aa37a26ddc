"""Delayed messages through the Kafka door, with an unchanged client: a header asks, the topic's `delay=true` allows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from confluent_kafka.cimpl import Message
from tests.serve_process import ServeProcess

from headrace.embedded import Broker

HEADER = "headrace-deliver-at"
PATIENCE = 30.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def admin(headrace_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": headrace_broker.kafka})


def make_topic(admin: AdminClient, name: str, **config: str) -> None:
    config = {each.replace("_", "."): value for each, value in config.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(PATIENCE)


@pytest.fixture
def consumer(headrace_broker: Broker) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": headrace_broker.kafka, "group.id": "g", "enable.auto.commit": False})
    yield made
    made.close()


def read(consumer: Consumer, topic: str, count: int) -> list[tuple[Message, int]]:
    """That many messages from the start, and when each was seen."""
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    end = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append((message, now_ms()))
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_header_delays(
    headrace_broker: Broker, admin: AdminClient, consumer: Consumer, codec: str, idempotent: bool
) -> None:
    make_topic(admin, "t", delay="true")
    producer = Producer(
        {
            "bootstrap.servers": headrace_broker.kafka,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 100,
        }
    )
    # Connected, and with a producer id, for which the library asks once or twice a second.
    producer.produce("another", b"x")
    assert producer.flush(PATIENCE) == 0
    due = now_ms() + 5_000
    offsets: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        offsets[message.value()] = message.offset()

    for index in range(50):
        # Text and eight bytes are both understood; a time that has passed is now.
        value = [None, str(due).encode(), (due + 300).to_bytes(8, "big"), str(due - 100_000).encode()][index % 4]
        headers = [("a", b"1")] + ([(HEADER, value)] if value is not None else []) + [("z", None)]
        producer.produce("t", b"%d" % index, b"key %d" % index, headers=headers, callback=delivered)
    assert producer.flush(PATIENCE) == 0
    assert sorted(offsets.values()) == list(range(50))
    found = read(consumer, "t", 50)
    assert len(found) == 50
    for message, seen in found:
        index = int(message.value())
        headers = dict(message.headers())
        assert message.key() == b"key %d" % index
        assert next(iter(headers)) == "a"
        assert list(headers)[-1] == "z"
        wanted = {1: due, 2: due + 300}.get(index % 4)
        if wanted is None:
            assert message.offset() == offsets[message.value()]
        else:
            assert HEADER in headers
            assert seen >= wanted
            assert 0 <= message.timestamp()[1] - wanted < 10_000
    order = [int(message.value()) % 4 for message, _ in found]
    assert sorted(order[:25]) == [0] * 13 + [3] * 12
    assert order[25:] == [1] * 13 + [2] * 12


def test_only_where_the_topic_says_so(headrace_broker: Broker, admin: AdminClient, consumer: Consumer) -> None:
    make_topic(admin, "t")
    producer = Producer({"bootstrap.servers": headrace_broker.kafka, "linger.ms": 0})

    def produce(value: bytes, due: int) -> None:
        producer.produce("t", value, headers=[(HEADER, str(due).encode())])
        assert producer.flush(PATIENCE) == 0

    for index in range(20):
        # Often enough for the door to remember how these requests begin.
        produce(b"at once %d" % index, now_ms() + 3_600_000)
    assert len(read(consumer, "t", 20)) == 20
    change = ConfigResource(
        ResourceType.TOPIC,
        "t",
        incremental_configs=[ConfigEntry("delay", "true", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([change])[change].result(PATIENCE)
    due = now_ms() + 700
    produce(b"later", due)
    found = read(consumer, "t", 21)
    assert found[20][0].value() == b"later"
    assert found[20][1] >= due


def test_what_makes_no_sense_is_refused(headrace_broker: Broker, admin: AdminClient) -> None:
    make_topic(admin, "t", delay="true")
    producer = Producer({"bootstrap.servers": headrace_broker.kafka, "enable.idempotence": False, "retries": 0})
    errors: list[KafkaError | None] = []
    centuries = str(now_ms() + 300 * 365 * 86_400_000).encode()
    for value in (b"tomorrow", b"", b"-5", None, centuries):
        producer.produce("t", b"x", headers=[(HEADER, value)], callback=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE) == 0
    assert len(errors) == 5
    assert all(error is not None and error.code() == KafkaError.INVALID_RECORD for error in errors), errors


def test_clients_may_not_write_to_the_timer(headrace_broker: Broker, admin: AdminClient) -> None:
    with pytest.raises(KafkaException):
        make_topic(admin, "__timers")


def test_delayed_messages_survive_kills(tmp_path: Path) -> None:
    """Killed while messages wait and while they are fired: each comes once, whatever came due meanwhile too."""
    with ServeProcess(tmp_path / "data") as serving:
        make_topic(AdminClient({"bootstrap.servers": serving.kafka}), "t", delay="true")
        producer = Producer({"bootstrap.servers": serving.kafka, "linger.ms": 5})
        due: dict[bytes, int] = {}
        start = now_ms() + 1_500
        for index in range(3_000):
            value = b"%d" % index
            due[value] = start + index
            producer.produce("t", value, headers=[(HEADER, str(due[value]).encode())])
        assert producer.flush(PATIENCE) == 0
        for _ in range(3):
            serving.kill()
            serving.start()
            time.sleep(0.7)
        consumer = Consumer({"bootstrap.servers": serving.kafka, "group.id": "g", "enable.auto.commit": False})
        try:
            found = read(consumer, "t", 3_000)
            assert consumer.poll(1.0) is None
        finally:
            consumer.close()
        assert sorted(message.value() for message, _ in found) == sorted(due)
        assert all(message.timestamp()[1] >= due[message.value()] for message, _ in found)
