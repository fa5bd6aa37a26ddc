"""kill -9 in a loop while clients produce with acks=all.

Two clients write all the time. The idempotent one (librdkafka) goes on after each crash until everything it sent is
acknowledged: then each of its messages is there once, in order. The raw one sends each batch once over connections of
its own and never again: what was acknowledged is there at the offset that was said, and what was not may be there or
not, but never twice. For both, offsets have no holes. The process dies, not the machine, so `async` must keep these
promises like `sync`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, deque
from pathlib import Path
from random import Random

import pytest
from bench import requests
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.longer import LONGER
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.format import records

PARTITIONS = 3
IDEMPOTENT, RAW = "idempotent", "raw"

# What was acknowledged: by partition and offset, the value.
Places = dict[tuple[int, int], bytes]


class IdempotentClient:
    """librdkafka, with a bounded number of messages under way, so that every crash meets some."""

    OUTSTANDING = 200

    def __init__(self, address: str) -> None:
        self.places: Places = {}
        self.failures: list[str] = []
        self.sent = 0
        self._stopping = False
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
        patience = {"message.timeout.ms": 120_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        self._producer = Producer({**settings, **patience, "retry.backoff.ms": 20, "log_level": 0})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            while self.sent - len(self.places) - len(self.failures) < self.OUTSTANDING:
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


class RawClient:
    """Batches of three records over plain sockets, several under way on each, and none sent twice."""

    OUTSTANDING = 5
    BATCH = 3

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self.places: Places = {}
        self.sent: set[bytes] = set()
        self.refusals: Counter[int] = Counter()
        self.overwritten = 0
        self._stopping = False
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(PARTITIONS)]
        for thread in self._threads:
            thread.start()

    def _run(self, partition: int) -> None:
        number = 0
        while not self._stopping:
            with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=30) as sock:
                number = self._talk(sock, partition, number)
            time.sleep(0.01)

    def _talk(self, sock: socket.socket, partition: int, number: int) -> int:
        """Until the connection breaks. The number of the next batch."""
        waiting: deque[list[bytes]] = deque()
        received = b""
        try:
            while not (self._stopping and not waiting):
                while len(waiting) < self.OUTSTANDING and not self._stopping:
                    values = [b"%d/%d/%d" % (partition, number, each) for each in range(self.BATCH)]
                    number += 1
                    self.sent.update(values)
                    waiting.append(values)
                    batch = records.build([(int(time.time() * 1000), None, value, []) for value in values])
                    sock.sendall(requests.produce(RAW, [(partition, bytes(batch))]))
                got = sock.recv(65_536)
                if not got:
                    return number
                received += got
                while len(received) >= 4 and len(received) >= (size := 4 + int.from_bytes(received[:4])):
                    self._acknowledged(partition, received[4:size], waiting.popleft())
                    received = received[size:]
        except OSError:
            pass
        return number

    def _acknowledged(self, partition: int, reply: bytes, values: list[bytes]) -> None:
        # Correlation id, no tags, one topic and its name, one partition and its index, error, base offset.
        at = 4 + 1 + 1 + 1 + len(RAW) + 1 + 4
        error = int.from_bytes(reply[at : at + 2])
        if error:
            self.refusals[error] += 1
            return
        base = int.from_bytes(reply[at + 2 : at + 10])
        for position, value in enumerate(values):
            # Two batches acknowledged at one place: the first is lost, though something is there.
            if (partition, base + position) in self.places:
                self.overwritten += 1
            self.places[partition, base + position] = value

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()


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


def check_acknowledged(found: dict[int, list[tuple[int, bytes]]], places: Places) -> None:
    there = {(partition, offset): value for partition, entries in found.items() for offset, value in entries}
    missing = {place: value for place, value in places.items() if there.get(place) != value}
    assert not missing, f"{len(missing)} of {len(places)} acknowledged messages are missing, as {sorted(missing)[:3]}"


def check_once(found: dict[int, list[tuple[int, bytes]]]) -> Counter[bytes]:
    seen = Counter(value for entries in found.values() for _, value in entries)
    twice = [value for value, count in seen.items() if count > 1]
    assert not twice, f"{len(twice)} messages are there twice, as {twice[:3]}"
    return seen


def both_go_on(idempotent: IdempotentClient, raw: RawClient, broker: ServeProcess) -> None:
    """Wait until both clients got something acknowledged."""
    before = len(idempotent.places), len(raw.places)
    wait_until(
        lambda: len(idempotent.places) > before[0] and len(raw.places) > before[1],
        lambda: (
            f"{len(idempotent.places) - before[0]} and {len(raw.places) - before[1]} acknowledged, "
            f"{idempotent.failures[:3]} failed, {raw.refusals} refused; {broker.words()}"
        ),
    )


def kill_again_and_again(folder: Path, durability: str, kills: int, seed: int) -> None:
    random = Random(seed)
    with ServeProcess(folder / "data", "--durability", durability, "--checkpoint-ms", "700") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        made = admin.create_topics([NewTopic(IDEMPOTENT, PARTITIONS), NewTopic(RAW, PARTITIONS)])
        for future in made.values():
            future.result(30)
        idempotent, raw = IdempotentClient(broker.kafka), RawClient(broker.kafka)
        try:
            for _ in range(kills):
                both_go_on(idempotent, raw, broker)
                time.sleep(random.uniform(0.0, 0.5))
                broker.kill()
                broker.start()
        finally:
            raw.stop()
            idempotent.stop()

        found = read_all(broker.kafka, IDEMPOTENT)
        assert not idempotent.failures
        check_no_holes(found)
        check_acknowledged(found, idempotent.places)
        assert len(check_once(found)) == idempotent.sent == len(idempotent.places)
        for partition, entries in found.items():
            order = [int(value) for _, value in entries]
            assert order == sorted(order), f"partition {partition} is out of order"

        found = read_all(broker.kafka, RAW)
        check_no_holes(found)
        check_acknowledged(found, raw.places)
        assert set(check_once(found)) <= raw.sent
        assert not raw.refusals
        assert not raw.overwritten
        broker.stop()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, durability: str) -> None:
    kill_again_and_again(tmp_path, durability, kills=5, seed=1)


def test_the_check_sees_a_loss(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"missing|twice|hole"):
        kill_again_and_again(tmp_path, "memory", kills=1, seed=2)


@pytest.mark.long
@pytest.mark.timeout(1800 * LONGER)
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path, durability: str, seed: int) -> None:
    kill_again_and_again(tmp_path, durability, kills=20 * LONGER, seed=seed)
