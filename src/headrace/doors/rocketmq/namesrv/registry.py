"""Other brokers that have registered with the name server: their addresses and topics, while they are alive.

A broker registers again and again, and says between times that it is there. One that is silent for longer than it
promised, or whose connection is lost, is forgotten, and with it its routes. Nothing is stored: after a start brokers
register again. Off by default, because whatever registers is sent the clients of the topics that it names.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import Malformed, load
from headrace.doors.rocketmq.topics import WRITE, TopicShape

SILENCE_MS = 120_000
SILENCE_MS_MAX = 3_600_000
NAME_CHARACTERS_MAX = 255
MASTER = 0

_INT32 = struct.Struct(">i")

Topics = dict[str, TopicShape]


@dataclass(slots=True)
class RegisteredBroker:
    """A broker at one address: the master (id 0) of its name, or a slave."""

    cluster: str
    name: str
    id: int
    address: str
    ha_address: str
    connection: RemotingConnection
    silence_seconds: float
    topics: Topics
    version: dict[str, Any]
    """The version of its topics, as it was given."""
    heard: float = 0.0
    """When it was last heard of, by the loop's clock."""


class BrokerRegistry:
    """The brokers that are alive."""

    def __init__(self, brokers_max: int, unpacked_max: int) -> None:
        self._brokers_max = brokers_max
        self._unpacked_max = unpacked_max
        self._brokers: dict[tuple[str, str, int], RegisteredBroker] = {}
        # Those by which brokers have ever registered.
        self._connections: dict[RemotingConnection, None] = {}

    def register(self, broker: RegisteredBroker, now: float) -> None:
        """Take a broker in, or what is new of it. Raises ResponseError."""
        for text in (broker.cluster, broker.name, broker.address):
            if not 0 < len(text) <= NAME_CHARACTERS_MAX:
                raise ResponseError(
                    Code.INVALID_PARAMETER,
                    f"a broker has a cluster, a name and an address of 1 to {NAME_CHARACTERS_MAX} characters",
                )
        key = broker.cluster, broker.name, broker.id
        if key not in self._brokers and len(self._brokers) >= self._brokers_max:
            raise ResponseError(
                Code.SYSTEM_BUSY, f"{self._brokers_max} brokers are registered (rocketmq_namesrv_brokers_max)"
            )
        broker.heard = now
        self._brokers[key] = broker
        connection = broker.connection
        if connection not in self._connections:
            self._connections[connection] = None
            connection.on_lost.append(lambda: self._lost(connection))

    def unregister(self, cluster: str, name: str, id: int) -> None:
        """A broker stops."""
        self._brokers.pop((cluster, name, id), None)

    def hear(self, cluster: str, name: str, id: int, now: float) -> RegisteredBroker | None:
        """A broker says that it is there; None where it is not registered."""
        found = self._brokers.get((cluster, name, id))
        if found is not None:
            found.heard = now
        return found

    def scan(self, now: float) -> None:
        """Forget those that are silent for too long."""
        for key, broker in list(self._brokers.items()):
            if broker.heard + broker.silence_seconds < now:
                del self._brokers[key]

    def _lost(self, connection: RemotingConnection) -> None:
        del self._connections[connection]
        for key, broker in list(self._brokers.items()):
            if broker.connection is connection:
                del self._brokers[key]

    def master(self, cluster: str, name: str) -> RegisteredBroker | None:
        """The master of a name."""
        return self._brokers.get((cluster, name, MASTER))

    def named(self) -> Iterator[list[RegisteredBroker]]:
        """The brokers of each name, the one with the lowest id first: its topics count."""
        found: dict[tuple[str, str], list[RegisteredBroker]] = {}
        for key in sorted(self._brokers):
            found.setdefault(key[:2], []).append(self._brokers[key])
        return iter(found.values())

    def set_writable(self, name: str, is_writable: bool) -> int:
        """Change whether the routes to a broker let producers write; how many topics that concerns."""
        count = 0
        for broker in self._brokers.values():
            if broker.name == name:
                for topic, shape in broker.topics.items():
                    perm = shape.perm | WRITE if is_writable else shape.perm & ~WRITE
                    broker.topics[topic] = TopicShape(shape.read_queues, shape.write_queues, perm)
                    count += 1
        return count

    # --- what a broker registers --------------------------------------------------------------------------------------

    def read_body(self, body: bytes, is_compressed: bool) -> tuple[Topics, dict[str, Any]]:
        """The topics of a registration, and their version. Raises ResponseError or Malformed."""
        if not body:
            return {}, {}
        if is_compressed:
            return self._read_compressed(body)
        wrapper = load(body).get("topicConfigSerializeWrapper")
        if not isinstance(wrapper, dict):
            raise Malformed("a registration has no topicConfigSerializeWrapper")
        table, version = wrapper.get("topicConfigTable") or {}, wrapper.get("dataVersion") or {}
        if not isinstance(table, dict) or not isinstance(version, dict):
            raise Malformed("the topics of a registration must be objects")
        topics = {str(name): _shape(each) for name, each in table.items()}
        return topics, version

    def _read_compressed(self, body: bytes) -> tuple[Topics, dict[str, Any]]:
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(body, self._unpacked_max)
        except zlib.error as error:
            raise Malformed(f"a registration cannot be unpacked: {error}") from None
        if unpacker.unconsumed_tail:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"a registration unpacks to more than {self._unpacked_max} bytes (rocketmq_frame_max_bytes)",
            )
        position = 0

        def number() -> int:
            nonlocal position
            try:
                (found,) = _INT32.unpack_from(raw, position)
            except struct.error:
                raise Malformed("a registration ends inside a number") from None
            position += 4
            return int(found)

        def part() -> bytes:
            nonlocal position
            length = number()
            if not 0 <= length <= len(raw) - position:
                raise Malformed(f"a registration has a part of {length} bytes where {len(raw) - position} are left")
            position += length
            return raw[position - length : position]

        version = load(part())
        topics = dict(_read_topic(part()) for _ in range(number()))
        return topics, version


def _read_topic(text: bytes) -> tuple[str, TopicShape]:
    """A topic as RocketMQ writes it in one line: name, queues to read and to write, permission, ..."""
    words = text.decode("utf-8", "replace").split(" ")
    if len(words) < 4:
        raise Malformed(f"{text[:80]!r} is not a topic of a registration")
    return words[0], _checked(*(int(word) if word.isdecimal() and len(word) < 10 else -1 for word in words[1:4]))


def _shape(topic: object) -> TopicShape:
    if not isinstance(topic, Mapping):
        raise Malformed("a topic of a registration must be an object")
    numbers = [topic.get(name) for name in ("readQueueNums", "writeQueueNums", "perm")]
    return _checked(*(number if type(number) is int else -1 for number in numbers))


def _checked(read: int, write: int, perm: int) -> TopicShape:
    if min(read, write, perm) < 0 or max(read, write) > 1 << 20 or perm > 7:
        raise Malformed(f"a topic of a registration has {read} and {write} queues and the permission {perm}")
    return TopicShape(read, write, perm)
