"""A broker that is stopped and started again under clients that stay: a pause for them, and nothing else.

After a clean stop nothing is recovered, which clients can see: the leader epoch of new messages is that of old ones.
After a crash it has risen.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as ConfluentMessage
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PyPartition
from tests.clients.trio import CLIENTS, PATIENCE, Message, make_topic, numbered, values
from tests.serve_process import ServeProcess

PARTITIONS = 2
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


def restart_cleanly(broker: ServeProcess) -> None:
    """Stop cleanly and start again at the same address."""
    broker.stop()
    assert (broker.data / "clean-shutdown").exists()
    broker.start()
    # From now on a crash is a crash.
    assert not (broker.data / "clean-shutdown").exists()


def epochs(address: str, topic: str, count: int) -> list[int | None]:
    """The leader epochs of a topic's first messages."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[ConfluentMessage] = []
    end = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < end:
        found += consumer.consume(count - len(found), 0.2)
    consumer.close()
    return [each.leader_epoch() for each in found]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_stops_under_load(tmp_path: Path, durability: str) -> None:
    with ServeProcess(tmp_path / "data", "--durability", durability) as broker:
        for topic in ("librdkafka", "kafka-python", "aiokafka"):
            make_topic(broker.kafka, topic, PARTITIONS)
        ending = threading.Event()
        acknowledged: dict[str, dict[tuple[int, int], bytes]] = {}
        failures: list[object] = []

        def load(name: str, work: Callable[[str, dict[tuple[int, int], bytes]], None]) -> threading.Thread:
            acknowledged[name] = {}

            def run() -> None:
                try:
                    work(name, acknowledged[name])
                except BaseException as error:
                    failures.append((name, error))

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def librdkafka(topic: str, taken: dict[tuple[int, int], bytes]) -> None:
            def delivered(error: KafkaError | None, message: ConfluentMessage) -> None:
                if error is not None:
                    failures.append(error)
                else:
                    taken[message.partition() or 0, message.offset() or 0] = message.value() or b""

            producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 0} | QUICK)
            number = 0
            while not ending.is_set():
                producer.produce(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
                number += 1
                producer.poll(0.002)
            assert producer.flush(PATIENCE) == 0

        def kafka_python(topic: str, taken: dict[tuple[int, int], bytes]) -> None:
            producer = KafkaProducer(bootstrap_servers=broker.kafka, reconnect_backoff_max_ms=200)
            number = 0
            while not ending.is_set():
                sent = [
                    (b"%d" % each, producer.send(topic, b"%d" % each, partition=each % PARTITIONS))
                    for each in range(number, number + 10)
                ]
                number += 10
                for value, future in sent:
                    told = future.get(PATIENCE)
                    taken[told.partition, told.offset] = value
            producer.close()

        async def asynchronous(topic: str, taken: dict[tuple[int, int], bytes]) -> None:
            producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, enable_idempotence=True)
            await producer.start()
            number = 0
            while not ending.is_set():
                sent = [
                    (b"%d" % each, await producer.send(topic, b"%d" % each, partition=each % PARTITIONS))
                    for each in range(number, number + 10)
                ]
                number += 10
                for value, future in sent:
                    told = await asyncio.wait_for(future, PATIENCE)
                    taken[told.partition, told.offset] = value
            await producer.stop()

        threads = [
            load("librdkafka", librdkafka),
            load("kafka-python", kafka_python),
            load("aiokafka", lambda topic, taken: asyncio.run(asynchronous(topic, taken))),
        ]
        try:
            for _ in range(3):
                before = {name: len(taken) for name, taken in acknowledged.items()}
                end = time.monotonic() + PATIENCE
                while any(len(taken) < before[name] + 50 for name, taken in acknowledged.items()):
                    assert not failures
                    assert time.monotonic() < end, {name: len(taken) for name, taken in acknowledged.items()}
                    time.sleep(0.01)
                restart_cleanly(broker)
        finally:
            ending.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert not failures

        for name, taken in acknowledged.items():
            found = CLIENTS["confluent"].read(broker.kafka, name, len(taken), partitions=PARTITIONS)
            assert {(each.partition, each.offset): each.value for each in found} == taken
            for partition in range(PARTITIONS):
                numbers = [int(each.value or b"") for each in found if each.partition == partition]
                # Idempotent: each once and in order, over three restarts.
                assert numbers == list(range(partition, PARTITIONS * len(numbers), PARTITIONS))


