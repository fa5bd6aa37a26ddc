"""Three nodes and an etcd through everything that a nemesis has, and then in peace: what was promised must hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from headrace.cluster.changes import new_group
from headrace.cluster.node import Node
from headrace.cluster.records import Cluster, Record
from headrace.log.group_frames import HEADER_BYTES, Position, group_number
from headrace.log.replicated_journal import ReplicatedJournal, read_chain
from headrace.runtime import Runtime
from headrace.runtime.disk import Disk
from simulation.campaign import Campaign
from simulation.etcd.cluster import EtcdCluster
from simulation.group.changes import count_changes
from simulation.group.history import GroupHistory
from simulation.group.replica import GROUP, KEYS, Replica, start_node
from simulation.history import require
from simulation.machine import Machine
from simulation.nemesis import Nemesis
from simulation.world import World

NODES = ("a", "b", "c")
FAULTY_S = 35.0
SETTLED_S = 20.0
STEP_S = 0.25


@dataclass(frozen=True, kw_only=True)
class GroupCampaign(Campaign):
    """A group, its clients and a nemesis."""

    machines: ClassVar[tuple[str, ...]] = (*NODES, "etcd")
    min_isr: int | None = None
    """Of the group; None: one or two, by the seed."""
    seconds: float = FAULTY_S
    """How long things go wrong."""

    def live(self, world: World) -> Iterator[str]:
        run = GroupRun(world, 1 + world.seed % 2 if self.min_isr is None else self.min_isr)
        world.play(run.scenario(self.seconds))
        yield from (world.counts + run.history.counts).elements()


class GroupRun:
    """One seed."""

    def __init__(self, world: World, min_isr: int) -> None:
        self.world = world
        self.history = GroupHistory()
        self._min_isr = min_isr
        self._etcd = EtcdCluster(self.world, ("etcd",))
        self._replicas: dict[str, Replica] = {}
        self._living: list[str] = []
        self._journals: list[ReplicatedJournal] = []
        # The disk of the last process of each node that took part.
        self._disks: dict[str, Disk] = {}

    async def scenario(self, seconds: float) -> None:
        """Raises Violation."""
        self._etcd.start()
        self._put(KEYS.cluster, Cluster(str(UUID(int=1))))
        self._put(KEYS.group(GROUP), new_group(range(len(NODES)), self._min_isr))
        nemesis = self._new_nemesis()
        await nemesis.run(seconds)
        nemesis.end_faults()
        self._calm()
        self._living = [name for name in NODES if name not in nemesis.lost]
        await self._finish()
        self.world.counts += count_changes(self._etcd, KEYS.group(GROUP), GROUP)
        self.world.counts["truncation"] += sum(each.truncations for each in self._journals)

    def _calm(self) -> None:
        self.history.is_calm = True

    def _new_nemesis(self) -> Nemesis:
        return Nemesis(self.world, dict.fromkeys(NODES, self._live), self._etcd)

    async def _finish(self) -> None:
        """Wait until everything is well again, and check that it is."""
        await self._until(self._is_settled, SETTLED_S)
        self._check()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds, for so long at most."""
        end = self.world.time + seconds
        while not condition() and self.world.time < end:  # noqa: ASYNC110
            await asyncio.sleep(STEP_S)

    def _is_settled(self) -> bool:
        leader = self._leader()
        is_whole = leader is not None and leader.group is not None and len(leader.group.isr) == len(self._living)
        return is_whole and all(map(self._runs, self._living))

    def _leader(self) -> Node | None:
        """The node that serves, the newest of them if an old one does not know yet."""
        nodes = [self._node(name) for name in self._living if self._runs(name)]
        return max((node for node in nodes if node.serves), key=lambda node: node.journal.last, default=None)

    def _runs(self, name: str) -> bool:
        """Whether the last process of a node that took part still does."""
        process = self.world.machines[name].process
        takes_part = process is not None and process.ending is None and process.disk is self._disks.get(name)
        return takes_part and not self._node(name).is_retiring

    def _node(self, name: str) -> Node:
        return self._replicas[name].node

    def _put(self, key: str, record: Record) -> None:
        store = self._etcd.store
        store.put(store.revision + 1, key.encode(), record.encode(), 0)
        store.commit()

    async def _live(self, runtime: Runtime) -> None:
        name = runtime.hostname
        machine = self.world.machines[name]
        rng = self.world.stream(f"replica {self.world.lives}")
        node = await start_node(runtime, NODES.index(name))
        if node is None:
            self.world.counts["start refused"] += 1
            return
        self._journals.append(node.journal)
        replica = Replica(name, node, self.history, rng, lambda: machine.alive and self._replicas[name] is replica)
        self._replicas[name] = replica
        self._disks[name] = runtime.disk
        await replica.run()

    def _check(self) -> None:
        self._check_leader()
        for name in self._living:
            self.history.check(name, read_log(self.world.machines[name]))

    def _check_leader(self) -> None:
        leader = self._leader()
        require(leader is not None, "no node leads, although nothing is wrong any more")
        assert leader is not None
        assert leader.group is not None
        require(len(leader.group.isr) == len(self._living), f"in sync are {leader.group.isr}, but {self._living} live")


def read_log(machine: Machine) -> dict[int, tuple[Position, bytes]]:
    """What a machine's journal has, by sequence."""
    log = {}
    for path, position, frame in read_chain(machine.disk, group_number(GROUP), 1).frames:
        with closing(machine.disk.open(path)) as file:
            log[frame.sequence] = frame.position, file.read(position + HEADER_BYTES, frame.length)
    return log
