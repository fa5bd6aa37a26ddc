"""What a load generator sends on NSQ's wire and on AMQP's, and how it reads the answers, by the buffer.

All messages of a load have one size, and so have their frames. That is what lets interpreted Python keep up with a
server: the ids of a buffer full of messages are columns of a table, and slices with a step move a column into the
acknowledgements without looking at any one message.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Protocol

BODY_BYTES = 100
STAMP_BYTES = 8
"""At the beginning of a body: when it was sent, in the loads that measure time."""
TIMEOUT = 60.0


class Confirms(Protocol):
    """Counts the messages that a server has confirmed on one connection."""

    def feed(self, data: bytes) -> int:
        """How many more are confirmed by this; raises where the server refused."""


class Deliveries(Protocol):
    """Reads the messages of one subscription."""

    body_at: int
    frame_bytes: int

    def feed(self, data: bytes) -> tuple[int, bytes | bytearray]:
        """How many messages came whole with this, and what acknowledges them."""

    redelivered: int
    held: bytes
    """The whole frames of the last feed, for those who read bodies."""


class Wire(Protocol):
    """One connection of a protocol, past its greetings."""

    sock: socket.socket

    def publishes(self, topic: str, count: int) -> bytes:
        """A request, or what comes nearest to it, with so many messages."""

    def stamp_at(self, topic: str) -> int:
        """Where the body begins in a request with one message."""

    def confirms(self, each: int) -> Confirms:
        """Of requests with so many messages each."""

    def subscribe(self, topic: str, requeue: bool = False) -> Deliveries:
        """With `requeue`, what comes for the first time is sent back, to come again."""

    def ready(self, credit: int) -> None:
        """Let the server send, with so many unacknowledged at a time."""

    def leave(self) -> None:
        """Return when the server has worked through all that was acknowledged."""


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        more = sock.recv(size - len(got))
        if not more:
            raise ConnectionError("the server closed the connection")
        got += more
    return bytes(got)


def columns(frames: bytes, size: int, begin: int, width: int, answers: bytearray, step: int, at: int) -> None:
    """Copy `width` bytes of every frame into every answer."""
    for each in range(width):
        answers[at + each :: step] = frames[begin + each :: size]


class Nsq:
    """NSQ's protocol V2."""

    CHANNEL = "bench"
    OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"

    def __init__(self, port: int, buffered: bool = True) -> None:
        self.sock = connect(port)
        wishes: dict[str, object] = {
            "client_id": "bench",
            "feature_negotiation": True,
            # All frames of a subscription have one size. Consumers cannot refuse heartbeats, but no load lasts so long.
            "heartbeat_interval": 60_000,
            "msg_timeout": 600_000,
        }
        if not buffered:
            wishes |= {"output_buffer_size": -1, "output_buffer_timeout": -1}
        identify = json.dumps(wishes).encode()
        self.sock.sendall(b"  V2IDENTIFY\n" + len(identify).to_bytes(4) + identify)
        self._response()

    def _response(self) -> bytes:
        size, kind = struct.unpack(">ii", exactly(self.sock, 8))
        answer = exactly(self.sock, size - 4)
        if kind:
            raise RuntimeError(f"the server answered with an error: {answer!r}")
        return answer

    def publishes(self, topic: str, count: int) -> bytes:
        body = bytes(BODY_BYTES)
        if count == 1:
            return b"PUB %s\n" % topic.encode() + len(body).to_bytes(4) + body
        messages = count.to_bytes(4) + (len(body).to_bytes(4) + body) * count
        return b"MPUB %s\n" % topic.encode() + len(messages).to_bytes(4) + messages

    def stamp_at(self, topic: str) -> int:
        return len(f"PUB {topic}\n") + 4

    def confirms(self, each: int) -> NsqConfirms:
        return NsqConfirms(each)

    def subscribe(self, topic: str, requeue: bool = False) -> NsqDeliveries:
        self.sock.sendall(f"SUB {topic} {self.CHANNEL}\n".encode())
        self._response()
        return NsqDeliveries(requeue)

    def ready(self, credit: int) -> None:
        self.sock.sendall(b"RDY %d\n" % credit)

    def leave(self) -> None:
        """Commands are taken in order, so the answer to CLS comes after all FINs before it."""
        self.sock.setblocking(True)
        self.sock.settimeout(TIMEOUT)
        self.sock.sendall(b"CLS\n")
        tail = b""
        while b"CLOSE_WAIT" not in tail:
            more = self.sock.recv(1 << 20)
            if not more:
                raise ConnectionError("the server closed the connection")
            tail = tail[-16:] + more


