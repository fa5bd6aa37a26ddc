"""A disk that is really full: a small file system of its own, filled by producers to the last block.

Producers get Kafka's storage error, readers go on, and room is all it takes for writes to go on. Whatever happens,
also when the broker is stopped or killed while there is no room, what was acknowledged stays.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as ConfluentMessage
from kafka import KafkaProducer
from tests.clients.trio import CLIENTS, make_topic
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

DISK = 24 << 20
BALLAST = 6 << 20
# Journals and memory for the tail are small, so that a small disk is filled by segments.
SMALL = ("--journal-bytes", "1048576", "--tail-bytes", "2000000", "--checkpoint-ms", "500")

Acknowledged = dict[int, bytes]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds little, with a file in it that can be given up."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "headrace-test", str(folder)]
    try:
        subprocess.run(mounting, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {getattr(error, 'stderr', b'') or error!r}")
    try:
        (folder / "data").mkdir()
        # What the broker logs lies beside the data, and not on the full disk.
        (tmp_path / "data").symlink_to(folder / "data")
        (folder / "ballast").write_bytes(bytes(BALLAST))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=20)


def produce(address: str, topic: str, numbers: range, size: int) -> tuple[Acknowledged, list[int]]:
    """Send each message once: what was acknowledged where, and the codes of what was refused."""
    acknowledged: Acknowledged = {}
    refused: list[int] = []

    def delivered(error: KafkaError | None, message: ConfluentMessage) -> None:
        if error is not None:
            refused.append(error.code())
        else:
            value, offset = message.value(), message.offset()
            assert value is not None
            assert offset is not None
            assert offset not in acknowledged
            acknowledged[offset] = value

    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "retries": 0, "linger.ms": 0, "batch.size": 1, "log_level": 0}
    )
    for number in numbers:
        producer.produce(topic, (b"%d " % number).ljust(size, b"x"), partition=0, on_delivery=delivered)
        producer.poll(0)
        if number % 10 == 0:
            producer.flush(20)
    assert producer.flush(20) == 0
    return acknowledged, refused


def fill(address: str, topic: str, first: int) -> Acknowledged:
    """Large messages, then small ones, until the disk takes none of either."""
    acknowledged: Acknowledged = {}
    for size, count in ((200_000, 100), (1_000, 200)):
        while True:
            taken, refused = produce(address, topic, range(first, first + count), size)
            first += count
            assert not taken.keys() & acknowledged.keys()
            acknowledged |= taken
            assert set(refused) <= {KafkaError.KAFKA_STORAGE_ERROR}
            if refused and not taken:
                break
    return acknowledged


def check(address: str, topic: str, acknowledged: Acknowledged) -> None:
    """Everything that was acknowledged is where it was said to be, for every client."""
    end = max(acknowledged) + 1
    for name, client in CLIENTS.items():
        # Offsets have no holes, so this many messages are there; what was refused may have come before others.
        found = {each.offset: each.value for each in client.read(address, topic, end)}
        assert list(found) == list(range(end)), name
        assert {offset: found[offset] for offset in acknowledged} == acknowledged, name


def takes_writes(address: str, topic: str, acknowledged: Acknowledged) -> bool:
    taken, _ = produce(address, topic, range(5), 1_000)
    assert not taken.keys() & acknowledged.keys()
    acknowledged |= taken
    return len(taken) == 5


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_full_disk(disk: Path, tmp_path: Path, durability: str) -> None:
    with ServeProcess(tmp_path / "data", "--durability", durability, *SMALL) as broker:
        make_topic(broker.kafka, "t")
        acknowledged = fill(broker.kafka, "t", 0)
        assert len(acknowledged) > 20
        check(broker.kafka, "t", acknowledged)

        # Room comes back, and with it writes.
        (disk / "ballast").unlink()
        wait_until(lambda: takes_writes(broker.kafka, "t", acknowledged))
        check(broker.kafka, "t", acknowledged)

        # Killed and stopped while there is no room.
        acknowledged |= fill(broker.kafka, "t", 100_000)
        broker.kill()
        broker.start()
        check(broker.kafka, "t", acknowledged)
        taken, refused = produce(broker.kafka, "t", range(20), 200_000)
        assert not taken.keys() & acknowledged.keys()
        acknowledged |= taken
        assert set(refused) == {KafkaError.KAFKA_STORAGE_ERROR}
        broker.stop()
        broker.start()
        check(broker.kafka, "t", acknowledged)


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_what_the_clients_say(disk: Path, tmp_path: Path, durability: str) -> None:
    with ServeProcess(tmp_path / "data", "--durability", durability, *SMALL) as broker:
        make_topic(broker.kafka, "t")
        fill(broker.kafka, "t", 0)

        python = KafkaProducer(bootstrap_servers=broker.kafka, retries=0, enable_idempotence=False)
        with pytest.raises(kafka.errors.KafkaStorageError):
            python.send("t", bytes(200_000)).get(20)
        python.close(1)

        # aiokafka tries again until its time is over, and then it goes through: nothing was broken meanwhile.
        patient = AIOKafkaProducer(bootstrap_servers=broker.kafka, request_timeout_ms=20_000)
        await patient.start()
        sending = await patient.send("t", bytes(200_000))
        os.unlink(disk / "ballast")
        assert (await sending).offset > 0
        await patient.stop()

        # That is also how long it waits for its first answers.
        impatient = AIOKafkaProducer(bootstrap_servers=broker.kafka, request_timeout_ms=3_000)
        fill(broker.kafka, "t", 0)
        await impatient.start()
        with pytest.raises(aiokafka.errors.KafkaError):
            await impatient.send_and_wait("t", bytes(200_000))
        await impatient.stop()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_an_idempotent_producer_waits_for_room(disk: Path, tmp_path: Path, durability: str) -> None:
    with ServeProcess(tmp_path / "data", "--durability", durability, *SMALL) as broker:
        make_topic(broker.kafka, "t")
        fill(broker.kafka, "t", 0)
        make_topic(broker.kafka, "once")
        told: list[KafkaError | None] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.kafka,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.size": 1,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        values = [(b"%d " % number).ljust(20_000, b"x") for number in range(100)]
        for value in values:
            producer.produce("once", value, partition=0, on_delivery=lambda error, _: told.append(error))
        producer.poll(1)
        assert len(told) < 100
        (disk / "ballast").unlink()
        assert producer.flush(30) == 0
        assert told == [None] * 100
        assert [each.value for each in CLIENTS["confluent"].read(broker.kafka, "once", 100)] == values


def test_committed_offsets_stay(disk: Path, tmp_path: Path) -> None:
    def member() -> Consumer:
        return Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0})

    def commit(offset: int) -> bool:
        consumer = member()
        try:
            [told] = consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False) or []
        except KafkaException:
            return False
        finally:
            consumer.close()
        return told.error is None

    def committed() -> int:
        consumer = member()
        [told] = consumer.committed([TopicPartition("t", 0)], 20)
        consumer.close()
        return told.offset

    with ServeProcess(tmp_path / "data", "--offsets-partitions", "1", *SMALL) as broker:
        make_topic(broker.kafka, "t")
        assert commit(1)
        fill(broker.kafka, "t", 0)
        last = 1
        # What is acknowledged counts, what is refused does not.
        for offset in range(2, 5):
            if commit(offset):
                last = offset
        assert committed() == last
        (disk / "ballast").unlink()
        wait_until(lambda: commit(10))
        broker.kill()
        broker.start()
        assert committed() == 10
