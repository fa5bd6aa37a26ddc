"""The group as broker and doors see it, from what a node last read in etcd and what its log does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.broker.membership import NodeView
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.replica import Replica


class GroupMembership:
    """A node's view of its group (`headrace.broker.membership.Membership`)."""

    def __init__(self, replica: Replica, node_id: int, own: NodeRecord) -> None:
        """`own`: what the node says of itself."""
        self.on_change: list[Callable[[], None]] = []
        self.node_id = node_id
        self._replica = replica
        self._node = replica.node
        self._own = own
        self._leads = False
        self._node.on_change = self._notify

    @property
    def leads(self) -> bool:
        return self._leads

    @leads.setter
    def leads(self, leads: bool) -> None:
        """Set by what starts the broker and abandons it."""
        self._leads = leads
        self._notify()

    @property
    def leader(self) -> int | None:
        group = self._node.group
        if group is None or group.leader is None:
            return None
        # One that is named and does not serve yet, or no longer, leads nobody.
        return None if group.leader.node == self.node_id and not self._leads else group.leader.node

    @property
    def epoch(self) -> int:
        return self._node.group.epoch if self._node.group is not None else 0

    @property
    def replicas(self) -> Sequence[int]:
        return self._node.group.replicas if self._node.group is not None else (self.node_id,)

    @property
    def isr(self) -> Sequence[int]:
        return self._numbers(self._node.group.isr if self._node.group is not None else ())

    @property
    def elr(self) -> Sequence[int]:
        return self._numbers(self._node.group.elr if self._node.group is not None else ())

    @property
    def min_isr(self) -> int:
        return self._node.group.min_isr if self._node.group is not None else 1

    @property
    def unclean(self) -> bool:
        return self._node.group is not None and self._node.group.unclean

    @property
    def lag_ms(self) -> int:
        return self._node.group.lag_ms if self._node.group is not None else 0

    @property
    def nodes(self) -> Mapping[int, NodeView]:
        records = {**self._node.alive, self._own.directory_id: self._own}
        numbers = {**self._node.numbers, self._own.directory_id: self.node_id}
        return {
            numbers[each.directory_id]: NodeView(numbers[each.directory_id], each.rack, each.addresses)
            for each in records.values()
            if each.directory_id in numbers
        }

    @property
    def lags(self) -> Mapping[int, float]:
        leadership, numbers = self._node.leadership, self._node.numbers
        if leadership is None:
            return {}
        return {
            number: leadership.lag_of(directory)
            for directory, number in numbers.items()
            if number in self.replicas and number != self.node_id
        }

    @property
    def reaches_metadata(self) -> bool:
        return self._node.reaches_etcd

    async def transfer(self, to: int | None) -> None:
        await self._replica.transfer(to)

    def _numbers(self, directories: Iterable[str]) -> tuple[int, ...]:
        """The nodes that have these directories: none for one that was replaced."""
        numbers = self._node.numbers
        return tuple(numbers[each] for each in directories if each in numbers)

    def _notify(self) -> None:
        for call in list(self.on_change):
            call()
