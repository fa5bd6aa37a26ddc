"""Deduplication ids with unchanged clients: librdkafka's headers, NSQ's extension and HTTP, through kill -9.

Each test repeats what clients do when an answer is lost, on purpose or by killing the broker under them, and reads with
a real consumer what there is in the end.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.cimpl import Message
from tests.clients.nsq.raw import NsqError, Raw, extended
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.embedded import Broker

NAME = "headrace-dedup-id"
PATIENCE = 30.0
WINDOW = {"deduplication.window.ms": "600000"}


def make_topic(address: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(PATIENCE)


def read(address: str, topic: str, partitions: int = 1, **settings: object) -> list[Message]:
    """Everything, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True, "log_level": 0, **settings}
    )
    found: list[Message] = []
    ended = 0
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        while ended < partitions:
            message = consumer.poll(PATIENCE)
            assert message is not None, "reading stopped short"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
    finally:
        consumer.close()
    return found


def post(address: str, message: dict[str, object]) -> dict[str, object]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/topics/t/messages", json.dumps(message))
        response = connection.getresponse()
        answer: dict[str, object] = json.loads(response.read())
        if response.status != 200:
            raise ConnectionError(answer)
        return answer
    finally:
        connection.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[ServeProcess]:
    doors = ("--nsq", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with ServeProcess(tmp_path / "data", *doors) as serving:
        yield serving


class Sender:
    """A producer, and where its messages went."""

    def __init__(self, address: str, **settings: object) -> None:
        self.places: list[tuple[bytes, int, int]] = []
        self.failures: list[str] = []
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "log_level": 0, **settings})

    def send(self, topic: str, value: bytes, id: bytes | None, partition: int = 0) -> None:
        headers = [("a", b"1"), (NAME, id)] if id is not None else []
        self._producer.produce(topic, value, headers=headers, partition=partition, on_delivery=self._delivered)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE) == 0
        assert not self.failures

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.places.append((message.value() or b"", message.partition() or 0, message.offset()))  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka(headrace_broker: Broker, codec: str, idempotent: bool):
    address = headrace_broker.kafka
    make_topic(address, "t", 2, **WINDOW)
    sender = Sender(address, **{"compression.type": codec, "enable.idempotence": idempotent})
    for number in range(300):
        # A third repeats an id of the same batch, or of the one before.
        id = number - number % 3 if number % 3 == 2 else number
        sender.send("t", b"%d" % number, b"id %d" % id)
        if number % 50 == 0:
            sender.flush()
    sender.flush()
    fresh = [b"%d" % number for number in range(300) if number % 3 != 2]
    assert [message.value() for message in read(address, "t", 2)] == fresh
    # Another producer, another partition, everything again.
    other = Sender(address, **{"compression.type": codec, "enable.idempotence": idempotent})
    for number in range(300):
        other.send("t", b"x", b"id %d" % number if number % 3 != 2 else None, partition=1)
    other.flush()
    found = read(address, "t", 2)
    assert [message.value() for message in found if message.partition() == 0] == fresh
    assert len(found) == 300
    # What is new keeps the place that its producer was told.
    there = {(message.partition(), message.offset()): message.value() for message in found}
    told = {(partition, offset): value for value, partition, offset in sender.places if value in fresh}
    assert {place: value for place, value in there.items() if place[0] == 0} == told


