"""`python -m bench.floor`: what a small request costs where there is no broker.

A server that does only what the operating system must do for an acknowledged request: it reads what has come, appends
the bytes to a file, and sends a reply of fixed bytes. It parses, checks and remembers nothing. Measured beside Headrace
under the same load, it shows how much of a request's CPU is the machine's own, mostly the waking of the other side, and
how much is left to win. One such server stands on uvloop, as Headrace does; the other is the bare system calls.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import report
from bench.measure import measure
from bench.peers import free_port
from bench.peers.headrace import Headrace
from bench.peers.process import Process
from bench.rows import FULL, Row, small_figures, small_produce, small_spec

# As many bytes as the reply to a Produce request for one partition has.
REPLY = (70).to_bytes(4) + bytes(70)
BUFFER_BYTES = 65_536
ROUNDS = 3


class Floor(Process):
    """One of the servers below, in a process of its own."""

    version = ""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name = name
        self._kind = kind

    def start(self) -> float:
        folder = self.make_folder()
        self.port = free_port()
        begin = time.monotonic()
        self.run([sys.executable, "-m", "bench.floor", self._kind, str(self.port), str(folder / "file")])
        self.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None)
        return time.monotonic() - begin


class AckConnection(asyncio.BufferedProtocol):
    """A connection of the server on uvloop."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._write = transport.write

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        os.write(self._file, self._buffer[:nbytes])
        self._write(REPLY)


async def serve_on_uvloop(port: int, file: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: AckConnection(file), "127.0.0.1", port)
    await server.serve_forever()


def serve_bare(port: int, file: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                made, _ = listener.accept()
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[made.fileno()] = made
                poll.register(made, select.EPOLLIN)
                continue
            try:
                if data := connections[number].recv(BUFFER_BYTES):
                    os.write(file, data)
                    connections[number].send(REPLY)
                    continue
            except ConnectionError:
                pass
            poll.unregister(number)
            connections.pop(number).close()


def serve(kind: str, port: int, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if kind == "bare":
        serve_bare(port, file)
    else:
        import uvloop

        uvloop.run(serve_on_uvloop(port, file))


def main() -> None:
    console = Console()
    headrace = Headrace()
    floors = [Floor("on uvloop", "uvloop"), Floor("bare calls", "bare")]
    table = report.Table([headrace, *floors])
    for server in (headrace, *floors):
        server.start()
    try:
        for _ in range(ROUNDS):
            for connections in (1, 64):
                row = Row(str(connections), f"{connections} at a time", small_produce(connections))
                table.add(row, headrace, row.run(headrace, FULL))
                spec = small_spec(["bench-0001-00"], 6, FULL, connections, 1, False)
                for floor in floors:
                    table.add(row, floor, small_figures(measure(floor, spec)))
    finally:
        for server in (headrace, *floors):
            server.stop()
    console.print(table.rich())


if __name__ == "__main__":
    if len(sys.argv) == 4:
        serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
