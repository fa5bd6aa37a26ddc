"""A broker as a process of its own, for tests that look at it from outside: kill it, trace it, read its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers import free_port

SECONDS = 30.0
# Several brokers run at once in tests, and a door that a test does not look at would take a fixed port.
DOORS = ("NSQ", "NSQ_HTTP", "NSQ_HTTPS", "LOOKUP", "LOOKUP_HTTP", "ROCKETMQ", "ROCKETMQ_NAMESRV", "ROCKETMQ_GRPC")
CLOSED = {f"HEADRACE_{door}": "off" for door in DOORS}


class ServeProcess:
    """`headrace serve` on a data directory; it keeps its port when it is started again."""

    def __init__(
        self,
        data: Path,
        *flags: str,
        under: Sequence[str] = (),
        program: Sequence[str] = ("-m", "headrace.cli"),
        host: str = "127.0.0.1",
    ) -> None:
        self.data = data
        self.log = data.with_suffix(".stderr")
        """What it logs."""
        self.kafka = f"{host}:{free_port()}"
        self.addresses: dict[str, str] = {}
        """Of the doors that are open, by their names."""
        self._flags = flags
        self._under = under
        """A command that runs the broker, such as a tracer."""
        self._program = program
        """What Python runs: `headrace`, or a program that takes its arguments and adds a door."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServeProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def runs(self) -> bool:
        """Whether it was started, and not ended from here."""
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Begin, and return when it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Begin."""
        command = [sys.executable, *self._program, "serve", "--data", str(self.data), "--kafka", self.kafka]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | CLOSED
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._under, *command, "--http", "off", *self._flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def wait_ready(self) -> None:
        """Return when its doors accept."""
        assert self._process is not None
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words[:1] == ["ready"], self.words()
        self.addresses = dict(word.split("=") for word in words[1:])
        self.kafka = self.addresses["kafka"]

    def words(self) -> str:
        """What the broker logged, the last of it."""
        return self.log.read_text()[-4000:]

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash of the process would."""
        assert self._process is not None
        self._process.kill()
        self._wait()

    def stop(self) -> None:
        """Stop it cleanly."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._wait() == 0, self.words()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._wait()

    def _wait(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        try:
            process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode
