"""Three nodes and an etcd in the simulator, for a test that says what happens and when.

Each machine has a loop of its own: `group.on("b", ...)` runs something there, and waits for it outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from headrace.cluster.changes import new_group
from headrace.cluster.node import Node
from headrace.cluster.records import Cluster, Record, parse_group
from headrace.cluster.records import Group as GroupRecord
from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from simulation.etcd.cluster import EtcdCluster
from simulation.group import replica
from simulation.group.replica import GROUP, KEYS
from simulation.world import World

NAMES = ("a", "b", "c")
STEP_S = 0.002


class SimulatedGroup:
    """Nodes 0, 1 and 2 on the machines a, b and c."""

    def __init__(self, seed: int = 1, min_isr: int = 2, **settings: Any) -> None:
        """`settings`: of the nodes."""
        self.world = World(seed, names=(*NAMES, "etcd"))
        self.etcd = EtcdCluster(self.world, ("etcd",))
        self.nodes: dict[str, Node] = {}
        self._jobs: dict[str, list[Callable[[], Awaitable[None]]]] = {name: [] for name in NAMES}
        self._settings = {"preferred_after_s": 0.0, **settings}
        self.settings_of: dict[str, dict[str, Any]] = {}
        """What one node has of its own, from its next start on."""
        self._min_isr = min_isr

    def play(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Start everything, and run a scenario outside of all machines."""

        async def all_of_it() -> None:
            self.etcd.start()
            self.put(KEYS.cluster, Cluster(str(UUID(int=1))))
            self.put(KEYS.group(GROUP), new_group(range(len(NAMES)), self._min_isr))
            for name in NAMES:
                self.start(name)
            await scenario()

        self.world.play(all_of_it())

    def put(self, key: str, record: Record) -> None:
        store = self.etcd.store
        store.put(store.revision + 1, key.encode(), record.encode(), 0)
        store.commit()

    def start(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.world.machines[name].start(partial(self._live, name))

    async def _live(self, name: str, runtime: Runtime) -> None:
        node = await replica.start_node(runtime, NAMES.index(name), **self._settings, **self.settings_of.get(name, {}))
        assert node is not None
        self.nodes[name] = node
        jobs = self._jobs[name]
        running = set()
        while True:
            while jobs:
                running.add(asyncio.ensure_future(jobs.pop(0)()))
            await asyncio.sleep(STEP_S)

    async def on(self, name: str, work: Callable[[Node], Awaitable[Any]], within_s: float = 30.0) -> Any:
        """What comes of something that runs on a machine; an error of Headrace is returned."""
        found: list[Any] = []

        async def job() -> None:
            try:
                found.append(await work(self.nodes[name]))
            except HeadraceError as error:
                found.append(error)

        self._jobs[name].append(job)
        await self.until(lambda: bool(found), within_s)
        return found[0]

    async def append(self, name: str, value: bytes = b"v") -> Any:
        """The sequence of a committed frame."""

        async def work(node: Node) -> int:
            return await node.append(value, 1)

        return await self.on(name, work)

    async def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(STEP_S)

    async def leader(self, in_sync: int = 3, within_s: float = 30.0) -> str:
        """The machine that serves, once so many are in sync."""
        await self.until(lambda: self._leader(in_sync) is not None, within_s)
        found = self._leader(in_sync)
        assert found is not None
        return found

    def _leader(self, in_sync: int) -> str | None:
        for name, node in self.nodes.items():
            process = self.world.machines[name].process
            runs = process is not None and process.ending is None and not process.paused
            if runs and node.serves and node.group is not None and len(node.group.isr) >= in_sync:
                return name
        return None

    @property
    def record(self) -> GroupRecord:
        """The group's record in etcd."""
        key = KEYS.group(GROUP)
        return parse_group(self.etcd.store.range(key.encode(), b"")[0].value, key)

    def time(self) -> float:
        return self.world.time
