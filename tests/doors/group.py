"""A group of three nodes as a broker sees it, which a test changes as it likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.broker.membership import NodeView
from headrace.errors import TransferFailed


class FakeMembership:
    """The view of node 1, which leads at first."""

    def __init__(self, node_id: int = 1, leader: int | None = 1) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.node_id = node_id
        self.leader = leader
        self.epoch = 7
        self.replicas: Sequence[int] = (2, 1, 3)
        self.isr: Sequence[int] = (1, 2, 3)
        self.elr: Sequence[int] = ()
        self.min_isr = 2
        self.unclean = False
        self.lag_ms = 3_000
        self.lags: Mapping[int, float] = {}
        self.reaches_metadata = True
        self.nodes: dict[int, NodeView] = {
            number: NodeView(number, rack, {"kafka": f"node{number}.test:9092", "http": f"node{number}.test:9080"})
            for number, rack in ((1, "red"), (2, "green"), (3, ""))
        }
        self.transfers: list[int | None] = []
        self.refuses = ""

    @property
    def leads(self) -> bool:
        """Whether this node does."""
        return self.leader == self.node_id

    async def transfer(self, to: int | None) -> None:
        """Have another node lead."""
        self.transfers.append(to)
        if self.refuses:
            raise TransferFailed(self.refuses)
        self.change(leader=to, epoch=self.epoch + 1)

    def change(self, **what: object) -> None:
        """Change attributes, and let those know that wait for it."""
        for name, value in what.items():
            setattr(self, name, value)
        for each in list(self.on_change):
            each()

    def lose(self, number: int) -> None:
        """A node is gone."""
        nodes = {each: view for each, view in self.nodes.items() if each != number}
        self.change(nodes=nodes, isr=tuple(each for each in self.isr if each != number))