class NsqConfirms:
    """Every answer is OK, ten bytes."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._at = 0
        self._pattern = Nsq.OK * 110_000

    def feed(self, data: bytes) -> int:
        if data != self._pattern[self._at : self._at + len(data)]:
            raise RuntimeError(f"the server answered something else than OK: {data[:200]!r}")
        whole, self._at = divmod(self._at + len(data), len(Nsq.OK))
        return whole * self._each


class NsqDeliveries:
    """Size, frame type, time, attempts, id, body."""

    body_at = 4 + 4 + 8 + 2 + 16
    frame_bytes = body_at + BODY_BYTES

    def __init__(self, requeue: bool = False) -> None:
        self._rest = b""
        self._requeue = requeue
        self.held = b""
        self.redelivered = 0

    def feed(self, data: bytes) -> tuple[int, bytes | bytearray]:
        data = self._rest + data
        size = self.frame_bytes
        count = len(data) // size
        self.held, self._rest = data[: count * size], data[count * size :]
        frames = self.held
        if frames[3::size] != b"%c" % (size - 4) * count or frames[7::size] != b"\x02" * count:
            raise RuntimeError(f"another frame came between the messages: {frames[:200]!r}")
        self.redelivered += count - frames[17::size].count(1)
        if self._requeue:
            ids = [frames[at + 18 : at + 34] for at in range(0, count * size, size)]
            firsts = [attempts == 1 for attempts in frames[17::size]]
            return count, b"".join(
                b"REQ %s 0\n" % each if first else b"FIN %s\n" % each for each, first in zip(ids, firsts, strict=True)
            )
        answers = bytearray(b"FIN 0123456789abcdef\n" * count)
        columns(frames, size, 18, 16, answers, 21, 4)
        return count, answers


def shortstr(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def method(channel: int, kind: int, number: int, arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", kind, number) + arguments
    return frame(1, channel, payload)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class Amqp:
    """AMQP 0-9-1 with one channel: durable queues, persistent messages, publisher confirms."""

    def __init__(self, port: int, buffered: bool = True) -> None:
        self.sock = connect(port)
        self._topic = ""
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(10, 10)
        start_ok = bytes(4) + shortstr("PLAIN") + (12).to_bytes(4) + b"\x00guest\x00guest" + shortstr("en_US")
        self.sock.sendall(method(0, 10, 11, start_ok))
        tuned = self._expect(10, 30)
        channels, largest, _ = struct.unpack(">HIH", tuned)
        # No heartbeats: all frames of a subscription have one size.
        self.sock.sendall(method(0, 10, 31, struct.pack(">HIH", channels, largest, 0)))
        self.sock.sendall(method(0, 10, 40, shortstr("/") + b"\x00\x00"))
        self._expect(10, 41)
        self._ask(20, 10, b"\x00")
        self._confirming = False

    def _expect(self, kind: int, number: int) -> bytes:
        """The arguments of the method that must come next."""
        _, _, size = struct.unpack(">BHI", exactly(self.sock, 7))
        payload = exactly(self.sock, size + 1)[:-1]
        if struct.unpack(">HH", payload[:4]) != (kind, number):
            raise RuntimeError(f"the server answered with {payload!r} instead of method {kind}.{number}")
        return payload[4:]

    def _ask(self, kind: int, number: int, arguments: bytes) -> bytes:
        self.sock.sendall(method(1, kind, number, arguments))
        return self._expect(kind, number + 1)

    def declare(self, topic: str) -> int:
        """Make a durable queue if it is missing; how many messages are ready in it."""
        answer = self._ask(50, 10, b"\x00\x00" + shortstr(topic) + b"\x02" + bytes(4))
        return int(struct.unpack(">II", answer[-8:])[0])

    def delete(self, topic: str) -> None:
        self._ask(50, 40, b"\x00\x00" + shortstr(topic) + b"\x00")

    def publishes(self, topic: str, count: int) -> bytes:
        if not self._confirming:
            self._ask(85, 10, b"\x00")
            self._confirming = True
        return self._publish(topic) * count

    def _publish(self, topic: str) -> bytes:
        # Content header: class, weight, body size, the delivery mode alone, 2 for persistent.
        header = struct.pack(">HHQHB", 60, 0, BODY_BYTES, 0x1000, 2)
        publish = method(1, 60, 40, b"\x00\x00" + shortstr("") + shortstr(topic) + b"\x00")
        return publish + frame(2, 1, header) + frame(3, 1, bytes(BODY_BYTES))

    def stamp_at(self, topic: str) -> int:
        return len(self._publish(topic)) - 1 - BODY_BYTES

    def confirms(self, each: int) -> AmqpConfirms:
        return AmqpConfirms()

    def subscribe(self, topic: str, requeue: bool = False) -> AmqpDeliveries:
        self._topic = topic
        return AmqpDeliveries(topic, requeue)

    def ready(self, credit: int) -> None:
        self._ask(60, 10, struct.pack(">IHB", 0, credit, 0))
        self.sock.sendall(method(1, 60, 20, b"\x00\x00" + shortstr(self._topic) + shortstr("c") + b"\x00" + bytes(4)))
        self._expect(60, 21)

    def leave(self) -> None:
        """A channel works in order, so the answer to its close comes after all acknowledgements before it."""
        self.sock.setblocking(True)
        self.sock.settimeout(TIMEOUT)
        self.sock.sendall(method(1, 20, 40, struct.pack(">H", 200) + shortstr("") + bytes(4)))
        expected = method(1, 20, 41)
        tail = b""
        while not tail.endswith(expected):
            more = self.sock.recv(1 << 20)
            if not more:
                raise ConnectionError("the server closed the connection")
            tail = tail[-len(expected) :] + more


class AmqpConfirms:
    """basic.ack names a message, or all up to one; they may come out of order."""

    FRAME = struct.Struct(">BHIHHQBB")

    def __init__(self) -> None:
        self._rest = b""
        self._floor = 0
        self._above: set[int] = set()

    def feed(self, data: bytes) -> int:
        before = self._floor + len(self._above)
        data = self._rest + data
        whole = len(data) - len(data) % self.FRAME.size
        for _, _, _, kind, number, tag, multiple, _ in self.FRAME.iter_unpack(data[:whole]):
            if (kind, number) != (60, 80):
                raise RuntimeError(f"the server answered something else than basic.ack: {data[:200]!r}")
            if multiple:
                self._floor = max(self._floor, tag)
                self._above = {each for each in self._above if each > self._floor}
            else:
                self._above.add(tag)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        self._rest = data[whole:]
        return self._floor + len(self._above) - before


class AmqpDeliveries:
    """A method frame, a header frame and a body frame for each message. Each is acknowledged by itself, as in NSQ."""

    ACK = method(1, 60, 80, bytes(8) + b"\x00")
    # Refused, and to be queued again.
    NACK = method(1, 60, 120, bytes(8) + b"\x02")
    TAG = 11

    def __init__(self, topic: str, requeue: bool = False) -> None:
        self._requeue = requeue
        self._method = 7 + 4 + 2 + 8 + 1 + 1 + 1 + len(topic) + 1
        self.body_at = self._method + (7 + 15 + 1) + 7
        self.frame_bytes = self.body_at + BODY_BYTES + 1
        self._rest = b""
        self.held = b""
        self.redelivered = 0

    def feed(self, data: bytes) -> tuple[int, bytes | bytearray]:
        data = self._rest + data
        size = self.frame_bytes
        count = len(data) // size
        self.held, self._rest = data[: count * size], data[count * size :]
        frames = self.held
        if frames[10::size] != b"\x3c" * count or frames[size - 1 :: size] != b"\xce" * count:
            raise RuntimeError(f"another frame came between the messages: {frames[:200]!r}")
        self.redelivered += frames[21::size].count(1)
        answers = bytearray(self.ACK * count)
        if self._requeue:
            # Both answers have one size, so what differs is a slice for each message that goes back.
            step = len(self.ACK)
            for number, redelivered in enumerate(frames[21::size]):
                if not redelivered:
                    answers[number * step : (number + 1) * step] = self.NACK
        columns(frames, size, 13, 8, answers, len(self.ACK), self.TAG)
        return count, answers


WIRES: dict[str, type[Nsq] | type[Amqp]] = {"nsq": Nsq, "amqp": Amqp}
