"""RocketMQ's own Java client of gRPC, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from bench.peers import jars
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.test_send import read_all
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.messages import read_properties

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("GrpcClients.java")
SECONDS = 120


class Got(NamedTuple):
    """A message, as the program prints it."""

    topic: str
    tag: str
    keys: str
    group: str
    attempt: str
    color: str
    id: str
    body: str


class Clients:
    """Runs the program."""

    def __init__(self, address: str, folder: Path) -> None:
        java, classpath = jars.java(), jars.rocketmq_grpc_client()
        compiling = [str(Path(java).with_name("javac")), "-nowarn", "-d", str(folder), "-cp", classpath, str(PROGRAM)]
        subprocess.run(compiling, capture_output=True, timeout=SECONDS, check=True)
        # Its logs go to the home of the user, unless that is another.
        self._command = [java, "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
        self._command += ["-cp", f"{folder}{os.pathsep}{classpath}", PROGRAM.stem, address]

    def __call__(self, *arguments: object) -> list[str]:
        """Run to the end; what it printed."""
        command = [*self._command, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    flags = ["--rocketmq", "127.0.0.1:0", "--rocketmq-grpc", "127.0.0.1:0", "--rocketmq-delay-levels", "1s 1s 1s"]
    flags += ["--half-timeout-ms", "1000", "--half-check-interval-ms", "1000"]
    with ServeProcess(tmp_path_factory.mktemp("rocketmq") / "data", *flags) as serving:
        yield serving
        # A clean stop is part of what is tested.
        serving.stop()


@pytest.fixture(scope="module")
def clients(serving: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Clients:
    try:
        return Clients(serving.addresses["rocketmq-grpc"], tmp_path_factory.mktemp("classes"))
    except jars.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


BODIES = {*(f"{how}-{number}" for how in ("sync", "async") for number in range(3)), "x" * 500_000, "fifo", "later"}


def test_every_kind_of_message(clients: Clients, serving: ServeProcess, topic: str) -> None:
    lines = clients("send", topic)
    ids = {line.split()[1] for line in lines if line.startswith("SENT ")}
    with Raw(serving.addresses["rocketmq"]) as raw:
        wait_until(lambda: len(read_all(raw, topic)) == len(BODIES))
        found = {each.body.decode(): each for each in read_all(raw, topic)}
    assert set(found) == BODIES
    properties = {body: read_properties(each.properties) for body, each in found.items()}
    first = properties["sync-0"]
    assert (first["TAGS"], set(first["KEYS"].split()), first["color"]) == ("even", {"key0", "all"}, "blå")
    assert {properties[f"sync-{number}"]["UNIQ_KEY"] for number in range(3)} == ids
    (due,) = (int(line.split()[1]) for line in lines if line.startswith("DUE "))
    assert found["later"].store_ms >= due


def test_transactions_end_or_are_asked_about(clients: Clients, serving: ServeProcess, topic: str) -> None:
    lines = clients("transactions", topic, "yes")
    assert {"ASKED yes-left", "ASKED other-left"} <= set(lines)
    with Raw(serving.addresses["rocketmq"]) as raw:
        wait_until(lambda: len(read_all(raw, topic)) == 2)
        assert {each.body for each in read_all(raw, topic)} == {b"committed", b"yes-left"}


def got(lines: list[str]) -> list[Got]:
    return [Got(*line[4:].split("|", 7)) for line in lines if line.startswith("GOT ")]


def test_simple_and_push_consumers(clients: Clients, topic: str) -> None:
    clients("send", topic)
    found = got(clients("simple", f"{topic}-simple", topic, "*", len(BODIES)))
    assert {each.body for each in found} == BODIES
    (first,) = (each for each in found if each.body == "sync-0")
    assert (first.tag, first.keys, first.color, first.attempt) == ("even", "all,key0", "blå", "1")
    tagged = got(clients("simple", f"{topic}-tags", topic, "even || none", 2))
    assert {each.body for each in tagged} == {"sync-0", "sync-2"}
    pushed = got(clients("push", f"{topic}-push", topic, "*", len(BODIES)))
    assert {each.body for each in pushed} == BODIES


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_what_fails_comes_again(clients: Clients, serving: ServeProcess, topic: str, kind: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        for body in (b"again", b"one"):
            raw.sent(topic, body, properties={"UNIQ_KEY": uuid4().hex.upper()})
        settings = {"groupName": f"{topic}-g", "retryMaxTimes": 2}
        raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())
        found = got(clients(kind, f"{topic}-g", topic, "*", 3))
        assert sorted((each.body, each.attempt) for each in found) == [("again", "1"), ("again", "2"), ("one", "1")]
        if kind == "push":
            raw.sent(topic, b"dead", properties={"UNIQ_KEY": uuid4().hex.upper()})
            dead = got(clients(kind, f"{topic}-g", topic, "*", 3))
            assert [(each.body, each.attempt) for each in dead] == [("dead", "1"), ("dead", "2"), ("dead", "3")]
            wait_until(lambda: list(raw.read(f"%DLQ%{topic}-g")))


def test_priorities(clients: Clients, serving: ServeProcess, topic: str) -> None:
    fields = {
        "topic": topic,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "attributes": "+message.type=PRIORITY",
    }
    with Raw(serving.addresses["rocketmq"]) as raw:
        raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields)
        clients("priorities", topic)
        assert [[each.body for each in raw.read(topic, queue=queue)] for queue in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert [each.body for each in got(clients("simple", f"{topic}-g", topic, "*", 3))] == ["2", "1", "0"]


def test_an_orderly_group(clients: Clients, serving: ServeProcess, topic: str) -> None:
    with Raw(serving.addresses["rocketmq"]) as raw:
        settings = {"groupName": f"{topic}-g", "consumeMessageOrderly": True}
        raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())
    clients("fifo", topic, 30)
    found = got(clients("push", f"{topic}-g", topic, "*", 30))
    for number in range(3):
        in_order = [int(each.body) for each in found if each.group == f"group-{number}"]
        assert in_order == list(range(number, 30, 3))
