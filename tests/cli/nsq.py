"""A consumer of a queue in a few lines, over the NSQ door: it takes messages, and finishes them or gives them back."""

from __future__ import annotations

import socket
from struct import unpack
from typing import Any

MESSAGE = 2


class NsqConsumer:
    """One subscription; a `with` block ends it."""

    def __init__(self, address: str, topic: str, queue: str, credit: int = 100, seconds: float = 20) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._file = self._socket.makefile("rb")
        try:
            self._socket.sendall(f"  V2SUB {topic} {queue}\n".encode())
            assert self._frame() == (0, b"OK")
            self.say(f"RDY {credit}")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> NsqConsumer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()
        self._socket.close()

    def say(self, command: str) -> None:
        self._socket.sendall(command.encode() + b"\n")

    def next(self) -> tuple[str, bytes]:
        """Id and body of the next message."""
        while True:
            kind, data = self._frame()
            if kind == MESSAGE:
                return data[10:26].decode(), data[26:]
            assert data == b"_heartbeat_", data
            self.say("NOP")

    def _frame(self) -> tuple[int, bytes]:
        size, kind = unpack(">ii", self._file.read(8))
        return kind, self._file.read(size - 4)
