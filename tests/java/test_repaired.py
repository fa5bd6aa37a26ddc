"""Kafka's own tools on a log that was repaired: they read across what is lost, and see a transaction end in it."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.java.conftest import Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOOLS = "org.apache.kafka.tools"


def load(java: Java, address: str, count: int) -> None:
    records = ("--topic", "t", "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    java(f"{TOOLS}.ProducerPerformance", *records, "--bootstrap-server", address)


def producer(address: str) -> Producer:
    made = Producer({"bootstrap.servers": address, "transactional.id": "x", "transaction.timeout.ms": 120_000})
    made.init_transactions(30)
    return made


def test_a_repaired_log(java: Java, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data, "--log-segment-bytes", "1048576") as broker:
        transactional = producer(broker.kafka)
        transactional.begin_transaction()
        transactional.produce("t", b"its end is lost", partition=0)
        transactional.flush(30)
        load(java, broker.kafka, 13_000)
        # In the second segment, which will be gone.
        transactional.commit_transaction(30)
        load(java, broker.kafka, 13_000)
        broker.stop()
        segments = sorted((data / "t-0").glob("*.log"))
        assert len(segments) > 2
        gone = range(int(segments[1].stem), int(segments[2].stem))
        segments[1].unlink()
        command = [sys.executable, "-m", "headrace.cli", "log", "repair", str(data), "--accept-loss"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "a transaction of producer" in said

        broker.start()
        transactional = producer(broker.kafka)
        transactional.begin_transaction()
        transactional.produce("t", b"a later one of its producer", partition=0)
        transactional.commit_transaction(30)
        # The records, two of the transactions, less what is gone (a marker too) and the one that was aborted.
        left = 26_000 + 2 - (len(gone) - 1) - 1
        read = java(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.kafka, "--topic", "t", "--from-beginning"),
            *("--command-property", "isolation.level=read_committed", "--max-messages", str(left)),
            *("--timeout-ms", "30000"),
        ).splitlines()
        assert len(read) == left
        assert "its end is lost" not in read
        assert read[-1] == "a later one of its producer"
        broker.stop()
    files = ",".join(str(path) for path in sorted((data / "t-0").glob("*.log")))
    dumped = java(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", files)
    batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .*isvalid: (\w+)", dumped, re.MULTILINE)
    assert {valid for *_, valid in batches} == {"true"}
    ends = [(int(first), int(last)) for first, last, _ in batches]
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(ends))
