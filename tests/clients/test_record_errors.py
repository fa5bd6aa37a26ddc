"""What producers are told of records that are bad, and of good ones that came in the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError
from kafka.errors import KafkaError as PyError
from tests.clients.trio import make_topic
from tests.serve_process import ServeProcess

BAD = (2, 5)
COUNT = 8


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with ServeProcess(tmp_path / "data") as serving:
        make_topic(serving.kafka, "rain", cleanup_policy="compact")
        yield serving.kafka


def key(number: int) -> bytes | None:
    return None if number in BAD else b"key"


def test_librdkafka_tells_them_apart(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1_000})
    found: dict[int, int] = {}
    for number in range(COUNT):
        producer.produce(
            "rain", b"%d" % number, key(number), on_delivery=lambda error, message: found.update(
                {int(message.value()): error.code()}
            )
        )  # fmt: skip
    producer.flush(30)
    assert [number for number, code in found.items() if code == KafkaError.INVALID_RECORD] == [*BAD]
    others = {code for number, code in found.items() if number not in BAD}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}


def test_kafka_python_tells_them_apart(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, linger_ms=1_000)
    try:
        sent = [producer.send("rain", b"%d" % number, key(number)) for number in range(COUNT)]
        producer.flush(30)
    finally:
        producer.close()
    for number, each in enumerate(sent):
        with pytest.raises(PyError) as caught:
            each.get(0)
        assert isinstance(caught.value, InvalidRecordError) is (number in BAD)
