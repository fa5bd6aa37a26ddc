from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bench import peers

ANOTHER = """
import itertools, random, sys
from bench import peers
kept, free = int(sys.argv[1]), int(sys.argv[2])
random.randrange = lambda *_, ports=itertools.chain([kept] * 3, [free]): next(ports)
print(peers.free_port())
"""


@pytest.fixture(autouse=True)
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(peers, "_kept", [])
    yield
    for each in peers._kept:
        os.close(each)


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = peers.free_port(), peers.free_port()
    ports = iter([first, first, second])
    with monkeypatch.context() as patch:
        patch.setattr(random, "randrange", lambda *_: next(ports))
        with pytest.raises(StopIteration):
            peers.free_port()
    third = peers.free_port()
    os.close(peers._kept.pop())
    asked = [sys.executable, "-c", ANOTHER, str(first), str(third)]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{third}\n"


def test_a_server_finds_its_port_free_again_and_again() -> None:
    port = peers.free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getpeername()[1] == port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
