"""RocketMQ's own Java clients, 4.9 and 5.3, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from bench.peers import jars
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.doors.rocketmq.client import Raw
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.messages import read_properties

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("Clients.java")
SECONDS = 120
LEVELS = "1s 1s 1s 2s 3s 4s"


@dataclass(frozen=True)
class Got:
    """A message, as the program prints it."""

    topic: str
    queue: int
    offset: int
    tags: str
    keys: str
    times: int
    flag: int
    color: str
    body: str


class Clients:
    """Runs the program with the clients of one version."""

    def __init__(self, version: str, namesrv: str, folder: Path) -> None:
        self.version = version
        java, classpath = jars.java(), jars.rocketmq_client(version)
        # Once, and not for each of the runs.
        compiler = str(Path(java).with_name("javac"))
        compiling = [compiler, "-nowarn", "-d", str(folder), "-cp", classpath, str(PROGRAM)]
        subprocess.run(compiling, capture_output=True, timeout=SECONDS, check=True)
        self._command = [java, "-XX:TieredStopAtLevel=1", f"-Drocketmq.client.logRoot={folder}"]
        self._command += ["-cp", f"{folder}{os.pathsep}{classpath}", PROGRAM.stem, namesrv]

    def __call__(self, *arguments: object) -> list[str]:
        """Run to the end; what it printed."""
        command = [*self._command, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Run beside the test, until its consumer has started."""
        command = [*self._command, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "STARTED\n"
        return process

    def start_printing(self, *arguments: object) -> Printing:
        """Run beside the test, from when it says that it has started; with what it printed before."""
        command = [*self._command, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            if line == "STARTED\n":
                return Printing(process, printed)
            printed.append(line)
        raise AssertionError(printed)


@dataclass(frozen=True)
class Printing:
    """A run whose words up to its start were read."""

    running: subprocess.Popen[str]
    printed: list[str]


def got(lines: list[str]) -> list[Got]:
    found = []
    for line in lines:
        if line.startswith("GOT "):
            topic, queue, offset, tags, keys, times, flag, color, body = line[4:].split("|", 8)
            found.append(Got(topic, int(queue), int(offset), tags, keys, int(times), int(flag), color, body))
    return found


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    flags = ("--rocketmq", "127.0.0.1:0", "--rocketmq-namesrv", "127.0.0.1:0", "--rocketmq-delay-levels", LEVELS)
    flags += ("--half-timeout-ms", "500", "--half-check-interval-ms", "1000")
    with ServeProcess(tmp_path_factory.mktemp("rocketmq") / "data", *flags) as serving:
        yield serving
        # A clean stop is part of what is tested.
        serving.stop()


@pytest.fixture(scope="module", params=jars.ROCKETMQ_CLIENTS)
def clients(request: pytest.FixtureRequest, serving: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Clients:
    try:
        return Clients(request.param, serving.addresses["rocketmq-namesrv"], tmp_path_factory.mktemp("logs"))
    except jars.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


BODIES = [f"{how}-{number}" for how in ("sync", "async", "oneway", "batch", "select") for number in range(3)]
BODIES += ["bytes=180000", "last"]


def test_every_way_to_send_and_to_consume(clients: Clients, serving: ServeProcess, topic: str) -> None:
    sent = [line.split() for line in clients("send", topic) if line.startswith("SENT ")]
    assert [words[1] for words in sent].count("async") == 3
    assert {words[2] for words in sent} == {"SEND_OK"}
    (batch,) = (words for words in sent if words[1] == "batch")
    assert len(batch[5].split(",")) == 3
    assert len({words[3] for words in sent if words[1] == "select"}) == 1, "the selector chooses the queue"

    pushed = got(clients("push", f"{topic}-push", topic, "*", len(BODIES)))
    assert sorted(each.body for each in pushed) == sorted(BODIES)
    (first,) = (each for each in pushed if each.body == "sync-0")
    assert (first.tags, first.keys, first.flag, first.color, first.times) == ("even", "key0", 7, "blå", 0)

    tagged = got(clients("push", f"{topic}-tags", topic, "even || batch", 5))
    assert sorted(each.body for each in tagged) == ["batch-0", "batch-1", "batch-2", "sync-0", "sync-2"]

    pulled = got(clients("litepull", f"{topic}-pull", topic, len(BODIES)))
    assert sorted(each.body for each in pulled) == sorted(BODIES)
    # A group that has committed goes on behind what it had.
    consumer = Consumer({"bootstrap.servers": serving.kafka, "group.id": f"{topic}-pull"})
    places = [TopicPartition(topic, queue) for queue in {each.queue for each in pulled}]
    committed = {each.partition: each.offset for each in consumer.committed(places, 30)}
    consumer.close()
    assert committed == {queue: 1 + max(each.offset for each in pulled if each.queue == queue) for queue in committed}


def test_orderly_consumers_see_each_queue_in_order(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        for number in range(60):
            raw.sent(topic, b"%d" % number, queue=number % 4, properties={"UNIQ_KEY": f"{number:032X}"})
    found = got(clients("orderly", f"{topic}-g", topic, 60))
    by_queue: dict[int, list[int]] = defaultdict(list)
    for each in found:
        by_queue[each.queue].append(each.offset)
    assert by_queue == {queue: list(range(15)) for queue in range(4)}


def test_members_share_the_queues(clients: Clients, serving: ServeProcess, topic: str) -> None:
    group = f"{topic}-g"
    with Raw(serving.addresses["rocketmq"]) as raw:
        for queue in range(4):
            raw.sent(topic, b"%d" % queue, queue=queue, properties={"UNIQ_KEY": f"{queue:032X}"})
        raw.heartbeat("0-another-member", {group: {topic: "*"}})
        consumer = clients.start("push", group, topic, "*", 4)
        assert consumer.stdout is not None
        found: list[Got] = []
        while len(found) < 2:
            found += got([consumer.stdout.readline().rstrip()])
        # The other two queues are the other member's, until it goes: the notice brings them.
        raw.ask(Request.UNREGISTER_CLIENT, {"clientID": "0-another-member", "consumerGroup": group})
        found += got(consumer.communicate(timeout=SECONDS)[0].splitlines())
        assert sorted(each.body for each in found) == ["0", "1", "2", "3"]
        assert {each.queue for each in found[:2]} == {2, 3}


def test_what_fails_comes_again_and_then_is_dead(clients: Clients, serving: ServeProcess, topic: str) -> None:
    group = f"{topic}-g"
    with Raw(serving.addresses["rocketmq"]) as raw:
        raw.sent(topic, b"fail", properties={"UNIQ_KEY": "A" * 32, "TAGS": "t"})
        raw.sent(topic, b"dead", properties={"UNIQ_KEY": "B" * 32, "TAGS": "t"})
        # The one is consumed three times, the other four: the first time and maxReconsumeTimes.
        lines = clients("push", group, topic, "*", 7)
        times = [int(line.split()[1]) for line in lines if line.startswith("AT ")]
        tries = [(each.body, each.times) for each in got(lines)]
        assert sorted(tries) == [
            ("dead", 0),
            ("dead", 1),
            ("dead", 2),
            ("dead", 3),
            ("fail", 0),
            ("fail", 1),
            ("fail", 2),
        ]
        assert {each.topic for each in got(lines)} == {topic}, "the client sees the topic that it subscribed to"
        # The levels 3, 4 and 5.
        assert max(times) - min(times) >= 6_000
        dead = []
        until = time.monotonic() + 30
        while not dead and time.monotonic() < until:
            dead = list(raw.read(f"%DLQ%{group}"))
        assert [(each.body, read_properties(each.properties)["RETRY_TOPIC"]) for each in dead] == [(b"dead", topic)]


def test_delay_levels(clients: Clients, topic: str) -> None:
    clients("delay", topic, 4)
    lines = clients("push", f"{topic}-g", topic, "*", 1)
    (at,) = (int(line.split()[1]) for line in lines if line.startswith("AT "))
    (message,) = got(lines)
    sent_ms = int(message.body.split()[1])
    assert at - sent_ms >= 2_000


def test_sent_by_kafka_and_consumed_with_tags(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        raw.sent(topic, b"first", properties={"TAGS": "other"})
    producer = Producer({"bootstrap.servers": serving.kafka})
    for number in range(20):
        producer.produce(topic, f"kafka-{number}".encode(), headers=[("TAGS", b"red" if number % 2 else b"blue")])
    assert producer.flush(30) == 0
    found = got(clients("push", f"{topic}-g", topic, "red", 10))
    assert sorted(each.body for each in found) == sorted(f"kafka-{number}" for number in range(1, 20, 2))
    assert {each.tags for each in found} == {"red"}


def test_another_producer_decides_after_the_first_was_killed(
    clients: Clients, serving: ServeProcess, topic: str
) -> None:
    group = f"{topic}-p"
    producer = clients.start("prepare", group, topic)
    producer.kill()
    producer.wait(SECONDS)
    # Each is asked about twice: the first answer is that nothing is known.
    asked = [line.split() for line in clients("check", group, 6) if line.startswith("ASKED ")]
    assert sorted(words[1] for words in asked[:6]) == sorted(["commit", "rollback", "last"] * 2)
    assert {words[2] for words in asked} == {topic}
    found = got(clients("push", f"{topic}-g", topic, "*", 3))
    assert sorted(each.body for each in found) == ["commit", "last", "now"]


def test_a_request_gets_its_reply(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        raw.ask(
            Request.UPDATE_AND_CREATE_TOPIC,
            {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        )
    replier = clients.start("reply", f"{topic}-g", topic)
    assert "REPLY re: question" in clients("request", topic)
    assert "SENT reply SEND_OK" in replier.communicate(timeout=SECONDS)[0]


def test_sql92_filters(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        for number in range(10):
            raw.sent(topic, b"%d" % number, properties={"n": str(number), "UNIQ_KEY": f"{number:032X}"})
    found = got(clients("sql", f"{topic}-g", topic, "n BETWEEN 3 AND 5 OR n = '9'", 4))
    assert sorted(each.body for each in found) == ["3", "4", "5", "9"]


def test_every_client_of_a_broadcast_gets_every_message(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        for queue in range(4):
            raw.sent(topic, b"%d" % queue, queue=queue, properties={"UNIQ_KEY": f"{queue:032X}"})
        others = [clients.start("broadcast", f"{topic}-g", topic, 4) for _ in range(2)]
        for other in others:
            lines = other.communicate(timeout=SECONDS)[0].splitlines()
            assert sorted(each.body for each in got(lines)) == ["0", "1", "2", "3"]


def test_messages_for_a_time(clients: Clients, serving: ServeProcess, topic: str) -> None:
    clients("timer", topic)
    lines = clients("push", f"{topic}-g", topic, "*", 1)
    (at,) = (int(line.split()[1]) for line in lines if line.startswith("AT "))
    (message,) = got(lines)
    assert at - int(message.body.split()[1]) >= 2_000


def test_what_clients_record_is_in_headrace_trace(clients: Clients, serving: ServeProcess, topic: str) -> None:
    process = clients.start_printing("traced", f"{topic}-g", topic)
    try:
        (id,) = (line.split()[6] for line in process.printed if line.startswith("SENT "))
        command = [sys.executable, "-m", "headrace.cli", "trace", id, "--bootstrap", serving.kafka, "--json"]

        def steps() -> list[tuple[str, str]]:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            return [(each["what"], each.get("who", "")) for each in json.loads(done.stdout or '{"steps":[]}')["steps"]]

        wanted = {("sent", "traced"), ("published", ""), ("consuming", f"{topic}-g"), ("consumed", f"{topic}-g")}
        wait_until(lambda: wanted <= set(steps()), lambda: str(steps()), seconds=SECONDS)
    finally:
        process.running.kill()
        process.running.communicate()


def test_what_an_orderly_consumer_gives_up_is_dead(clients: Clients, serving: ServeProcess, topic: str) -> None:
    group = f"{topic}-g"
    with Raw(serving.addresses["rocketmq"]) as raw:
        for number, body in enumerate((b"0", b"dead", b"1")):
            raw.sent(topic, body, queue=0, properties={"UNIQ_KEY": f"{number:032X}"})
        found = got(clients("orderly", group, topic, 5))
        assert [(each.body, each.times) for each in found] == [
            ("0", 0),
            ("dead", 0),
            ("dead", 1),
            ("dead", 2),
            ("1", 0),
        ]
        assert [each.body for each in raw.read(f"%DLQ%{group}")] == [b"dead"]
        assert list(raw.read(f"%RETRY%{group}")) == []


def test_a_group_pushes_then_pops_then_pushes(clients: Clients, serving: ServeProcess, topic: str) -> None:
    """The same consumer, by the mode that an administrator has set; one message is refused at first."""
    if clients.version.startswith("4."):
        pytest.skip("clients before 5.0 do not pop")
    group = f"{topic}-g"
    with Raw(serving.addresses["rocketmq"]) as raw:

        def send(*bodies: str) -> None:
            for body in bodies:
                raw.sent(topic, body.encode(), properties={"UNIQ_KEY": f"{len(body):032X}"})

        send("1", "2")
        assert sorted(each.body for each in got(clients("push", group, topic, "*", 2))) == ["1", "2"]
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        assert raw.ask(Request.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()).code == 0
        send("3", "fail", "4")
        popped = got(clients("pop", group, topic, "*", 5))
        assert sorted(each.body for each in popped) == ["3", "4", "fail", "fail", "fail"]
        # It came again from where it was, and not through the retry topic.
        failed = [each for each in popped if each.body == "fail"]
        assert {(each.topic, each.queue, each.offset) for each in failed} == {(topic, 0, 3)}
        assert [each.times for each in failed] == [0, 1, 2]
        send("5")
        assert [each.body for each in got(clients("push", group, topic, "*", 1))] == ["5"]
