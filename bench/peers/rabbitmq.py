"""A real RabbitMQ of one node on loopback, with its name, its data and its port mapper apart from any other here."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

from bench.peers import Missing, free_port
from bench.peers.process import Process

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


class RabbitMq(Process):
    """Raises Missing where there is none."""

    name = "RabbitMQ"
    wire = "amqp"
    http_port = 0

    def __init__(self) -> None:
        super().__init__()
        self._script = _script()
        epmd = shutil.which("epmd")
        if epmd is None:
            raise Missing("RabbitMQ is here, and Erlang's epmd is not on the path")
        self._epmd = epmd
        self.version = _version(self._script)

    def start(self) -> float:
        folder = self.make_folder()
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
        begin = time.monotonic()
        self.run([self._epmd, "-port", str(mapper)], env=environment)
        self.run([self._script], env=environment)
        self.wait_until(self._answers)
        return time.monotonic() - begin

    def _answers(self) -> bool:
        """Whether it answers a protocol header with its first method."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
            sock.sendall(b"AMQP\x00\x00\x09\x01")
            return sock.recv(1) == b"\x01"


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
