"""Nodes of different versions in one group: each is upgraded in turn, leaders change meanwhile, and nothing is lost.

An older version is a node that is pinned to what that version knew (`replica_feature_level_max`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from tests.captured_logs import capture_logs
from tests.cluster.conftest import Peers
from tests.cluster.simulated import SimulatedGroup
from tests.cluster.test_nodes_real import GROUP, KEYS, client_of
from tests.cluster.test_replica_real import append, begin, leader_of, start_replica, values_of
from tests.waiting import until

from headrace.cluster import identity
from headrace.cluster.changes import raise_feature_level
from headrace.cluster.errors import ChangeRefused, RecordInvalid
from headrace.cluster.records import Cluster
from headrace.cluster.status import running_nodes
from headrace.cluster.swaps import change_cluster
from headrace.cluster.versions import FEATURE_LEVEL, PEER_NEWEST, PEER_OLDEST, Versions, pinned
from headrace.log.group_frames import version_of
from headrace.log.interface import Durability, TopicSettings
from headrace.runtime.real import real_runtime
from simulation.group.replica import KEYS as KEYS_OF_GROUP


def test_two_versions_speak_the_greatest_that_both_know() -> None:
    ours = Versions(2, 4, 4)
    assert [ours.common(*theirs) for theirs in ((1, 3), (2, 9), (4, 4), (1, 2))] == [3, 4, 4, 2]
    assert [ours.common(*theirs) for theirs in ((5, 6), (1, 1))] == [None, None]


def test_a_pinned_node_knows_what_the_older_version_knew() -> None:
    assert pinned(0) == Versions(PEER_OLDEST, PEER_NEWEST, FEATURE_LEVEL)
    assert pinned(1) == Versions(1, 1, 1)
    assert pinned(99) == pinned(0)


def test_peers_without_a_common_version_say_so() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        group.world.machines["c"].kill()
        group.settings_of["c"] = {"versions": Versions(8, 9, FEATURE_LEVEL)}
        group.start("c")
        await asyncio.sleep(8)
        assert await group.leader(2) == "a"
        assert len(group.record.isr) == 2

    with capture_logs() as lines:
        group.play(scenario)
    said = f"this node speaks versions {PEER_OLDEST} to {PEER_NEWEST} of the peer protocol, not 8 to 9"
    assert said in str(lines)


def test_a_follower_refuses_frames_of_a_level_that_it_does_not_know() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        group.world.machines["c"].kill()
        # As if the level had risen since it looked.
        group.put(KEYS_OF_GROUP.cluster, Cluster(str(UUID(int=1)), 1))
        group.settings_of["c"] = {"versions": pinned(1), "feature_level": 1}
        group.start("c")
        await group.until(lambda: "c" in group.nodes)
        before = group.nodes["c"].journal.last
        for _ in range(5):
            await group.append("a")
            await asyncio.sleep(2)
        assert group.nodes["c"].journal.last == before

    with capture_logs() as lines:
        group.play(scenario)
    assert "the leader sent a frame of a later feature level. Use a newer Headrace." in str(lines)


@pytest.mark.etcd
async def test_a_group_is_upgraded_node_after_node(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    etcd = client_of(peers)
    await change_cluster(etcd, KEYS.cluster, lambda cluster: Cluster(cluster.id, 1))
    old = {"versions": pinned(1), "feature_level": 1}
    replicas = {number: await start_replica(peers, tmp_path / str(number), number, **old) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    await leader.log.create("t", 1, {}, TopicSettings())
    await leader.log.create("volatile", 1, {}, TopicSettings(durability=Durability.MEMORY))
    sent: list[bytes] = []

    async def send(count: int = 20) -> None:
        _, leader = await leader_of(replicas, 2)
        partition = leader.log.topics["t"].partitions[0]
        await partition.load()
        for _ in range(count):
            sent.append(b"%d" % len(sent))
            await append(leader, (partition, sent[-1]))

    async def raise_level() -> None:
        running = running_nodes(await etcd.read_prefix(KEYS.prefix), KEYS)
        await change_cluster(etcd, KEYS.cluster, partial(raise_feature_level, level=2, running=running))

    async def versions_of(leader_of_now: int) -> set[int]:
        frames = replicas[leader_of_now].log.frames
        return {version_of(each) for each in frames.newest(frames.last.sequence) or []}

    await send()
    for number in (2, 3, 1):
        with pytest.raises(ChangeRefused, match=r"knows feature\.level 1 at most"):
            await raise_level()
        # Node 1 leads until its turn comes: then an older version follows a newer one.
        await replicas[number].retire()
        await replicas.pop(number).stop()
        await send()
        replicas[number] = await start_replica(peers, tmp_path / str(number), number, feature_level=1)
        await leader_of(replicas, 3)
        await send()
        led, leader = await leader_of(replicas, 3)
        assert await versions_of(led) == {1}
        assert leader.log.reserve_offsets is None
        await leader.transfer(2 if number == 2 else 1 if number == 3 else 3)
    await raise_level()
    await until(lambda: all(each.node.feature_level == 2 for each in replicas.values()))
    await send()
    led, leader = await leader_of(replicas, 3)
    assert await versions_of(led) == {2}
    volatile = leader.log.topics["volatile"].partitions[0]
    await volatile.load()
    await append(leader, (volatile, b"v"))
    await leader.log.settle()
    assert leader.log.local(volatile).point > 1, "its offsets are reserved from now on"
    await until(lambda: all(report.applied is not None for report in leader.node.reception.report().followers))  # type: ignore[union-attr]
    end = leader.log.frames.committed
    for replica in replicas.values():
        await until(lambda replica=replica: replica.log.frames.applied >= end)  # type: ignore[misc]
        partition = replica.log.topics["t"].partitions[0]
        await partition.load()
        assert values_of(partition) == sent
    # What knows less does not start any more.
    await replicas[3].stop()
    runtime = real_runtime(str(tmp_path / "3"))
    with pytest.raises(RecordInvalid, match="feature level 2, and this version knows 1 at most"):
        await identity.start(runtime, etcd, KEYS, GROUP, 3, level=1)
    await replicas[1].stop()
    await replicas[2].stop()
    await etcd.close()
