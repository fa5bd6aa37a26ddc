"""Planners of streams are forked from one that has loaded PySpark, and are what Spark would have started itself."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.pipeline.interpreter import interpreter
from headrace.pipeline.launcher import NAME, PID, PLANNER

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
pytest.importorskip("pyspark")

# Stands where the JVM does: starts a planner and hands on what is asked of it.
JVM = """
import subprocess, sys
for line in sys.stdin:
    port = line.strip()
    child = subprocess.Popen([sys.argv[1], "-m", sys.argv[2]], env={**__import__("os").environ,
        "PYTHON_WORKER_FACTORY_PORT": port, "PYTHON_WORKER_FACTORY_SECRET": "open", "PORT_TOLD": port})
    print(child.pid, flush=True)
"""


class Jvm:
    def __init__(self) -> None:
        self.started = subprocess.Popen(
            [sys.executable, "-c", JVM, interpreter(), PLANNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(30)

    def planner(self) -> tuple[int, int, socket.socket]:
        """A new planner: the process that was started, the one that came, and what it is asked by."""
        assert self.started.stdin is not None
        assert self.started.stdout is not None
        print(self._listening.getsockname()[1], file=self.started.stdin, flush=True)
        launched = int(self.started.stdout.readline())
        asked, _ = self._listening.accept()
        asked.settimeout(30)
        (size,) = struct.unpack(">i", asked.recv(4, socket.MSG_WAITALL))
        assert asked.recv(size, socket.MSG_WAITALL) == b"open"
        asked.sendall(struct.pack(">i", 2) + b"ok")
        (pid,) = struct.unpack(">i", asked.recv(4, socket.MSG_WAITALL))
        return launched, pid, asked

    def end(self) -> None:
        self.started.kill()
        self.started.communicate(timeout=30)
        self._listening.close()


@pytest.fixture
def jvm() -> Iterator[Jvm]:
    interpreter.cache_clear()
    started = Jvm()
    yield started
    started.end()
    interpreter.cache_clear()


def within(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def has_ended(pid: int, seconds: float = 30) -> bool:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def test_later_planners_are_copies_of_the_first(jvm: Jvm) -> None:
    folder = Path(interpreter()).parent
    launched, pid, first = jvm.planner()
    # The first is the process that was started.
    assert pid == launched
    assert within((folder / PID).exists)
    nursery = int((folder / PID).read_text())

    launched, pid, asked = jvm.planner()
    assert pid != launched
    assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == nursery
    # It writes where the process that was started would.
    for standard in (0, 1, 2):
        assert os.readlink(f"/proc/{pid}/fd/{standard}") == os.readlink(f"/proc/{launched}/fd/{standard}")
    assert not [each for each in os.scandir(f"/proc/{pid}/fd") if "lock" in os.readlink(each.path)]

    # Spark goes, and both processes go.
    asked.close()
    assert has_ended(pid)
    assert has_ended(launched)

    # Spark ends what it has started, and that ends the planner.
    launched, pid, asked = jvm.planner()
    os.kill(launched, signal.SIGTERM)
    assert has_ended(pid)
    first.close()

    jvm.started.kill()
    assert has_ended(nursery)
    assert not (folder / NAME).exists()


def test_a_nursery_that_has_died_is_replaced(jvm: Jvm) -> None:
    folder = Path(interpreter()).parent
    _, _, first = jvm.planner()
    assert within((folder / PID).exists)
    before = int((folder / PID).read_text())
    _, copy, second = jvm.planner()
    os.kill(before, signal.SIGKILL)
    assert has_ended(before)
    launched, pid, third = jvm.planner()
    assert pid == launched
    assert within(lambda: int((folder / PID).read_text()) != before)
    # What was copied from the last one lives on.
    assert not has_ended(copy, 0)
    for asked in (first, second, third):
        asked.close()
