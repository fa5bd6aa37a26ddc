"""Kafka's own tools in groups of the consumer protocol (KIP-848), and what they read of such groups."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java.conftest import SECONDS, Java
from tests.java.test_verifiable import create, events, records
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

import headrace
from headrace.broker.groups.consumer import consumer_group
from headrace.client import Client
from headrace.client.messages import request

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSOLE = f"{TOOLS}.consumer.ConsoleConsumer"
CONSUMER = f"{TOOLS}.VerifiableConsumer"
PRODUCER = f"{TOOLS}.VerifiableProducer"
DUMP = f"{TOOLS}.DumpLogSegments"
PATTERN = Path(__file__).with_name("ReadsByPattern.java")
MEMBERS = ("--describe", "--members", "--verbose")
A_SECOND = 300


@pytest.fixture(scope="module")
def broker(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A broker whose members are heard often, so that they follow soon."""
    folder = tmp_path_factory.mktemp("consumers")
    with ServeProcess(folder / "data", "--group-consumer-heartbeat-interval-ms", "300") as serving:
        yield serving


class Tool:
    """A tool beside the test, which says what it sees."""

    def __init__(self, java: Java, said: Path, main: str, *arguments: str) -> None:
        self._said = said
        with said.open("w") as out:
            self._process = subprocess.Popen(java.command(main, *arguments), stdout=out, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def lines(self) -> list[str]:
        whole, _, _ = self._said.read_text().rpartition("\n")
        return whole.splitlines()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What a verifiable tool said."""
        return events(self.lines)

    @property
    def has(self) -> set[int]:
        """The partitions that a consumer has at the moment."""
        found: set[int] = set()
        for event in events(line for line in self.lines if '"partitions_' in line):
            partitions = {each["partition"] for each in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                assert not partitions & found
                found |= partitions
            elif event["name"] == "partitions_revoked":
                assert partitions <= found
                found -= partitions
        return found

    def end(self) -> None:
        """Let it finish what it is at."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(SECONDS)


def rows(table: str) -> list[dict[str, str]]:
    """What the tools print, a row for each line below the heading."""
    lines = [line.split() for line in table.splitlines()]
    head = next(number for number, words in enumerate(lines) if words[:1] == ["GROUP"])
    return [dict(zip(lines[head], words, strict=True)) for words in lines[head + 1 :] if words]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go_and_every_record_is_read_once(
    java: Java, broker: ServeProcess, tmp_path: Path, assignor: str
) -> None:
    topic = group = f"flow-{assignor}"
    create(java, broker, topic, 4)
    with ExitStack() as tools:

        def consumer(name: str, *more: str) -> Tool:
            where = ("--bootstrap-server", broker.kafka, "--topic", topic, "--group-id", group, "--verbose", *more)
            how = ("--group-protocol", "consumer", "--group-remote-assignor", assignor, "--reset-policy", "earliest")
            return tools.enter_context(Tool(java, tmp_path / name, CONSUMER, *where, *how))

        def shared(*members: Tool) -> bool:
            halves = [member.has for member in members]
            return {len(half) for half in halves} == {4 // len(members)} and len(set().union(*halves)) == 4

        first = consumer("first")
        wait_until(lambda: shared(first), broker.words, seconds=SECONDS)
        load = ("--throughput", str(A_SECOND), "--acks", "-1")
        where = ("--bootstrap-server", broker.kafka, "--topic", topic)
        producer = tools.enter_context(Tool(java, tmp_path / "producer", PRODUCER, *where, *load))
        second = consumer("second")
        wait_until(lambda: shared(first, second), broker.words, seconds=SECONDS)
        assert_shown(java, broker, group, assignor, (first, second))
        wait_until(lambda: bool(records(second.events)), broker.words, seconds=SECONDS)
        second.end()
        wait_until(lambda: shared(first), broker.words, seconds=SECONDS)
        third = consumer("third", "--group-instance-id", "steady")
        wait_until(lambda: shared(first, third), broker.words, seconds=SECONDS)
        wait_until(lambda: bool(records(third.events)), broker.words, seconds=SECONDS)
        producer.end()
        acknowledged = [each for each in producer.events if each["name"] == "producer_send_success"]
        members = (first, second, third)
        wait_until(
            lambda: sum(len(records(each.events)) for each in members) >= len(acknowledged),
            broker.words,
            seconds=SECONDS,
        )
        for member in (first, third):
            member.end()
    read = Counter(record for member in members for record in records(member.events))
    assert read == Counter((each["partition"], each["offset"], each["value"]) for each in acknowledged)
    commits = [event for member in members for event in member.events if event["name"] == "offsets_committed"]
    assert [event for event in commits if not event["success"]] == []
    ends = Counter(each["partition"] for each in acknowledged)
    described = rows(java(GROUPS, "--bootstrap-server", broker.kafka, "--describe", "--group", group))
    # The producer may pass a partition over, and nothing is committed there.
    read_from = [row for row in described if row["CURRENT-OFFSET"] != "-"]
    assert {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in read_from} == ends
    assert {row["LAG"] for row in read_from} == {"0"}


def assert_shown(java: Java, broker: ServeProcess, group: str, assignor: str, members: tuple[Tool, ...]) -> None:
    """`kafka-consumer-groups` shows a group whose members have come to rest."""

    def groups(*arguments: str) -> list[dict[str, str]]:
        return rows(java(GROUPS, "--bootstrap-server", broker.kafka, *arguments))

    [state] = groups("--describe", "--group", group, "--state", "--verbose")
    assert (state["STATE"], state["ASSIGNMENT-STRATEGY"], state["#MEMBERS"]) == ("Stable", assignor, str(len(members)))
    assert state["GROUP-EPOCH"] == state["TARGET-ASSIGNMENT-EPOCH"]
    shown = groups(*MEMBERS, "--group", group)
    parts = [f"{group}:{','.join(map(str, sorted(member.has)))}" for member in members]
    assert sorted(row["CURRENT-ASSIGNMENT"] for row in shown) == sorted(parts)
    for row in shown:
        assert row["CURRENT-ASSIGNMENT"] == row["TARGET-ASSIGNMENT"]
        assert row["CURRENT-EPOCH"] == row["TARGET-EPOCH"] == state["GROUP-EPOCH"]
        assert (row["HOST"], row["CLIENT-ID"]) == ("/127.0.0.1", f"consumer-{group}-1")
    assert {"GROUP": group, "TYPE": "Consumer"} in groups("--list", "--type", "consumer")
    assert group not in {row["GROUP"] for row in groups("--list", "--type", "classic")}


def test_a_pattern_is_matched_by_the_broker(java: Java, broker: ServeProcess, tmp_path: Path) -> None:
    for topic in ("lake-1", "lake-2", "pond-1"):
        java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, "--topic", topic, given=f"of {topic}\n")
    with Tool(java, tmp_path / "said", str(PATTERN), broker.kafka, "anglers", "lake-[0-9]+") as reader:
        wait_until(lambda: set(reader.lines) == {"of lake-1", "of lake-2"}, broker.words, seconds=SECONDS)
        [shown] = rows(java(GROUPS, "--bootstrap-server", broker.kafka, *MEMBERS, "--group", "anglers"))
        assert sorted(shown["CURRENT-ASSIGNMENT"].split(";")) == ["lake-1:0", "lake-2:0"]
        # A topic that did not exist when the consumer subscribed.
        java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, "--topic", "lake-3", given="of lake-3\n")
        wait_until(lambda: set(reader.lines) == {"of lake-1", "of lake-2", "of lake-3"}, broker.words, seconds=SECONDS)


