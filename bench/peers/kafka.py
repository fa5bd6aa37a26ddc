"""A real Apache Kafka of one node (KRaft, broker and controller in one process) on loopback."""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers import end, free_port, jars, wait_until_ready

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


class Kafka:
    """Raises Missing where there is no Java or no way to Kafka's jars."""

    name = "Apache Kafka"
    version = jars.VERSION
    # With flush.messages=1 Kafka syncs before it acknowledges, which no default of it does.
    durable = {"sync": {"flush.messages": "1"}, "async": {}}  # noqa: RUF012

    def __init__(self) -> None:
        self._java = jars.java()
        self._classpath = jars.classpath()
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
        self.port = free_port()
        properties = folder / "server.properties"
        properties.write_text(PROPERTIES.format(port=self.port, controller=free_port(), data=folder / "data"))
        identity = self._tool("random-uuid").strip().splitlines()[-1]
        self._tool("format", "-t", identity, "-c", str(properties))
        log = folder / "log"
        begin = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [self._java, *HEAP, "-cp", self._classpath, "kafka.Kafka", str(properties)],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                # A descriptor for each partition.
                preexec_fn=_raise_limit,
            )
        wait_until_ready(self._process, self.port, log)
        return time.monotonic() - begin

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

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None
            self.port = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
