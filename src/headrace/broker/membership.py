"""The group of nodes that a broker belongs to, as broker and doors see it: who leads, who is in sync, and where.

A broker that runs alone is a group of one, which it leads. What a group is made of (`cluster/`) implements this in the
composition root; nothing here or above asks whether there is a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that lives, as others see it."""

    number: int
    rack: str
    addresses: Mapping[str, str]
    """The advertised HOST:PORT of each of its listeners, by the listener's name."""


class Membership(Protocol):
    """What a node knows of its group. All of it is what etcd last had: it may be late, never invented."""

    on_change: list[Callable[[], None]]
    """What to call on the loop when anything of it has changed."""

    @property
    def node_id(self) -> int:
        """This node."""

    @property
    def leads(self) -> bool:
        """Whether this node leads and everything before its leadership is applied: only then the broker is started."""

    @property
    def leader(self) -> int | None:
        """The node that leads, as far as this one knows."""

    @property
    def epoch(self) -> int:
        """Of the leadership."""

    @property
    def replicas(self) -> Sequence[int]:
        """All nodes of the group, living or not, in order of preference."""

    @property
    def isr(self) -> Sequence[int]:
        """Those in sync."""

    @property
    def elr(self) -> Sequence[int]:
        """Eligible leader replicas outside the ISR."""

    @property
    def min_isr(self) -> int:
        """How many must be in sync for an append."""

    @property
    def unclean(self) -> bool:
        """Whether a replica may lead that lacks something committed, where no other lives."""

    @property
    def lag_ms(self) -> int:
        """What a follower may lack something for before it leaves the ISR."""

    @property
    def nodes(self) -> Mapping[int, NodeView]:
        """The nodes that live, this one among them."""

    @property
    def lags(self) -> Mapping[int, float]:
        """For how many seconds each follower has lacked something. The leader knows; elsewhere it is empty."""

    @property
    def reaches_metadata(self) -> bool:
        """Whether the group's metadata (etcd) could be read within the last lease. Without it nothing changes hands."""

    async def transfer(self, to: int | None) -> None:
        """Have another node lead: `to`, or the preferred one. Returns once it does. Raises TransferFailed."""


class Alone:
    """A broker without a group."""

    def __init__(self, node_id: int, addresses: Mapping[str, str] | None = None) -> None:
        """`addresses`: of its own listeners, as they open."""
        self.on_change: list[Callable[[], None]] = []
        self.node_id = node_id
        self.leads = True
        self.leader: int | None = node_id
        self.epoch = 0
        self.replicas = self.isr = (node_id,)
        self.elr: Sequence[int] = ()
        self.min_isr = 1
        self.unclean = False
        self.lag_ms = 3_000
        self.lags: Mapping[int, float] = {}
        self.reaches_metadata = True
        self.nodes = {node_id: NodeView(node_id, "", {} if addresses is None else addresses)}

    async def transfer(self, to: int | None) -> None:
        """It leads, and there is no other node."""
