"""What takes something away for good, beside the faults that a register lives through."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import pytest

from headrace.cluster.errors import EtcdError
from headrace.cluster.etcd import Etcd
from headrace.runtime import Runtime
from simulation.etcd.cluster import EtcdCluster
from simulation.nemesis import GRAVE, Nemesis
from simulation.world import World

NODES = ("a", "b", "c")
MEMBERS = ("e1", "e2", "e3")
FLOORS = ("wiped disk", "restored disk", "lost machine", "etcd restored", "etcd watch hung", "etcd without a leader")


async def count_lives(runtime: Runtime) -> None:
    """A file for each life, and a key that is written and watched."""
    disk, etcd = runtime.disk, Etcd([(name, 2379) for name in MEMBERS])
    disk.open(f"life {len(disk.listdir(''))}", write=True, create=True)
    disk.sync_dir("")

    async def write() -> None:
        while True:
            with suppress(EtcdError):
                entry = await etcd.read(runtime.hostname)
                await etcd.swap(runtime.hostname, entry.revision if entry else 0, b"")
            await asyncio.sleep(0.5)

    async def watch() -> None:
        while True:
            with suppress(EtcdError):
                async with aclosing(etcd.watch(runtime.hostname)) as changes:
                    async for _ in changes:
                        pass
            await asyncio.sleep(0.5)

    await asyncio.gather(write(), watch())


def run(seed: int) -> World:
    world = World(seed, names=(*NODES, *MEMBERS))
    etcd = EtcdCluster(world, MEMBERS)

    async def scenario() -> None:
        etcd.start()
        faults = {**GRAVE, "kill": 1, "hang_watches": 1, "isolate_etcd": 2}
        nemesis = Nemesis(world, dict.fromkeys(NODES, count_lives), etcd, faults=faults)
        await nemesis.run(60.0)
        nemesis.end_faults()
        await asyncio.sleep(20)
        running = [name for name in NODES if world.machines[name].process.ending is None]
        assert len(running) == len(NODES) - world.counts["lost machine"]
        assert etcd.leader() is not None

    world.play(scenario())
    return world


@pytest.mark.timeout(600)
def test_grave_faults_happen_and_everything_but_the_lost_comes_back():
    worlds = [run(seed) for seed in range(4)]
    counts = {name: sum(world.counts[name] for world in worlds) for name in FLOORS}
    assert min(counts.values()) >= 1, counts
    # No more than a minority is lost.
    assert {world.counts["lost machine"] for world in worlds} <= {0, 1}


def test_a_nemesis_replays_exactly():
    assert run(1).trace.digest() == run(1).trace.digest()