def test_the_console_consumer_changes_a_group_over_and_back(java: Java, broker: ServeProcess) -> None:
    server = ("--bootstrap-server", broker.kafka, "--topic", "brook")
    java(f"{TOOLS}.ConsoleProducer", *server, given="".join(f"{number}\n" for number in range(30)))
    read = []
    for protocol in ("classic", "consumer", "classic"):
        property = ("--command-property", f"group.protocol={protocol}", "--from-beginning")
        limits = ("--max-messages", "10", "--timeout-ms", "30000")
        read += java(CONSOLE, *server, "--group", "waders", *property, *limits).split()
        [listed] = [
            row
            for row in rows(java(GROUPS, "--bootstrap-server", broker.kafka, "--list", "--type", protocol))
            if row["GROUP"] == "waders"
        ]
        assert listed["TYPE"].lower() == protocol
    assert read == [str(number) for number in range(30)]


async def test_kafka_reads_the_records_of_a_group(java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Targets are computed with the very heartbeat.
    monkeypatch.setattr(consumer_group, "ASSIGNING_REST", 0)
    with headrace.Broker(tmp_path / "data") as broker:
        async with Client(broker.kafka) as client:
            topic = await client.admin.create_topic("t", 2)
            assert topic is not None
            assert topic.id is not None
            topic_id = base64.urlsafe_b64encode(topic.id.bytes).decode().rstrip("=")
            coordinator = await client.cluster.coordinator("g")

            async def beat(member: str, epoch: int, **fields: Any) -> None:
                asked = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields}
                named = {"group_id": "g", "member_id": member, "member_epoch": epoch}
                reply = await coordinator.call(request("consumer_group_heartbeat", 1, **named, **asked))
                assert reply.error_code == 0

            await beat("a", 0, instance_id="i", rack_id="r", subscribed_topic_regex="t+", server_assignor="range")
            await beat("b", 0)
            owned = [{"topic_id": topic.id, "partitions": [0, 1]}]
            await beat("a", 1, instance_id="i", topic_partitions=owned)
            await beat("b", -1)
    logs = [str(path) for path in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    said = java(DUMP, "--offsets-decoder", "--files", ",".join(logs))
    assert "isvalid: false" not in said
    told: dict[tuple[str, str], list[Any]] = {}
    for key, value in re.findall(r"key: (\{.*\}) payload: (.*)$", said, re.MULTILINE):
        about = json.loads(key)
        told.setdefault((about["type"], about["data"].get("memberId", "")), []).append(
            None if value == "<DELETE>" else json.loads(value)["data"]
        )

    def places(*partitions: int) -> list[dict[str, Any]]:
        return [{"topicId": topic_id, "partitions": list(partitions)}]

    assert [each["epoch"] for each in told["3", ""]] == [1, 2, 3]
    [member] = told["5", "a"]
    assert member == {
        "instanceId": "i",
        "rackId": "r",
        "clientId": "headrace",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["t"],
        "subscribedTopicRegex": "t+",
        "rebalanceTimeoutMs": 60_000,
        "serverAssignor": "range",
    }
    assert [each["assignmentEpoch"] for each in told["6", ""]] == [1, 2]
    assert [each["topicPartitions"] for each in told["7", "a"]] == [places(0, 1), places(0)]
    assert told["8", "a"] == [
        {
            "memberEpoch": 1,
            "previousMemberEpoch": previous,
            "state": state,
            "assignedPartitions": assigned,
            "partitionsPendingRevocation": revoking,
        }
        for previous, state, assigned, revoking in ((0, 0, places(0, 1), []), (1, 1, places(0), places(1)))
    ]
    # The second member waited for what the first had not given back, and left.
    assert told["8", "b"][0]["state"] == 2
    assert [told[kind, "b"][-1] for kind in ("5", "7", "8")] == [None] * 3
