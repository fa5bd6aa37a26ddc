"""Clients of other languages while the leader of a group is killed, and hands over: each goes on by itself."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.acknowledged import PARTITIONS, check_acknowledged, check_no_holes, check_once, read_all
from tests.clients.abroad.clients import Client
from tests.clients.abroad.conftest import go_programs as go_programs
from tests.clients.nsq.clients import Client as NsqClient
from tests.clients.nsq.conftest import go_nsq as go_nsq
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.java.conftest import Java
from tests.java.conftest import java as java
from tests.waiting import wait_until

ANY = "127.0.0.1:0"
DOORS = ("--nsq", ANY, "--nsq-http", ANY, "--lookup", ANY, "--lookup-http", ANY)
TOOLS = "org.apache.kafka.tools"
SECONDS = 90.0
MORE = 30


@pytest.fixture
def group(etcd_peers: Peers, tmp_path: Path) -> Iterator[GroupProcesses]:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path, *DOORS) as group:
        group.wait_leader(3)
        yield group


def create(group: GroupProcesses, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": group.kafka, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
        made.result(40)


def change_leaders(group: GroupProcesses, more: Callable[[], None]) -> None:
    """A kill, a planned handover, and a kill again; `more` waits until the clients have come further."""
    more()
    for is_kill in (True, False, True):
        leader = group.wait_leader(3)
        if is_kill:
            group.nodes[leader].kill()
            group.wait_leader(2, other_than=leader)
            more()
            group.nodes[leader].start()
        else:
            group.command("transfer", str(next(number for number in group.nodes if number != leader)))
            group.wait_leader(3, other_than=leader)
            more()


@pytest.mark.go
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["franz", "sarama"])
def test_clients_of_go_go_on(group: GroupProcesses, tmp_path: Path, go_programs: Path, name: str) -> None:
    create(group, "numbers")
    client = Client(name, [f"{go_programs}/{name}"], [])
    work: dict[str, Any] = {"broker": group.kafka, "topic": "numbers"}
    with (
        client.reading(tmp_path / "read", **work, group="readers", patient=True) as reading,
        client.streaming(tmp_path / "sent", **work, partitions=PARTITIONS) as streaming,
    ):

        def more() -> None:
            sent, read = len(streaming.found()) + MORE, len(reading.found()) + MORE
            wait_until(
                lambda: len(streaming.found()) >= sent and len(reading.found()) >= read,
                lambda: (sent, len(streaming.found()), read, len(reading.found())),
                seconds=SECONDS,
            )

        change_leaders(group, more)
        streaming.stop()
        acknowledged = streaming.found()

        def missing() -> int:
            return len({each.value for each in acknowledged} - {each.value for each in reading.found()})

        wait_until(lambda: not missing(), lambda: f"{missing()} were never read", seconds=SECONDS)
        reading.stop()
    found = read_all(group.kafka, "numbers")
    check_no_holes(found)
    check_acknowledged(found, {(each.partition, each.offset): str(each.value).encode() for each in acknowledged})
    check_once(found)
    for entries in found.values():
        order = [int(value) for _, value in entries]
        assert order == sorted(order)


@pytest.mark.go
@pytest.mark.timeout(300)
def test_go_nsq_goes_on(group: GroupProcesses, go_nsq: NsqClient) -> None:
    leader = group.wait_leader(3)
    other = next(number for number in group.nodes if number != leader)
    # A follower answers for the leader, and lives through all of this.
    lookup, nsqd = group.nodes[other].addresses["lookup-http"], group.nodes[other].addresses["nsq"]
    go_nsq.publish(nsqd, "orders", ["one", "two"])
    process = go_nsq.start(do="consume", topic="orders", channel="c", in_flight=1, lookup=lookup, count=1 << 30)
    guard = threading.Timer(SECONDS, process.kill)
    guard.start()
    bodies: set[str] = set()

    def read(expected: set[str]) -> None:
        assert process.stdout is not None
        while not expected <= bodies:
            line = process.stdout.readline()
            assert line, (bodies, process.communicate()[1])
            bodies.add(json.loads(line)["body"])

    try:
        read({"one", "two"})
        group.nodes[leader].kill()
        group.wait_leader(2, other_than=leader)
        go_nsq.publish(nsqd, "orders", ["three", "four"])
        read({"three", "four"})
        group.nodes[leader].start()
        group.wait_leader(3)
        group.command("transfer", str(leader))
        group.wait_leader(3)
        go_nsq.publish(nsqd, "orders", ["five"])
        read({"five"})
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def events(path: Path, name: str) -> list[dict[str, Any]]:
    """What one of Kafka's verifiable clients has said by now, of one kind."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    return [found for line in whole if line.startswith("{") and (found := json.loads(line))["name"] == name]


