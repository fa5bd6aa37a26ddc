"""The producer and the consumer that Kafka's system tests are made of: they count, and say each thing they see."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from tests.java.conftest import SECONDS, Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

TOOLS = "org.apache.kafka.tools"
MESSAGES = 20_000


def events(lines: Iterable[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def create(java: Java, broker: ServeProcess, topic: str, partitions: int) -> None:
    arguments = ("--create", "--topic", topic, "--partitions", str(partitions))
    java(f"{TOOLS}.TopicCommand", "--bootstrap-server", broker.kafka, *arguments)


def produce(java: Java, broker: ServeProcess, topic: str, count: int = MESSAGES) -> list[dict[str, Any]]:
    arguments = ("--topic", topic, "--max-messages", str(count), "--throughput", "-1", "--acks", "-1")
    said = events(java(f"{TOOLS}.VerifiableProducer", "--bootstrap-server", broker.kafka, *arguments).splitlines())
    (summary,) = (event for event in said if event["name"] == "tool_data")
    assert summary["sent"] == summary["acked"] == count
    return [event for event in said if event["name"] == "producer_send_success"]


def consumer(java: Java, broker: ServeProcess, topic: str, group: str, count: int) -> subprocess.Popen[str]:
    return java.start(
        f"{TOOLS}.VerifiableConsumer",
        *("--bootstrap-server", broker.kafka, "--topic", topic, "--group-id", group, "--verbose"),
        *("--max-messages", str(count), "--reset-policy", "earliest", "--session-timeout", "6000"),
    )


def records(said: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(event["partition"], event["offset"], event["value"]) for event in said if event["name"] == "record_data"]


def test_everything_acknowledged_is_consumed_where_it_was_acknowledged(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "verified", 3)
    acknowledged = produce(java, broker, "verified")
    said = events(consumer(java, broker, "verified", "readers", MESSAGES).communicate(timeout=SECONDS)[0].splitlines())
    assert sorted((event["partition"], event["offset"], event["value"]) for event in acknowledged) == sorted(
        records(said)
    )
    for partition in range(3):
        offsets = [offset for index, offset, _ in records(said) if index == partition]
        assert offsets == list(range(len(offsets)))
    commits = [event for event in said if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)


def test_a_member_that_leaves_hands_its_partitions_over(java: Java, broker: ServeProcess) -> None:
    create(java, broker, "shared", 4)
    staying = consumer(java, broker, "shared", "pair", MESSAGES)
    leaving = consumer(java, broker, "shared", "pair", 1_000)
    try:
        assert leaving.stdout is not None
        for line in leaving.stdout:
            # Each has its half before there is anything to read.
            if '"partitions_assigned"' in line and len(json.loads(line)["partitions"]) == 2:
                break
        produced = produce(java, broker, "shared")
        left = events(leaving.communicate(timeout=SECONDS)[0].splitlines())
        # A round more for the one that stays, so that it comes to its number whatever the other one took.
        produced += produce(java, broker, "shared", 2_000)
        stayed = events(staying.communicate(timeout=SECONDS)[0].splitlines())
    finally:
        for process in (leaving, staying):
            process.kill()
            process.communicate()
    assert left[-1]["name"] in ("shutdown_complete", "shutdown_requested")
    assignments = [len(event["partitions"]) for event in stayed if event["name"] == "partitions_assigned"]
    assert 2 in assignments
    assert assignments[-1] == 4
    # The one that left committed what it had read: nothing is read twice, nothing left out before the number was full.
    seen = Counter((partition, offset) for partition, offset, _ in records(left) + records(stayed))
    assert set(seen.values()) == {1}
    assert len(seen) >= MESSAGES + 1_000
    assert set(seen) <= {(event["partition"], event["offset"]) for event in produced}
