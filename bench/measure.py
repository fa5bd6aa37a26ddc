"""One measurement: generators are made ready, the server's CPU time is read, they go, and it is read again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers import Server, cpu_between, cpu_of_all

SECONDS = 300
# A server that takes less than this share of a core has nothing to do; how long that is waited for.
IDLE = 0.03
LOOK_SECONDS = 0.25
SETTLE_SECONDS = 15.0


@dataclass(frozen=True)
class Measured:
    """What the generators say, and the CPU time that the server took meanwhile."""

    results: list[dict[str, Any]]
    server_cpu: float

    @property
    def seconds(self) -> float:
        return float(max(result["seconds"] for result in self.results))

    @property
    def saturated(self) -> bool:
        """A generator was busy nearly all the time: the rate may be its own."""
        return any(result["generator_cpu"] > 0.9 * result["seconds"] for result in self.results)

    def total(self, what: str) -> int:
        return sum(result.get(what, 0) for result in self.results)


class Generator:
    """A load generator's process."""

    def __init__(self, peer: Server, load: str, **spec: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", load], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(json.dumps({"host": "127.0.0.1", "port": peer.port, **spec}))
        self._hear()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a load generator failed; its words are above")
        return line

    def go(self) -> None:
        self._say("go")

    def result(self) -> dict[str, Any]:
        return dict(json.loads(self._hear()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def settle(pids: Sequence[int]) -> None:
    """Wait until the server has nothing left to do of what came before, such as giving back the room of a topic."""
    until = time.monotonic() + SETTLE_SECONDS
    before = cpu_of_all(pids)
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        now = cpu_of_all(pids)
        if cpu_between(before, now) < IDLE * LOOK_SECONDS:
            return
        before = now


def measure(peer: Server, *specs: dict[str, Any], load: str = "bench.load") -> Measured:
    """All these loads at once on one server, started in this order; `load` is the generator's module."""
    generators: list[Generator] = []
    try:
        generators.extend(Generator(peer, load, **spec) for spec in specs)
        # What the last server left to write must not slow this one down, nor what this one still has to tidy up.
        os.sync()
        settle(peer.pids)
        before = cpu_of_all(peer.pids)
        for generator in generators:
            generator.go()
        results = [generator.result() for generator in reversed(generators)][::-1]
        return Measured(results, cpu_between(before, cpu_of_all(peer.pids)))
    finally:
        for generator in generators:
            generator.close()
