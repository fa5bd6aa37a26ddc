"""How far a leader's journal is committed: what every replica has that etcd may count as in sync.

Two sets of replicas matter, and they differ while a change of the ISR is under way. *Every member that etcd may name*
must have a frame before it is committed, because any of them may be elected. But only *the members that etcd does name*
count towards `min.insync.replicas`: one that is about to join guards nothing yet.
"""

from __future__ import annotations

from headrace.cluster.maximal_isr import MaximalIsr


class Commitment:
    """The commit rule of one leadership."""

    def __init__(self, leader: str, begin: int, min_isr: int, isr: MaximalIsr) -> None:
        """`leader` is the leader's own directory id, `begin` the sequence of its first frame."""
        self._leader = leader
        self._begin = begin
        self.min_isr = min_isr
        self.isr = isr
        self._acknowledged: dict[str, int] = {}

    @property
    def has_enough(self) -> bool:
        """Whether there are enough in-sync replicas to commit anything."""
        return len(self.isr.confirmed) >= self.min_isr

    def acknowledged(self, replica: str) -> int:
        """Up to where a replica has said in this leadership that it has the journal."""
        return self._acknowledged.get(replica, 0)

    def acknowledge(self, replica: str, sequence: int) -> None:
        """A replica's device has every frame up to `sequence`."""
        self._acknowledged[replica] = max(self.acknowledged(replica), sequence)

    def forget(self, replica: str) -> None:
        """Its session ended: it may come back with less."""
        self._acknowledged.pop(replica, None)

    def reach(self, flushed: int) -> int:
        """The last sequence that is committed, if the leader's own device has `flushed`; 0 if nothing can be said: a
        leader commits nothing of its predecessors before its own first frame is everywhere."""
        if not self.has_enough:
            return 0
        others = [self.acknowledged(replica) for replica in self.isr.members if replica != self._leader]
        reach = min([flushed, *others])
        return reach if reach >= self._begin else 0
