"""Headrace as users start it: `headrace serve`, in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from typing import TypeVar

from bench.peers import free_port, has_metadata
from bench.peers.process import Process

Kind = TypeVar("Kind", bound="Headrace")


class Headrace(Process):
    name = "Headrace"
    version = version("headrace")
    durable = {"sync": {"durability": "sync"}, "async": {"durability": "async"}}  # noqa: RUF012

    def __init__(self, name: str = "Headrace", python: str = sys.executable) -> None:
        super().__init__()
        self.name = name
        self._python = python

    def start(self) -> float:
        folder = self.make_folder()
        self.port = kafka = free_port()
        arguments = ["--data", str(folder / "data"), "--kafka", f"127.0.0.1:{kafka}", "--http", "127.0.0.1:0"]
        arguments += self._doors()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        # A start that compiles every module anew happens once to each installation.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # A door that is not measured would take a fixed port.
        doors = (
            "NSQ",
            "NSQ_HTTP",
            "NSQ_HTTPS",
            "LOOKUP",
            "LOOKUP_HTTP",
            "ROCKETMQ",
            "ROCKETMQ_NAMESRV",
            "ROCKETMQ_GRPC",
        )
        environment |= {f"HEADRACE_{door}": "off" for door in doors}
        begin = time.monotonic()
        self.run([self._python, "-m", "headrace.cli", "serve", *arguments, "--log-level", "warning"], env=environment)
        self.wait_until(lambda: has_metadata(kafka))
        taken = time.monotonic() - begin
        # Kafka's door opens first; the last one is open when it logs so.
        self.wait_until(lambda: b"ready" in self.log.read_bytes())
        return taken

    def _doors(self) -> list[str]:
        """Flags of the doors beside Kafka's."""
        return []


class HeadraceQueues(Headrace):
    """The same with NSQ's doors open, and measured through them."""

    wire = "nsq"
    http_port = 0

    def _doors(self) -> list[str]:
        self.port, self.http_port = free_port(), free_port()
        return ["--nsq", f"127.0.0.1:{self.port}", "--nsq-http", f"127.0.0.1:{self.http_port}"]


def versions(kind: type[Kind], python: str) -> list[Kind]:
    """This version, another one that is installed for a Python, and this one again: how far a figure of one version is
    from itself is what a difference between two has to exceed."""
    return [kind(), kind("other version", python), kind("itself")]
