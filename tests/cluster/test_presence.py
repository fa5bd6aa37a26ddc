"""A node's key stands while it runs, whatever becomes of etcd's answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from bench.peers.etcd import EtcdPeers
from tests.cluster.conftest import Peers
from tests.simulation.test_etcd import with_etcd
from tests.waiting import until

from headrace.cluster.etcd import Etcd, View
from headrace.cluster.presence import LEASE_SECONDS, Presence
from headrace.cluster.records import Node, parse_node
from headrace.cluster.watcher import Watcher
from simulation.etcd.cluster import EtcdCluster

KEY = "/headrace/main/nodes/1"
NODE = Node(str(UUID(int=1)), 2, "main", "", {"peer": "a:1"}, "b", 1, 1)


async def held(etcd: Etcd) -> Node | None:
    entry = await etcd.read(KEY)
    return None if entry is None else parse_node(entry.value, KEY)


def new_client() -> Etcd:
    return Etcd([("etcd", 2379)])


def test_the_key_stands_until_the_node_stops() -> None:
    async def main(_: EtcdCluster) -> None:
        etcd = new_client()
        presence = Presence(etcd, KEY, NODE)
        presence.start()
        await asyncio.sleep(1)
        for _ in range(30):
            assert await held(etcd) == NODE
            assert asyncio.get_running_loop().time() - presence.kept_at < LEASE_SECONDS
            await asyncio.sleep(1)
        assert presence.problem == ""
        await presence.stop()
        assert await held(etcd) is None

    with_etcd(main)


def test_a_process_that_is_gone_leaves_it_for_a_lease() -> None:
    async def main(_: EtcdCluster) -> None:
        etcd = new_client()
        presence = Presence(etcd, KEY, NODE)
        presence.start()
        await asyncio.sleep(1)
        assert presence._task is not None
        presence._task.cancel()
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert await held(etcd) is None

    with_etcd(main)


def test_an_earlier_start_of_the_directory_is_replaced_at_once() -> None:
    async def main(_: EtcdCluster) -> None:
        etcd = new_client()
        await etcd.swap(KEY, 0, replace(NODE, starts=1).encode(), lease=await etcd.grant(600))
        presence = Presence(etcd, KEY, NODE)
        presence.start()
        await asyncio.sleep(0.9)
        assert await held(etcd) == NODE
        await presence.stop()

    with_etcd(main)


@pytest.mark.parametrize("other", [replace(NODE, directory_id=str(UUID(int=2)), starts=1), replace(NODE, starts=3)])
def test_another_process_keeps_it_and_is_followed(other: Node) -> None:
    async def main(_: EtcdCluster) -> None:
        etcd = new_client()
        await etcd.swap(KEY, 0, other.encode(), lease=await etcd.grant(20))
        presence = Presence(etcd, KEY, NODE)
        presence.start()
        await asyncio.sleep(10)
        assert await held(etcd) == other
        assert "is held by another process, at a:1. Does another node have the same --node-id?" in presence.problem
        await asyncio.sleep(20)
        assert await held(etcd) == NODE
        assert presence.problem == ""
        await presence.stop()

    with_etcd(main)


@pytest.mark.parametrize("seed", range(5))
def test_lost_and_late_answers_leave_one_key_that_stands(seed: int) -> None:
    async def main(cluster: EtcdCluster) -> None:
        etcd = new_client()
        presence = Presence(etcd, KEY, NODE)
        cluster.faults.answer_lost = cluster.faults.request_lost = cluster.faults.late = 0.2
        presence.start()
        await asyncio.sleep(60)
        cluster.faults.answer_lost = cluster.faults.request_lost = cluster.faults.late = 0.0
        await asyncio.sleep(10)
        for _ in range(20):
            assert await held(etcd) == NODE
            await asyncio.sleep(1)
        await presence.stop()

    with_etcd(main, seed=seed)


def test_an_etcd_that_is_away_is_reported_and_the_key_comes_back() -> None:
    async def main(cluster: EtcdCluster) -> None:
        etcd = new_client()
        presence = Presence(etcd, KEY, NODE)
        presence.start()
        await asyncio.sleep(1)
        before = presence.kept_at
        cluster.kill()
        await asyncio.sleep(20)
        assert presence.problem
        assert presence.kept_at < before + 2
        cluster.start()
        await asyncio.sleep(5)
        assert presence.problem == ""
        assert await held(etcd) == NODE
        await presence.stop()

    with_etcd(main)


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    class SlowEtcd(Etcd):
        async def keep_alive(self, lease: int) -> bool:
            await asyncio.sleep(100)
            return await super().keep_alive(lease)

    async def main(_: EtcdCluster) -> None:
        loop = asyncio.get_running_loop()
        presence = Presence(SlowEtcd([("etcd", 2379)]), KEY, NODE, lease_seconds=600)
        presence.start()
        await asyncio.sleep(250)
        begun = presence.kept_at
        await asyncio.sleep(100)
        assert begun < presence.kept_at < loop.time() - 100
        await presence.stop()

    with_etcd(main)


@pytest.mark.etcd
async def test_with_a_real_etcd_others_see_it_come_and_go(etcd_peers: Peers) -> None:
    peers: EtcdPeers = etcd_peers()
    peers.wait()
    etcd, other = (Etcd([("127.0.0.1", peers.members[0].port)]) for _ in range(2))
    views: list[View] = []
    watcher = Watcher(other, "/headrace/main/", LEASE_SECONDS / 4, views.append, lambda error: None)
    watcher.start()
    presence = Presence(etcd, KEY, NODE)
    presence.start()
    await until(lambda: views and KEY in views[-1].entries)
    await presence.stop()
    await until(lambda: KEY not in views[-1].entries)
    # A process that is gone without a word.
    presence = Presence(etcd, KEY, NODE)
    presence.start()
    await until(lambda: KEY in views[-1].entries)
    assert presence._task is not None
    presence._task.cancel()
    await until(lambda: KEY not in views[-1].entries)
    await watcher.stop()
    await etcd.close()
    await other.close()
