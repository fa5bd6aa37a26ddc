"""Messages in and out, through three unchanged clients, each reading what the others wrote."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PyPartition
from tests.certificates import Authority
from tests.clients.trio import (
    CLIENTS,
    CODECS,
    PATIENCE,
    How,
    Message,
    Tls,
    make_topic,
    numbered,
    values,
)

import headrace
from headrace.embedded import Broker
from headrace.format.batch import HEADER_BYTES, BatchHeader, header_at

every_client = pytest.mark.parametrize("name", CLIENTS)


def others(name: str) -> list[str]:
    return [each for each in CLIENTS if each != name]


def headers_on_disk(broker: Broker, topic: str) -> list[BatchHeader]:
    """The headers of all batches in a topic's files."""
    found = []
    for path in sorted(Path(broker.data).rglob(f"{topic}-*/*.log")):
        raw, at = path.read_bytes(), 0
        while at + HEADER_BYTES <= len(raw) and any(raw[at : at + HEADER_BYTES]):
            header = header_at(raw, at)
            found.append(header)
            at += header.size
    return found


# --- what a message can hold ------------------------------------------------------------------------------------------

EVERYTHING = [
    Message(b"plain"),
    Message(b"value", b"key"),
    Message(b"", b""),
    Message(None, b"a tombstone"),
    Message(b"no key", None, (("a", b"1"), ("b", b""))),
    Message(b"repeated", b"k", (("a", b"1"), ("a", b"2"), ("", b"an empty name"))),
    Message(bytes(range(256)), bytes(range(255, -1, -1)), (("h\u00e9", bytes(range(256))),)),
    Message(b"an old one", b"k", timestamp=1_000),
    Message(b"x" * 100_000, b"y" * 10_000),
]
# What others refuse to send.
NULL_HEADER = Message(b"", None, (("a", None), ("b", b"")))
SPECIAL = {"confluent": [Message(None, None), NULL_HEADER], "kafka-python": [], "aiokafka": [NULL_HEADER]}


