"""A real nsqd on loopback, where `NSQD` gives its path. All stays in memory, as its own benchmarks have it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time

from bench.peers import Missing, free_port
from bench.peers.process import Process


class Nsqd(Process):
    """Raises Missing where there is none."""

    name = "nsqd"
    wire = "nsq"

    def __init__(self) -> None:
        super().__init__()
        given = os.environ.get("NSQD", "")
        if not given:
            raise Missing("NSQD is not set (the Go proxy does not serve nsq). Set NSQD=path of an nsqd.")
        if not os.access(given, os.X_OK):
            raise Missing(f"NSQD is {given}, which cannot be run")
        self._path = given
        printed = subprocess.run([given, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
        found = re.search(r"v(\S+)", printed)
        self.version = found[1] if found else "of unknown version"
        self.http_port = 0

    def start(self) -> float:
        folder = self.make_folder()
        self.port, self.http_port = free_port(), free_port()
        begin = time.monotonic()
        self.run(
            [
                self._path,
                f"--tcp-address=127.0.0.1:{self.port}",
                f"--http-address=127.0.0.1:{self.http_port}",
                "--broadcast-address=127.0.0.1",
                f"--data-path={folder}",
                "--mem-queue-size=20000000",
                "--log-level=warn",
            ]
        )
        self.wait_until(self._accepts)
        return time.monotonic() - begin

    def _accepts(self) -> bool:
        for port in (self.port, self.http_port):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
