"""`headrace serve --console`: a child that is there when the broker says so, comes back, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.addresses import parse_address
from headrace.cli.console_process import ConsoleProcess
from headrace.config import Config
from headrace.errors import ConfigError


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def is_free(address: str) -> bool:
    place = parse_address(address)
    assert place is not None
    with socket.socket() as probe:
        return probe.connect_ex(place) != 0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_is_there_when_the_broker_is_ready_and_is_started_again(tmp_path: Path) -> None:
    flags = ("--http", "127.0.0.1:0", "--console", "127.0.0.1:0")
    with ServeProcess(tmp_path / "data", *flags) as broker:
        address = broker.addresses["console"]
        assert answers(address)
        assert (tmp_path / "data-console" / "history.db").exists()
        (child,) = children(broker.pid)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: children(broker.pid) not in ([], [child]) and answers(address))
        broker.stop()
        assert is_free(address)


def test_it_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--console", "127.0.0.1:0") as broker:
        address = broker.addresses["console"]
        broker.kill()
        wait_until(lambda: is_free(address))


@pytest.mark.parametrize(
    ("settings", "addresses", "words"),
    [
        ({"console": "127.0.0.1:0"}, {}, "needs the HTTP door"),
        (
            {"console": "127.0.0.1:0", "http_tls": True, "tls_cert": "c", "tls_key": "k"},
            {"http": "127.0.0.1:1"},
            "--ca",
        ),
    ],
)
def test_what_it_cannot_be_started_for(settings: dict[str, object], addresses: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConsoleProcess(Config(**settings), addresses)
