"""A load generator of RocketMQ's remoting protocol: `python -m bench.rocketmq_load`, driven by `bench.measure`.

Frames are made before the clock starts, and of answers only the length and the code are read, so that the generator
costs less than what it measures. Each connection stands for a thread of a producer: it sends when its last send was
answered.
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tests.doors.rocketmq.formats import decode_all, encode_batch

from bench.generator import generate
from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import BatchedMessage

_SIZE = struct.Struct(">i")
_CODE = re.compile(rb'"code":(\d+)')
PULLED = 32


def send_frame(topic: str, body: bytes, queue: int = 0, batch: int = 0) -> bytes:
    """A request to send a message, or a batch of them."""
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1", "h": "0"}
    fields |= {"i": "UNIQ_KEY\x017F0000012A9F18B4AAC2123456780000\x02WAIT\x01true\x02", "j": "0", "k": "false"}
    fields |= {"m": "true" if batch else "false"}
    if batch:
        body = encode_batch([BatchedMessage(0, body, fields["i"])] * batch)
    code = Request.SEND_BATCH_MESSAGE if batch else Request.SEND_MESSAGE_V2
    return frames.encode(Command(code, 1, 0, fields, body))


def pull_frame(topic: str, offset: int, wait_ms: int = 0, queue: int = 0) -> bytes:
    fields = {"consumerGroup": "bench", "topic": topic, "queueId": str(queue), "queueOffset": str(offset)}
    fields |= {"maxMsgNums": str(PULLED), "sysFlag": str(4 | (2 if wait_ms else 0)), "commitOffset": "0"}
    fields |= {"suspendTimeoutMillis": str(wait_ms), "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
    return frames.encode(Command(Request.PULL_MESSAGE, 1, 0, fields))


class Connection:
    """A connection that has one request at a time."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.socket = socket.create_connection((spec["host"], spec["port"]), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = bytearray()

    def ask(self, frame: bytes) -> bytes:
        self.socket.sendall(frame)
        while (answer := self.take()) is None:
            pass
        return answer

    def take(self) -> bytes | None:
        """What has come: a whole answer, or None. Raises RuntimeError where it is a refusal."""
        self._got += self.socket.recv(1 << 20)
        if len(self._got) < 4 or len(self._got) < (end := 4 + _SIZE.unpack_from(self._got)[0]):
            return None
        answer = bytes(self._got[:end])
        del self._got[:end]
        return answer


def check(answer: bytes) -> None:
    """Raise RuntimeError where a send was refused."""
    found = _CODE.search(answer, 8, 8 + (_SIZE.unpack_from(answer, 4)[0] & 0xFFFFFF))
    # A broker leaves out nothing but a code of 0 in its own order of fields.
    if found is not None and int(found[1]) != Code.SUCCESS:
        raise RuntimeError(f"a send was refused: {frames.decode(answer)}")


def send(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`connections` that send until `messages` are there, to `topics` in turn."""
    connections = [Connection(spec) for _ in range(spec["connections"])]
    batch, body = spec.get("batch", 0), b"x" * spec["size"]
    made = [send_frame(topic, body, 0, batch) for topic in spec["topics"]]
    for frame in made[: spec.get("warm", 0)]:
        check(connections[0].ask(frame))
    yield {}
    selector = selectors.DefaultSelector()
    left = sent = spec["messages"] // max(batch, 1)
    for number, connection in enumerate(connections):
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.socket.sendall(made[number % len(made)])
    sent -= len(connections)
    while left > 0:
        for key, _ in selector.select():
            answer = key.data.take()
            if answer is None:
                continue
            check(answer)
            left -= 1
            if sent > 0:
                key.data.socket.sendall(made[sent % len(made)])
                sent -= 1
    yield {"messages": spec["messages"]}


def pull(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Read a queue from its beginning, one pull behind the other."""
    connection = Connection(spec)
    yield {}
    offset = 0
    while offset < spec["messages"]:
        answer = frames.decode(connection.ask(pull_frame(spec["topics"][0], offset)))
        if answer.code != Code.SUCCESS:
            raise RuntimeError(f"a pull was refused: {answer}")
        offset = int(answer.fields["nextBeginOffset"])
    yield {"messages": offset}


def latency(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send at a rate, and read by long polling, as a push consumer does: from the send to the message's arrival."""
    producer, consumer = Connection(spec), Connection(spec)
    topic, size, rate = spec["topics"][0], spec["size"], spec["rate"]
    check(producer.ask(send_frame(topic, b"0" * size)))
    offset = int(frames.decode(consumer.ask(pull_frame(topic, 0))).fields["nextBeginOffset"])
    yield {}
    taken: list[float] = []
    due: deque[float] = deque()
    selector = selectors.DefaultSelector()
    selector.register(producer.socket, selectors.EVENT_READ, producer)
    selector.register(consumer.socket, selectors.EVENT_READ, consumer)
    consumer.socket.sendall(pull_frame(topic, offset, 10_000))
    begin, sent, free = time.monotonic(), 0, True
    while len(taken) < spec["messages"]:
        now = time.monotonic()
        # What should have been sent by now counts from then: a slow broker does not slow the clock.
        while sent < spec["messages"] and begin + sent / rate <= now:
            due.append(begin + sent / rate)
            sent += 1
        if due and free:
            producer.socket.sendall(send_frame(topic, b"%.9f" % due.popleft() + b" " * (size - 20)))
            free = False
        next_send = begin + sent / rate if sent < spec["messages"] else now + 1
        for key, _ in selector.select(0 if due and free else max(next_send - now, 0)):
            answer = key.data.take()
            if answer is None:
                continue
            if key.data is producer:
                check(answer)
                free = True
                continue
            came = time.monotonic()
            pulled = frames.decode(answer)
            taken += [came - float(each.body.split()[0]) for each in decode_all(pulled.body)]
            offset = int(pulled.fields["nextBeginOffset"])
            consumer.socket.sendall(pull_frame(topic, offset, 10_000))
    taken.sort()
    yield {
        "messages": len(taken),
        "p50_ms": 1_000 * taken[len(taken) // 2],
        "p99_ms": 1_000 * taken[len(taken) * 99 // 100],
    }


if __name__ == "__main__":
    generate({"send": send, "pull": pull, "latency": latency})
