"""Three nodes on one machine that copy each other's messages: a group of Headrace with its etcd, and a Kafka."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from bench.peers import end, free_port, has_metadata
from bench.peers.etcd import EtcdPeers
from bench.peers.kafka import HEAP, Kafka, raise_limit
from bench.peers.process import Process

NODES = (1, 2, 3)

PROPERTIES = """\
process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
"""


class Nodes(Process):
    """What both have in common: node 1 leads all partitions, until it is killed."""

    replicas = NODES

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[int, int] = {}

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._running]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def kill_leader(self) -> None:
        """kill -9 of node 1."""
        self._running[0].send_signal(signal.SIGKILL)
        self._running[0].wait()

    @contextmanager
    def silent_leader(self) -> Iterator[None]:
        """SIGSTOP of node 1: its connections stay open, and nothing comes, as from a machine that was cut off."""
        self._running[0].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._running[0].send_signal(signal.SIGCONT)

    def stop_last(self) -> None:
        """Node 3 stops, and loses its disk."""
        end(self._running[-1])
        shutil.rmtree(self.folder / str(NODES[-1]))

    def start_last(self) -> None:
        """Node 3 begins again with nothing."""
        self._running.pop()
        self._start(NODES[-1])

    def _start(self, node: int) -> None:
        """Begin one node."""
        raise NotImplementedError


class HeadraceGroup(Nodes):
    """Raises Missing where there is no etcd. The CPU time of etcd counts, too."""

    name = "Headrace"
    version = version("headrace")
    # A group syncs every frame, also those of `async` topics.
    durable = {"sync": {"durability": "sync"}, "async": {"durability": "async"}}  # noqa: RUF012

    def start(self) -> float:
        folder = self.make_folder()
        self._etcd = EtcdPeers(1, folder / "etcd")
        self._etcd.start()
        self._etcd.wait()
        url = f"etcd://{self._etcd.members[0].address}/bench"
        command = [sys.executable, "-m", "headrace.cli"]
        beginning = [*command, "cluster", "init", "--cluster", url, *map(str, NODES)]
        subprocess.run(beginning, check=True, stdout=subprocess.DEVNULL)
        self._url = url
        begin = time.monotonic()
        for node in NODES:
            self.ports[node] = free_port()
            self._start(node)
        self.port = self.ports[1]
        status = [*command, "cluster", "status", "--json", "--cluster", url]
        self.wait_until(lambda: _is_whole(subprocess.run(status, check=True, capture_output=True).stdout))
        self.wait_until(lambda: all(has_metadata(port, len(NODES)) for port in self.ports.values()))
        return time.monotonic() - begin

    def _start(self, node: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        flags = ["--cluster", self._url, "--node-id", str(node), "--peer", f"127.0.0.1:{free_port()}"]
        flags += ["--data", str(self.folder / str(node)), "--kafka", f"127.0.0.1:{self.ports[node]}"]
        for door in ("http", "nsq", "nsq-http", "lookup", "lookup-http", "rocketmq", "rocketmq-namesrv"):
            flags += [f"--{door}", "off"]
        flags += ["--rocketmq-grpc", "off", "--log-level", "warning"]
        self.run([sys.executable, "-m", "headrace.cli", "serve", *flags], env=environment)

    @property
    def pids(self) -> list[int]:
        return [*super().pids, *(each.process.pid for each in self._etcd.members if each.process is not None)]

    def stop(self) -> None:
        if self.port:
            self._etcd.stop()
        super().stop()


def _is_whole(status: bytes) -> bool:
    """Whether the first node leads, and all are in sync."""
    group = json.loads(status)["group"]
    return group["leader"] is not None and group["leader"]["node"] == NODES[0] and len(group["isr"]) == len(NODES)


class KafkaGroup(Nodes, Kafka):
    """Raises Missing where there is no Java or no way to Kafka's jars."""

    def __init__(self) -> None:
        Nodes.__init__(self)
        Kafka.__init__(self)

    def start(self) -> float:
        folder = self.make_folder()
        controllers = {node: free_port() for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        self._identity = self._tool("random-uuid").strip().splitlines()[-1]
        begin = time.monotonic()
        for node in NODES:
            self.ports[node] = free_port()
            properties = folder / f"{node}.properties"
            properties.write_text(
                PROPERTIES.format(
                    node=node,
                    port=self.ports[node],
                    controller=controllers[node],
                    voters=voters,
                    data=folder / str(node),
                )
            )
            self._start(node)
        self.port = self.ports[1]
        self.wait_until(lambda: all(has_metadata(port, len(NODES)) for port in self.ports.values()))
        return time.monotonic() - begin

    def _start(self, node: int) -> None:
        properties = str(self.folder / f"{node}.properties")
        self._tool("format", "-t", self._identity, "-c", properties)
        command = [self._java, *HEAP, "-cp", self._classpath, "kafka.Kafka", properties]
        self.run(command, cwd=self.folder, preexec_fn=raise_limit)
