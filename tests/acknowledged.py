"""A client that remembers what was acknowledged, and the check of it against what is there."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

PARTITIONS = 3
IDEMPOTENT = "idempotent"

# What was acknowledged: by partition and offset, the value.
Places = dict[tuple[int, int], bytes]


class IdempotentClient:
    """librdkafka, with a bounded number of messages under way, so that every crash meets some."""

    def __init__(self, address: str, outstanding: int = 200, **special: Any) -> None:
        """`outstanding`: messages under way; `special`: settings of librdkafka."""
        self._outstanding = outstanding
        self.places: Places = {}
        self.failures: list[str] = []
        self.sent = 0
        self._stopping = False
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
        patience = {"message.timeout.ms": 120_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        self._producer = Producer({**settings, **patience, "retry.backoff.ms": 20, "log_level": 0, **special})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            while self.sent - len(self.places) - len(self.failures) < self._outstanding:
                value = b"%d" % self.sent
                self._producer.produce(IDEMPOTENT, value, partition=self.sent % PARTITIONS, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0.05)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.places[partition, offset] = message.value() or b""

    def stop(self) -> None:
        """Send no more, and wait for what is under way."""
        self._stopping = True
        self._thread.join()


def read_all(address: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Offset and value of everything in a topic, by partition."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True, "log_level": 0})
    found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
    reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    ended = set()
    try:
        while len(ended) < PARTITIONS:
            message = reader.poll(20)
            assert message is not None, f"reading {topic} stopped short: {sorted(ended)} are at their ends"
            partition, error, offset = message.partition(), message.error(), message.offset()
            assert partition is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
            else:
                assert offset is not None
                found[partition].append((offset, message.value() or b""))
    finally:
        reader.close()
    return found


def check_no_holes(found: dict[int, list[tuple[int, bytes]]]) -> None:
    for partition, entries in found.items():
        offsets = [offset for offset, _ in entries]
        assert offsets == list(range(len(offsets))), f"partition {partition} has a hole"


def check_idempotent(address: str, client: IdempotentClient) -> None:
    """Each message that the client sent is there once, in order, where it was acknowledged."""
    found = read_all(address, IDEMPOTENT)
    assert not client.failures
    check_no_holes(found)
    check_acknowledged(found, client.places)
    assert len(check_once(found)) == client.sent == len(client.places)
    for partition, entries in found.items():
        order = [int(value) for _, value in entries]
        assert order == sorted(order), f"partition {partition} is out of order"


def check_acknowledged(found: dict[int, list[tuple[int, bytes]]], places: Places) -> None:
    there = {(partition, offset): value for partition, entries in found.items() for offset, value in entries}
    missing = {place: value for place, value in places.items() if there.get(place) != value}
    assert not missing, f"{len(missing)} of {len(places)} acknowledged messages are missing, as {sorted(missing)[:3]}"


def check_once(found: dict[int, list[tuple[int, bytes]]]) -> Counter[bytes]:
    seen = Counter(value for entries in found.values() for _, value in entries)
    twice = [value for value, count in seen.items() if count > 1]
    assert not twice, f"{len(twice)} messages are there twice, as {twice[:3]}"
    return seen