@every_client
def test_all_that_a_message_can_hold(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"everything-{name}"
    make_topic(address, topic)
    given = EVERYTHING + SPECIAL[name]
    before = time.time() * 1000 - 1
    assert CLIENTS[name].write(address, topic, given) == list(range(len(given)))
    for reader in CLIENTS.values():
        found = reader.read(address, topic, len(given))
        assert [(each.value, each.key, each.headers) for each in found] == [
            (each.value, each.key, each.headers) for each in given
        ]
        assert [each.offset for each in found] == list(range(len(given)))
        for each, sent in zip(found, given, strict=True):
            assert not each.append_time
            if sent.timestamp is not None:
                assert each.timestamp == sent.timestamp
            else:
                assert before <= each.timestamp <= time.time() * 1000 + 1


@every_client
@pytest.mark.parametrize("codec", CODECS)
def test_compression_is_passed_through(headrace_session_broker: Broker, name: str, codec: str) -> None:
    address, topic = headrace_session_broker.kafka, f"{codec}-{name}"
    make_topic(address, topic)
    given = numbered(300, 200, key=b"key", headers=(("h", b"v"),))
    CLIENTS[name].write(address, topic, given, How(compression=codec))
    headers = headers_on_disk(headrace_session_broker, topic)
    assert {header.compression for header in headers} == {CODECS[codec]}
    assert sum(header.size for header in headers) < 300 * 200
    for other in others(name):
        found = CLIENTS[other].read(address, topic, 300)
        assert values(found) == [each.value for each in given]
        assert {each.headers for each in found} == {(("h", b"v"),)}


@every_client
def test_acknowledgements(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"acks-{name}"
    make_topic(address, topic)
    for acks in (0, 1, -1):
        CLIENTS[name].write(address, topic, [Message(b"%d" % acks)], How(acks=acks))
        # acks=0 has no answer to wait for: the reader does.
        found = CLIENTS[name].read(address, topic, [0, 1, -1].index(acks) + 1)
        assert found[-1].value == b"%d" % acks


@every_client
def test_idempotent_producers(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"idempotent-{name}"
    make_topic(address, topic, 3)
    given = [Message(b"%d" % number, partition=number % 3) for number in range(600)]
    for _ in range(2):
        CLIENTS[name].write(address, topic, given, How(idempotent=True, linger_ms=0))
    found = CLIENTS[name].read(address, topic, 1200, partitions=3)
    for partition in range(3):
        expected = [each.value for each in given if each.partition == partition]
        assert [each.value for each in found if each.partition == partition] == expected * 2
    ids = {header.producer_id for header in headers_on_disk(headrace_session_broker, topic)}
    assert len(ids) == 2
    assert min(ids) >= 0


@every_client
def test_ten_megabytes(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"large-{name}"
    make_topic(address, topic, max_message_bytes=10_100_000)
    large = random.Random(1).randbytes(10_000_000)
    how = How(max_bytes=10_100_000)
    assert CLIENTS[name].write(address, topic, [Message(large), Message(b"small"), Message(large)], how) == [0, 1, 2]
    for reader in CLIENTS.values():
        # A batch above what was asked for comes whole, if it is the first.
        assert values(reader.read(address, topic, 3)) == [large, b"small", large]


@every_client
def test_too_large_for_the_topic(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"too-large-{name}"
    make_topic(address, topic, max_message_bytes=50_000)
    with pytest.raises((KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)) as refused:
        CLIENTS[name].write(address, topic, [Message(bytes(60_000))])
    error: Any = refused.value
    code = error.args[0].code() if isinstance(error, KafkaException) else error.errno
    assert code == KafkaError.MSG_SIZE_TOO_LARGE
    assert CLIENTS[name].write(address, topic, [Message(bytes(40_000))]) == [0]


@every_client
def test_the_broker_stamps_the_time(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"append-time-{name}"
    make_topic(address, topic, message_timestamp_type="LogAppendTime")
    before = time.time() * 1000 - 1
    CLIENTS[name].write(address, topic, [Message(b"a", timestamp=1_000), Message(b"b", timestamp=2_000)])
    for reader in CLIENTS.values():
        for each in reader.read(address, topic, 2):
            assert each.append_time
            assert before <= each.timestamp <= time.time() * 1000 + 1


@every_client
def test_read_committed(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"committed-{name}"
    make_topic(address, topic)
    CLIENTS[name].write(address, topic, numbered(10))
    assert len(CLIENTS[name].read(address, topic, 10, How(isolation="read_committed"))) == 10


# --- moving about -----------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(headrace_session_broker: Broker, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A topic of a hundred messages in ten batches; number N is of the time 1,000,000 + 1,000 N."""
    topic = request.node.name.replace("_", "-")
    address = headrace_session_broker.kafka
    make_topic(address, topic)
    for first in range(0, 100, 10):
        numbers = range(first, first + 10)
        CLIENTS["confluent"].write(
            address, topic, [Message(b"%d" % each, timestamp=1_000_000 + each * 1000) for each in numbers]
        )
    return address, topic


def test_librdkafka_seeks(timed: tuple[str, str]) -> None:
    address, topic = timed
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "seeks",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )

    def following() -> int:
        while True:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if not message.error():
                return int(message.value() or -1)
            assert message.error().code() == KafkaError._PARTITION_EOF

    def ended() -> int:
        while True:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return message.offset() or 0

    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [following() for _ in range(3)] == [0, 1, 2]
    for offset, first in ((95, 95), (0, 0), (43, 43), (OFFSET_BEGINNING, 0)):
        consumer.seek(TopicPartition(topic, 0, offset))
        assert following() == first
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == 1
    consumer.seek(TopicPartition(topic, 0, OFFSET_END))
    assert ended() == 100
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0)) == (0, 100)

    def at(timestamp: int) -> int:
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], PATIENCE)
        return found.offset

    assert [at(0), at(1_000_000), at(1_000_001), at(1_055_000), at(1_099_000)] == [0, 0, 1, 55, 99]
    assert at(1_099_001) == OFFSET_END
    consumer.seek(TopicPartition(topic, 0, at(1_071_500)))
    assert following() == 72
    consumer.seek(TopicPartition(topic, 0, 101))
    message = consumer.poll(PATIENCE)
    assert message is not None
    assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    consumer.close()

    admin = AdminClient({"bootstrap.servers": address})
    for spec, expected in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 100),
        (OffsetSpec.for_timestamp(1_010_000), 10),
        (OffsetSpec.max_timestamp(), 99),
    ):
        for isolation in IsolationLevel:
            [future] = admin.list_offsets({TopicPartition(topic, 0): spec}, isolation_level=isolation).values()
            assert future.result(PATIENCE).offset == expected


def test_kafka_python_seeks(timed: tuple[str, str]) -> None:
    address, topic = timed
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", consumer_timeout_ms=PATIENCE * 1000)
    place = PyPartition(topic, 0)
    consumer.assign([place])

    def following() -> int:
        return int(next(consumer).value)

    consumer.seek_to_beginning(place)
    assert [following() for _ in range(3)] == [0, 1, 2]
    for offset in (95, 0, 43):
        consumer.seek(place, offset)
        assert following() == offset
    assert consumer.position(place) == 44
    consumer.seek_to_end(place)
    assert consumer.position(place) == 100
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 100}

    def at(timestamp: int) -> tuple[int, int] | None:
        found = consumer.offsets_for_times({place: timestamp})[place]
        return None if found is None else (found.offset, found.timestamp)

    assert at(0) == (0, 1_000_000)
    assert at(1_000_001) == (1, 1_001_000)
    assert at(1_055_000) == (55, 1_055_000)
    assert at(1_099_001) is None
    found = at(1_071_500)
    assert found is not None
    consumer.seek(place, found[0])
    assert following() == 72
    assert consumer.highwater(place) == 100
    consumer.seek(place, 101)
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        consumer.poll(PATIENCE * 1000)
    consumer.close()


