"""Replicas on real disks and sockets with a real etcd that must copy: new ones, wiped and restored ones, and those that
are too far behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.conftest import Peers
from tests.cluster.test_nodes_real import GROUP, KEYS, client_of
from tests.cluster.test_replica_real import append, begin, leader_of, start_replica
from tests.waiting import until

from headrace.cluster import changes, identity
from headrace.cluster.records import Group as GroupRecord
from headrace.cluster.replica import Replica
from headrace.cluster.swaps import change_group
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import Partition, TopicSettings
from headrace.log.settings import LogSettings
from headrace.runtime.real import real_runtime

pytestmark = pytest.mark.etcd

# So little journal that a replica which is away misses it.
SMALL = {"journal_file_bytes": 50_000, "journal_memory_bytes": 10_000, "journal_max_bytes": 50_000}
LOG = LogSettings(checkpoint_ms=200, journal_bytes=50_000)
SEGMENTS = TopicSettings(segment_bytes=60_000)


class Group:
    """Three replicas, and what was sent to them."""

    def __init__(self, peers: Peers, folder: Path) -> None:
        self._peers = peers(1)
        self._folder = folder
        self.replicas: dict[int, Replica] = {}
        self.sent: list[bytes] = []

    async def begin(self) -> None:
        await begin(self._peers)
        for number in (1, 2, 3):
            await self.start(number)
        _, leader = await leader_of(self.replicas, 3)
        await leader.log.create("t", 2, {}, SEGMENTS)

    async def start(self, number: int) -> Replica:
        found = await start_replica(self._peers, self.folder(number), number, LOG, **SMALL)
        self.replicas[number] = found
        return found

    async def stop(self, number: int) -> None:
        await self.replicas.pop(number).stop()

    def folder(self, number: int) -> Path:
        return self._folder / str(number)

    async def follower(self) -> int:
        leader, _ = await leader_of(self.replicas, 2)
        return max(each for each in self.replicas if each != leader)

    async def send(self, count: int, size: int = 1_000) -> None:
        """To partition 0; partition 1 gets the first of them alone."""
        _, leader = await leader_of(self.replicas, 2)
        partitions = leader.log.topics["t"].partitions
        for _ in range(count):
            value = b"%d." % len(self.sent) + b"." * size
            for partition in partitions:
                await partition.load()
            both = partitions if not self.sent else partitions[:1]
            await append(leader, *((each, value) for each in both))
            self.sent.append(value)

    async def change(self, change: Callable[[GroupRecord], GroupRecord]) -> None:
        etcd = client_of(self._peers)
        await change_group(etcd, KEYS.group(GROUP), change)
        await etcd.close()

    async def check(self, *, start: int = 0) -> None:
        """Everything is on every replica."""
        _, leader = await leader_of(self.replicas, len(self.replicas))
        end = leader.log.frames.committed
        for replica in self.replicas.values():
            await until(lambda replica=replica: replica.log.frames.applied >= end)  # type: ignore[misc]
            partitions = replica.log.topics["t"].partitions
            for partition, wanted in zip(partitions, (self.sent[start:], self.sent[:1]), strict=True):
                await partition.load()
                assert await values_of(replica, partition) == wanted

    async def close(self) -> None:
        for number in list(self.replicas):
            await self.stop(number)


async def values_of(replica: Replica, partition: Partition) -> list[bytes]:
    """Everything in a partition, from the disk where it is not in memory."""
    position, found = partition.start, []
    while position < partition.high_watermark:
        chunk = partition.read(position, 1 << 20)
        if chunk.cold is not None:
            await replica.log.runtime.offload.run(chunk.cold)
            continue
        raw = chunk.read()
        chunk.release()
        for at, header in batches_in(raw):
            found += [record[3] or b"" for record in records.parse(raw[at : at + header.size], 1 << 20)]
            position = header.last_offset + 1
    return found


async def copied(replica: Replica) -> None:
    """Wait until a replica is whole, and its mark is gone."""
    await until(lambda: not replica.log.is_copying)
    assert not identity.load(replica.log.runtime.disk).is_copying  # type: ignore[union-attr]


async def test_a_wiped_disk_and_a_restored_backup_are_copied(etcd_peers: Peers, tmp_path: Path) -> None:
    group = Group(etcd_peers, tmp_path)
    await group.begin()
    await group.send(300)
    number = await group.follower()
    await group.stop(number)
    backup = tmp_path / "backup"
    shutil.copytree(group.folder(number), backup)
    shutil.rmtree(group.folder(number))
    await group.send(100)
    replica = await group.start(number)
    assert replica.log.is_copying
    await copied(replica)
    await group.check()
    # What it has is used after a start of its own, and it can lead.
    await group.stop(number)
    replica = await group.start(number)
    assert not replica.log.is_copying
    await leader_of(group.replicas, 3)
    await group.stop(number)
    shutil.rmtree(group.folder(number))
    shutil.copytree(backup, group.folder(number))
    await group.send(100)
    replica = await group.start(number)
    assert replica.log.is_copying
    await copied(replica)
    await group.check()
    await group.close()


async def test_a_node_is_added_and_another_removed(etcd_peers: Peers, tmp_path: Path) -> None:
    group = Group(etcd_peers, tmp_path)
    await group.begin()
    await group.send(100)
    await group.change(partial(changes.add_replica, node=4))
    added = await group.start(4)
    await copied(added)
    await group.check()
    record = added.node.group
    assert record is not None
    assert (record.replicas, record.adding) == ((1, 2, 3, 4), ())
    number = await group.follower()
    number = 3 if number == 4 else number
    await group.change(partial(changes.remove_replica, node=number))
    gone = group.replicas[number]
    await until(lambda: gone.broken.is_set())
    assert gone.problem == f"node {number} was removed from group {GROUP!r} (headrace cluster remove-node)"
    await group.stop(number)
    await group.send(100)
    await group.check()
    assert added.node.group is not None
    assert added.node.group.replicas == tuple(each for each in (1, 2, 3, 4) if each != number)
    await group.close()


async def test_a_replica_that_is_far_behind_copies_what_it_lacks(etcd_peers: Peers, tmp_path: Path) -> None:
    group = Group(etcd_peers, tmp_path)
    await group.begin()
    await group.send(300)
    number = await group.follower()
    await group.stop(number)
    await group.send(300)
    _, leader = await leader_of(group.replicas, 2)
    await until(lambda: leader.log.frames.first > 400)
    replica = await group.start(number)
    assert not replica.log.is_copying, "it does not know yet"
    await until(lambda: replica.broken.is_set())
    assert replica.copies.must_copy
    assert identity.load(real_runtime(str(group.folder(number))).disk).is_copying  # type: ignore[union-attr]
    await group.stop(number)
    replica = await group.start(number)
    await copied(replica)
    assert 250_000 < replica.copies.progress.received < 450_000, "of 600,000 bytes it had half"
    await group.check()
    await group.close()
