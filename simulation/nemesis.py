"""What goes wrong between several machines, drawn from a seed.

A nemesis keeps the processes of a cluster running, as a supervisor would, and lets one fault after another happen to
their machines, to the links between all machines, and to etcd. Faults overlap. `World.counts` has what came of it.

    nemesis = Nemesis(world, {"a": main, "b": main}, etcd, others=("client",))
    await nemesis.run(seconds=60)
    nemesis.end_faults()                # everything heals; processes that are down come back by themselves
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from simulation.etcd.cluster import EtcdCluster
from simulation.etcd.faults import EtcdFaults
from simulation.etcd.store import Store
from simulation.machine import Machine, Main
from simulation.storage import Storage
from simulation.world import World

# Each with its weight: what a cluster must live with.
USUAL: Mapping[str, float] = {
    "kill": 2,
    "power_cut": 2,
    "power_cut_all": 1,
    "pause": 3,
    "cut": 3,
    "cut_one_way": 3,
    "isolate": 2,
    "cut_connections": 1,
    "slow_link": 1,
    "jump_clock": 1,
    "drift_clock": 1,
    "hang_disk": 2,
    "slow_disk": 1,
    "fail_disk": 1,
    "fill_disk": 1,
    "lose_requests": 1,
    "lose_answers": 2,
    "delay_requests": 2,
    "hang_watches": 1,
    "kill_etcd": 1,
    "pause_etcd": 1,
    "isolate_etcd": 1,
    "cut_from_etcd": 2,
}
# What takes something away that does not come back, and so needs an answer of its own.
GRAVE: Mapping[str, float] = {"wipe_disk": 1, "restore_disk": 1, "lose_machine": 0.5, "restore_etcd": 0.5}


class Nemesis:
    """Faults by seed, for the machines of one cluster."""

    def __init__(
        self,
        world: World,
        nodes: Mapping[str, Main],
        etcd: EtcdCluster,
        *,
        others: Sequence[str] = (),
        faults: Mapping[str, float] = USUAL,
        interval_s: float = 1.5,
        restart_s: float = 1.0,
    ) -> None:
        """`others` are machines that only links can fail, such as those of clients. `interval_s` and `restart_s` are
        the mean times between faults, and until a process that has ended is started again."""
        self._world = world
        self._network = world.network
        self._nodes = nodes
        self._etcd = etcd
        self._places = (*nodes, *etcd.names, *others)
        self._faults = faults
        self._interval_s = interval_s
        self._restart_s = restart_s
        self._rng = world.stream("nemesis")
        # In the order in which they began: a set would have another in every run.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.lost: set[str] = set()
        """Machines that never return."""
        self._supervisors = {name: asyncio.ensure_future(self._supervise(name)) for name in nodes}
        self._before_start: dict[str, Callable[[], None]] = {}
        self._disk_backups: dict[str, Storage] = {}
        self._etcd_backup: Store | None = None

    async def run(self, seconds: float) -> None:
        """Let things go wrong for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._interval_s))
            if loop.time() >= end:
                return
            (fault,) = self._rng.choices(list(self._faults), list(self._faults.values()))
            work: Coroutine[Any, Any, None] = getattr(self, f"_{fault}")()
            task = asyncio.ensure_future(work)
            self._tasks[task] = None
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        if not task.cancelled():
            task.result()

    def end_faults(self) -> None:
        """Nothing is wrong any more, but for what is lost."""
        for task in list(self._tasks):
            task.cancel()
        self._etcd.faults = EtcdFaults()
        self._network.cut_chance = 0.0
        self._world.end_faults()
        self._etcd.start()

    async def _supervise(self, name: str) -> None:
        machine = self._world.machines[name]
        while True:
            self._before_start.pop(name, lambda: None)()
            await machine.start(self._nodes[name]).wait()
            if self._rng.random() < 0.3:
                self._disk_backups[name] = machine.storage.copy()
            await asyncio.sleep(self._rng.expovariate(1 / self._restart_s))

    # What is drawn.

    def _running(self) -> list[Machine]:
        machines = (self._world.machines[name] for name in self._nodes)
        return [each for each in machines if each.process is not None and each.process.ending is None]

    def _node(self) -> Machine | None:
        """A node that runs, paused or not."""
        running = self._running()
        return self._rng.choice(running) if running else None

    def _expendable(self) -> Machine | None:
        """A node whose disk, or all of it, may be lost."""
        return self._node()

    def _lose(self, node: Machine) -> None:
        """What is on the disk of a node is about to be lost."""

    def _link(self) -> tuple[str, str]:
        source, target = self._rng.sample(self._places, 2)
        return source, target

    async def _last(self, seconds: float) -> None:
        """How long a fault stays: mostly less than twice as long as given."""
        await asyncio.sleep(self._rng.expovariate(1 / seconds))

    # Processes.

    async def _kill(self) -> None:
        if node := self._node():
            node.kill()

    async def _power_cut(self) -> None:
        if node := self._node():
            node.power_cut()

    async def _power_cut_all(self) -> None:
        """Every node at once: what no device has is nowhere any more."""
        running = self._running()
        if len(running) > 1:
            self._world.counts["power cut of all"] += 1
        for node in running:
            node.power_cut()

    async def _pause(self) -> None:
        if node := self._node():
            await self._pause_for(node, 3.0)

    async def _pause_for(self, machine: Machine, seconds: float) -> None:
        process = machine.process
        machine.pause()
        await self._last(seconds)
        if process is not None and process.paused and process.ending is None:
            machine.resume()

    async def _lose_machine(self) -> None:
        """One never returns; of these there may be fewer than half."""
        node = self._expendable()
        if node is not None and 2 * (len(self.lost) + 1) < len(self._nodes):
            self._lose(node)
            self.lost.add(node.name)
            self._supervisors.pop(node.name).cancel()
            node.power_cut()
            node.count("lost machine")

    # Links.

    async def _cut(self) -> None:
        await self._cut_for(4.0, [self._link()])

    async def _cut_one_way(self) -> None:
        await self._cut_for(4.0, [self._link()], both=False)

    async def _isolate(self) -> None:
        """Cut a node from its peers and from etcd; clients may still reach it."""
        if node := self._node():
            places = self._rng.choice((self._places, (*self._nodes, *self._etcd.names)))
            await self._cut_for(6.0, [(node.name, other) for other in places if other != node.name])

    async def _isolate_etcd(self) -> None:
        """Cut a member of etcd from the others; clients still reach it."""
        member = self._rng.choice(self._etcd.names)
        await self._cut_for(6.0, [(member, other) for other in self._etcd.names if other != member])

    async def _cut_from_etcd(self) -> None:
        if node := self._node():
            await self._cut_for(4.0, [(node.name, member) for member in self._etcd.names])

    async def _cut_for(self, seconds: float, links: Iterable[tuple[str, str]], both: bool = True) -> None:
        for source, target in links:
            self._network.cut(source, target, both=both)
        await self._last(seconds)
        for source, target in links:
            self._network.heal(source, target)

    async def _cut_connections(self) -> None:
        """Reset single connections, here and there."""
        self._network.cut_chance = self._rng.choice((0.01, 0.1))
        await self._last(3.0)
        self._network.cut_chance = 0.0

    async def _slow_link(self) -> None:
        source, target = self._link()
        self._network.slow(source, target, self._rng.choice((0.02, 0.2, 1.0)))
        await self._last(4.0)
        self._network.heal(source, target)

    # Clocks.

    async def _jump_clock(self) -> None:
        if node := self._node():
            node.jump_clock(self._rng.choice((-1, 1)) * self._rng.choice((0.1, 5.0, 7200.0)))

    async def _drift_clock(self) -> None:
        machine = self._world.machines[self._rng.choice((*self._nodes, *self._etcd.names))]
        machine.drift_clock(self._rng.uniform(0.95, 1.05))

    # Disks.

    async def _hang_disk(self) -> None:
        if node := self._node():
            node.hang_disk()
            await self._last(3.0)
            node.repair_disk()

    async def _slow_disk(self) -> None:
        if node := self._node():
            node.slow_disk(self._rng.choice((10, 100, 1000)))
            await self._last(3.0)
            node.repair_disk()

    async def _fail_disk(self) -> None:
        if node := self._node():
            node.fail_syncs(self._rng.choice((0.1, 1.0)))
            await self._last(3.0)
            node.repair_disk()

    async def _fill_disk(self) -> None:
        if node := self._node():
            node.fill_disk(self._rng.choice((0, 10, 1000)))
            await self._last(3.0)
            node.repair_disk()

    async def _wipe_disk(self) -> None:
        if node := self._expendable():
            self._lose(node)
            self._before_start[node.name] = node.wipe_disk
            node.power_cut()

    async def _restore_disk(self) -> None:
        node = self._expendable()
        if node is not None and (backup := self._disk_backups.get(node.name)) is not None:
            self._lose(node)
            self._before_start[node.name] = lambda: node.restore_disk(backup)
            node.power_cut()

    # etcd.

    async def _lose_requests(self) -> None:
        await self._disturb_etcd("request_lost")

    async def _lose_answers(self) -> None:
        await self._disturb_etcd("answer_lost")

    async def _delay_requests(self) -> None:
        await self._disturb_etcd("late")

    async def _hang_watches(self) -> None:
        await self._disturb_etcd("watch_hang")

    async def _disturb_etcd(self, fault: str) -> None:
        self._etcd.faults.only_transactions = self._rng.random() < 0.5
        setattr(self._etcd.faults, fault, self._rng.choice((0.1, 0.5)))
        await self._last(3.0)
        setattr(self._etcd.faults, fault, 0.0)

    async def _kill_etcd(self) -> None:
        self._etcd.kill()
        self._world.counts["etcd killed"] += 1
        await self._last(3.0)
        self._etcd.start()

    async def _pause_etcd(self) -> None:
        machine = self._world.machines[self._rng.choice(self._etcd.names)]
        if machine.process is not None and machine.process.ending is None:
            self._world.counts["etcd paused"] += 1
            await self._pause_for(machine, 3.0)

    async def _restore_etcd(self) -> None:
        if self._etcd_backup is not None:
            self._etcd.restore(self._etcd_backup)
        self._etcd_backup = self._etcd.backup()
