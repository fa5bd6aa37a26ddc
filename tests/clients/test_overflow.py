"""Producers that are faster than readers, with unchanged clients: what they show, and what they can rely on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError as AioPolicyViolation
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaProducer
from kafka.errors import PolicyViolationError
from tests.clients.trio import CLIENTS, PATIENCE, How, Message, make_topic, numbered, values
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.embedded import Broker

BOUND = 100
BATCH = 20


def set_config(address: str, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE)


def reader(address: str, **settings: Any) -> Consumer:
    """A consumer of the group that counts."""
    return Consumer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            **settings,
        }
    )


def read_and_commit(address: str, topic: str, offset: int) -> None:
    """Let the group have read up to an offset."""
    consumer = reader(address)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("client", CLIENTS)
def test_reject_is_shown_and_then_goes_on(headrace_broker: Broker, client: str, idempotent: bool) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t", overflow="reject", overflow_lag=3, overflow_group="readers")
    writer, how = CLIENTS[client], How(idempotent=idempotent)
    assert writer.write(address, "t", numbered(3), how) == [0, 1, 2]
    with pytest.raises((KafkaException, PolicyViolationError, AioPolicyViolation)) as refused:
        writer.write(address, "t", [Message(b"no")], how)
    if client == "confluent":
        assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    if client == "kafka-python":
        assert "group 'readers' is 3 messages behind, and overflow.lag allows 3" in str(refused.value)
    read_and_commit(address, "t", 1)
    assert writer.write(address, "t", [Message(b"yes")], how) == [3]
    assert values(writer.read(address, "t", 4)) == [b"0", b"1", b"2", b"yes"]


def confluent_send(address: str, idempotent: bool) -> tuple[Callable[[bytes], None], Callable[[], list[str]]]:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "enable.idempotence": idempotent,
            "batch.num.messages": BATCH,
            "queue.buffering.max.messages": 200,
            "linger.ms": 5,
        }
    )
    errors: list[str] = []

    def told(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error.str())

    def send(value: bytes) -> None:
        while True:
            try:
                producer.produce("t", value, on_delivery=told)
                producer.poll(0)
                return
            except BufferError:
                # The client's own queue is full: this is how it slows its application down.
                producer.poll(0.05)

    def finish() -> list[str]:
        assert producer.flush(PATIENCE) == 0
        return errors

    return send, finish


def kafka_python_send(address: str, idempotent: bool) -> tuple[Callable[[bytes], None], Callable[[], list[str]]]:
    producer = KafkaProducer(
        bootstrap_servers=address, enable_idempotence=idempotent, batch_size=BATCH * 8, linger_ms=5, max_block_ms=60_000
    )
    futures: list[Any] = []

    def finish() -> list[str]:
        producer.flush(PATIENCE)
        errors = [str(future.exception) for future in futures if future.exception is not None]
        producer.close(5)
        return errors

    return lambda value: futures.append(producer.send("t", value)), finish


SENDERS = {"confluent": confluent_send, "kafka-python": kafka_python_send}


@contextmanager
def producing(send: Callable[[bytes], None], count: int) -> Iterator[threading.Thread]:
    """A thread that sends numbers as fast as it may."""
    thread = threading.Thread(target=lambda: [send(b"%05d" % number) for number in range(count)], daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("client", SENDERS)
def test_block_slows_a_producer_down_and_loses_nothing(headrace_broker: Broker, client: str, idempotent: bool) -> None:
    """The reader rests longer than a request may wait, so that producers are told to try again too."""
    address = headrace_broker.kafka
    count = 1_500
    make_topic(address, "t", overflow="block", overflow_lag=BOUND, overflow_group="readers", overflow_block_ms=300)
    send, finish = SENDERS[client](address, idempotent)
    consumer = reader(address)
    consumer.subscribe(["t"])
    found: list[bytes] = []
    furthest = 0
    rests = 2
    with producing(send, count):
        end = time.monotonic() + 2 * PATIENCE
        while len(found) < count and time.monotonic() < end:
            taken = consumer.consume(50, 0.1)
            assert not any(message.error() for message in taken)
            found += [message.value() or b"" for message in taken]
            if taken:
                place = consumer.position([TopicPartition("t", 0)])[0]
                _, high = consumer.get_watermark_offsets(TopicPartition("t", 0), PATIENCE)
                furthest = max(furthest, high - max(place.offset - 50, 0))
                if rests and len(found) > 300:
                    rests -= 1
                    time.sleep(1.0)
                consumer.commit(asynchronous=False)
    assert finish() == []
    consumer.close()
    # A plain producer with several requests on the way may change their order when it sends again, as with Kafka.
    assert sorted(found) == [b"%05d" % number for number in range(count)]
    if idempotent:
        assert found == sorted(found)
    assert furthest <= BOUND + 50 + BATCH


@pytest.mark.parametrize("client", CLIENTS)
def test_drop_oldest_keeps_the_newest(headrace_broker: Broker, client: str) -> None:
    address = headrace_broker.kafka
    make_topic(address, "t", overflow="drop-oldest", overflow_bytes=65_536)
    behind = reader(address)
    read_and_commit(address, "t", 0)
    offsets = CLIENTS[client].write(address, "t", numbered(300, size=1_000), How(batch_bytes=4_000))
    assert sorted(offsets) == list(range(300))
    behind.subscribe(["t"])
    found: list[int] = []
    end = time.monotonic() + PATIENCE
    while (not found or found[-1] < 299) and time.monotonic() < end:
        found += [message.offset() or 0 for message in behind.consume(100, 0.2) if message.error() is None]
    behind.close()
    # The group goes on with the oldest that is left.
    assert found == list(range(found[0], 300))
    assert 30 <= len(found) <= 65

    strict = reader(address, **{"group.id": "strict", "auto.offset.reset": "error"})
    strict.assign([TopicPartition("t", 0, 0)])
    message = strict.poll(PATIENCE)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    strict.close()


def test_a_running_producer_feels_a_change(headrace_broker: Broker) -> None:
    """What the door remembers of a producer's requests does not outlive the change."""
    address = headrace_broker.kafka
    make_topic(address, "t")
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "linger.ms": 0})
    told: list[str | None] = []

    def send() -> str | None:
        producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error.name() if error else None))
        assert producer.flush(PATIENCE) == 0
        return told[-1]

    assert [send() for _ in range(20)] == [None] * 20
    set_config(address, "t", overflow="reject", overflow_lag="25", overflow_group="readers")
    assert [send() for _ in range(7)] == [None] * 5 + ["POLICY_VIOLATION"] * 2
    set_config(address, "t", overflow_lag="26")
    assert [send() for _ in range(2)] == [None, "POLICY_VIOLATION"]
    set_config(address, "t", overflow="spill")
    assert [send() for _ in range(20)] == [None] * 20


