"""RocketMQ's own tool for operators, mqadmin, unchanged: what it prints, and what became of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from bench.peers import jars
from confluent_kafka import Consumer, TopicPartition
from tests.doors.rocketmq.client import Raw
from tests.java.rocketmq.test_clients import Clients, got
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.doors.rocketmq.codes import Request

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("Admin.java")
SECONDS = 120
CLUSTER = "DefaultCluster"


class Admin:
    """One process in which commands of mqadmin run one after the other."""

    def __init__(self, namesrv: str, broker: str, folder: Path) -> None:
        self.namesrv, self.broker = namesrv, broker
        java, classpath = jars.java(), jars.rocketmq()
        compiler = str(Path(java).with_name("javac"))
        subprocess.run(
            [compiler, "-nowarn", "-d", str(folder), "-cp", classpath, str(PROGRAM)],
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        # Its logs go to the home of the user, unless that is another; consumerStatus writes files where it stands.
        command = [java, "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}", "-cp", f"{folder}{os.pathsep}{classpath}"]
        self._process = subprocess.Popen(
            [*command, PROGRAM.stem],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._read("READY")

    def __call__(self, command: str, *arguments: object) -> str:
        """Run a command; what it printed."""
        assert self._process.stdin is not None
        words = [command, "-n", self.namesrv, *map(str, arguments)]
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        return "\n".join(self._read("DONE"))

    def rows(self, command: str, *arguments: object) -> list[list[str]]:
        """The words of each line of a table."""
        lines = self(command, *arguments).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def _read(self, end: str) -> list[str]:
        lines = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == end:
                return lines
            # Those of its logging are about itself.
            if "|-" not in line:
                lines.append(line.rstrip())
        raise AssertionError("mqadmin has ended:\n" + "\n".join(lines))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    flags = ("--rocketmq", "127.0.0.1:0", "--rocketmq-namesrv", "127.0.0.1:0")
    with ServeProcess(tmp_path_factory.mktemp("rocketmq") / "data", *flags) as serving:
        yield serving
        serving.stop()


@pytest.fixture(scope="module")
def admin(serving: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    addresses = serving.addresses
    try:
        admin = Admin(addresses["rocketmq-namesrv"], addresses["rocketmq"], tmp_path_factory.mktemp("admin"))
    except jars.Missing as reason:
        pytest.skip(str(reason))
    yield admin
    admin.stop()


@pytest.fixture
def raw(serving: ServeProcess) -> Iterator[Raw]:
    with Raw(serving.addresses["rocketmq"]) as raw:
        yield raw


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


def commit(raw: Raw, group: str, topic: str, queue: int, offset: int) -> None:
    place = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, place).code == 0


def progress(admin: Admin, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Broker offset, consumer offset and lag by queue."""
    rows = [row for row in admin.rows("consumerProgress", "-g", group) if len(row) >= 8]
    return {(row[0], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def test_topics(admin: Admin, raw: Raw, topic: str) -> None:
    made = admin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", 4, "-w", 2)
    assert f"create topic to {admin.broker} success" in made
    assert raw.json(Request.GET_TOPIC_CONFIG, topic=topic)["writeQueueNums"] == 2
    assert topic in admin("topicList").split()
    route = admin("topicRoute", "-t", topic)
    assert ('"readQueueNums":4' in route, admin.broker in route) == (True, True)
    assert CLUSTER in admin("topicClusterList", "-t", topic)
    for number in range(3):
        raw.sent(topic, b"%d" % number, queue=1)
    status = {int(row[1]): row[2:4] for row in admin.rows("topicStatus", "-t", topic) if row[0] == "headrace"}
    assert status == {0: ["0", "0"], 1: ["0", "3"], 2: ["0", "0"], 3: ["0", "0"]}
    commit(raw, f"{topic}-g", topic, 1, 1)
    (stats,) = (row for row in admin.rows("statsAll") if row[0] == topic)
    assert (stats[1], stats[2], stats[5]) == (f"{topic}-g", "2", "3")
    assert "success" in admin("updateTopicPerm", "-b", admin.broker, "-t", topic, "-p", 4)
    assert raw.sent(topic, b"no").code != 0
    assert "success" in admin("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert topic not in admin("topicList").split()
    assert "CODE: 17" in admin("topicStatus", "-t", topic)


def test_messages(admin: Admin, raw: Raw, topic: str) -> None:
    admin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", 1, "-w", 1)
    sent = admin("sendMessage", "-t", topic, "-p", "a-hat", "-k", "order-43", "-c", "paid")
    assert "SEND_OK" in sent
    (message,) = raw.read(topic)
    assert message.body == b"a-hat"
    assert "a-hat" in admin("printMsg", "-t", topic, "-d", "true")
    consumed = admin("consumeMessage", "-t", topic, "-g", f"{topic}-g")
    assert ("Consume ok" in consumed, "order-43" in consumed) == (True, True)
    host, port = admin.broker.rsplit(":", 1)
    offset_id = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}{message.physical_offset:016x}"
    found = admin("queryMsgById", "-i", offset_id.upper(), "-t", topic)
    assert ("order-43" in found, "paid" in found, f"Queue Offset:        {0}" in found) == (True, True, True)


def test_messages_are_found_by_their_keys(admin: Admin, raw: Raw, topic: str) -> None:
    unique = uuid4().hex.upper()
    for number in range(6):
        properties = {"KEYS": f"order-{number % 2} any", "UNIQ_KEY": f"{unique[:-1]}{number}", "TAGS": "t"}
        raw.sent(topic, b"body-%d" % number, queue=number % 4, properties=properties)
    rows = admin.rows("queryMsgByKey", "-t", topic, "-k", "order-1")
    assert sorted(row[0] for row in rows) == [f"{unique[:-1]}{number}" for number in (1, 3, 5)]
    assert len(admin.rows("queryMsgByKey", "-t", topic, "-k", "any", "-m", 4)) == 4
    assert "no message" in admin("queryMsgByKey", "-t", topic, "-k", "order")
    found = admin("queryMsgByUniqueKey", "-t", topic, "-i", f"{unique[:-1]}4")
    assert (f"Topic:               {topic}" in found, "order-0 any" in found) == (True, True)
    by_id = admin("queryMsgById", "-t", topic, "-i", f"{unique[:-1]}2")
    assert "order-0 any" in by_id, "what is no offset id is a unique one"
    fields = f"Pub 1700000000000 region producers {topic} {unique} t k localhost 4 7 0 {unique} true"
    trace = fields.replace(" ", "\x01")
    raw.sent("RMQ_SYS_TRACE_TOPIC", f"{trace}\x02".encode(), properties={"KEYS": f"{unique} k"})
    (row,) = [row for row in admin.rows("queryMsgTraceById", "-i", unique) if "producers" in row]
    assert row[:2] == ["Pub", "producers"]


def test_the_lag_is_that_of_every_other_tool(admin: Admin, serving: ServeProcess, raw: Raw, topic: str) -> None:
    group = f"{topic}-g"
    for number in range(10):
        raw.sent(topic, b"x", queue=number % 2)
    commit(raw, group, topic, 0, 1)
    commit(raw, group, topic, 1, 4)
    shown = progress(admin, group)
    assert (shown[topic, 0], shown[topic, 1]) == ((5, 1, 4), (5, 4, 1))
    described = json.loads(
        subprocess.run(
            [sys.executable, "-m", "headrace.cli", "group", "describe", group, "--json", "--bootstrap", serving.kafka],
            capture_output=True,
            timeout=SECONDS,
            check=True,
        ).stdout
    )
    assert {each["partition"]: each["lag"] for each in described["offsets"]} == {0: 4, 1: 1}
    kafka = Consumer({"bootstrap.servers": serving.kafka, "group.id": group})
    committed = kafka.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 30)
    ends = [kafka.get_watermark_offsets(each, 30)[1] for each in committed]
    kafka.close()
    assert [end - each.offset for end, each in zip(ends, committed, strict=True)] == [4, 1]
    listed = {row[0]: row[-1] for row in admin.rows("consumerProgress")}
    assert listed[group] == "5"


def test_groups(admin: Admin, raw: Raw, topic: str) -> None:
    group, other = f"{topic}-g", f"{topic}-other"
    made = admin("updateSubGroup", "-c", CLUSTER, "-g", group, "-r", 3, "-s", "true", "-d", "true")
    assert "success" in made
    settings = raw.json(Request.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
    assert (settings["retryMaxTimes"], settings["consumeBroadcastEnable"]) == (3, True)
    assert ["retryMaxTimes", "=", "3"] in admin.rows("getConsumerConfig", "-g", group)
    for _ in range(3):
        raw.sent(topic, b"x")
    commit(raw, group, topic, 0, 2)
    assert "success" in admin("cloneGroupOffset", "-s", group, "-d", other, "-t", topic, "-o", "true")
    assert progress(admin, other)[topic, 0] == (3, 2, 1)
    reset = admin.rows("resetOffsetByTime", "-g", other, "-t", topic, "-s", 0)
    assert ["headrace", "0", "0"] in reset
    assert progress(admin, other)[topic, 0] == (3, 0, 3)
    skipped = admin.rows("skipAccumulatedMessage", "-g", other, "-t", topic)
    assert ["headrace", "0", "3"] in skipped
    assert progress(admin, other)[topic, 0] == (3, 3, 0)
    assert "success" in admin("deleteSubGroup", "-b", admin.broker, "-g", group, "-r", "true")
    assert group not in raw.json(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
    assert group not in [row[0] for row in admin.rows("consumerProgress")]


def test_a_live_consumer(admin: Admin, serving: ServeProcess, raw: Raw, topic: str, tmp_path: Path) -> None:
    group = f"{topic}-g"
    for number in range(4):
        raw.sent(topic, b"%d" % number, queue=number, properties={"UNIQ_KEY": f"{number:032X}"})
    clients = Clients(jars.ROCKETMQ_CLIENTS[-1], admin.namesrv, tmp_path)
    # Four of the topic, one that it is handed, and the four again after the reset.
    consumer = clients.start("push", group, topic, "*", 9)
    assert consumer.stdout is not None
    found = []
    while len(found) < 4:
        found += got([consumer.stdout.readline().rstrip()])
    wait_until(lambda: all(row[2] == 0 for row in progress(admin, group).values()))

    connection = admin("consumerConnection", "-g", group)
    version = f"V{clients.version.replace('.', '_')}"
    assert ("MessageModel: CLUSTERING" in connection, version in connection, topic in connection) == (True,) * 3
    client_id = raw.json(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)["consumerIdList"][0]
    running = admin("consumerStatus", "-g", group, "-i", client_id)
    assert ("#Consumer Subscription#" in running, topic in running) == (True, True)
    raw.heartbeat("sender", {}, producers=[f"{topic}-p"])
    assert "sender" in admin("producerConnection", "-g", f"{topic}-p", "-t", topic)
    assert f"{topic}-p" in admin("producer", "-b", admin.broker)

    message = next(iter(raw.read(topic, 2)))
    host, port = admin.broker.rsplit(":", 1)
    offset_id = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}{message.physical_offset:016x}"
    handed = admin("queryMsgById", "-i", offset_id.upper(), "-g", group, "-d", client_id, "-t", topic)
    assert "CR_SUCCESS" in handed
    while len(found) < 5:
        found += got([consumer.stdout.readline().rstrip()])
    assert found[4].body == "2"

    admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", 0)
    found += got(consumer.communicate(timeout=SECONDS)[0].splitlines())
    assert sorted(each.body for each in found[5:]) == ["0", "1", "2", "3"], "they come again"
    assert consumer.returncode == 0


def test_the_broker(admin: Admin) -> None:
    (row,) = admin.rows("clusterList")
    assert row[:5] == [CLUSTER, "headrace", "0", admin.broker, "V5_5_0"]
    assert admin.rows("clusterList", "-m")[0][:2] == [CLUSTER, "headrace"]
    status = dict(line.split(":", 1) for line in admin("brokerStatus", "-b", admin.broker).splitlines() if ":" in line)
    assert {name.strip() for name in status} >= {"putTps", "msgPutTotalTodayNow", "bootTimestamp", "runtime"}
    assert "brokerName" in admin("getBrokerConfig", "-b", admin.broker)
    assert "success" in admin("updateBrokerConfig", "-b", admin.broker, "-k", "fileReservedTime", "-v", 24)
    assert ["fileReservedTime", "=", "24"] in admin.rows("getBrokerConfig", "-b", admin.broker)
    refused = admin("updateBrokerConfig", "-b", admin.broker, "-k", "brokerName", "-v", "other")
    assert "CODE: 16  DESC: cannot be changed while the broker runs: brokerName" in refused
    assert "Diff Total" in admin("brokerConsumeStats", "-b", admin.broker)


@pytest.mark.parametrize("command", ["getColdDataFlowCtrInfo", "listUser"])
def test_what_it_cannot_do_is_refused_with_a_sentence(admin: Admin, command: str) -> None:
    printed = admin(command, "-b", admin.broker)
    assert "CODE: 3  DESC: the request code" in printed
    assert "is not supported by the broker" in printed
