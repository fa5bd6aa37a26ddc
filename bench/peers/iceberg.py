"""Iceberg's own REST catalogue on loopback, over a catalogue in SQLite and an S3-compatible store."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from bench.peers import end, free_port, jars
from bench.peers.process import Process
from bench.peers.s3 import HEAP, PLAIN, S3

# Java runs a source without a compilation of its own.
SOURCE = Path(__file__).with_name("IcebergRest.java")


class IcebergRest(Process):
    """Raises Missing where there is no Java or no way to the jars."""

    name = "Iceberg's REST catalogue"
    version = jars.ICEBERG

    def __init__(self, store: S3, warehouse: str) -> None:
        super().__init__()
        self._java = jars.java()
        self._classpath = jars.iceberg_rest()
        self._store = store
        self._warehouse = warehouse

    def start(self) -> None:
        self.make_folder()
        self.port = free_port()
        self.restart()

    def kill(self) -> None:
        """End it at once; what its catalogue has stays."""
        self._running[-1].send_signal(signal.SIGKILL)
        end(self._running.pop())

    def restart(self) -> None:
        """Begin, or begin again, on the same port and the same catalogue."""
        reach = self._store.options
        command = [self._java, *HEAP, "-cp", self._classpath, str(SOURCE), str(self.port)]
        command += [str(self.folder / "catalog.db"), self._warehouse, reach["AWS_ENDPOINT_URL"]]
        self.run(command, env={**os.environ, **reach, **PLAIN})
        self.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() is None)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"
