"""Servers in a group: what each role has, and what it leaves behind, in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from headrace.broker.publish import Message
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import OWN, Session
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
OFF: Any = dict.fromkeys(("http", "nsq", "nsq_http", "lookup", "lookup_http", "rocketmq", "rocketmq_namesrv"), "off")
WAIT_S = 60.0


class Group:
    """Three servers, each with a producer beside it that publishes whenever its node leads."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed, names=(*NODES, "etcd"))
        self.etcd = EtcdCluster(self.world, ("etcd",))
        self.servers: dict[str, GroupServer] = {}
        self.acknowledged: list[int] = []
        self.publishes = True
        self.pauses = self.paused = False
        """Whether the leader shall pause, and does."""
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
            kafka=f"{name}:9092", rocketmq_grpc="off", insecure=True, **OFF,
        )  # fmt: skip
        server = self.servers[name] = GroupServer(config, runtime)
        await server.start()
        session = Session()
        while True:
            await asyncio.sleep(0.01)
            if not server.membership.leads or not self.publishes:
                continue
            if self.pauses and not self.paused:
                await server.replica.pause()
                self.paused = True
            elif self.paused and not self.pauses:
                server.replica.resume()
                self.paused = False
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


async def depose(group: Group, name: str) -> str:
    """Pause a leader until another leads, and let it find out; the other one."""
    server = group.servers[name]
    broker, holds = server.broker, len(server.replica.log.holds)
    group.world.machines[name].pause()
    other: str = await group.until(lambda: group.leader(name))
    await group.grow()
    group.world.machines[name].resume()
    # It lets go of its broker, and follows with another.
    await group.until(lambda: server.broker is not broker and server.ready and not server.membership.leads)
    assert len(server.replica.log.holds) == holds
    return other


def test_a_deposed_leader_lets_go_and_leads_again() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.until(group.leader)
        for _ in range(3):
            await group.grow()
            leader = await depose(group, leader)
        await group.settle()

    Group().play(scenario)


def test_a_server_that_is_not_rid_of_its_last_leadership_does_not_lead() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.until(group.leader)
        await group.grow()
        for server in group.servers.values():
            server.replica.hold()
        group.world.machines[leader].kill()
        living = [group.servers[name] for name in NODES if name != leader]
        elected = await group.until(lambda: next((each for each in living if each.replica.node.serves), None))
        await asyncio.sleep(3)
        assert not elected.membership.leads
        elected.replica.release()
        await group.until(lambda: elected.membership.leads)
        await group.grow()

    Group().play(scenario)


def test_a_leader_that_pauses_for_a_transfer_appends_nothing_until_it_resumes() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.until(group.leader)
        await group.grow()
        group.pauses = True
        await group.until(lambda: group.paused)
        count = len(group.acknowledged)
        await asyncio.sleep(1)
        assert len(group.acknowledged) == count
        group.pauses = False
        await group.grow()
        assert group.leader() == leader
        await group.settle()

    Group().play(scenario)


def test_a_new_leader_has_the_quotas() -> None:
    ann = make_entity([("user", "ann")])

    async def scenario(group: Group) -> None:
        leader = await group.until(group.leader)
        await group.grow()
        await group.servers[leader].broker.quota_book.alter(OWN, ann, {"producer_byte_rate": 5})

        def having() -> list[str]:
            return [name for name, server in group.servers.items() if ann in server.broker.quotas.table.entities]

        await group.until(lambda: sorted(having()) == sorted(NODES))
        group.world.machines[leader].kill()
        other = await group.until(lambda: group.leader(other_than=leader))
        assert group.servers[other].broker.quotas.table.entities[ann] == {Kind.PRODUCE: 5}
        await group.servers[other].broker.quota_book.delete(OWN, ann)
        await group.until(lambda: not [name for name in having() if name != leader])

    Group().play(scenario)
