"""Three replicas on real disks and sockets with a real etcd: topics, batches and trims are on every one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bench.peers.etcd import EtcdPeers
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.conftest import Peers
from tests.cluster.test_etcd_real import answers
from tests.cluster.test_nodes_real import CLUSTER_ID, GROUP, KEYS, client_of
from tests.waiting import until

from headrace.cluster import identity
from headrace.cluster.changes import new_group
from headrace.cluster.etcd import Swapped
from headrace.cluster.metrics import render
from headrace.cluster.node import NodeSettings
from headrace.cluster.records import Cluster, Incarnation
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.replica import Replica, Role
from headrace.cluster.status import read_status
from headrace.errors import NotLeading
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Durability, Partition, TopicSettings, Write
from headrace.log.offset_blocks import BLOCK_OFFSETS
from headrace.log.settings import LogSettings
from headrace.runtime.real import real_runtime

pytestmark = pytest.mark.etcd


async def start_replica(
    peers: EtcdPeers, folder: Path, number: int, log: LogSettings | None = None, **settings: Any
) -> Replica:
    folder.mkdir(exist_ok=True)
    runtime, etcd = real_runtime(str(folder)), client_of(peers)
    found = await identity.start(runtime, etcd, KEYS, GROUP, number)
    me = Incarnation(number, found.directory_id, found.starts)
    node = NodeSettings(CLUSTER_ID, KEYS, GROUP, me, **{"journal_file_bytes": 1 << 20, **settings})
    replica = Replica(runtime, etcd, node, log or LogSettings(), lambda _: None)
    address = await replica.start("127.0.0.1", 0)
    addresses, known = {"peer": address}, node.versions
    await replica.join(
        NodeRecord(
            me.directory_id, me.starts, GROUP, "", addresses, runtime.boot_id, known.oldest, known.newest, known.level
        )
    )
    return replica


async def begin(peers: EtcdPeers) -> None:
    etcd = client_of(peers)
    await until(lambda: answers(etcd))
    for key, record in ((KEYS.cluster, Cluster(CLUSTER_ID)), (KEYS.group(GROUP), new_group([1, 2, 3], 2))):
        assert isinstance(await etcd.swap(key, 0, record.encode()), Swapped)
    await etcd.close()


async def leader_of(replicas: dict[int, Replica], least: int) -> tuple[int, Replica]:
    def found() -> tuple[int, Replica] | None:
        for number, each in replicas.items():
            if each.role is Role.LEADER and each.node.group and len(each.node.group.isr) >= least:
                return number, each
        return None

    leader = await until(found)
    assert leader is not None
    return leader


def batch(*values: bytes) -> bytearray:
    return bytearray(records.build([(1_000, None, value, ()) for value in values]))


async def append(replica: Replica, *writes: tuple[Partition, bytes]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(error: Exception | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    replica.log.append([Write(partition, batch(value)) for partition, value in writes], finish)
    await done


def values_of(partition: Partition) -> list[bytes]:
    position, found = partition.start, []
    while position < partition.high_watermark:
        chunk = partition.read(position, 1 << 30)
        raw = chunk.read()
        chunk.release()
        for at, header in batches_in(raw):
            found += [record[3] or b"" for record in records.parse(raw[at : at + header.size], 1 << 20)]
            position = header.last_offset + 1
    return found


async def test_a_journal_that_is_kept_for_followers_takes_no_more_than_its_frames(
    etcd_peers: Peers, tmp_path: Path
) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    replicas = {number: await start_replica(peers, tmp_path / str(number), number) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    [partition] = (await leader.log.create("orders", 1, {}, TopicSettings())).partitions
    for turn in range(20):
        await append(leader, (partition, b"%d" % turn))
        await leader.log.upkeep.checkpoint()
    # Of a MiB each they were reserved, and each has one message.
    sizes = [each.stat() for each in (tmp_path / "1" / "journal").iterdir()]
    for replica in replicas.values():
        await replica.stop()
    assert len(sizes) > 15
    assert sum(each.st_blocks * 512 for each in sizes) < 4 << 20


async def test_what_is_committed_is_on_every_replica(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    replicas = {number: await start_replica(peers, tmp_path / str(number), number) for number in (1, 2, 3)}
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    for turn in range(4):
        number, leader = await leader_of(replicas, 3 if turn == 0 else 2)
        if turn == 0:
            await leader.log.create("t", 2, {}, TopicSettings())
        topic = leader.log.topics["t"]
        for index in range(50):
            values = b"%d.%d.a" % (turn, index), b"%d.%d.b" % (turn, index)
            for partition in topic.partitions:
                await partition.load()
            await append(leader, *zip(topic.partitions, values, strict=True))
            for each in (0, 1):
                sent[each].append(values[each])
        for each in (0, 1):
            assert values_of(topic.partitions[each])[-50:] == sent[each][-50:]
        if turn == 1:
            await leader.log.topics["t"].partitions[0].trim(10)
            del sent[0][:10]
        if turn == 3:
            break
        await leader.stop()
        with pytest.raises(NotLeading):
            topic.partitions[0].append(batch(b"too late"))
        del replicas[number]
        await leader_of(replicas, 2)
        replicas[number] = await start_replica(peers, tmp_path / str(number), number)
        await leader_of(replicas, 3)
    end = leader.log.frames.committed
    for replica in replicas.values():
        await until(lambda replica=replica: replica.log.frames.applied >= end)  # type: ignore[misc]
        partitions = replica.log.topics["t"].partitions
        for index in (0, 1):
            await partitions[index].load()
            assert values_of(partitions[index]) == sent[index]
        assert partitions[0].start == 10
    for replica in replicas.values():
        await replica.stop()


async def test_a_change_of_the_catalogue_goes_on_without_its_caller(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    replicas = {number: await start_replica(peers, tmp_path / str(number), number) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    creating = asyncio.ensure_future(leader.log.create("t", 1, {}, TopicSettings()))
    while not leader.log._changes:
        await asyncio.sleep(0)
    creating.cancel()
    for replica in replicas.values():
        await until(lambda replica=replica: "t" in replica.log.topics)  # type: ignore[misc]
    await leader.log.topics["t"].partitions[0].load()
    await append(leader, (leader.log.topics["t"].partitions[0], b"v"))
    trimming = asyncio.ensure_future(leader.log.topics["t"].partitions[0].trim(1))
    await asyncio.sleep(0)
    trimming.cancel()
    deleting = asyncio.ensure_future(leader.log.delete("t"))
    for replica in replicas.values():
        await until(
            lambda replica=replica: (
                replica.log.topics["t"].partitions[0].start == 1 if "t" in replica.log.topics else True
            )
        )  # type: ignore[misc]
    deleting.cancel()
    for replica in replicas.values():
        await until(lambda replica=replica: "t" not in replica.log.topics)  # type: ignore[misc]
    for replica in replicas.values():
        await replica.stop()


async def test_an_offset_of_a_memory_topic_never_means_two_messages(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    replicas = {number: await start_replica(peers, tmp_path / str(number), number) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    memory = TopicSettings(durability=Durability.MEMORY)
    partition = (await leader.log.create("t", 1, {}, memory)).partitions[0]
    await partition.load()
    await append(leader, (partition, b"first"))
    await leader.log.settle()
    end = leader.log.frames.committed
    await until(lambda: all(each.log.frames.applied >= end for each in replicas.values()))
    ends = [each.log.topics["t"].partitions[0].end for each in replicas.values() if each is not leader]
    assert ends == [1 + BLOCK_OFFSETS] * 2
    assert leader.log.local(partition).point == 1 + BLOCK_OFFSETS
    await leader.transfer(2)
    _, other = await leader_of(replicas, 3)
    assert other is not leader
    assert (partition.start, partition.end) == (1 + BLOCK_OFFSETS, 1 + BLOCK_OFFSETS)
    partition = other.log.topics["t"].partitions[0]
    await append(other, (partition, b"second"))
    assert (partition.start, partition.end) == (1 + BLOCK_OFFSETS, 2 + BLOCK_OFFSETS)
    # One that copies learns of it too.
    await replicas[3].stop()
    fourth = replicas[3] = await start_replica(peers, tmp_path / "anew", 3)
    await until(lambda: "t" in fourth.log.topics and fourth.log.topics["t"].partitions[0].end >= 2 + BLOCK_OFFSETS)
    for replica in replicas.values():
        await replica.stop()


def shown(replica: Replica) -> dict[str, float]:
    families = text_string_to_metric_families(render(replica))
    return {"".join([each.name, *each.labels.values()]): each.value for family in families for each in family.samples}


async def test_what_a_scrape_shows_of_a_group(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    await begin(peers)
    replicas = {number: await start_replica(peers, tmp_path / str(number), number) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    await leader.transfer(2)
    _, leader = await leader_of(replicas, 3)
    await leader.log.create("t", 1, {}, TopicSettings())
    found = shown(leader)
    wanted = {"leads": 1, "epoch": 2, "isr": 3, "min_isr": 2, "elr": 0, "etcd_reached": 1, "leaderships_total": 1}
    assert {name: found[f"headrace_replica_{name}"] for name in wanted} == wanted
    assert found["headrace_replica_committed_frame"] == 3
    await until(lambda: shown(leader)["headrace_replica_lag_bytes1"] == 0)
    others = [each for each in replicas.values() if each is not leader]
    assert [shown(each)["headrace_replica_leads"] for each in others] == [0, 0]
    await others[0].stop()
    await leader.log.create("u", 1, {}, TopicSettings())
    gone = 1 if others[0] is replicas[1] else 3
    await until(lambda: shown(leader)[f"headrace_replica_lag_bytes{gone}"] > 0)
    await until(lambda: shown(leader)["headrace_replica_isr"] == 2)
    assert shown(leader)[f"headrace_replica_lag_seconds{gone}"] > 1
    etcd, follows = client_of(peers), 4 - gone
    reception, end = leader.node.reception, leader.log.frames.committed
    await until(lambda: {each.node: each.applied for each in reception.report().followers}[follows] == end)  # type: ignore[union-attr]
    status = await read_status(etcd, KEYS, GROUP, None)
    await etcd.close()
    rows = {each["node"]: each for each in status["nodes"]}
    assert rows[gone]["lag_bytes"] > 0
    assert rows[gone]["lag_seconds"] > 1
    assert rows[gone]["unapplied_frames"] is None, "it does not say any more"
    assert (rows[follows]["lag_bytes"], rows[follows]["unapplied_frames"]) == (0, 0)
    assert rows[2]["lag_bytes"] is None, "it leads"
    documented = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert [name for name in found if f"`{name.rstrip('123')}`" not in documented] == []
    await others[1].stop()
    await leader.stop()
