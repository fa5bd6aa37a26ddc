"""A real Apache Kafka of one node (KRaft, broker and controller in one process) on loopback."""

from __future__ import annotations

import resource
import subprocess
import time

from bench.peers import free_port, has_metadata, jars
from bench.peers.process import Process

PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
"""
HEAP = ["-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]


class Kafka(Process):
    """Raises Missing where there is no Java or no way to Kafka's jars."""

    name = "Apache Kafka"
    version = jars.VERSION
    # With flush.messages=1 Kafka syncs before it acknowledges, which no default of it does.
    durable = {"sync": {"flush.messages": "1"}, "async": {}}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._java = jars.java()
        self._classpath = jars.classpath()

    def start(self) -> float:
        folder = self.make_folder()
        self.port = free_port()
        properties = folder / "server.properties"
        text = PROPERTIES.format(port=self.port, controller=free_port(), data=folder / "data")
        properties.write_text(text + self._further_properties())
        identity = self._tool("random-uuid").strip().splitlines()[-1]
        self._tool("format", "-t", identity, "-c", str(properties))
        begin = time.monotonic()
        self.run(
            [self._java, *HEAP, "-cp", self._classpath, "kafka.Kafka", str(properties)],
            cwd=folder,
            # A descriptor for each partition.
            preexec_fn=raise_limit,
        )
        self.wait_until(lambda: has_metadata(self.port))
        return time.monotonic() - begin

    def _further_properties(self) -> str:
        """Those of its own, which replace others of the same name."""
        return ""

    def _tool(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._java, "-cp", self._classpath, "kafka.tools.StorageTool", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"StorageTool {arguments[0]} failed: {done.stdout}{done.stderr}")
        return done.stdout


def raise_limit() -> None:
    """Let a process that is about to begin open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
