"""Kafka's own tools and client beside a group of three nodes: through the death of a leader, and an election."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.cluster.conftest import Peers, etcd_peers  # noqa: F401 - a fixture
from tests.cluster.group_processes import GroupProcesses
from tests.java.conftest import SECONDS, Java
from tests.java.test_verifiable import TOOLS, events, records
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.etcd, pytest.mark.timeout(300)]

TOPIC = "verified"
MESSAGES = 6_000
KILLED_AFTER = 1_500


def test_kafkas_tools_live_through_a_failover(
    java: Java,
    etcd_peers: Peers,  # noqa: F811
    tmp_path: Path,
) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path) as group:
        assert group.wait_leader(3) == 1
        server = ("--bootstrap-server", group.kafka)

        def leader() -> tuple[str, set[str]]:
            said = java(f"{TOOLS}.TopicCommand", *server, "--describe", "--topic", TOPIC)
            found = re.search(r"Leader: (\S+)\s+Replicas: 1,2,3\s+Isr: (\S+)", said)
            assert found is not None, said
            return found[1], set(found[2].split(","))

        # A follower passes it on.
        follower = ("--bootstrap-server", group.nodes[3].kafka)
        java(f"{TOOLS}.TopicCommand", *follower, "--create", "--topic", TOPIC, "--partitions", "2")
        assert leader() == ("1", {"1", "2", "3"})
        producer = java.start(
            f"{TOOLS}.VerifiableProducer",
            *server,
            *("--topic", TOPIC, "--max-messages", str(MESSAGES), "--throughput", "600", "--acks", "-1"),
        )
        assert producer.stdout is not None
        lines = [producer.stdout.readline() for _ in range(KILLED_AFTER)]
        group.nodes[1].kill()
        lines += producer.communicate(timeout=SECONDS)[0].splitlines()
        said = events(lines)
        (summary,) = (event for event in said if event["name"] == "tool_data")
        # The tool retries nothing: what was under way may have failed.
        assert summary["sent"] == MESSAGES
        assert MESSAGES - 500 < summary["acked"] <= MESSAGES
        assert group.wait_leader(2, other_than=1) in (2, 3)
        acknowledged = [event for event in said if event["name"] == "producer_send_success"]
        ends = java(f"{TOOLS}.GetOffsetShell", *server, "--topic", TOPIC).split()
        count = sum(int(line.rpartition(":")[2]) for line in ends)
        assert count >= len(acknowledged)
        consumer: subprocess.Popen[str] = java.start(
            f"{TOOLS}.VerifiableConsumer",
            *(*server, "--topic", TOPIC, "--group-id", "readers", "--verbose"),
            *("--max-messages", str(count), "--reset-policy", "earliest"),
        )
        found = records(events(consumer.communicate(timeout=SECONDS)[0].splitlines()))
        assert len({value for _, _, value in found}) == len(found) == count
        assert {(each["partition"], each["offset"], each["value"]) for each in acknowledged} <= set(found)
        group.nodes[1].start()
        group.wait_leader(3)
        asked = ("--election-type", "preferred", "--topic", TOPIC, "--partition", "0")
        said_of_election = java(f"{TOOLS}.LeaderElectionCommand", *server, *asked)
        assert "Successfully completed leader election (PREFERRED)" in said_of_election
        wait_until(lambda: leader() == ("1", {"1", "2", "3"}), group.words)