def test_a_blocked_producer_outlives_a_restart(tmp_path: Path) -> None:
    with ServeProcess(
        tmp_path / "data", "--nsq", "off", "--nsq-http", "off", "--lookup", "off", "--lookup-http", "off"
    ) as broker:
        make_topic(broker.kafka, "t", overflow="block", overflow_lag=5, overflow_group="readers")
        producer = Producer(
            {"bootstrap.servers": broker.kafka, "log_level": 0, "enable.idempotence": True, "batch.num.messages": 1}
        )
        errors: list[str] = []
        for number in range(10):
            producer.produce("t", b"%d" % number, on_delivery=lambda error, _: error and errors.append(error.str()))
        # The library asks for its producer id once or twice a second, until it gets one.
        wait_until(lambda: producer.flush(0.05) <= 5)
        assert producer.flush(0.5) == 5
        for stop in (broker.stop, broker.kill):
            began = time.monotonic()
            stop()
            assert time.monotonic() - began < 5
            broker.start()
            assert producer.flush(0.5) == 5
        read_and_commit(broker.kafka, "t", 5)
        assert producer.flush(PATIENCE) == 0
        assert not errors
        found = CLIENTS["confluent"].read(broker.kafka, "t", 11, How(end=10))
        assert values(found) == [b"%d" % number for number in range(10)]
