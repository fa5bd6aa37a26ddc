"""Three replicas and an etcd through everything that a nemesis has, and then in peace: what was promised must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cluster.replica import Role
from headrace.runtime import Runtime
from simulation.group.campaign import NODES, SETTLED_S, GroupCampaign, GroupRun
from simulation.history import require
from simulation.nemesis import Nemesis
from simulation.replicas.clients import Clients, start_replica
from simulation.replicas.history import LogHistory
from simulation.replicas.nemesis import DiskNemesis
from simulation.world import World

APPLIED_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ReplicasCampaign(GroupCampaign):
    """Replicas, their clients and a nemesis."""

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
        return DiskNemesis(self.world, dict.fromkeys(NODES, self._live), self._etcd)

    async def _live(self, runtime: Runtime) -> None:
        name = runtime.hostname
        machine = self.world.machines[name]
        rng = self.world.stream(f"clients {self.world.lives}")
        while (replica := await start_replica(runtime, NODES.index(name))) is not None:
            clients = Clients(name, replica, self.log_history, rng, lambda: machine.alive)
            self._clients[name] = clients
            await clients.run()
            self.world.counts["restart"] += clients.replica.broken.is_set()
            await replica.stop()
        self.world.counts["start refused"] += 1

    def _calm(self) -> None:
        self.log_history.is_calm = True

    async def _finish(self) -> None:
        await asyncio.sleep(SETTLED_S)
        self._check()
        self.log_history.is_over = True
        await asyncio.sleep(APPLIED_S)
        for clients in self._clients.values():
            clients.inspects.set()
        await asyncio.sleep(APPLIED_S)
        for name in NODES:
            self._check_replica(name)

    def _check(self) -> None:
        serving = [name for name, each in self._clients.items() if each.replica.role is Role.LEADER]
        require(bool(serving), "no replica leads, although nothing is wrong any more")
        node = max((self._clients[name].replica.node for name in serving), key=lambda node: node.journal.last)
        assert node.group is not None
        require(len(node.group.isr) == len(NODES), f"in sync are {node.group.isr}, although every node lives")

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
        other = self._clients[NODES[0]].found
        require(found == other, f"{name} and {NODES[0]} differ")
