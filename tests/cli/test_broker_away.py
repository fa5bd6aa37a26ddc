"""Commands that run for long, while their broker is away: they say so, go on, and end when they are told to."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve_process import SECONDS, ServeProcess
from tests.waiting import wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path / "data") as serving:
        yield serving


class RunningCommand:
    """A command, with what it has printed so far."""

    def __init__(self, broker: ServeProcess, folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / f"{arguments[0]}.out", folder / f"{arguments[0]}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", *arguments, "--bootstrap", broker.kafka],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> list[str]:
        return self._out.read_text().split()

    @property
    def err(self) -> list[str]:
        return self._err.read_text().splitlines()

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def end_input(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(SECONDS)

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(SECONDS)


def create(broker: ServeProcess, tmp_path: Path) -> None:
    with RunningCommand(broker, tmp_path, "topic", "create", "t") as command:
        assert command.end_input() == 0


def test_they_say_that_it_is_away_and_back(broker: ServeProcess, tmp_path: Path) -> None:
    create(broker, tmp_path)
    with RunningCommand(broker, tmp_path, "produce", "t") as produce:
        produce.write("one\n")
        with RunningCommand(broker, tmp_path, "consume", "t", "--follow") as consume:
            wait_until(lambda: consume.out == ["one"], lambda: str((consume.out, consume.err)))
            broker.kill()
            produce.write("two\n")
            for command in (produce, consume):
                wait_until(lambda command=command: len(command.err) == 1, lambda: "nothing was said")  # type: ignore[misc]
                [line] = command.err
                assert line.startswith("headrace: cannot reach ")
                assert line.endswith("; waiting for it")
            broker.start()
            wait_until(lambda: consume.out == ["one", "two"], lambda: str((consume.out, consume.err, produce.err)))
            assert produce.end_input() == 0
            assert consume.interrupt() == 130
            for command in (produce, consume):
                assert len(command.err) == 2
                assert command.err[1].startswith("headrace: the broker is back after ")


@pytest.mark.parametrize(
    "arguments",
    [("consume", "t", "--follow"), ("consume", "t", "--follow", "--group", "g"), ("produce", "t")],
    ids=["consume", "consume as a group", "produce"],
)
def test_they_end_while_it_is_away(broker: ServeProcess, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    create(broker, tmp_path)
    with RunningCommand(broker, tmp_path, "produce", "t") as produce:
        produce.write("one\n")
        assert produce.end_input() == 0
    with RunningCommand(broker, tmp_path, *arguments) as command:
        command.write("two\n")
        if arguments[0] == "consume":
            wait_until(lambda: command.out == ["one"])
        else:
            with RunningCommand(broker, tmp_path, "consume", "t", "--follow", "--count", "2") as consume:
                assert consume.end_input() == 0
        broker.kill()
        command.write("three\n")
        wait_until(lambda: bool(command.err))
        began = time.monotonic()
        code = command.interrupt()
        assert time.monotonic() - began < 10
        if "g" in arguments and code == 1:
            assert command.err[-1].startswith("headrace: the last printed messages are not committed for group g: ")
        else:
            assert (code, len(command.err)) == (130, 1), command.err
