"""The RocketMQ door keeps what every door promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.doors.adapter import Client, DoorRefused
from tests.doors.conformance import Conformance
from tests.doors.rocketmq.client import Raw

from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command


class RocketMqClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._raw: Raw | None = None

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        properties = {"DELAY": "1"} if delay_ms else {}
        if id is not None:
            properties["headrace-dedup-id"] = id
        self._check(self._connected().sent(topic, value, properties=properties))

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        self._check(self._connected().send_batch(topic, values))

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def _connected(self) -> Raw:
        if self._raw is None:
            self._raw = Raw(self.address)
        return self._raw

    @staticmethod
    def _check(answer: Command) -> None:
        if answer.code != Code.SUCCESS:
            raise DoorRefused(f"{Code(answer.code).name} {answer.remark}")


class TestRocketMq(Conformance):
    door = "rocketmq"
    flags = ("--rocketmq", "127.0.0.1:0")
    client = RocketMqClient
    errors: ClassVar = {
        "not allowed": "NO_PERMISSION",
        "full": "SYSTEM_BUSY",
        "too large": "MESSAGE_ILLEGAL",
        "bad name": "INVALID_PARAMETER",
        "own topic": "INVALID_PARAMETER",
    }
    lacks: ClassVar = {
        "partitions": "a send names one queue",
        "queues": "its consumers divide the partitions: pop comes later",
    }
    idle_flags = ("--connections-idle-ms", "300")

    def greedy(self, topic: str) -> bytes:
        fields: dict[str, Any] = {"consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": 0, "sysFlag": 4}
        written = {name: str(value) for name, value in fields.items()}
        return b"".join(frames.encode(Command(Request.PULL_MESSAGE, opaque, 0, written)) for opaque in range(100))
