"""Servers in a group: what each role has, and what it leaves behind, in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.publish import Message, Session
from headrace.cluster.changes import new_group
from headrace.cluster.records import Cluster, Keys
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.group_server import GroupServer
from headrace.runtime import Runtime
from simulation.etcd.cluster import EtcdCluster
from simulation.world import World

NODES = ("a", "b", "c")
KEYS = Keys("simulated")
TOPIC = "numbers"
OFF = dict.fromkeys(("http", "nsq", "nsq_http", "lookup", "lookup_http", "rocketmq", "rocketmq_namesrv"), "off")
WAIT_S = 60.0


class Group:
    """Three servers, each with a producer beside it that publishes whenever its node leads."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed, names=(*NODES, "etcd"))
        self.etcd = EtcdCluster(self.world, ("etcd",))
        self.servers: dict[str, GroupServer] = {}
        self.acknowledged: list[int] = []
        self.publishes = True
        self._sent = 0

    def play(self, scenario: Callable[[Group], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            self.etcd.start()
            store = self.etcd.store
            for key, record in (
                (KEYS.cluster, Cluster(str(UUID(int=1)))),
                (KEYS.group("main"), new_group(range(len(NODES)), 2)),
            ):
                store.put(store.revision + 1, key.encode(), record.encode(), 0)
                store.commit()
            for name in NODES:
                self.start(name)
            await scenario(self)

        self.world.play(run())

    def start(self, name: str) -> None:
        self.world.machines[name].start(self._live)

    async def _live(self, runtime: Runtime) -> None:
        name = runtime.hostname
        config = Config(
            data="simulated", cluster="etcd://etcd:2379/simulated", node_id=NODES.index(name), peer=f"{name}:7000",
            kafka=f"{name}:9092", rocketmq_grpc="off", **OFF,
        )  # fmt: skip
        server = self.servers[name] = GroupServer(config, runtime)
        await server.start()
        session = Session()
        while True:
            await asyncio.sleep(0.01)
            if not server.membership.leads or not self.publishes:
                continue
            number, self._sent = self._sent, self._sent + 1
            try:
                await server.broker.publisher.publish(session, TOPIC, [Message(None, b"%d" % number, [])])
            except HeadraceError:
                session = Session()
                continue
            self.acknowledged.append(number)

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Turn virtual time until something is so."""
        async with asyncio.timeout(WAIT_S):
            while not (found := condition()):
                await asyncio.sleep(0.05)
        return found

    def leader(self, other_than: str = "") -> str | None:
        found = [name for name, server in self.servers.items() if name != other_than and _leads(server)]
        return found[0] if len(found) == 1 else None

    async def grow(self, more: int = 50) -> None:
        least = len(self.acknowledged) + more
        await self.until(lambda: len(self.acknowledged) >= least)

    async def settle(self) -> None:
        """Publish no more; every node has everything, and the same."""
        self.publishes = False
        await self.until(lambda: all(len(server.membership.isr) == len(NODES) for server in self.servers.values()))

        def ends() -> set[int]:
            topics = [server.replica.log.topics.get(TOPIC) for server in self.servers.values()]
            return {topic.partitions[0].high_watermark if topic else 0 for topic in topics}

        await self.until(lambda: len(ends()) == 1 and ends() != {0})
        found = ends().pop()
        assert found >= len(self.acknowledged)


def _leads(server: GroupServer) -> bool:
    return hasattr(server, "membership") and server.membership.leads and server.ready


def test_a_paused_leader_is_deposed_and_leads_again() -> None:
    async def scenario(group: Group) -> None:
        first = await group.until(group.leader)
        for _ in range(2):
            await group.grow()
            old, broker = group.servers[first], group.servers[first].broker
            group.world.machines[first].pause()
            second = await group.until(lambda: group.leader(first))
            await group.grow()
            group.world.machines[first].resume()
            # It lets go of its broker, and follows.
            await group.until(lambda: old.broker is not broker and old.ready and not old.membership.leads)
            assert old.replica.log.holds, "the standby watches over retention"
            first = second
        await group.settle()

    Group().play(scenario)
