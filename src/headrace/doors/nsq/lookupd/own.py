"""What this broker itself brings to its look-up: its topics and queues, by NSQ's names."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.broker import Broker
from headrace.config import format_address
from headrace.doors.nsq.lookupd.registry import Node, Own
from headrace.doors.nsq.names import is_topic_name, log_name, nsq_name
from headrace.doors.nsq.presence import NSQ_VERSION, Presence


def own_side(broker: Broker, presence: Presence) -> Own:
    """The view of a broker whose NSQ door is reached as `presence` says."""

    def node() -> Node | None:
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

    def topics() -> Iterable[str]:
        return (name for name in map(nsq_name, broker.topics.all) if name is not None)

    def has(topic: str) -> bool:
        return is_topic_name(topic) and broker.topics.get(log_name(topic)) is not None

    def channels(topic: str) -> Iterable[str]:
        return broker.queues.of(log_name(topic))

    return Own(node, topics, has, channels)
