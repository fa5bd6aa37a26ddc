"""Three replicas and an etcd through everything that a nemesis has, and then in peace: what was promised must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.cluster.node import Node
from headrace.cluster.replica import Role
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.runtime import Runtime
from simulation.group.campaign import NODES, SETTLED_S, GroupCampaign, GroupRun
from simulation.history import require
from simulation.nemesis import Nemesis
from simulation.replicas.clients import Clients, start_replica
from simulation.replicas.history import LogHistory
from simulation.replicas.nemesis import DiskNemesis
from simulation.world import World

# Longer than the slowest device takes for what it began before all was well, and a session and an election behind it.
APPLIED_S = 20.0
UNDER_WAY_S = 5.0
# What must have happened in many seeds, for each of them.
FLOORS = {
    "acknowledged": 400,
    "read": 1_000,
    "election": 2.5,
    "ELR election": 0.02,
    "handover": 1,
    "resignation": 0.2,
    "truncation": 0.5,
    "joined ISR": 3,
    "left ISR": 1,
    "late swap": 0.02,
    "copied": 0.8,
    "restart": 0.3,
    "min_isr change": 0.6,
    "created": 1.5,
    "deleted": 2,
    "trimmed": 5,
    "kill": 1,
    "power cut": 2,
    "power cut of all": 0.3,
    "pause": 0.8,
    "cut": 2,
    "one-way cut": 0.6,
    "slow link": 0.1,
    "hung disk": 0.4,
    "failing disk": 0.2,
    "full disk": 0.1,
    "wiped disk": 0.2,
    "restored disk": 0.04,
    "lost machine": 0.1,
    "power cut before a sync": 0.2,
    "lost removal": 0.2,
    "lost joining": 0.1,
    "clock jump": 0.2,
    "lease expired": 2,
    "etcd killed": 0.2,
    "etcd answer lost": 0.5,
    "etcd late": 0.4,
    "etcd watch hung": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class ReplicasCampaign(GroupCampaign):
    """Replicas, their clients and a nemesis."""

    floors: ClassVar[Mapping[str, float]] = FLOORS

    def live(self, world: World) -> Iterator[str]:
        run = ReplicasRun(world, 1 + world.seed % 2 if self.min_isr is None else self.min_isr)
        world.play(run.scenario(self.seconds))
        yield from (world.counts + run.log_history.counts).elements()


class ReplicasRun(GroupRun):
    """One seed."""

    def __init__(self, world: World, min_isr: int) -> None:
        super().__init__(world, min_isr)
        self.log_history = LogHistory()
        self._clients: dict[str, Clients] = {}

    def _new_nemesis(self) -> Nemesis:
        self._disk_nemesis = DiskNemesis(self.world, dict.fromkeys(NODES, self._live), self._etcd)
        return self._disk_nemesis

    async def _live(self, runtime: Runtime) -> None:
        name = runtime.hostname
        machine = self.world.machines[name]
        rng = self.world.stream(f"clients {self.world.lives}")
        while (replica := await start_replica(runtime, NODES.index(name))) is not None:
            self._journals.append(replica.node.journal)
            clients = Clients(name, replica, self.log_history, rng, lambda: machine.alive)
            self._clients[name] = clients
            self._disks[name] = runtime.disk
            await clients.run()
            self.world.counts["restart"] += clients.replica.broken.is_set()
            await replica.stop()
        self.world.counts["start refused"] += 1

    def _calm(self) -> None:
        self.log_history.is_calm = True

    async def _finish(self) -> None:
        await self._until(lambda: self._is_settled() or self._disk_nemesis.is_hopeless(), SETTLED_S)
        if self._disk_nemesis.is_hopeless():
            self.world.counts["hopeless"] += 1
            return
        self._check_leader()
        self.log_history.is_over = True
        # What clients have under way comes to its end first: an append behind the last look would seem to be missing.
        await asyncio.sleep(UNDER_WAY_S)
        await self._until(self._is_applied, APPLIED_S)
        applied = {name: self._frames(name).applied for name in self._living}
        what = f"not all that is committed is applied, although nothing is wrong any more: {applied}"
        require(self._is_applied(), what)
        self.log_history.inspected_from = min(applied.values())
        await self._until(lambda: all(each.found is not None for each in self._running()), APPLIED_S)
        for name in self._living:
            self._check_replica(name)

    def _running(self) -> list[Clients]:
        """The clients of replicas whose processes run."""
        return [self._clients[name] for name in self._living if self._runs(name)]

    def _node(self, name: str) -> Node:
        return self._clients[name].replica.node

    def _frames(self, name: str) -> ReplicatedJournal:
        return self._clients[name].replica.log.frames

    def _leader(self) -> Node | None:
        leading = (each.replica.node for each in self._running() if each.replica.role is Role.LEADER)
        return max(leading, key=lambda node: node.journal.last, default=None)

    def _is_applied(self) -> bool:
        """Whether nothing is under way any more."""
        leader = self._leader()
        if leader is None or not self._is_settled():
            return False
        return all(self._frames(name).applied == leader.journal.last.sequence for name in self._living)

    def _check_replica(self, name: str) -> None:
        clients = self._clients[name]
        log, history = clients.replica.log, self.log_history
        require(log.broken is None, f"{name} cannot apply what is committed: {log.broken}")
        partitions = [each for topic in log.topics.values() for each in topic.partitions]
        offline = [f"{each.topic.name}-{each.index}: {each.offline}" for each in partitions if each.offline]
        require(not offline, f"{name} has partitions offline: {offline}")
        require(clients.found is not None, f"{name} could not be read")
        found = clients.found or {}
        for place, (start, values) in found.items():
            limit = history.starts[place]
            require(start <= limit, f"{name}: {place} starts at {start}, above {limit}")
            require(list(values) == list(range(start, start + len(values))), f"{name}: {place} has gaps")
            history.check(name, *place, start, values)
        history.check_pairs(name, found)
        other = self._living[0]
        require(found == self._clients[other].found, f"{name} and {other} differ")