def test_only_a_crash_raises_the_epoch(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        make_topic(broker.kafka, "t")
        CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"before")])
        restart_cleanly(broker)
        CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"after a clean stop")])
        broker.kill()
        broker.start()
        CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"after a crash")])
        first, second, third = epochs(broker.kafka, "t", 3)
        assert first is not None
        assert third is not None
        assert first == second < third


def test_consumers_live_through_a_restart(tmp_path: Path) -> None:
    """Three consumers, without and with a group, that keep their place: each message once, before and after."""
    with ServeProcess(tmp_path / "data") as broker:
        make_topic(broker.kafka, "t")
        CLIENTS["confluent"].write(broker.kafka, "t", numbered(10))

        grouped = Consumer(
            {"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"} | QUICK
        )
        grouped.subscribe(["t"])
        python = KafkaConsumer(
            bootstrap_servers=broker.kafka, consumer_timeout_ms=PATIENCE * 1000, reconnect_backoff_max_ms=200
        )
        python.assign([PyPartition("t", 0)])
        python.seek_to_beginning()

        def take(count: int) -> tuple[list[int], list[int]]:
            mine: list[int] = []
            end = time.monotonic() + PATIENCE
            while len(mine) < count and time.monotonic() < end:
                message = grouped.poll(0.2)
                if message is not None and not message.error():
                    mine.append(int(message.value() or b""))
            return mine, [int(next(python).value) for _ in range(count)]

        assert take(10) == (list(range(10)), list(range(10)))
        restart_cleanly(broker)
        CLIENTS["confluent"].write(broker.kafka, "t", [Message(b"%d" % number) for number in range(10, 20)])
        assert take(10) == (list(range(10, 20)), list(range(10, 20)))
        grouped.close()
        python.close()


async def test_an_aiokafka_consumer_lives_through_a_restart(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        make_topic(broker.kafka, "t")
        await asyncio.to_thread(CLIENTS["confluent"].write, broker.kafka, "t", numbered(10))
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.kafka)
        await consumer.start()
        consumer.assign([AioPartition("t", 0)])
        await consumer.seek_to_beginning()
        found = [int((await asyncio.wait_for(consumer.getone(), PATIENCE)).value) for _ in range(10)]
        await asyncio.to_thread(restart_cleanly, broker)
        more = [Message(b"%d" % number) for number in range(10, 20)]
        await asyncio.to_thread(CLIENTS["confluent"].write, broker.kafka, "t", more)
        found += [int((await asyncio.wait_for(consumer.getone(), PATIENCE)).value) for _ in range(10)]
        await consumer.stop()
        assert found == list(range(20))


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_group_resumes_where_it_committed_at_another_address(tmp_path: Path, crash: bool) -> None:
    def read(address: str, count: int) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # That a member left is written after it was told so: a crash may bring it back, until its session ends.
                "session.timeout.ms": 6000,
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"])
        found: list[int] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < end:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found.append(int(message.value() or b""))
                consumer.commit(message=message, asynchronous=False)
        consumer.close()
        return found

    with ServeProcess(tmp_path / "data") as broker:
        make_topic(broker.kafka, "t")
        CLIENTS["confluent"].write(broker.kafka, "t", numbered(20))
        cluster = AdminClient({"bootstrap.servers": broker.kafka}).list_topics(timeout=PATIENCE).cluster_id
        assert read(broker.kafka, 8) == list(range(8))
        if crash:
            broker.kill()
        else:
            broker.stop()
        before, broker.kafka = broker.kafka, "127.0.0.1:0"
        broker.start()
        assert broker.kafka != before
        listed = AdminClient({"bootstrap.servers": broker.kafka}).list_topics(timeout=PATIENCE)
        assert listed.cluster_id == cluster
        assert {f"{each.host}:{each.port}" for each in listed.brokers.values()} == {broker.kafka}
        assert read(broker.kafka, 12) == list(range(8, 20))
        assert values(CLIENTS["aiokafka"].read(broker.kafka, "t", 20)) == [b"%d" % number for number in range(20)]
