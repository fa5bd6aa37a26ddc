"""The gRPC side of the RocketMQ door keeps what every door promises."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import grpc
from tests.doors.adapter import Client, Consumer, Delivery, DoorRefused
from tests.doors.conformance import Conformance
from tests.doors.rocketmq.grpc.client import RawGrpc, message
from tests.doors.rocketmq.grpc.test_receive import Consumer as Receiving
from tests.waiting import wait_until

from headrace.doors.rocketmq.grpc.protocol import Code, definition


class GrpcClient(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._raw: RawGrpc | None = None

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        made = message(topic, value)
        if delay_ms:
            made.system_properties.message_type = definition.DELAY
            made.system_properties.delivery_timestamp.FromMilliseconds(int(time.time() * 1_000) + delay_ms)
        if id is not None:
            made.user_properties["headrace-dedup-id"] = id
        self._send(topic, made)

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        self._send(topic, *(message(topic, value) for value in values))

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.__exit__()

    def _send(self, topic: str, *messages: Any) -> None:
        if self._raw is None:
            self._raw = RawGrpc(self.address)
        try:
            status = self._raw.send(topic, *messages).status
        except (grpc.RpcError, ValueError) as error:
            raise OSError(str(error)) from None
        if status.code != Code.OK:
            raise DoorRefused(f"{Code.Name(status.code)} {status.message}")


class GrpcConsumer(Consumer):
    def __init__(self, address: str, topic: str, queue: str) -> None:
        self._consumer = Receiving(address, queue, topic)

    def take(self) -> Delivery:
        found: list[Any] = []
        wait_until(lambda: found.extend(self._consumer.receive(1, invisible=10)[1]) or found)
        system = found[0].system_properties
        return Delivery(found[0].body, system.delivery_attempt, found[0])

    def finish(self, delivery: Delivery) -> None:
        self._consumer.ack([delivery.handle])

    def requeue(self, delivery: Delivery) -> None:
        self._consumer.change(delivery.handle.system_properties.receipt_handle, 0)

    def close(self) -> None:
        self._consumer.raw.__exit__()


class TestRocketMqGrpc(Conformance):
    door = "rocketmq-grpc"
    flags = ("--rocketmq-grpc", "127.0.0.1:0")
    client = GrpcClient
    consumer = GrpcConsumer
    errors: ClassVar = {
        "not allowed": "FORBIDDEN",
        "full": "TOO_MANY_REQUESTS",
        "too large": "MESSAGE_BODY_TOO_LARGE",
        "bad name": "ILLEGAL_TOPIC",
        "own topic": "ILLEGAL_TOPIC",
    }
    lacks: ClassVar = {
        "partitions": "a send names no queue",
        "slow readers": "grpcio sends no more than a client's window takes",
    }
    idle_flags = ("--connections-idle-ms", "300")
