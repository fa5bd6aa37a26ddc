"""Brokers with NSQ's doors open, and the clients that are to be had."""

from __future__ import annotations

import itertools
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.peers import free_port
from tests.clients.building import go_program, node_program
from tests.clients.nsq.clients import PATIENCE, Client
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Doors:
    """Where a broker listens."""

    kafka: str
    nsq: str
    http: str
    lookup_http: str
    management: str
    """The broker's own HTTP door."""

    def set_queue(self, topic: str, channel: str, **settings: object) -> None:
        """Change settings that NSQ's commands cannot say."""
        asked = urllib.request.Request(
            f"http://{self.management}/v1/topics/{topic}/queues/{channel}",
            method="PATCH",
            data=json.dumps({"settings": settings}).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(asked, timeout=PATIENCE).close()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as reply:
            return json.loads(reply.read())

    def ask(self, path: str) -> None:
        """Have nsqd's HTTP side do something."""
        asked = urllib.request.Request(f"http://{self.http}{path}", method="POST")
        urllib.request.urlopen(asked, timeout=PATIENCE).close()

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """What /stats says of a channel; nothing where it does not exist."""
        for each in self.get("/stats?format=json")["topics"]:
            if each["topic_name"] == topic:
                for found in each["channels"]:
                    if found["channel_name"] == channel:
                        return dict(found)
        return {}

    def wait_for_clients(self, topic: str, channel: str, count: int = 1) -> None:
        """Until so many are subscribed."""
        wait_until(
            lambda: self.channel(topic, channel).get("client_count", 0) == count,
            lambda: f"{self.channel(topic, channel)}",
        )

    def wait_until_settled(self, topic: str, channel: str) -> None:
        def settled() -> bool:
            found = self.channel(topic, channel)
            return bool(found) and not found["depth"] + found["in_flight_count"] + found["deferred_count"]

        wait_until(settled, lambda: f"{self.channel(topic, channel)}")


@dataclass(frozen=True)
class NsqServing:
    """A broker process with NSQ's doors at ports that it keeps when it is started again."""

    serving: ServeProcess
    doors: Doors


def nsq_serving(data: Path, *flags: str) -> NsqServing:
    names = ("--nsq", "--nsq-http", "--lookup", "--lookup-http", "--http")
    ports = {door: f"127.0.0.1:{free_port()}" for door in names}
    serving = ServeProcess(data, *itertools.chain.from_iterable(ports.items()), *flags)
    doors = Doors(
        kafka=serving.kafka,
        nsq=ports["--nsq"],
        http=ports["--nsq-http"],
        lookup_http=ports["--lookup-http"],
        management=ports["--http"],
    )
    return NsqServing(serving, doors)


@pytest.fixture(scope="package")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """One broker for all tests that do not harm it: they name their topics apart."""
    made = nsq_serving(tmp_path_factory.mktemp("nsq") / "data")
    with made.serving:
        yield made.doors
        # A clean stop is part of what is tested.
        made.serving.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, within NSQ's 64 characters."""
    name: str = request.node.name
    letters = "".join(letter if letter.isalnum() else "." for letter in name).strip(".")
    return letters[-60:]


@pytest.fixture(scope="session")
def go_nsq(tmp_path_factory: pytest.TempPathFactory) -> Client:
    program = tmp_path_factory.mktemp("go") / "client"
    go_program(HERE / "go", program, ".")
    return Client("go-nsq", [str(program)])


@pytest.fixture(scope="session")
def nsqjs(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("node")
    return Client("nsqjs", node_program(HERE / "node", folder), cwd=folder)


def _pynsq(_: pytest.FixtureRequest) -> Client:
    return Client("pynsq", [sys.executable, str(HERE / "pynsq_client.py")])


def _gnsq(_: pytest.FixtureRequest) -> Client:
    return Client("gnsq", [sys.executable, str(HERE / "gnsq_client.py")])


FIND: dict[str, Callable[[pytest.FixtureRequest], Client]] = {
    "pynsq": _pynsq,
    "gnsq": _gnsq,
    "go-nsq": lambda request: request.getfixturevalue("go_nsq"),
    "nsqjs": lambda request: request.getfixturevalue("nsqjs"),
}
ALL = [
    "pynsq",
    "gnsq",
    pytest.param("go-nsq", marks=pytest.mark.go),
    pytest.param("nsqjs", marks=pytest.mark.node),
]


@pytest.fixture(params=ALL)
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the clients."""
    return FIND[request.param](request)


@pytest.fixture
def pynsq(request: pytest.FixtureRequest) -> Client:
    return FIND["pynsq"](request)
