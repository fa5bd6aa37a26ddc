"""A channel over what Kafka's transactions write: committed messages come, aborted and open ones do not."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from tests.clients.nsq.clients import PATIENCE
from tests.clients.nsq.conftest import Doors
from tests.clients.nsq.raw import Raw
from tests.serve_process import ServeProcess


def transactional(address: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "log_level": 0})
    producer.init_transactions(PATIENCE)
    return producer


def settle(consumer: Raw, count: int) -> list[bytes]:
    """Take so many messages and finish them."""
    found = []
    for _ in range(count):
        message = consumer.delivery()
        consumer.send("FIN", message.id.decode())
        found.append(message.body)
    return found


def test_only_what_is_committed_comes(doors: Doors, topic: str) -> None:
    consumer = Raw(doors.nsq)
    consumer.ask("PUB", topic, body=b"plain")
    consumer.subscribe(topic, "c", 100)
    assert settle(consumer, 1) == [b"plain"]
    producer = transactional(doors.kafka, f"of {topic}")
    expected = []
    for turn in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (turn, number) for number in range(200)]
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(PATIENCE) == 0
        if turn % 2:
            producer.abort_transaction(PATIENCE)
        else:
            producer.commit_transaction(PATIENCE)
            expected += values
    assert settle(consumer, len(expected)) == expected
    # One that is open holds up what comes behind it, whoever sends it.
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(PATIENCE) == 0
    other = Raw(doors.nsq)
    assert other.ask("PUB", topic, body=b"behind") == b"OK"
    other.close()
    producer.abort_transaction(PATIENCE)
    assert settle(consumer, 1) == [b"behind"]
    consumer.close()


def test_a_transaction_that_a_killed_broker_left_open_is_never_seen(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--nsq", "127.0.0.1:0") as broker:
        producer = transactional(broker.kafka, "one")
        for value, commits in ((b"first", True), (b"lost", False)):
            producer.begin_transaction()
            producer.produce("t", value)
            assert producer.flush(PATIENCE) == 0
            if commits:
                producer.commit_transaction(PATIENCE)
        broker.kill()
        broker.start()
        # Whoever comes in the same name ends what the one before had left.
        producer = transactional(broker.kafka, "one")
        producer.begin_transaction()
        producer.produce("t", b"second")
        producer.commit_transaction(PATIENCE)
        consumer = Raw(broker.addresses["nsq"])
        consumer.subscribe("t", "c", 10)
        assert settle(consumer, 2) == [b"first", b"second"]
        consumer.close()
