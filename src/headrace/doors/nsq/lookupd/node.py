"""Producers as nsqlookupd describes them, and this broker as one of them, by NSQ's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from headrace.addresses import format_address
from headrace.broker.broker import Broker
from headrace.doors.nsq.names import is_topic_name, log_name, nsq_name
from headrace.doors.nsq.presence import NSQ_VERSION, Presence


@dataclass(frozen=True, slots=True)
class Node:
    """How a producer is reached, by its own account, in the fields and the order of nsqlookupd."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str

    def is_same(self, other: Node | None) -> bool:
        """Whether both are one: a broker may be configured to register with itself."""
        if other is None:
            return False
        return (self.broadcast_address, self.tcp_port) == (other.broadcast_address, other.tcp_port)

    def describe(self) -> dict[str, object]:
        return asdict(self)

    @property
    def http_addresses(self) -> tuple[str, str]:
        """As tools write it: an IPv6 address without brackets, or in them."""
        return f"{self.broadcast_address}:{self.http_port}", format_address(self.broadcast_address, self.http_port)


class OwnNode:
    """This broker: nothing of it is stored, what it has is looked up for each question."""

    def __init__(self, broker: Broker, presence: Presence) -> None:
        self._broker = broker
        self._presence = presence

    def node(self) -> Node | None:
        """None while its nsqd is closed: it is then no producer."""
        presence = self._presence
        if not presence.tcp_port:
            return None
        return Node(
            remote_address=format_address(presence.broadcast_address, presence.tcp_port),
            hostname=presence.hostname,
            broadcast_address=presence.broadcast_address,
            tcp_port=presence.tcp_port,
            http_port=presence.http_port,
            version=NSQ_VERSION,
        )

    def topics(self) -> Iterable[str]:
        return (name for name in map(nsq_name, self._broker.topics.all) if name is not None)

    def has(self, topic: str) -> bool:
        return is_topic_name(topic) and self._broker.topics.get(log_name(topic)) is not None

    def channels(self, topic: str) -> Iterable[str]:
        return self._broker.queues.of(log_name(topic))