@pytest.mark.java
@pytest.mark.timeout(400)
def test_kafkas_own_clients_and_commands_go_on(group: GroupProcesses, tmp_path: Path, java: Java) -> None:
    create(group, "numbers")
    servers = ("--bootstrap-server", group.kafka, "--topic", "numbers")
    sent, read = tmp_path / "sent", tmp_path / "read"

    def start(said: Path, *command: str) -> subprocess.Popen[bytes]:
        with said.open("w") as out:
            return subprocess.Popen(java.command(*command), stdout=out, stderr=subprocess.DEVNULL)

    # Kafka's own default is to try again; this tool's is not to.
    settings = tmp_path / "producer.properties"
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")
    command = ("--throughput", "200", "--acks", "-1", "--command-config", str(settings))
    producer = start(sent, f"{TOOLS}.VerifiableProducer", *servers, *command)
    consumer = start(
        read, f"{TOOLS}.VerifiableConsumer", *servers, "--group-id", "readers", "--verbose",
        "--reset-policy", "earliest", "--session-timeout", "6000",
    )  # fmt: skip

    def acknowledged() -> list[dict[str, Any]]:
        return events(sent, "producer_send_success")

    def more() -> None:
        counts = len(acknowledged()) + MORE, len(events(read, "record_data")) + MORE
        wait_until(
            lambda: len(acknowledged()) >= counts[0] and len(events(read, "record_data")) >= counts[1],
            lambda: (counts, len(acknowledged()), len(events(read, "record_data"))),
            seconds=SECONDS,
        )

    try:
        change_leaders(group, more)
        leader = group.wait_leader(3)
        described = java(f"{TOOLS}.TopicCommand", *servers, "--describe").splitlines()
        assert "ReplicationFactor: 3" in described[0]
        for line in described[1:]:
            assert f"Leader: {leader}" in line
            for what in ("Replicas", "Isr"):
                (nodes,) = re.findall(rf"{what}: ([\d,]+)", line)
                assert sorted(nodes.split(",")) == ["1", "2", "3"]
        # The preferred leader is the first of the replicas.
        group.command("transfer", "2" if leader != 2 else "3")
        group.wait_leader(3, other_than=leader)
        preferred = ("--bootstrap-server", group.kafka, "--election-type", "preferred", "--all-topic-partitions")
        java("org.apache.kafka.tools.LeaderElectionCommand", *preferred)
        wait_until(lambda: group.wait_leader(3) == 1, group.words)
        more()
        producer.terminate()
        producer.wait(SECONDS)
        places = {(each["partition"], each["offset"]): str(each["value"]).encode() for each in acknowledged()}
        # What was read is in the file; a message that was committed late may be there twice.
        wait_until(
            lambda: {(each["partition"], each["offset"]) for each in events(read, "record_data")} >= places.keys(),
            seconds=SECONDS,
        )
    finally:
        for each in (producer, consumer):
            each.kill()
            each.wait()
    assert not events(sent, "producer_send_error")
    found = read_all(group.kafka, "numbers")
    check_no_holes(found)
    check_acknowledged(found, places)
    check_once(found)