async def test_aiokafka_seeks(timed: tuple[str, str]) -> None:
    address, topic = timed
    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="none")
    await consumer.start()
    place = AioPartition(topic, 0)
    consumer.assign([place])

    async def following() -> int:
        return int((await asyncio.wait_for(consumer.getone(), PATIENCE)).value)

    try:
        await consumer.seek_to_beginning(place)
        assert [await following() for _ in range(3)] == [0, 1, 2]
        for offset in (95, 0, 43):
            consumer.seek(place, offset)
            assert await following() == offset
        assert await consumer.position(place) == 44
        await consumer.seek_to_end(place)
        assert await consumer.position(place) == 100
        assert await consumer.beginning_offsets([place]) == {place: 0}
        assert await consumer.end_offsets([place]) == {place: 100}
        found = await consumer.offsets_for_times({place: 1_071_500})
        assert (found[place].offset, found[place].timestamp) == (72, 1_072_000)
        assert (await consumer.offsets_for_times({place: 1_099_001}))[place] is None
        consumer.seek(place, 72)
        assert await following() == 72
        assert consumer.highwater(place) == 100
        assert consumer.last_stable_offset(place) in (100, -1)
        consumer.seek(place, 101)
        with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
            await following()
    finally:
        await consumer.stop()


# --- waiting for more -------------------------------------------------------------------------------------------------


def test_a_poll_waits_for_enough_bytes_and_not_longer_than_it_said(headrace_session_broker: Broker) -> None:
    address = headrace_session_broker.kafka
    make_topic(address, "patient")

    def waited(min_bytes: int, max_wait: int, meanwhile: Callable[[], object]) -> tuple[float, int]:
        """Seconds until something came, and how much came at once."""
        consumer = KafkaConsumer(
            bootstrap_servers=address,
            fetch_min_bytes=min_bytes,
            fetch_max_wait_ms=max_wait,
            max_partition_fetch_bytes=10_000_000,
            max_poll_records=10_000,
        )
        place = PyPartition("patient", 0)
        consumer.assign([place])
        consumer.seek_to_end(place)
        consumer.position(place)
        consumer.poll(10)
        began = time.monotonic()
        meanwhile()
        while True:
            found = consumer.poll(20_000)
            if found:
                took = time.monotonic() - began
                consumer.close()
                return took, len(found[place])

    def one() -> None:
        CLIENTS["confluent"].write(address, "patient", [Message(b"x" * 1000)], How(linger_ms=0))

    def five() -> None:
        for _ in range(5):
            one()

    # One byte is enough: it comes at once, though the poll could wait.
    assert waited(1, 15_000, one)[0] < 10
    # Not enough bytes: it comes when the wait is over.
    took, count = waited(1_000_000, 1_500, one)
    assert took > 0.7
    assert count == 1
    # Enough bytes only with the fifth message, long before the wait is over.
    took, count = waited(4_500, 15_000, five)
    assert took < 10
    assert count == 5


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_many_segments_before_and_after_a_restart(tmp_path: Path, durability: str) -> None:
    given = numbered(400, 1000)
    # Kafka lets no topic ask for segments below a megabyte; the broker's default may be smaller.
    with headrace.Broker(tmp_path / "data", durability=durability, log_segment_bytes=50_000) as broker:
        make_topic(broker.kafka, "segments")
        CLIENTS["confluent"].write(broker.kafka, "segments", given[:300], How(batch_bytes=10_000))
        for reader in CLIENTS.values():
            assert values(reader.read(broker.kafka, "segments", 300)) == values_of(given[:300])
        if durability == "async":
            assert len(list(Path(broker.data).rglob("segments-0/*.log"))) >= 3
    with headrace.Broker(tmp_path / "data", durability=durability, log_segment_bytes=50_000) as broker:
        for name, reader in CLIENTS.items():
            found = reader.read(broker.kafka, "segments", 300)
            assert values(found) == values_of(given[:300]), name
            assert [each.offset for each in found] == list(range(300))
        CLIENTS["confluent"].write(broker.kafka, "segments", given[300:], How(batch_bytes=10_000))
        assert values(CLIENTS["confluent"].read(broker.kafka, "segments", 400)) == values_of(given)
        assert len(list(Path(broker.data).rglob("segments-0/*.log"))) >= 5


def values_of(messages: list[Message]) -> list[bytes | None]:
    return [each.value for each in messages]


# --- topics that are not there, and many partitions -------------------------------------------------------------------


