"""A group of `headrace serve` processes with a real etcd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers import free_port
from bench.peers.etcd import EtcdPeers
from tests.cluster.machines import Machines
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

NAME = "test"
HEADRACE = ("-m", "headrace.cli")


class GroupProcesses:
    """Nodes of a group, `first` and those that follow, as processes of their own."""

    def __init__(
        self,
        peers: EtcdPeers,
        folder: Path,
        *flags: str,
        first: int = 1,
        count: int = 3,
        program: Sequence[str] = HEADRACE,
        etcd: Sequence[str] = (),
        machines: Machines | None = None,
        init: Sequence[str] = (),
    ) -> None:
        """`etcd`: flags of nodes and of commands, for an etcd that asks who they are. `machines`: each node runs on one
        of its own, `n1` and so on. `init`: more of `headrace cluster init`."""
        scheme = "etcds" if peers.members[0].client_url.startswith("https") else "etcd"
        self.url = f"{scheme}://{','.join(member.address for member in peers.members)}/{NAME}"
        self._etcd = etcd
        self._init = init
        self.nodes: dict[int, ServeProcess] = {}
        self.peers: dict[int, str] = {}
        """Where nodes listen for each other."""
        for number in range(first, first + count):
            machine = None if machines is None else machines[f"n{number}"]
            host = "127.0.0.1" if machine is None else machine.address
            peer = self.peers[number] = f"{host}:{free_port()}"
            own: tuple[str, ...] = (
                *etcd,
                "--cluster",
                self.url,
                "--node-id",
                str(number),
                "--peer",
                peer,
                "--rack",
                f"r{number}",
            )
            data = folder / f"n{number}" if machine is None else machine.disk / "data"
            under = () if machine is None else machine.under
            node = self.nodes[number] = ServeProcess(data, *own, *flags, under=under, program=program, host=host)
            node.log = folder / f"n{number}.stderr"

    def __enter__(self) -> GroupProcesses:
        self.command("init", *map(str, self.nodes), *self._init)
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        for node in self.nodes.values():
            if node.runs:
                node.kill()
        if not failed:
            assert not [words for node in self.nodes.values() if "Traceback" in (words := node.words())]

    @property
    def kafka(self) -> str:
        """Where Kafka's clients begin."""
        return ",".join(node.kafka for node in self.nodes.values())

    def words(self) -> str:
        """The last of what the nodes logged."""
        return "\n".join(node.words()[-1500:] for node in self.nodes.values())

    def command(self, *arguments: str) -> str:
        """What `headrace cluster` prints."""
        line = [sys.executable, "-m", "headrace.cli", "cluster", arguments[0]]
        line += ["--cluster", self.url, *self._etcd, *arguments[1:]]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command("status", "--json"))
        return found

    def wait_leader(self, in_sync: int, *, other_than: int | None = None) -> int:
        """The node that leads, once it is another one and so many are in sync."""

        found: list[int] = []

        def leads() -> bool:
            group = self.status()["group"]
            leader = group["leader"]
            if leader is not None and leader["node"] != other_than and len(group["isr"]) >= in_sync:
                found.append(leader["node"])
            return bool(found)

        wait_until(leads, self.words)
        return found[0]
