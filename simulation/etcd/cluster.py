"""The members of a simulated etcd, and what goes wrong between them and their clients.

    etcd = EtcdCluster(world, ("etcd",))     # machines of the world
    etcd.start()
    etcd.faults.answer_lost = 0.05           # see `EtcdFaults`

A member is a process like any other: `world.machines["etcd"].pause()`, a power cut or a cut link does to it what it
does to others. All members serve one store, which no fault damages; a member answers only while it reaches a majority
of them, and one of those leads. Leases run by the leader's clock, checked twice a second; a new leader begins them
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from simulation.etcd.faults import EtcdFaults
from simulation.etcd.member import Member
from simulation.etcd.store import Store

if TYPE_CHECKING:
    from asyncio import Event as Signal

    from simulation.machine import Process
    from simulation.world import World


class EtcdCluster:
    """Members under one store."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self.world = world
        self.names = tuple(names)
        self.store = Store()
        self.faults = EtcdFaults()
        self.rng = world.stream("etcd")
        self.id = self._number("cluster")
        self.term = 1
        self.late: set[int] = set()
        """Revisions that requests made whose clients had given up."""
        self.changed: dict[Signal, None] = {}
        """What each watch waits for."""
        self._members = {name: Member(self, world.machines[name], self._number(name)) for name in names}
        self._leading: Process | None = None

    def _number(self, name: str) -> int:
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1

    def start(self) -> None:
        """Start every member that does not run."""
        for member in self._members.values():
            member.start()

    def kill(self) -> None:
        """Kill every member that runs."""
        for member in self._members.values():
            if member.is_running:
                member.machine.kill()

    def backup(self) -> Store:
        """What `restore` puts back."""
        return self.store.copy()

    def restore(self, backup: Store) -> None:
        """Put all members back to an earlier state: revisions go back, and what was done since is gone."""
        self.kill()
        self.store = backup.copy()
        self.world.counts["etcd restored"] += 1
        self.start()

    def leader(self) -> Member | None:
        """The member that leads: the last one while it has a majority, else the first that has."""
        able = [member for member in self._members.values() if self.has_majority(member)]
        for member in able:
            if member.machine.process is self._leading:
                return member
        if not able:
            return None
        self._leading = able[0].machine.process
        self.term += 1
        self.store.renew_all(able[0].now())
        self.world.note(f"etcd {able[0].machine.name} leads in {self.term}")
        return able[0]

    def has_majority(self, member: Member) -> bool:
        """Whether a member runs, and reaches more than half of all."""
        network, name = self.world.network, member.machine.name
        reached = [
            other
            for other in self._members.values()
            if other.is_running and (other is member or network.reaches(name, other.machine.name))
        ]
        return member.is_running and 2 * len(reached) > len(self._members)

    def on_changed(self) -> None:
        """Wake every watch."""
        for signal in self.changed:
            signal.set()
