"""One log: what comes in by NSQ's door leaves by Kafka's, and the other way round, with all that it carries."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.nsq.clients import PATIENCE, Client
from tests.clients.nsq.conftest import Doors
from tests.clients.nsq.raw import Raw, extended, unpack
from tests.clients.nsq.test_messages import now_ms, numbered

HEADERS: list[tuple[str, bytes | None]] = [("trace", b"\x00\xff"), ("none", None), ("trace", b"again")]


def read_kafka(doors: Doors, topic: str, count: int, partitions: int = 1) -> list[KafkaMessage]:
    consumer = Consumer({"bootstrap.servers": doors.kafka, "group.id": "check", "log_level": 0})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    found: list[KafkaMessage] = []
    end = time.monotonic() + PATIENCE
    try:
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} came"
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


def write_kafka(doors: Doors, topic: str, count: int, **more: object) -> None:
    producer = Producer({"bootstrap.servers": doors.kafka, "log_level": 0})
    for body in numbered(count):
        producer.produce(topic, body.encode(), **more)
    assert producer.flush(PATIENCE) == 0


def create(doors: Doors, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": doors.kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE)


def test_published_by_nsq_and_read_by_kafka(doors: Doors, client: Client, topic: str) -> None:
    begin = now_ms()
    client.publish(doors.nsq, topic, numbered(10))
    client.publish(doors.nsq, topic, numbered(10), "batch")
    found = read_kafka(doors, topic, 20)
    # nsqjs does not wait between publishes, but its connection keeps their order.
    assert [message.value() for message in found] == [body.encode() for body in numbered(10) * 2]
    assert [message.offset() for message in found] == list(range(20))
    for message in found:
        assert message.key() is None
        assert not message.headers()
        kind, at = message.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        assert begin <= at <= now_ms()


def test_written_by_kafka_and_consumed_by_nsq(doors: Doors, client: Client, topic: str) -> None:
    write_kafka(doors, topic, 30, timestamp=1_600_000_000_123)
    found = client.read(topic, "c", 30, nsqd=doors.nsq, in_flight=10)
    assert sorted(each.body for each in found) == sorted(numbered(30))
    # A JavaScript number does not hold nanoseconds exactly.
    assert {round(each.timestamp / 1e6) for each in found} == {1_600_000_000_123}


def test_all_partitions_of_a_kafka_topic_come_to_a_channel(doors: Doors, client: Client, topic: str) -> None:
    create(doors, topic, partitions=3)
    producer = Producer({"bootstrap.servers": doors.kafka, "log_level": 0})
    for number, body in enumerate(numbered(60)):
        producer.produce(topic, body.encode(), partition=number % 3)
    assert producer.flush(PATIENCE) == 0
    found = client.read(topic, "c", 60, nsqd=doors.nsq, in_flight=10)
    assert sorted(each.body for each in found) == sorted(numbered(60))
    assert len({each.id for each in found}) == 60


def test_compressed_batches_of_kafka(doors: Doors, pynsq: Client, topic: str) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": doors.kafka, "compression.type": codec, "linger.ms": 20})
        for number in range(50):
            producer.produce(topic, f"{codec} {number}".encode() * 20)
        assert producer.flush(PATIENCE) == 0
    found = pynsq.read(topic, "c", 200, nsqd=doors.nsq, in_flight=50)
    assert len({each.body for each in found}) == 200


def test_key_and_headers_come_to_those_who_ask(doors: Doors, topic: str) -> None:
    headers = [(name, value) for name, value in HEADERS]
    write_kafka(doors, topic, 2, key=b"key \xff", headers=headers)
    raw = Raw(doors.nsq, headrace=1)
    assert raw.features["headrace"] == 1
    raw.subscribe(topic, "c", 10)
    for body in numbered(2):
        each = raw.delivery()
        assert unpack(each.body) == (b"key \xff", body.encode(), HEADERS)
        raw.send("FIN", each.id.decode())
    raw.close()
    doors.wait_until_settled(topic, "c")


def test_key_and_headers_go_to_kafka(doors: Doors, topic: str) -> None:
    raw = Raw(doors.nsq, headrace=1)
    assert raw.ask("PUB", topic, body=extended(b"k", b"one", HEADERS)) == b"OK"
    raw.mpub(topic, [extended(None, b"two", []), extended(b"", b"three", HEADERS[:1])])
    raw.close()
    one, two, three = read_kafka(doors, topic, 3)
    assert (one.key(), one.value(), one.headers()) == (b"k", b"one", HEADERS)
    assert (two.key(), two.value(), two.headers() or []) == (None, b"two", [])
    assert (three.key(), three.value(), three.headers()) == (b"", b"three", HEADERS[:1])


def test_a_client_that_does_not_ask_sees_plain_nsq(doors: Doors, pynsq: Client, topic: str) -> None:
    raw = Raw(doors.nsq, headrace=1)
    raw.mpub(topic, [extended(b"k", b"plain", HEADERS)])
    raw.close()
    assert [each.body for each in pynsq.read(topic, "c", 1, nsqd=doors.nsq)] == ["plain"]


def test_a_group_and_a_channel_read_side_by_side(doors: Doors, pynsq: Client, topic: str) -> None:
    """A Kafka topic keeps what its channels have finished: both read all of it."""
    create(doors, topic, partitions=1)
    pynsq.publish(doors.nsq, topic, numbered(10))
    assert len(pynsq.read(topic, "c", 10, nsqd=doors.nsq, in_flight=5)) == 10
    doors.wait_until_settled(topic, "c")
    assert len(read_kafka(doors, topic, 10)) == 10


def test_a_key_goes_where_kafka_would_send_it(doors: Doors, topic: str) -> None:
    create(doors, topic, partitions=5)
    keys = [b"key %d" % number for number in range(40)]
    places: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": doors.kafka, "partitioner": "murmur2_random", "log_level": 0})
    for key in keys:
        producer.produce(topic, b"kafka", key)
    assert producer.flush(PATIENCE) == 0
    raw = Raw(doors.nsq, headrace=1)
    raw.mpub(topic, [extended(key, b"nsq", []) for key in keys])
    raw.close()
    for message in read_kafka(doors, topic, 80, partitions=5):
        key, partition = message.key(), message.partition()
        assert key is not None
        assert partition is not None
        assert places.setdefault(key, partition) == partition
    assert len(set(places.values())) == 5


def test_a_dead_letter_keeps_its_origin(doors: Doors, topic: str) -> None:
    write_kafka(doors, topic, 1, key=b"k", headers=[("trace", b"1")])
    raw = Raw(doors.nsq, headrace=1)
    raw.subscribe(topic, "c", 1)
    doors.set_queue(topic, "c", max_attempts=2)
    for number in range(2):
        each = raw.delivery()
        assert each.attempts == number + 1
        raw.send("REQ", each.id.decode(), 0, body=f"failure {number}".encode())
    (dead,) = read_kafka(doors, f"{topic}.c.dead", 1)
    assert (dead.key(), dead.value()) == (b"k", b"message 0")
    headers = dict(dead.headers() or [])
    assert headers["trace"] == b"1"
    assert headers["headrace-origin-topic"] == topic.encode()
    assert headers["headrace-origin-partition"] == b"0"
    assert headers["headrace-origin-offset"] == b"0"
    assert headers["headrace-origin-queue"] == b"c"
    assert headers["headrace-attempts"] == b"2"
    assert headers["headrace-error"] == b"failure 1"
    assert abs(int(headers["headrace-dead-at"] or b"") - now_ms()) < 60_000
    doors.wait_until_settled(topic, "c")
    raw.close()


def test_keys_keep_their_order_among_real_consumers(doors: Doors, client: Client, topic: str) -> None:
    """Three consumers share a channel in order of keys, and send every message back once: each key stays in order."""
    producer = Producer({"bootstrap.servers": doors.kafka, "log_level": 0})
    for number in range(60):
        producer.produce(topic, f"{number % 6} {number // 6}".encode(), f"key {number % 6}".encode())
    assert producer.flush(PATIENCE) == 0
    doors.ask(f"/channel/create?topic={topic}&channel=c")
    doors.set_queue(topic, "c", order_by_key=True)
    work = {"nsqd": doors.nsq, "in_flight": 10, "first": "requeue", "delay_ms": 20}
    running = [client.consume(topic, "c", **work) for _ in range(3)]
    try:
        doors.wait_until_settled(topic, "c")
        found = sorted((each for consuming in running for each in consuming.drain()), key=lambda each: each.at)
    finally:
        for consuming in running:
            consuming.kill()
    for key in range(6):
        of_key = [(each.at, int(each.body.split()[1])) for each in found if each.body.startswith(f"{key} ")]
        assert sorted(number for _, number in of_key) == [number for number in range(10) for _ in range(2)]
        for number in range(9):
            # The next of a key comes when the one before it has come again and was finished.
            assert max(at for at, each in of_key if each == number) <= min(
                at for at, each in of_key if each == number + 1
            )
