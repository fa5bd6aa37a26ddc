"""Three unchanged clients behind one shape, so that what one of them writes, each of the others can be asked to read.

Only the least that they have in common is here. What a client can do on its own is tested with its own calls.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as ConfluentMessage
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PyPartition

PATIENCE = 30.0
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Message:
    """What a producer is given."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = 0
    timestamp: int | None = None


@dataclass(frozen=True)
class Read:
    """What a consumer gives."""

    partition: int
    offset: int
    timestamp: int
    append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class Tls:
    """PEM files of a client."""

    ca: str
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


@dataclass(frozen=True)
class How:
    """Settings that all three know under one name or another."""

    compression: str = "none"
    acks: int = -1
    idempotent: bool = False
    max_bytes: int = 1_000_000
    batch_bytes: int = 1_000_000
    linger_ms: int = 20
    isolation: str = "read_uncommitted"
    fetch_bytes: int = 1_048_576
    patience: float = PATIENCE
    # Reading ends with the message before this offset, though there be fewer than were asked for.
    end: int | None = None
    tls: Tls | None = None


PLAIN = How()


class Client(Protocol):
    """A way to write messages and to read a topic from its beginning."""

    def write(self, address: str, topic: str, messages: Sequence[Message], how: How = PLAIN) -> list[int]:
        """The offsets that were acknowledged, or the client's own error."""

    def read(self, address: str, topic: str, count: int, how: How = PLAIN, partitions: int = 1) -> list[Read]:
        """The first messages of a topic."""


