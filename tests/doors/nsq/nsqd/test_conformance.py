"""The NSQ door keeps what every door promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.clients.nsq.raw import NsqError, Raw, extended
from tests.doors.adapter import Client, Consumer, Delivery, DoorRefused
from tests.doors.conformance import Conformance
from tests.doors.nsq.nsqd.wired import identify_command


class NsqClient(Client):
    """One connection; an error closes it, and the next command opens another. Ids need the extension."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._connections: dict[bool, Raw] = {}

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        words = ("DPUB", topic, delay_ms) if delay_ms else ("PUB", topic)
        if id is None:
            self._ask(False, *words, body=value)
        else:
            self._ask(True, *words, body=extended(None, value, [("headrace-dedup-id", id.encode())]))

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        packed = b"".join(len(each).to_bytes(4) + each for each in values)
        self._ask(False, "MPUB", topic, body=len(values).to_bytes(4) + packed)

    def _ask(self, is_extended: bool, *words: object, body: bytes) -> None:
        connection = self._connections.get(is_extended)
        if connection is None:
            wishes = {"headrace": 1} if is_extended else {}
            connection = self._connections[is_extended] = Raw(self.address, **wishes)
        try:
            connection.ask(*words, body=body)
        except NsqError as error:
            self.close()
            raise DoorRefused(str(error)) from None

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()


class NsqConsumer(Consumer):
    def __init__(self, address: str, topic: str, queue: str) -> None:
        self._connection = Raw(address)
        self._connection.subscribe(topic, queue, 1)

    def take(self) -> Delivery:
        got = self._connection.delivery()
        return Delivery(got.body, got.attempts, got.id)

    def finish(self, delivery: Delivery) -> None:
        self._connection.send("FIN", delivery.handle.decode())

    def requeue(self, delivery: Delivery) -> None:
        self._connection.send("REQ", delivery.handle.decode(), 0)

    def close(self) -> None:
        self._connection.close()


class TestNsq(Conformance):
    door = "nsq"
    client = NsqClient
    consumer = NsqConsumer
    errors: ClassVar = {
        "not allowed": "E_AUTH_FIRST",
        "full": "E_(M|D)?PUB_FAILED",
        "too large": "E_BAD_(MESSAGE|BODY)",
        "bad name": "E_BAD_TOPIC",
        "own topic": "E_BAD_TOPIC",
    }
    lacks: ClassVar = {"partitions": "its wire has none"}
    hello = b"  V2"
    idle_hello = b"  V2" + identify_command(heartbeat_interval=1_000)

    def greedy(self, topic: str) -> bytes:
        return f"  V2SUB {topic} q\nRDY 2500\n".encode()
