"""The door of `docs/adding-a-door.md` works, and keeps what every door promises."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tests.doors.adapter import Client, Consumer, Delivery, DoorRefused
from tests.doors.conformance import Conformance
from tests.waiting import SECONDS

DOOR = Path(__file__).parents[2] / "examples" / "line_door.py"


class Lines:
    """One connection, of lines both ways."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._file = self._socket.makefile("rb")

    def send(self, *words: str) -> None:
        self._socket.sendall(" ".join(words).encode() + b"\n")

    def read(self) -> list[str]:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("closed")
        return line.decode().rstrip("\n").split(" ")

    def ask(self, *words: str) -> None:
        self.send(*words)
        answer = self.read()
        if answer != ["OK"]:
            raise DoorRefused(" ".join(answer))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LineClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._lines: Lines | None = None

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        self.publish_all(topic, [value])

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        if self._lines is None:
            self._lines = Lines(self.address)
        self._lines.ask("PUB", topic, *map(quote_from_bytes, values))

    def close(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            try:
                lines.close()
            except OSError:
                pass


class LineConsumer(Consumer):
    def __init__(self, address: str, topic: str, queue: str) -> None:
        self._lines = Lines(address)
        self._lines.ask("SUB", topic, queue, "1")

    def take(self) -> Delivery:
        kind, number, attempt, text = self._lines.read()
        assert kind == "MSG"
        return Delivery(unquote_to_bytes(text), int(attempt), number)

    def finish(self, delivery: Delivery) -> None:
        self._lines.send("FIN", delivery.handle)

    def requeue(self, delivery: Delivery) -> None:
        self._lines.send("REQ", delivery.handle)

    def close(self) -> None:
        self._lines.close()


class TestLine(Conformance):
    door = "line"
    flags = ("--line", "127.0.0.1:0")
    program = (str(DOOR),)
    client = LineClient
    consumer = LineConsumer
    errors: ClassVar = {
        "not allowed": "NotAuthorized",
        "full": "TopicFull",
        "too large": "BatchTooLarge",
        "bad name": "InvalidTopic",
        "own topic": "InvalidTopic",
    }
    lacks: ClassVar = {
        "partitions": "its lines have none",
        "delay": "its lines have no times",
        "deduplication": "its lines have no ids",
    }
    idle_flags = ("--connections-idle-ms", "300")

    def greedy(self, topic: str) -> bytes:
        return f"SUB {topic} q 1000\n".encode()


def test_it_stays_short():
    assert len(DOOR.read_text().splitlines()) < 200