class Confluent:
    """confluent-kafka, which is librdkafka."""

    def settings(self, address: str, how: How) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
        if how.tls is not None:
            settings |= {"security.protocol": "ssl", "ssl.ca.location": how.tls.ca}
            if how.tls.cert is not None:
                settings |= {"ssl.certificate.location": how.tls.cert, "ssl.key.location": how.tls.key}
        return settings

    def write(self, address: str, topic: str, messages: Sequence[Message], how: How = PLAIN) -> list[int]:
        producer = Producer(
            self.settings(address, how)
            | {
                "compression.type": how.compression,
                "acks": how.acks,
                "enable.idempotence": how.idempotent,
                "message.max.bytes": how.max_bytes,
                "batch.size": how.batch_bytes,
                "linger.ms": how.linger_ms,
                "message.timeout.ms": int(how.patience * 1000),
            }
        )
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: ConfluentMessage) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset() or 0)

        for each in messages:
            more = {} if each.timestamp is None else {"timestamp": each.timestamp}
            producer.produce(
                topic,
                each.value,
                each.key,
                partition=each.partition,
                headers=list(each.headers),
                on_delivery=delivered,
                **more,
            )
        assert producer.flush(how.patience + 5) == 0
        if errors:
            raise KafkaException(errors[0])
        return offsets

    def read(self, address: str, topic: str, count: int, how: How = PLAIN, partitions: int = 1) -> list[Read]:
        consumer = Consumer(
            self.settings(address, how)
            | {
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": how.isolation,
                "max.partition.fetch.bytes": how.fetch_bytes,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        found: list[Read] = []
        end = time.monotonic() + how.patience
        try:
            while not enough(found, count, how) and time.monotonic() < end:
                for message in consumer.consume(count - len(found) if how.end is None else 1, 0.2):
                    if message.error():
                        raise KafkaException(message.error())
                    found.append(self.seen(message))
        finally:
            consumer.close()
        return found

    def seen(self, message: ConfluentMessage) -> Read:
        kind, timestamp = message.timestamp()
        return Read(
            message.partition() or 0,
            message.offset() or 0,
            timestamp,
            kind == TIMESTAMP_LOG_APPEND_TIME,
            message.key(),  # type: ignore[arg-type]
            message.value(),  # type: ignore[arg-type]
            tuple(message.headers() or ()),  # type: ignore[arg-type]
        )


class KafkaPython:
    """kafka-python."""

    def settings(self, address: str, how: How) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": address, "bootstrap_timeout_ms": int(how.patience * 1000)}
        if how.tls is not None:
            settings |= {"security_protocol": "SSL", "ssl_context": how.tls.context()}
        return settings

    def write(self, address: str, topic: str, messages: Sequence[Message], how: How = PLAIN) -> list[int]:
        producer = KafkaProducer(
            **self.settings(address, how),
            compression_type=None if how.compression == "none" else how.compression,
            acks=how.acks,
            enable_idempotence=how.idempotent,
            max_request_size=how.max_bytes,
            batch_size=how.batch_bytes,
            linger_ms=how.linger_ms,
            max_block_ms=int(how.patience * 1000),
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=each.partition,
                    timestamp_ms=each.timestamp,
                )
                for each in messages
            ]
            return [future.get(how.patience).offset for future in futures]
        finally:
            producer.close(5)

    def read(self, address: str, topic: str, count: int, how: How = PLAIN, partitions: int = 1) -> list[Read]:
        consumer = KafkaConsumer(
            **self.settings(address, how),
            isolation_level=how.isolation,
            max_partition_fetch_bytes=how.fetch_bytes,
        )
        found: list[Read] = []
        end = time.monotonic() + how.patience
        try:
            places = [PyPartition(topic, index) for index in range(partitions)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            while not enough(found, count, how) and time.monotonic() < end:
                for records in consumer.poll(200).values():
                    found.extend(as_read(each) for each in records)
        finally:
            consumer.close()
        return found


class Aiokafka:
    """aiokafka."""

    def settings(self, address: str, how: How) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": address, "request_timeout_ms": int(how.patience * 1000)}
        if how.tls is not None:
            settings |= {"security_protocol": "SSL", "ssl_context": how.tls.context()}
        return settings

    def write(self, address: str, topic: str, messages: Sequence[Message], how: How = PLAIN) -> list[int]:
        return asyncio.run(self._write(address, topic, messages, how))

    async def _write(self, address: str, topic: str, messages: Sequence[Message], how: How) -> list[int]:
        producer = AIOKafkaProducer(
            **self.settings(address, how),
            compression_type=None if how.compression == "none" else how.compression,
            acks=how.acks,
            enable_idempotence=how.idempotent,
            max_request_size=how.max_bytes,
            max_batch_size=how.batch_bytes,
            linger_ms=how.linger_ms,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=each.partition,
                    timestamp_ms=each.timestamp,
                )
                for each in messages
            ]
            told = await asyncio.wait_for(asyncio.gather(*futures), how.patience)
            return [-1 if each is None else each.offset for each in told]
        finally:
            await producer.stop()

    def read(self, address: str, topic: str, count: int, how: How = PLAIN, partitions: int = 1) -> list[Read]:
        return asyncio.run(self._read(address, topic, count, how, partitions))

    async def _read(self, address: str, topic: str, count: int, how: How, partitions: int) -> list[Read]:
        consumer = AIOKafkaConsumer(
            **self.settings(address, how),
            isolation_level=how.isolation,
            max_partition_fetch_bytes=how.fetch_bytes,
            auto_offset_reset="none",
        )
        await consumer.start()
        found: list[Read] = []
        end = time.monotonic() + how.patience
        try:
            places = [AioPartition(topic, index) for index in range(partitions)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            while not enough(found, count, how) and time.monotonic() < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found.extend(as_read(each) for each in records)
        finally:
            await consumer.stop()
        return found


def enough(found: list[Read], count: int, how: How) -> bool:
    return len(found) >= count or bool(how.end is not None and found and found[-1].offset >= how.end - 1)


def as_read(record: Any) -> Read:
    """A record of kafka-python or of aiokafka, which share the shape."""
    return Read(
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type == 1,
        record.key,
        record.value,
        tuple(record.headers),
    )


CLIENTS: dict[str, Client] = {"confluent": Confluent(), "kafka-python": KafkaPython(), "aiokafka": Aiokafka()}


def make_topic(address: str, name: str, partitions: int = 1, **config: Any) -> None:
    """A topic with settings, whose dots are written as underscores."""
    named = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, partitions, config=named)]).values():
        future.result(PATIENCE)


def numbered(count: int, size: int = 0, **more: Any) -> list[Message]:
    """Messages with their number as value, filled up to a size."""
    return [replace(Message(b"%d" % number), value=(b"%d" % number).ljust(size), **more) for number in range(count)]


def values(found: Iterable[Read]) -> list[bytes | None]:
    return [each.value for each in found]
