"""The Kafka door keeps what every door promises, with librdkafka as its client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from confluent_kafka import KafkaError, Producer
from tests.doors.adapter import Client, DoorRefused
from tests.doors.conformance import Conformance
from tests.doors.kafka.wired import frame
from tests.waiting import SECONDS


class KafkaClient(Client):
    """An idempotent producer."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._closed = False
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 1,
                # Messages of one call go in one request.
                "max.in.flight": 1,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "topic.metadata.propagation.max.ms": 1_000,
            }
        )

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        headers: list[tuple[str, str]] = []
        if delay_ms:
            headers.append(("headrace-deliver-at", str(time.time_ns() // 1_000_000 + delay_ms)))
        if id is not None:
            headers.append(("headrace-dedup-id", id))
        self._produce(topic, [(-1, value, headers)])

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        self._produce(topic, [(-1, value, []) for value in values])

    def publish_to(self, topic: str, values: Mapping[int, bytes]) -> dict[int, str]:
        errors = self._errors(topic, [(index, value, []) for index, value in values.items()])
        return {index: error for index, error in zip(values, errors, strict=True) if error}

    def _produce(self, topic: str, messages: Sequence[tuple[int, bytes, list[tuple[str, str]]]]) -> None:
        if failed := [error for error in self._errors(topic, messages) if error]:
            raise DoorRefused(failed[0])

    def _errors(self, topic: str, messages: Sequence[tuple[int, bytes, list[tuple[str, str]]]]) -> list[str]:
        """What became of each message: its error, or nothing."""
        errors: dict[int, str] = {}

        def delivered(number: int, error: KafkaError | None, _: object) -> None:
            errors[number] = "" if error is None else f"{error.name()} {error.str()}"

        for number, (index, value, headers) in enumerate(messages):
            where = {} if index < 0 else {"partition": index}
            self._producer.produce(
                topic,
                value,
                headers=headers,
                on_delivery=partial(delivered, number),
                **where,  # type: ignore[arg-type]
            )
        end = time.monotonic() + SECONDS
        while len(errors) < len(messages):
            self._producer.poll(0.02)
            if self._closed or time.monotonic() > end:
                raise ConnectionError("closed while messages were under way")
        return [errors[number] for number in range(len(messages))]

    def close(self) -> None:
        self._closed = True
        self._producer.purge()


class TestKafka(Conformance):
    door = "kafka"
    client = KafkaClient
    errors: ClassVar = {
        "not allowed": "TOPIC_AUTHORIZATION_FAILED",
        "full": "POLICY_VIOLATION",
        "too large": "MSG_SIZE_TOO_LARGE",
        "bad name": "TOPIC_EXCEPTION",
        "own topic": "TOPIC_EXCEPTION",
    }
    lacks: ClassVar = {
        "all or nothing": "partitions fail alone; transactions have tests of their own",
        "queues": "groups read by a cursor; share groups are not offered",
    }
    hello = frame(18, 0, 1, b"")
    idle_flags = ("--connections-idle-ms", "300")

    def greedy(self, topic: str) -> bytes:
        wanted = b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"\0\0\0\1" + b"\3\0\0\0" + b"\0"
        wanted += b"\0\0\0\1" + len(topic).to_bytes(2) + topic.encode() + b"\0\0\0\1"
        wanted += b"\0\0\0\0" + bytes(8) + b"\3\0\0\0"
        return frame(1, 4, 1, wanted) * 3
