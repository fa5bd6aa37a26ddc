"""RocketMQ's own client for Node, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.clients.building import node_program
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.test_send import read_all
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.messages import read_properties

pytestmark = pytest.mark.node

LIMIT = 4 * SECONDS


class Node:
    """Runs the program against a broker."""

    def __init__(self, command: list[str], folder: Path, address: str) -> None:
        self._command = command
        self._folder = folder
        self._address = address

    def __call__(self, work: str, topic: str, group: str = "g") -> list[dict[str, Any]]:
        command = [*self._command, work, self._address, topic, group]
        # It logs into the user's home.
        environment = {**os.environ, "HOME": str(self._folder)}
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, f"{work}\n{done.stdout}\n{done.stderr}"
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    folder = tmp_path_factory.mktemp("node")
    return node_program(Path(__file__).parent / "node", folder), folder


@pytest.fixture
def node(program: tuple[list[str], Path], broker: headrace.Broker) -> Node:
    return Node(*program, broker.rocketmq_grpc)


def test_every_kind_of_message(node: Node, raw: Raw, topic: str) -> None:
    first, second = node("send", topic)
    assert second == {"recalled": True}
    wait_until(lambda: len(read_all(raw, topic)) == 3)
    found = {each.body: read_properties(each.properties) for each in read_all(raw, topic)}
    assert found.keys() == {b"normal", b"fifo", b"later"}
    normal = found[b"normal"]
    assert (normal["TAGS"], normal["KEYS"], normal["color"], normal["UNIQ_KEY"]) == ("red", "k", "blue", first["id"])
    assert found[b"fifo"]["__SHARDINGKEY"] == "g"


def test_transactions_end_or_are_asked_about(node: Node, raw: Raw, topic: str) -> None:
    assert node("transactions", topic) == [{"asked": ["asked", "given up"]}]
    wait_until(lambda: len(read_all(raw, topic)) == 2)
    assert {each.body for each in read_all(raw, topic)} == {b"committed", b"asked"}


@pytest.mark.parametrize("work", ["simple", "sql"])
def test_simple_consumer(node: Node, topic: str, group: str, work: str) -> None:
    node("many", topic)
    found = {each["body"]: each["attempt"] for each in node(work, topic, group)}
    assert found == {"0": 1, "2": 2, "4": 1}


def test_push_consumer(node: Node, topic: str, group: str) -> None:
    node("many", topic)
    found = {each["body"]: (each["attempt"], each["tag"]) for each in node("push", topic, group)}
    wanted = {str(number): (1, "odd" if number % 2 else "even") for number in range(6)}
    assert found == wanted | {"3": (2, "odd")}
