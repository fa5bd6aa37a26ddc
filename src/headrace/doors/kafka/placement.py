"""Where partitions live, in Kafka's terms: the nodes of the group are brokers, and one of them leads every partition.

Every node has a replica of everything, so this is the same for all partitions but for the leader epoch, and the same on
all nodes: a follower answers as the leader would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.addresses import parse_address
from headrace.broker.broker import Broker
from headrace.broker.membership import Membership, NodeView
from headrace.errors import ConfigError
from headrace.log.interface import Partition

NONE = -1
"""The number of no broker."""


class Endpoint(NamedTuple):
    """Where clients reach a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Way(NamedTuple):
    """How a client reaches brokers: by listeners of this name, and this node's at this address."""

    listener: str
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Who has the partitions of the group just now."""

    node_id: int
    """This node."""
    leader: int
    """NONE: no node does, or clients could not reach it."""
    epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    elr: Sequence[int]
    offline: Sequence[int]
    """The replicas that do not live."""

    @classmethod
    def of(cls, broker: Broker, listener: str) -> Placement:
        """As this node sees it now, for clients of such a listener."""
        group = broker.membership
        nodes = group.nodes
        return cls(
            group.node_id,
            leader_of(broker, listener),
            group.epoch,
            list(group.replicas),
            list(group.isr),
            list(group.elr),
            [each for each in group.replicas if each not in nodes],
        )

    def epoch_of(self, partition: Partition) -> int:
        """The leader epoch of a partition. A follower has that of the newest batch; the group's is what counts."""
        return max(self.epoch, partition.epoch)

    def describe(self, partition: Partition) -> dict[str, Any]:
        """One partition of a Metadata or DescribeTopicPartitions reply."""
        # What is offline on a follower is so on its own disk alone.
        is_offline = partition.offline is not None and self.leader == self.node_id
        leader = NONE if is_offline else self.leader
        return {
            "error_code": ErrorCode.leader_not_available if leader == NONE else ErrorCode.none,
            "partition_index": partition.index,
            "leader_id": leader,
            "leader_epoch": self.epoch_of(partition),
            "replica_nodes": self.replicas,
            "isr_nodes": self.isr,
            "eligible_leader_replicas": self.elr,
            "last_known_elr": (),
            "offline_replicas": [*self.offline, self.node_id] if is_offline else self.offline,
        }


class Leader(NamedTuple):
    """The node that leads, for those who ask another one (KIP-951)."""

    endpoint: Endpoint
    epoch: int

    @property
    def current(self) -> dict[str, int]:
        """The `current_leader` of a partition in a reply."""
        return {"leader_id": self.endpoint.node_id, "leader_epoch": self.epoch}


def other_leader(broker: Broker, listener: str) -> Leader | None:
    """The node that leads, if it is another one and clients of such a listener can reach it."""
    group = broker.membership
    if group.leader is None or group.leader == group.node_id:
        return None
    found = endpoint(group, group.leader, Way(listener))
    return None if found is None else Leader(found, group.epoch)


def replicas_near(broker: Broker, rack: str, listener: str) -> Sequence[int]:
    """The followers that a consumer in this rack reads from; none if the leader is as near (KIP-392)."""
    group = broker.membership
    here = group.nodes.get(group.node_id)
    if here is None or here.rack == rack:
        return ()
    return [
        number
        for number in group.isr
        if number in group.nodes and group.nodes[number].rack == rack and _reach(group, number, listener) is not None
    ]


def leader_of(broker: Broker, listener: str) -> int:
    """The node that leads, if it lives and has such a listener."""
    group = broker.membership
    if group.leader is None or (group.leader != group.node_id and _reach(group, group.leader, listener) is None):
        return NONE
    return group.leader


def endpoints(broker: Broker, way: Way) -> list[Endpoint]:
    """The brokers that clients can reach: this one where the client came, the others where they advertise."""
    group = broker.membership
    return [found for number in sorted(group.nodes) if (found := endpoint(group, number, way)) is not None]


def endpoint(group: Membership, number: int, way: Way) -> Endpoint | None:
    """One of them."""
    view = group.nodes.get(number)
    rack = None if view is None else view.rack or None
    if number == group.node_id:
        return Endpoint(number, way.host, way.port, rack)
    place = _reach(group, number, way.listener)
    return None if place is None else Endpoint(number, *place, rack)


def _reach(group: Membership, number: int, listener: str) -> tuple[str, int] | None:
    view: NodeView | None = group.nodes.get(number)
    if view is None:
        return None
    try:
        return parse_address(view.addresses.get(listener, "off"))
    except ConfigError:
        # It comes from another node, of whatever version.
        return None
