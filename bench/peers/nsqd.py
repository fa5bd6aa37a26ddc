"""A real nsqd on loopback, where `NSQD` gives its path. All stays in memory, as its own benchmarks have it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers import READY_SECONDS, Missing, end, free_port


class Nsqd:
    """Raises Missing where there is none."""

    name = "nsqd"
    wire = "nsq"

    def __init__(self) -> None:
        given = os.environ.get("NSQD", "")
        if not given:
            raise Missing("NSQD does not say where one is (the Go proxy does not serve nsq; give NSQD=path)")
        if not os.access(given, os.X_OK):
            raise Missing(f"NSQD is {given}, which cannot be run")
        self._path = given
        said = subprocess.run([given, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
        found = re.search(r"v(\S+)", said)
        self.version = found[1] if found else "of unknown version"
        self.port = self.http_port = 0
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
        self._folder = folder = Path(tempfile.mkdtemp(prefix="bench-nsqd-"))
        self.port, self.http_port = free_port(), free_port()
        log = folder / "log"
        begin = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    self._path,
                    f"--tcp-address=127.0.0.1:{self.port}",
                    f"--http-address=127.0.0.1:{self.http_port}",
                    "--broadcast-address=127.0.0.1",
                    f"--data-path={folder}",
                    "--mem-queue-size=20000000",
                    "--log-level=warn",
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        while time.monotonic() < begin + READY_SECONDS:
            if self._process.poll() is not None:
                raise RuntimeError(f"nsqd ended with {self._process.returncode}: {log.read_text()[-2000:]}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                    return time.monotonic() - begin
            except OSError:
                time.sleep(0.005)
        raise TimeoutError(f"nsqd is not ready after {READY_SECONDS} s: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None
            self.port = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