@every_client
def test_a_topic_is_made_when_it_is_first_named(headrace_session_broker: Broker, name: str) -> None:
    topic = f"made-{name}"
    CLIENTS[name].write(headrace_session_broker.kafka, topic, [Message(b"first")])
    assert values(CLIENTS[name].read(headrace_session_broker.kafka, topic, 1)) == [b"first"]


@pytest.mark.headrace(auto_create_topics=False)
def test_or_not_if_that_is_off(headrace_broker: Broker) -> None:
    for name, client in CLIENTS.items():
        with pytest.raises((KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError, TimeoutError)):
            client.write(headrace_broker.kafka, f"made-{name}", [Message(b"first")], How(patience=1.0))
    assert AdminClient({"bootstrap.servers": headrace_broker.kafka}).list_topics(timeout=PATIENCE).topics == {}


@every_client
def test_a_hundred_partitions_each_in_order(headrace_session_broker: Broker, name: str) -> None:
    address, topic = headrace_session_broker.kafka, f"wide-{name}"
    make_topic(address, topic, 100)
    given = [Message(b"%d" % number, partition=number * 7 % 100) for number in range(2000)]
    CLIENTS[name].write(address, topic, given, How(idempotent=True))
    found = CLIENTS[name].read(address, topic, 2000, partitions=100)
    assert len(found) == 2000
    for partition in range(100):
        mine = [each for each in found if each.partition == partition]
        assert [each.offset for each in mine] == list(range(20))
        assert values(mine) == [each.value for each in given if each.partition == partition]


# --- old and new clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(2, 1), (2, 4), (3, 0), (3, 9)])
def test_kafka_python_pinned_to_an_old_protocol(headrace_session_broker: Broker, version: tuple[int, int]) -> None:
    # A Kafka 4 broker speaks to clients from 2.1 on.
    address, topic = headrace_session_broker.kafka, f"pinned-{version[0]}-{version[1]}"
    make_topic(address, topic)
    producer = KafkaProducer(bootstrap_servers=address, api_version=version)
    futures = [producer.send(topic, b"%d" % number, headers=[("h", b"v")]) for number in range(10)]
    assert [future.get(PATIENCE).offset for future in futures] == list(range(10))
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        api_version=version,
        auto_offset_reset="earliest",
        group_id=f"pinned-{version}",
        consumer_timeout_ms=PATIENCE * 1000,
    )
    assert [int(next(consumer).value) for _ in range(10)] == list(range(10))
    consumer.commit()
    assert consumer.committed(PyPartition(topic, 0)) == 10
    consumer.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"api.version.request": True, "api.version.fallback.ms": 0},
        {"api.version.request": False, "broker.version.fallback": "2.1.0"},
    ],
)
def test_librdkafka_with_and_without_negotiation(headrace_session_broker: Broker, settings: dict[str, Any]) -> None:
    address, topic = headrace_session_broker.kafka, f"negotiated-{settings['api.version.request']}"
    make_topic(address, topic)
    base = {"bootstrap.servers": address, "log_level": 0, **settings}
    producer = Producer(base)
    told: list[KafkaError | None] = []
    producer.produce(topic, b"value", b"key", headers=[("h", b"v")], on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE) == 0
    consumer = Consumer({**base, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE)
    consumer.close()
    assert told == [None]
    assert message is not None
    assert message.error() is None
    assert (message.key(), message.value(), message.headers()) == (b"key", b"value", [("h", b"v")])


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def test_tls(authority: Authority) -> None:
    cert, key = authority.issue("localhost", "127.0.0.1")
    how = How(tls=Tls(authority.path), compression="lz4")
    with headrace.Broker(tls_cert=cert, tls_key=key) as broker:
        given = numbered(300, 10_000)
        for name, client in CLIENTS.items():
            client.write(broker.kafka, name, given, how)
            for other in others(name):
                assert values(CLIENTS[other].read(broker.kafka, name, 300, how)) == values_of(given)


def test_tls_with_client_certificates(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("localhost", "127.0.0.1")
    known = How(tls=Tls(authority.path, *authority.issue("someone")))
    stranger = How(tls=Tls(authority.path, *Authority(tmp_path).issue("someone")), patience=1.0)
    nobody = How(tls=Tls(authority.path), patience=1.0)
    with headrace.Broker(tls_cert=cert, tls_key=key, tls_client_ca=authority.path) as broker:
        for name, client in CLIENTS.items():
            client.write(broker.kafka, name, [Message(b"known")], known)
            assert values(client.read(broker.kafka, name, 1, known)) == [b"known"]
            for refused in (stranger, nobody, replace(nobody, tls=None)):
                with pytest.raises((KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError, TimeoutError)):
                    client.write(broker.kafka, name, [Message(b"refused")], refused)
            assert len(client.read(broker.kafka, name, 1, known)) == 1
