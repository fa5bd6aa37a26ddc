"""A server as a process, with its data and its words in a folder that goes when it stops."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.peers import READY_SECONDS, end


class Process:
    """What all servers that are measured have in common."""

    name: str
    replicas: Sequence[int] = ()
    """The nodes that have each partition, the leader first; none where there is one."""

    def __init__(self) -> None:
        self.port = 0
        # What the server needs beside it, and the server last.
        self._running: list[subprocess.Popen[bytes]] = []
        self._folder: Path | None = None

    @property
    def pid(self) -> int:
        return self._running[-1].pid

    @property
    def pids(self) -> list[int]:
        """The processes whose work is the server's."""
        return [self.pid]

    @property
    def folder(self) -> Path:
        """Where its data lies."""
        assert self._folder is not None
        return self._folder

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / "log"

    def make_folder(self) -> Path:
        """A new one."""
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        return self._folder

    def run(self, command: list[str], **settings: Any) -> None:
        """Begin a process."""
        with self.log.open("ab") as out:
            self._running.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **settings)
            )

    def wait_until(self, ready: Callable[[], object]) -> None:
        """Return when it is ready: `ready` returns something true, and raises no OSError."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if (code := self._running[-1].poll()) is not None:
                raise RuntimeError(f"{self.name} ended with {code}: {self.log.read_text()[-2000:]}")
            try:
                if ready():
                    return
            except OSError:
                pass
            time.sleep(0.005)
        raise TimeoutError(f"{self.name} is not ready after {READY_SECONDS} s: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop and forget all data."""
        while self._running:
            end(self._running.pop())
        self.port = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