def test_a_repeated_message_is_told_the_first_ones_offset(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t", 1, **WINDOW)
    sender = Sender(address)
    for number in range(5):
        sender.send("t", b"%d" % number, b"%d" % number)
    sender.flush()
    again = Sender(address, **{"linger.ms": 0})
    for number in (3, 1):
        again.send("t", b"again", b"%d" % number)
        again.flush()
    assert [offset for _, _, offset in again.places] == [3, 1]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_all_somewhere_else(headrace_broker: Broker, idempotent: bool):
    """No offset can be told, but it went well, and the producer goes on."""
    address = headrace_broker.kafka
    make_topic(address, "t", 2, **WINDOW)
    sender = Sender(address, **{"enable.idempotence": idempotent})
    for partition in (0, 1, 1, 1):
        for number in range(20):
            sender.send("t", b"%d" % number, b"%d" % number, partition)
        sender.flush()
    sender.send("t", b"new", None, 1)
    sender.flush()
    assert len(sender.places) == 81
    found = read(address, "t", 2)
    assert Counter(message.partition() for message in found) == {0: 20, 1: 1}


def test_nobody_waits_for_an_answer(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t", 1, **WINDOW)
    sender = Sender(address, acks=0, **{"enable.idempotence": False, "linger.ms": 0})
    for number in range(60):
        sender.send("t", b"%d" % (number % 20), b"%d" % (number % 20))
        sender.flush()
    wait_until(lambda: len(read(address, "t")) >= 20)
    sender.send("t", b"last", None)
    sender.flush()
    wait_until(lambda: read(address, "t")[-1].value() == b"last")
    assert [message.value() for message in read(address, "t")] == [*(b"%d" % each for each in range(20)), b"last"]


async def test_aiokafka(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t", 2, **WINDOW)
    async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=20) as producer:
        for partition in (0, 0, 1):
            sends = [
                await producer.send("t", b"%d" % number, partition=partition, headers=[(NAME, b"%d" % number)])
                for number in range(20)
            ]
            places = [await each for each in sends]
            if partition == 0:
                assert [each.offset for each in places] == list(range(20))
        last = await producer.send_and_wait("t", b"new", partition=0)
    found = read(address, "t", 2)
    assert [message.offset() for message in found] == [*range(20), last.offset]


def test_topics_without_a_window_are_not_looked_at(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t")
    sender = Sender(address)
    for _ in range(3):
        sender.send("t", b"x", b"1")
        sender.flush()
    assert len(read(address, "t")) == 3


def test_an_id_that_is_none(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t", 1, **WINDOW)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": False, "retries": 0})
    for value in (b"", b"x" * 1025, None):
        producer.produce("t", b"x", headers=[(NAME, value)], on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE) == 0
    assert [error.code() for error in errors if error is not None] == [KafkaError.INVALID_RECORD] * 3


def test_the_window_begins_while_a_producer_sends(serving: ServeProcess):
    """The door remembers how requests begin; the first id over HTTP makes it look at them again."""
    address = serving.kafka
    make_topic(address, "t")
    sender = Sender(address, **{"linger.ms": 0})
    for _ in range(10):
        sender.send("t", b"before", b"1")
        sender.flush()
    post(serving.addresses["http"], {"value": "by http", "dedup_id": "2"})
    for id in (b"1", b"1", b"2", b"3", b"3"):
        sender.send("t", b"since", id)
        sender.flush()
    values = Counter(message.value() for message in read(address, "t"))
    assert values == {b"before": 10, b"by http": 1, b"since": 2}


def test_within_a_transaction_ids_are_headers(headrace_broker: Broker):
    address = headrace_broker.kafka
    make_topic(address, "t", 1, **WINDOW)
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    producer.init_transactions(PATIENCE)
    for ending in (producer.abort_transaction, producer.commit_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("t", b"x", headers=[(NAME, b"1")])
        ending(PATIENCE)
    assert len(read(address, "t", **{"isolation.level": "read_committed"})) == 2


# --- through kill -9 --------------------------------------------------------------------------------------------------


def test_a_retry_after_kill(serving: ServeProcess):
    make_topic(serving.kafka, "t", 3)
    first = post(serving.addresses["http"], {"value": "by http", "dedup_id": "1"})
    raw = Raw(serving.addresses["nsq"], headrace=1)
    assert raw.ask("PUB", "t", body=extended(None, b"by nsq", [(NAME, b"2")])) == b"OK"
    assert raw.ask("DPUB", "t", 1_500, body=extended(None, b"delayed", [(NAME, b"3")])) == b"OK"
    raw.close()
    sender = Sender(serving.kafka)
    sender.send("t", b"by kafka", b"4")
    sender.flush()
    serving.kill()
    serving.start()
    assert post(serving.addresses["http"], {"value": "x", "dedup_id": "1"}) == {**first, "duplicate": True}
    raw = Raw(serving.addresses["nsq"], headrace=1)
    for id in (b"1", b"2", b"3", b"4"):
        assert raw.ask("PUB", "t", body=extended(None, b"x", [(NAME, id)])) == b"OK"
        post(serving.addresses["http"], {"value": "x", "dedup_id": id.decode()})
        sender.send("t", b"x", id)
        sender.flush()
    raw.close()
    wanted = Counter([b"by http", b"by nsq", b"delayed", b"by kafka"])
    wait_until(lambda: len(read(serving.kafka, "t", 3)) >= 4)
    assert Counter(message.value() for message in read(serving.kafka, "t", 3)) == wanted


class Publisher(threading.Thread):
    """Publishes numbers one after the other, each until it is answered, over connections that break."""

    def __init__(self, serving: ServeProcess, name: str, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.serving = serving
        self.stop = stop
        self.acknowledged = 0
        self.retries = 0
        self.raw: Raw | None = None

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                # Now and then once more though it was answered.
                for _ in range(1 + (self.acknowledged % 5 == 0)):
                    self.publish(f"{self.name} {self.acknowledged}")
            except (OSError, NsqError, http.client.HTTPException, ValueError):
                self.retries += 1
                if self.raw is not None:
                    self.raw.close()
                self.raw = None
                time.sleep(0.02)
                continue
            self.acknowledged += 1
        if self.raw is not None:
            self.raw.close()

    def publish(self, text: str) -> None:
        if self.name == "http":
            post(self.serving.addresses["http"], {"value": text, "dedup_id": text})
        else:
            if self.raw is None:
                self.raw = Raw(self.serving.addresses["nsq"], headrace=1)
            assert self.raw.ask("PUB", "t", body=extended(None, text.encode(), [(NAME, text.encode())])) == b"OK"


def kill_again_and_again(serving: ServeProcess, kills: int) -> tuple[list[str], list[str]]:
    """Which numbers are there more than once in the end, and which were acknowledged and are not."""
    rng = Random(7)
    stop = threading.Event()
    publishers = [Publisher(serving, name, stop) for name in ("http", "nsq")]
    for each in publishers:
        each.start()
    try:
        for _ in range(kills):
            before = [each.acknowledged for each in publishers]
            for each, was in zip(publishers, before, strict=True):
                wait_until(lambda each=each, was=was: each.acknowledged > was + 20)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.05))
            serving.kill()
            serving.start()
    finally:
        stop.set()
        for each in publishers:
            each.join(PATIENCE)
    assert all(each.retries for each in publishers), "no kill met a publish"
    found = Counter((message.value() or b"").decode() for message in read(serving.kafka, "t", 2))
    twice = [text for text, count in found.items() if count > 1]
    acknowledged = [f"{each.name} {number}" for each in publishers for number in range(each.acknowledged)]
    return twice, [text for text in acknowledged if not found[text]]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_kills_in_a_loop(serving: ServeProcess, durability: str):
    """Every number is there exactly once, though clients repeat whatever they got no answer to."""
    make_topic(serving.kafka, "t", 2, durability=durability)
    twice, lost = kill_again_and_again(serving, 4)
    assert not twice, f"{twice[:5]} are there more than once"
    assert not lost, f"{lost[:5]} were acknowledged and are lost"


def test_without_a_window_the_same_clients_store_twice(serving: ServeProcess):
    """The check above can fail."""
    make_topic(serving.kafka, "t", 2, **{"deduplication.window.ms": "0"})
    twice, lost = kill_again_and_again(serving, 1)
    assert twice
    assert not lost
