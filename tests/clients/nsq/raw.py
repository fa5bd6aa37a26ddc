"""NSQ's protocol by hand, for what no client shows: whether a FIN has arrived, and the extension.

A FIN that succeeds has no answer. But commands are taken in order, and a FIN of a message that is not in flight is
answered with E_FIN_FAILED: behind a run of FINs it is a fence.

As a program (`python -m tests.clients.nsq.raw ADDRESS TOPIC CHANNEL`) it consumes until it is killed, connecting again
as often as it must, and says `["got", body, attempts, time]` for every delivery and `["done", body, time]` once its FIN
is behind a fence. The times are of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from dataclasses import dataclass

RESPONSE, ERROR, MESSAGE = 0, 1, 2
NOWHERE = b"FIN zzzzzzzzzzzzzzzz\n"
HEARTBEAT = b"_heartbeat_"

Headers = list[tuple[str, bytes | None]]


class NsqError(Exception):
    """The broker's error frame."""


@dataclass(frozen=True)
class Delivery:
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Raw:
    """One connection."""

    def __init__(self, address: str, **identify: object) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        wishes = {"client_id": "raw", "feature_negotiation": True, "output_buffer_timeout": 25, **identify}
        self._sock.sendall(b"  V2")
        self.send("IDENTIFY", body=json.dumps(wishes).encode())
        self.features = json.loads(self.response())

    def close(self) -> None:
        self._sock.close()

    def send(self, *words: object, body: bytes | None = None) -> None:
        line = " ".join(str(word) for word in words).encode() + b"\n"
        self._sock.sendall(line if body is None else line + len(body).to_bytes(4) + body)

    def send_raw(self, data: bytes) -> None:
        self._sock.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while True:
            size, kind = struct.unpack(">ii", self._exactly(8))
            data = self._exactly(size - 4)
            if (kind, data) != (RESPONSE, HEARTBEAT):
                return kind, data
            self._sock.sendall(b"NOP\n")

    def answer_heartbeat(self) -> None:
        """Wait for the next frame, which must be a heartbeat, and answer it."""
        size, kind = struct.unpack(">ii", self._exactly(8))
        assert (kind, self._exactly(size - 4)) == (RESPONSE, HEARTBEAT)
        self._sock.sendall(b"NOP\n")

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            more = self._sock.recv(1 << 16)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._buffer += more
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def response(self) -> bytes:
        kind, data = self.frame()
        if kind == ERROR:
            raise NsqError(data.decode())
        assert kind == RESPONSE, data
        return data

    def ask(self, *words: object, body: bytes | None = None) -> bytes:
        self.send(*words, body=body)
        return self.response()

    def mpub(self, topic: str, bodies: list[bytes]) -> None:
        packed = b"".join(len(each).to_bytes(4) + each for each in bodies)
        assert self.ask("MPUB", topic, body=len(bodies).to_bytes(4) + packed) == b"OK"

    def subscribe(self, topic: str, channel: str, ready: int) -> None:
        assert self.ask("SUB", topic, channel) == b"OK"
        self.send("RDY", ready)

    def delivery(self) -> Delivery:
        kind, data = self.frame()
        if kind == ERROR:
            raise NsqError(data.decode())
        assert kind == MESSAGE, data
        return delivery(data)


def delivery(data: bytes) -> Delivery:
    timestamp, attempts = struct.unpack(">qH", data[:10])
    return Delivery(timestamp, attempts, data[10:26], data[26:])


def extended(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """A message under the extension: the end of a Kafka record, from its key on."""
    packed = _bytes(key) + _bytes(value) + _varint(len(headers))
    return packed + b"".join(_bytes(name.encode()) + _bytes(value) for name, value in headers)


def unpack(data: bytes) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of a message under the extension."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            each = data[at]
            at += 1
            value |= (each & 0x7F) << shift
            shift += 7
            if each < 0x80:
                return (value >> 1) ^ -(value & 1)

    def text() -> bytes | None:
        nonlocal at
        size = number()
        if size < 0:
            return None
        at += size
        return data[at - size : at]

    key, value = text(), text()
    headers = [((text() or b"").decode(), text()) for _ in range(number())]
    assert at == len(data)
    return key, value, headers


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def say(what: str, *more: object) -> None:
    print(json.dumps([what, *more, time.monotonic()]), flush=True)


def consume(address: str, topic: str, channel: str) -> None:
    """Until the connection breaks."""
    raw = Raw(address)
    raw.subscribe(topic, channel, 20)
    # What each fence that is under way stands behind.
    fences: list[list[bytes]] = []
    held: list[bytes] = []
    while True:
        kind, data = raw.frame()
        if kind == ERROR:
            if not data.startswith(b"E_FIN_FAILED"):
                raise NsqError(data.decode())
            for body in fences.pop(0):
                say("done", body.decode())
            continue
        assert kind == MESSAGE, data
        each = delivery(data)
        say("got", each.body.decode(), each.attempts)
        held.append(each.body)
        fence = NOWHERE if not fences else b""
        if fence:
            fences.append(held)
            held = []
        raw.send_raw(b"FIN " + each.id + b"\n" + fence)


def main() -> None:
    while True:
        try:
            consume(*sys.argv[1:])
        except OSError:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
