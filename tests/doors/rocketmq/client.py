"""A client of RocketMQ's remoting protocol on a plain socket, for tests."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from tests.doors.rocketmq.formats import decode_all, encode_batch
from tests.waiting import SECONDS

from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import HEAD, JSON, ONE_WAY, RESPONSE, Command
from headrace.doors.rocketmq.messages import BatchedMessage, StoredMessage, hash_tag, write_properties


class Raw:
    """A connection: requests out, answers in by their `opaque`, and what the broker asks."""

    def __init__(self, address: str, serialization: int = JSON, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._file = self._socket.makefile("rb")
        self._opaques = count(1)
        self._serialization = serialization
        self._answers: dict[int, Command] = {}
        self.asked: list[Command] = []
        """Requests of the broker."""

    def send(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", flag: int = 0) -> int:
        """Send a request; its opaque."""
        opaque = next(self._opaques)
        command = Command(code, opaque, flag, fields or {}, body, serialization=self._serialization)
        self._socket.sendall(frames.encode(command))
        return opaque

    def receive(self) -> Command:
        """The next frame."""
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError("closed")
        (size,) = HEAD.unpack(head + bytes(4))[:1]
        body = self._file.read(size)
        if len(body) < size:
            raise ConnectionError("closed")
        return frames.decode(head + body)

    def answer(self, opaque: int) -> Command:
        """The answer to a request."""
        while opaque not in self._answers:
            command = self.receive()
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.asked.append(command)
        return self._answers.pop(opaque)

    def wait_until_asked(self) -> Command:
        """The next request of the broker."""
        while not self.asked:
            command = self.receive()
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.asked.append(command)
        return self.asked.pop(0)

    def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        return self.answer(self.send(code, {name: str(value) for name, value in (fields or {}).items()}, body))

    def reply(self, asked: Command, code: int = Code.SUCCESS, body: bytes = b"") -> None:
        """Answer a request of the broker."""
        self._socket.sendall(frames.encode(Command(code, asked.opaque, RESPONSE, {}, body)))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what clients do ---

    def send_message(
        self, topic: str, body: bytes, *, queue: int = 0, flag: int = 0, one_way: bool = False, **more: Any
    ) -> int:
        """Begin a SEND_MESSAGE_V2; its opaque. `more` are fields, and `properties`."""
        properties = write_properties({"UNIQ_KEY": "0A", **more.pop("properties", {})})
        fields = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1_700_000_000_000}
        fields |= {"h": flag, "i": properties, "j": 0, "k": "false", "m": "false", **more}
        written = {name: str(value) for name, value in fields.items()}
        return self.send(Request.SEND_MESSAGE_V2, written, body, ONE_WAY if one_way else 0)

    def sent(self, topic: str, body: bytes, **more: Any) -> Command:
        return self.answer(self.send_message(topic, body, **more))

    def send_batch(self, topic: str, bodies: Sequence[bytes], queue: int = 0) -> Command:
        raw = encode_batch([BatchedMessage(0, body, write_properties({"UNIQ_KEY": "0A"})) for body in bodies])
        fields = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1, "h": 0, "i": ""}
        return self.ask(Request.SEND_BATCH_MESSAGE, {**fields, "m": "true"}, raw)

    def pull(self, topic: str, offset: int = 0, *, queue: int = 0, wait_ms: int = 0, **more: Any) -> int:
        """Begin a PULL_MESSAGE that brings its subscription; its opaque."""
        fields = {"consumerGroup": "readers", "topic": topic, "queueId": queue, "queueOffset": offset}
        fields |= {"maxMsgNums": 32, "sysFlag": 4 | (2 if wait_ms else 0), "commitOffset": 0}
        fields |= {"suspendTimeoutMillis": wait_ms, "subscription": "*", "subVersion": 0, "expressionType": "TAG"}
        return self.send(Request.PULL_MESSAGE, {name: str(value) for name, value in (fields | more).items()})

    def pulled(self, topic: str, offset: int = 0, **more: Any) -> tuple[Command, list[StoredMessage]]:
        answer = self.answer(self.pull(topic, offset, **more))
        return answer, list(decode_all(answer.body))

    def read(self, topic: str, queue: int = 0) -> Iterator[StoredMessage]:
        """All messages of a queue."""
        offset = 0
        while True:
            answer, found = self.pulled(topic, offset, queue=queue)
            if answer.code not in (Code.SUCCESS, Code.PULL_RETRY_IMMEDIATELY):
                return
            yield from found
            offset = int(answer.fields["nextBeginOffset"])

    def heartbeat(
        self,
        client_id: str,
        groups: dict[str, dict[str, str]],
        producers: Sequence[str] = (),
        model: str = "CLUSTERING",
        kind: str = "TAG",
    ) -> Command:
        """Send a heartbeat with groups, and the expression of each topic that they read."""
        consumers = [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {
                        "topic": topic,
                        "subString": expression,
                        "subVersion": 1,
                        "expressionType": "TAG" if expression == "*" else kind,
                        "tagsSet": [] if expression == "*" else [expression],
                        "codeSet": [] if expression == "*" else [hash_tag(expression)],
                    }
                    for topic, expression in topics.items()
                ],
            }
            for group, topics in groups.items()
        ]
        beat = {
            "clientID": client_id,
            "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": each} for each in producers],
        }
        return self.ask(Request.HEART_BEAT, {}, json.dumps(beat).encode())

    def json(self, code: int, **fields: Any) -> Any:
        """The body of a successful answer."""
        answer = self.ask(code, fields)
        assert answer.code == Code.SUCCESS, answer
        return json.loads(answer.body)


def load_tables(body: bytes) -> Any:
    """The value of what is JSON but for objects as keys, as RocketMQ writes tables by queue: `topic:queue` are keys."""
    keys = rb'\{"brokerName":"[^"]*","queueId":(\d+),"topic":"([^"]*)"\}:'
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', re.sub(keys, rb'"\2:\1":', body)))
