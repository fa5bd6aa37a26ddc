"""Kafka's own Java client in transactions, in the newest form of the protocol; its tools that look at transactions and
end them; and the broker's own topics as Kafka's tools read them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.java.conftest import SECONDS, Java
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
COPIER = f"{TOOLS}.TransactionalMessageCopier"
DUMP = f"{TOOLS}.DumpLogSegments"
MESSAGES = 3_000


def create(java: Java, broker: ServeProcess, *topics: str) -> None:
    for topic in topics:
        java(f"{TOOLS}.TopicCommand", "--bootstrap-server", broker.kafka, "--create", "--topic", topic)


def fill(java: Java, broker: ServeProcess, topic: str, count: int) -> None:
    given = "".join(f"{number}\n" for number in range(count))
    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, "--topic", topic, given=given)


def read(java: Java, broker: ServeProcess, topic: str, *arguments: str) -> list[int]:
    """What a reader of committed records gets, until nothing more comes."""
    said = java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.kafka, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", "4000", *arguments),
    )
    return [int(line) for line in said.splitlines() if line.isdigit()]


def copier(broker: ServeProcess, source: str, target: str, *arguments: str) -> list[str]:
    return [
        *("--broker-list", broker.kafka, "--input-topic", source, "--input-partition", "0"),
        *("--output-topic", target, "--consumer-group", f"{target}-copiers", "--transactional-id", f"{target}-id"),
        *("--transaction-size", "50", "--transaction-timeout", "5000", "--enable-random-aborts", *arguments),
    ]


def test_a_copier_that_aborts_at_random_copies_everything_once(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "source", "copied")
    fill(java, broker, "source", MESSAGES)
    said = java(COPIER, *copier(broker, "source", "copied", "--use-group-metadata"))
    assert json.loads(said.splitlines()[-1])["consumed"] >= MESSAGES
    assert read(java, broker, "copied") == list(range(MESSAGES))


@pytest.mark.parametrize("mode", [(), ("--use-group-metadata",)])
def test_a_copier_that_is_killed_copies_everything_once(java: Java, tmp_path: Path, mode: tuple[str, ...]) -> None:
    random = Random(1)
    with ServeProcess(tmp_path / "data", "--checkpoint-ms", "700") as broker:
        create(java, broker, "source", "copied")
        fill(java, broker, "source", 10_000)
        for _ in range(4):
            running = java.start(COPIER, *copier(broker, "source", "copied", *mode))
            try:
                assert running.stdout is not None
                # It has begun to copy: each line tells how far it is.
                for line in running.stdout:
                    if '"consumed"' in line:
                        break
                time.sleep(random.uniform(0.0, 0.5))
                if random.random() < 0.5:
                    broker.kill()
                    broker.start()
                    time.sleep(random.uniform(0.0, 1.0))
            finally:
                running.kill()
                running.communicate()
        java(COPIER, *copier(broker, "source", "copied", *mode))
        assert read(java, broker, "copied") == list(range(10_000))
        broker.stop()


def test_the_performance_test_writes_transactions(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "measured")
    said = java(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "measured", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        *("--bootstrap-server", broker.kafka, "--transactional-id", "measuring", "--transaction-duration-ms", "50"),
    )
    assert "20000 records sent" in said
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", "isolation.level": "read_committed"})
    try:
        _, stable = consumer.get_watermark_offsets(TopicPartition("measured", 0), SECONDS)
        # A marker stands behind each transaction.
        assert stable > 20_000
    finally:
        consumer.close()


class Open:
    """A transaction that nobody ends."""

    def __init__(self, broker: ServeProcess, topic: str, transactional_id: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": broker.kafka, "transactional.id": transactional_id, "log_level": 0}
        )
        self.producer.init_transactions(SECONDS)
        self.producer.begin_transaction()
        self.producer.produce(topic, b"1", partition=0)
        self.producer.flush(SECONDS)


def transactions(java: Java, broker: ServeProcess, *arguments: str) -> list[dict[str, str]]:
    """The rows of a table, by the names of its columns."""
    said = java(TRANSACTIONS, "--bootstrap-server", broker.kafka, *arguments)
    head, *rows = [re.split(r"\s{1,}", line.strip()) for line in said.splitlines() if line.strip()]
    return [dict(zip(head, row, strict=False)) for row in rows]


def stable(broker: ServeProcess, topic: str) -> tuple[int, int]:
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", "isolation.level": level})
        ends.append(consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[1])
        consumer.close()
    return ends[0], ends[1]


def test_transactions_are_listed_described_and_aborted(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "listed")
    left = Open(broker, "listed", "forgotten")
    [row] = [each for each in transactions(java, broker, "list") if each["TransactionalId"] == "forgotten"]
    assert (row["TransactionState"], row["Coordinator"]) == ("Ongoing", "0")
    [described] = transactions(java, broker, "describe", "--transactional-id", "forgotten")
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == "listed-0"
    assert described["ProducerId"] == row["ProducerId"]
    where = ("--topic", "listed", "--partition", "0")
    [producer] = transactions(java, broker, "describe-producers", *where)
    assert (producer["ProducerId"], producer["CurrentTransactionStartOffset"]) == (row["ProducerId"], "0")
    # Nothing is hanging: the coordinator knows of it.
    assert transactions(java, broker, "find-hanging", "--broker-id", "0", "--max-transaction-timeout", "0") == []
    assert stable(broker, "listed") == (0, 1)
    java(TRANSACTIONS, "--bootstrap-server", broker.kafka, "abort", *where, "--start-offset", "0")
    assert stable(broker, "listed") == (2, 2)
    [producer] = transactions(java, broker, "describe-producers", *where)
    assert producer["CurrentTransactionStartOffset"] == "None"
    left.producer.abort_transaction(SECONDS)


def test_transactions_are_ended_by_force(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "forced")
    left = Open(broker, "forced", "overtaken")
    command = ("forceTerminateTransaction", "--transactionalId", "overtaken")
    java(TRANSACTIONS, "--bootstrap-server", broker.kafka, *command)
    wait_until(lambda: stable(broker, "forced") == (2, 2), lambda: f"{stable(broker, 'forced')}")
    with pytest.raises(KafkaException):
        left.producer.commit_transaction(SECONDS)


def logs(data: Path, topic: str) -> str:
    return ",".join(str(path) for path in sorted(data.glob(f"{topic}-*/*.log")) if path.stat().st_size)


def test_the_state_of_transactions_and_their_offsets_are_read(java: Java, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        create(java, broker, "source", "copied")
        fill(java, broker, "source", 500)
        java(COPIER, *copier(broker, "source", "copied"))
        broker.stop()
    said = java(DUMP, "--transaction-log-decoder", "--files", logs(tmp_path / "data", "__transaction_state"))
    assert "isvalid: false" not in said
    assert "copied-id" in said
    # The Java client speaks the second generation.
    assert re.search(r"clientTransactionVersion[\"=: ]*(TV_)?2", said), said[-2000:]
    said = java(DUMP, "--offsets-decoder", "--files", logs(tmp_path / "data", "__consumer_offsets"))
    assert '"group":"copied-copiers"' in said
    assert "isTransactional: true" in said
    assert "endTxnMarker: COMMIT" in said
    said = java(DUMP, "--deep-iteration", "--files", logs(tmp_path / "data", "copied"))
    assert "endTxnMarker: COMMIT" in said
    assert "isvalid: false" not in said
    indexes = ",".join(str(path) for path in sorted((tmp_path / "data").glob("copied-*/*.txnindex")))
    if "endTxnMarker: ABORT" in said and indexes:
        assert re.search(r"producerId: \d+ firstOffset: \d+ lastOffset: \d+", java(DUMP, "--files", indexes))
