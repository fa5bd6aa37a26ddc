"""A Spark cluster of two workers on loopback, and a Spark Connect server, from the PySpark distribution.

    python -m bench.peers.spark [--connect]

runs a cluster until it is stopped and prints its address, which `headrace pipeline NAME --master` takes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import READY_SECONDS, Missing, end, free_port
from bench.peers.jars import java

# They live for minutes and do little themselves.
DAEMONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class _Processes:
    """Classes of Spark that run beside each other, with what they say in a folder."""

    def __init__(self) -> None:
        java()
        try:
            import pyspark
        except ImportError:
            raise Missing("there is no PySpark: pip install 'headrace[pipeline]'") from None
        self._home = Path(pyspark.__file__).parent
        self._running: list[subprocess.Popen[bytes]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-spark-"))

    def _start(self, name: str, *command: str, host: str = "127.0.0.1", memory: str = "256m") -> Path:
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": DAEMONS,
            "PYSPARK_PYTHON": sys.executable,
        }
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            self._running.append(
                subprocess.Popen(
                    [str(self._home / "bin" / "spark-class"), *command],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=self.folder,
                )
            )
        return log

    def _wait_for(self, log: Path, words: str) -> None:
        until = time.monotonic() + READY_SECONDS
        while words not in log.read_text(errors="replace"):
            if time.monotonic() > until or any(each.poll() is not None for each in self._running):
                raise RuntimeError(f"{log.stem} did not log {words!r}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        # Workers end their executors.
        for each in reversed(self._running):
            end(each)
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster(_Processes):
    """A standalone master and its workers. Raises Missing where there is no Java or no PySpark."""

    def __init__(self, workers: int = 2, memory: str = "1g") -> None:
        super().__init__()
        self._workers = workers
        self._memory = memory
        self.master = ""

    def start(self) -> None:
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        log = self._start("master", "org.apache.spark.deploy.master.Master", *address)
        self._wait_for(log, "I have been elected leader")
        waiting = []
        for number in range(self._workers):
            # Each a host of its own: Spark starts no second attempt of a task on the host that has the first.
            host = f"127.0.0.{number + 1}"
            size = ("--cores", "1", "--memory", self._memory, "--work-dir", str(self.folder / f"worker-{number}"))
            worker = ("--host", host, "--webui-port", "0", *size, self.master)
            waiting.append(self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *worker, host=host))
        for log in waiting:
            self._wait_for(log, "Successfully registered with master")

    def words(self, name: str) -> str:
        """What the executors have written to a file (`stderr`, `stdout`)."""
        return "\n".join(path.read_text(errors="replace") for path in self.folder.rglob(name))


class Connect(_Processes):
    """A Spark Connect server: `--master sc://...`."""

    def __init__(self, master: str = "local[2]") -> None:
        super().__init__()
        self._on = master
        self.master = ""

    def start(self, conf: Sequence[str] = ()) -> None:
        port = free_port()
        self.master = f"sc://127.0.0.1:{port}"
        settings = [
            f"spark.connect.grpc.binding.port={port}",
            "spark.connect.grpc.binding.address=127.0.0.1",
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.ui.enabled=false",
            *conf,
        ]
        log = self._start(
            "connect",
            "org.apache.spark.deploy.SparkSubmit",
            *("--master", self._on),
            *(each for setting in settings for each in ("--conf", setting)),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
            memory="1g",
        )
        self._wait_for(log, "Spark Connect server started")


def main() -> None:
    try:
        running = Cluster() if "--connect" not in sys.argv else Connect()
    except Missing as reason:
        sys.exit(str(reason))
    try:
        running.start()
        print(f"--master {running.master}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        running.stop()


if __name__ == "__main__":
    # Before the first thread: a shell that starts it in the background may have them ignored.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
