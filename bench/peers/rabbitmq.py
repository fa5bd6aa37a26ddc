"""A real RabbitMQ of one node on loopback, with its name, its data and its port mapper apart from any other here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers import READY_SECONDS, Missing, end, free_port

# The package's own script, without the wrapper that changes the user.
PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
# A queue that is full of a benchmark's messages must not look like a machine that is out of memory or disk.
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 50MB
"""


class RabbitMq:
    """Raises Missing where there is none."""

    name = "RabbitMQ"
    wire = "amqp"
    http_port = 0

    def __init__(self) -> None:
        self._script = _script()
        epmd = shutil.which("epmd")
        if epmd is None:
            raise Missing("RabbitMQ is here, and Erlang's epmd is not on the path")
        self._epmd = epmd
        self.version = _version(self._script)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._mapper: subprocess.Popen[bytes] | None = None
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
        self._folder = folder = Path(tempfile.mkdtemp(prefix="bench-rabbitmq-"))
        self.port = free_port()
        mapper = free_port()
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (folder / "plugins").write_text("[].\n")
        environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder),
            # Schedulers that spin while they wait would be charged for it, and here they share two cores with the load.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        log = folder / "log"
        begin = time.monotonic()
        with log.open("wb") as out:
            self._mapper = subprocess.Popen(
                [self._epmd, "-port", str(mapper)], stdout=out, stderr=subprocess.STDOUT, env=environment
            )
            self._process = subprocess.Popen(
                [self._script], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
            )
        self._wait(log)
        return time.monotonic() - begin

    def _wait(self, log: Path) -> None:
        """Until it answers a protocol header with its first method."""
        assert self._process is not None
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"RabbitMQ ended with {self._process.returncode}: {log.read_text()[-2000:]}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
                    sock.sendall(b"AMQP\x00\x00\x09\x01")
                    if sock.recv(1) == b"\x01":
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError(f"RabbitMQ is not ready after {READY_SECONDS} s: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        for process in (self._process, self._mapper):
            if process is not None:
                end(process)
        self._process = self._mapper = None
        self.port = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _script() -> str:
    if given := os.environ.get("RABBITMQ"):
        if not os.access(given, os.X_OK):
            raise Missing(f"RABBITMQ is {given}, which cannot be run")
        return given
    for place in PLACES:
        if os.access(place, os.X_OK):
            return place
    raise Missing("there is no RabbitMQ: install Debian's rabbitmq-server, or give the path of its script in RABBITMQ")


def _version(script: str) -> str:
    """From the folder that the script lives in, as `rabbitmq_server-3.10.8`."""
    for part in Path(script).resolve().parts:
        if part.startswith("rabbitmq_server-"):
            return part.partition("-")[2]
    return "of unknown version"
