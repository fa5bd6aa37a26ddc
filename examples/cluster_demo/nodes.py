"""Three `headrace serve` processes and an etcd, all on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import free_port
from bench.peers.etcd import EtcdPeers

from headrace.errors import HeadraceError

NAME = "demo"
SECONDS = 60.0
DOORS_OFF = ("nsq", "nsq-http", "lookup", "lookup-http", "http", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc")


class Node:
    """One node of the group. It keeps its ports through all its lives."""

    def __init__(self, number: int, cluster: str, folder: Path) -> None:
        self.number = number
        self.kafka = f"127.0.0.1:{free_port()}"
        self.log = folder / f"node{number}.log"
        self._command = [
            *(sys.executable, "-P", "-m", "headrace.cli", "serve", "--data", str(folder / f"node{number}")),
            *("--cluster", cluster, "--node-id", str(number), "--peer", f"127.0.0.1:{free_port()}"),
            *("--kafka", self.kafka),
        ]
        for door in DOORS_OFF:
            self._command += [f"--{door}", "off"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return once its doors accept."""
        with self.log.open("a") as log:
            # Ctrl-C is for the demo, which then stops its nodes.
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("ready "):
            raise HeadraceError(f"node {self.number} did not start: look into {self.log}")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.wait(SECONDS)

    def end(self) -> None:
        """Stop it if it runs, however it is."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.wait()


class Cluster:
    """An etcd and the nodes of a group."""

    def __init__(self, folder: Path) -> None:
        self.etcd = EtcdPeers(1, folder / "etcd")
        self.url = f"etcd://{self.etcd.members[0].address}/{NAME}"
        self.nodes = {number: Node(number, self.url, folder) for number in (1, 2, 3)}

    def __enter__(self) -> Cluster:
        self.etcd.start()
        self.etcd.wait()
        self.command("init", *map(str, self.nodes))
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.end()
        self.etcd.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes.values())

    def command(self, *arguments: str) -> str:
        """What `headrace cluster` prints."""
        line = [sys.executable, "-P", "-m", "headrace.cli", "cluster", arguments[0], "--cluster", self.url]
        done = subprocess.run([*line, *arguments[1:]], capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise HeadraceError(f"headrace cluster {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def group(self) -> dict[str, Any]:
        """The group's record, as `headrace cluster status --json` has it."""
        found: dict[str, Any] = json.loads(self.command("status", "--json"))["group"]
        return found

    def leader(self, in_sync: int, is_it: Callable[[int], bool] = lambda _: True) -> tuple[int, int]:
        """The node that leads and its epoch, once that is the one that is waited for and so many are in sync."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            group = self.group()
            leader = group["leader"]
            if leader is not None and len(group["isr"]) >= in_sync and is_it(leader["node"]):
                return leader["node"], group["epoch"]
            time.sleep(0.05)
        raise HeadraceError(f"no such leader with {in_sync} in sync after {SECONDS:.0f} s: {self.command('status')}")
