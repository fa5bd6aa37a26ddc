"""Kafka's own Java tools, as processes, against a Headrace broker in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers import jars
from tests.serve_process import ServeProcess

SECONDS = 90


class Java:
    """Runs the main classes of Kafka's jars."""

    def __init__(self) -> None:
        self._java = jars.java()
        self._classpath = jars.classpath()

    def command(self, main: str, *arguments: str) -> list[str]:
        # The tools live for seconds: the first compiler is enough, and starts faster.
        return [self._java, "-XX:TieredStopAtLevel=1", "-cp", self._classpath, main, *arguments]

    def __call__(self, main: str, *arguments: str, given: str = "") -> str:
        """Run to the end; what it said. Fails where it failed."""
        done = subprocess.run(
            self.command(main, *arguments), input=given, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{main} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, main: str, *arguments: str) -> subprocess.Popen[str]:
        """Run beside the test."""
        return subprocess.Popen(
            self.command(main, *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


@pytest.fixture(scope="session")
def java() -> Java:
    try:
        return Java()
    except jars.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def broker(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """One broker for a module: tests name their topics and groups apart."""
    folder: Path = tmp_path_factory.mktemp("java")
    with ServeProcess(folder / "data") as serving:
        yield serving
        # A clean stop is part of what is tested.
        serving.stop()
