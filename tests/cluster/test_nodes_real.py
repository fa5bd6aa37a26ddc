"""Three nodes on real disks and sockets with a real etcd: a leader goes, another leads, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.peers.etcd import EtcdPeers
from tests.cluster.conftest import Peers
from tests.cluster.test_etcd_real import answers
from tests.waiting import until

from headrace.cluster import identity
from headrace.cluster.changes import new_group
from headrace.cluster.etcd import Etcd, Swapped
from headrace.cluster.node import Node, NodeSettings
from headrace.cluster.records import Cluster, Incarnation, Keys
from headrace.cluster.records import Node as NodeRecord
from headrace.errors import NotLeading
from headrace.log.group_frames import payload_of
from headrace.log.journal import FOLDER
from headrace.runtime.real import real_runtime

pytestmark = pytest.mark.etcd

KEYS = Keys("real")
GROUP = "g"
CLUSTER_ID = "6a4f5f0e-5f0b-4c47-9a39-0f3a3f9e4f11"


def client_of(peers: EtcdPeers) -> Etcd:
    return Etcd([("127.0.0.1", member.port) for member in peers.members])


async def start_node(peers: EtcdPeers, folder: Path, number: int) -> Node:
    folder.mkdir(exist_ok=True)
    runtime, etcd = real_runtime(str(folder)), client_of(peers)
    found = await identity.start(runtime, etcd, KEYS, GROUP, number)
    (folder / FOLDER).mkdir(exist_ok=True)
    me = Incarnation(number, found.directory_id, found.starts)
    settings = NodeSettings(CLUSTER_ID, KEYS, GROUP, me, journal_file_bytes=1 << 20)
    node = Node(runtime, etcd, settings, lambda _: None)
    await node.journal.open()
    address = await node.listen("127.0.0.1", 0)
    await node.join(NodeRecord(me.directory_id, me.starts, GROUP, "", {"peer": address}, runtime.boot_id, 1, 1))
    return node


async def test_a_leader_that_goes_is_followed_by_another(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    etcd = client_of(peers)
    await until(lambda: answers(etcd))
    for key, record in ((KEYS.cluster, Cluster(CLUSTER_ID)), (KEYS.group(GROUP), new_group([1, 2, 3], 2))):
        assert isinstance(await etcd.swap(key, 0, record.encode()), Swapped)
    nodes = {number: await start_node(peers, tmp_path / str(number), number) for number in (1, 2, 3)}

    async def serving(least: int) -> Node:
        found = await until(
            lambda: next(
                (each for each in nodes.values() if each.serves and each.group and len(each.group.isr) >= least), None
            )
        )
        assert found is not None
        return found

    sent: list[bytes] = []
    for turn in range(3):
        leader = await serving(3 if turn == 0 else 2)
        values = [b"%d of %d" % (number, turn) for number in range(200)]
        sequences = await asyncio.gather(*[leader.append(value, 1) for value in values])
        assert sequences == sorted(sequences)
        sent += values
        number = next(number for number, node in nodes.items() if node is leader)
        if turn == 2:
            break
        await leader.stop()
        with pytest.raises(NotLeading):
            leader.append(b"", 0)
        del nodes[number]
        if turn == 0:
            # It comes back as a follower, and is in sync again.
            await serving(2)
            nodes[number] = await start_node(peers, tmp_path / str(number), number)
            await serving(3)
    end = leader.journal.committed
    for node in nodes.values():
        await until(lambda node=node: node.journal.flushed >= end)  # type: ignore[misc]
        frames: list[bytes] = []
        while len(frames) < end:
            frames += await node.journal.read(len(frames) + 1)
        assert [payload for data in frames if (payload := payload_of(data))][: len(sent)] == sent
    for node in nodes.values():
        await node.stop()
        node.journal.close()
    await etcd.close()
