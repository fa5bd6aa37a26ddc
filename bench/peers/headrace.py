"""Headrace as users start it: `headrace serve`, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bench.peers import READY_SECONDS, end, free_port, wait_until_ready


class Headrace:
    name = "Headrace"
    version = version("headrace")
    durable = {"sync": {"durability": "sync"}, "async": {"durability": "async"}}  # noqa: RUF012

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Where its data lies."""
        assert self._folder is not None
        return self._folder

    def start(self) -> float:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="bench-headrace-"))
        self.port = kafka = free_port()
        log = folder / "log"
        arguments = ["--data", str(folder / "data"), "--kafka", f"127.0.0.1:{kafka}", "--http", "127.0.0.1:0"]
        arguments += self._doors()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        # A start that compiles every module anew is not what anybody would see twice.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # A door that is not measured would take a fixed port.
        environment |= {f"HEADRACE_{door}": "off" for door in ("NSQ", "NSQ_HTTP", "NSQ_HTTPS", "LOOKUP", "LOOKUP_HTTP")}
        begin = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", "serve", *arguments, "--log-level", "warning"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        wait_until_ready(self._process, kafka, log)
        taken = time.monotonic() - begin
        # Kafka's door opens first; the last one is open when it says so.
        until = time.monotonic() + READY_SECONDS
        while b"ready" not in log.read_bytes():
            if time.monotonic() > until:
                raise TimeoutError(f"not all doors are open after {READY_SECONDS} s: {log.read_text()[-2000:]}")
            time.sleep(0.005)
        return taken

    def _doors(self) -> list[str]:
        """Flags of the doors beside Kafka's."""
        return []

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None
            self.port = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class HeadraceQueues(Headrace):
    """The same with NSQ's doors open, and measured through them."""

    wire = "nsq"
    http_port = 0

    def _doors(self) -> list[str]:
        self.port, self.http_port = free_port(), free_port()
        return ["--nsq", f"127.0.0.1:{self.port}", "--nsq-http", f"127.0.0.1:{self.http_port}"]
