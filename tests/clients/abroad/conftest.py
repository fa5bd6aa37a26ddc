"""A broker, and the clients that are to be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clients.abroad.clients import Client
from tests.clients.building import go_program, node_program
from tests.serve_process import ServeProcess

HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for all tests: they name their topics and groups apart."""
    with ServeProcess(tmp_path_factory.mktemp("abroad") / "data") as serving:
        yield serving.kafka
        # A clean stop is part of what is tested.
        serving.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test's own."""
    return "".join(letter if letter.isalnum() else "." for letter in request.node.name).strip(".")


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    go_program(HERE / "go", folder, "./franz", "./sarama")
    return folder


@pytest.fixture(scope="session")
def kafkajs(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("node")
    return Client("kafkajs", node_program(HERE / "node", folder), ["none", "gzip", "snappy"], cwd=folder)


def _go(program: str) -> Callable[[pytest.FixtureRequest], Client]:
    def find(request: pytest.FixtureRequest) -> Client:
        folder = request.getfixturevalue("go_programs")
        return Client(program, [f"{folder}/{program}"], ["none", "gzip", "snappy", "lz4", "zstd"])

    return find


FIND: dict[str, Callable[[pytest.FixtureRequest], Client]] = {
    "franz": _go("franz"),
    "sarama": _go("sarama"),
    "kafkajs": lambda request: request.getfixturevalue("kafkajs"),
}


@pytest.fixture(
    params=[
        pytest.param("franz", marks=pytest.mark.go),
        pytest.param("sarama", marks=pytest.mark.go),
        pytest.param("kafkajs", marks=pytest.mark.node),
    ]
)
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the clients."""
    return FIND[request.param](request)
