"""Real clients under quotas: they are slowed down, lose nothing, and go on when a quota changes or the broker restarts.

That they are slowed down is measured from below only: a busy machine makes everything slower, and nothing faster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from bench.peers import free_port
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

HTTP_FLAGS = ("--http", f"127.0.0.1:{free_port()}")
MESSAGE = bytes(10_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path / "data", *HTTP_FLAGS) as serving:
        yield serving
        serving.stop()


@pytest.fixture
def name() -> str:
    return f"q-{uuid4().hex[:8]}"


def ask(broker: ServeProcess, method: str, path: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{broker.addresses['http']}{path}", content, method=method)
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read())


def set_quota(broker: ServeProcess, client_id: str, **quotas: int | None) -> None:
    ask(broker, "PUT", "/v1/quotas", {"entity": {"client_id": client_id}, "quotas": quotas})


def produce(broker: ServeProcess, topic: str, client_id: str, count: int) -> tuple[float, list[float]]:
    """With confluent-kafka: how long it took, and the throttle times that it was told."""
    told: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "client.id": client_id,
            "throttle_cb": lambda event: told.append(event.throttle_time),
            # A request for each message or two.
            "batch.size": 15_000,
            "linger.ms": 0,
            "compression.type": "none",
        }
    )
    failed: list[Any] = []
    began = time.monotonic()
    for _ in range(count):
        producer.produce(topic, MESSAGE, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(SECONDS) == 0
    assert not failed
    return time.monotonic() - began, told


def read(broker: ServeProcess, topic: str, client_id: str, count: int) -> tuple[float, list[float]]:
    told: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "client.id": client_id,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 20_000,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    consumer.subscribe([topic])
    found = 0
    began = 0.0
    end = time.monotonic() + SECONDS
    while found < count and time.monotonic() < end:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found += 1
            began = began or time.monotonic()
    took = time.monotonic() - began
    consumer.close()
    assert found == count
    return took, told


def test_confluent_kafka_is_slowed_down_both_ways(broker: ServeProcess, name: str) -> None:
    set_quota(broker, "slow", producer_byte_rate=50_000, consumer_byte_rate=100_000)
    took, told = produce(broker, name, "slow", 20)
    # 200 kB at 50 a second: a second's worth is free, and so is the wait behind the last requests.
    assert took >= 1.5
    assert max(told) > 0
    _, told = produce(broker, name, "free", 20)
    assert not any(told)
    took, told = read(broker, name, "slow", 40)
    assert took >= 1.5
    assert max(told) > 0
    _, told = read(broker, name, "free", 40)
    assert not any(told)


def test_kafka_python_is_slowed_down(broker: ServeProcess, name: str) -> None:
    set_quota(broker, "slow", producer_byte_rate=50_000, consumer_byte_rate=100_000)
    with_slow: dict[str, Any] = {"bootstrap_servers": broker.kafka, "client_id": "slow"}
    producer = KafkaProducer(**with_slow, batch_size=15_000, linger_ms=0)
    began = time.monotonic()
    for future in [producer.send(name, MESSAGE) for _ in range(20)]:
        future.get(SECONDS)
    assert time.monotonic() - began >= 1.5
    producer.close()
    consumer = KafkaConsumer(
        name, **with_slow, auto_offset_reset="earliest", max_partition_fetch_bytes=20_000, consumer_timeout_ms=20_000
    )
    began = time.monotonic()
    for _ in range(20):
        assert next(consumer).value == MESSAGE
    assert time.monotonic() - began >= 0.5
    consumer.close()


def test_a_change_lets_a_client_go_on_that_waits(broker: ServeProcess, name: str) -> None:
    """One that would wait for minutes, with the longest time that it may be held back at once."""
    set_quota(broker, "stuck", producer_byte_rate=100)
    done = threading.Event()

    def run() -> None:
        produce(broker, name, "stuck", 20)
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: _throttled(broker) > 0)
    assert not done.is_set()
    set_quota(broker, "stuck", producer_byte_rate=None)
    assert done.wait(SECONDS)
    thread.join()


def test_quotas_are_there_after_a_restart(broker: ServeProcess, name: str) -> None:
    set_quota(broker, "slow", producer_byte_rate=50_000)
    broker.kill()
    broker.start()
    listed = ask(broker, "GET", "/v1/quotas")["quotas"]
    assert listed == [{"entity": {"client_id": "slow"}, "quotas": {"producer_byte_rate": 50_000}}]
    _, told = produce(broker, name, "slow", 20)
    assert max(told) > 0


def test_http_says_when_to_come_again(broker: ServeProcess, name: str) -> None:
    body = {"entity": {"user": "ANONYMOUS"}, "quotas": {"producer_byte_rate": 1_000}}
    ask(broker, "PUT", "/v1/quotas", body)
    ask(broker, "POST", f"/v1/topics/{name}/messages", {"value": "x" * 3_000})
    with pytest.raises(HTTPError) as refused:
        ask(broker, "POST", f"/v1/topics/{name}/messages", {"value": "x"})
    assert refused.value.code == 429
    time.sleep(int(refused.value.headers["Retry-After"]))
    ask(broker, "POST", f"/v1/topics/{name}/messages", {"value": "x"})


def _throttled(broker: ServeProcess) -> int:
    with urlopen(f"http://{broker.addresses['http']}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    start = 'headrace_quota_throttled_total{quota="producer_byte_rate"} '
    (line,) = (line for line in lines if line.startswith(start))
    return int(float(line.removeprefix(start)))
