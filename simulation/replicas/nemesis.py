"""Disks that are wiped or put back to an earlier state, and machines that never return, as far as a group can live with
that."""

from __future__ import annotations

from headrace.cluster.records import Group, parse_group, parse_member
from simulation.group.replica import GROUP, KEYS
from simulation.machine import Machine
from simulation.nemesis import USUAL, Nemesis

# Swaps are few: requests that come late are many, so that some of them are swaps.
FAULTS = {**USUAL, "delay_requests": 5, "wipe_disk": 1.5, "restore_disk": 1.5, "lose_machine": 0.5}


class DiskNemesis(Nemesis):
    """A nemesis that leaves the last replica alone that has everything."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, faults=FAULTS, **options)  # type: ignore[arg-type]
        self.gone: set[str] = set()
        """Directories that were taken away."""

    def _lose(self, node: Machine) -> None:
        if (directory := self._directory_of(node.name)) is not None:
            self.gone.add(directory)

    def is_hopeless(self) -> bool:
        """Whether nothing is left that has everything by etcd's record. A swap that came late, from a leader that died
        since, may have said so only after a disk was taken."""
        group = self._group()
        return group is not None and bool(group.isr) and {*group.isr, *group.elr} <= self.gone

    def _expendable(self) -> Machine | None:
        """A node without which another has everything that is committed."""
        node, group = self._node(), self._group()
        if node is None or group is None:
            return None
        for other in self._nodes:
            directory = self._directory_of(other)
            if other != node.name and directory in group.isr and directory not in self.gone:
                return node
        return None

    def _group(self) -> Group | None:
        found = self._etcd.store.range(KEYS.group(GROUP).encode(), b"")
        return parse_group(found[0].value, GROUP) if found else None

    def _directory_of(self, name: str) -> str | None:
        key = KEYS.member(list(self._nodes).index(name))
        found = self._etcd.store.range(key.encode(), b"")
        return parse_member(found[0].value, key).directory_id if found else None
