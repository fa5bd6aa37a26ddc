"""What replication needs of the log: leader epochs of partitions, batches as they are, and truncation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.log import batches
from tests.log.test_native import append, batch, contents, live, opened, start_and_crash

from headrace import errors
from headrace.format.batch import batches_in, header_at
from headrace.log.interface import Appended, Durability, Partition, TopicSettings, Write
from headrace.log.native import NativeLog

DURABILITIES = pytest.mark.parametrize("durability", list(Durability))
ENDINGS = pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])


def read(partition: Partition) -> list[bytes]:
    """Each batch that a reader gets."""
    found: list[bytes] = []
    offset = partition.start
    while offset < partition.high_watermark:
        chunk = partition.read(offset, 1 << 20)
        if chunk.cold is not None:
            chunk.cold()
            continue
        data = chunk.read()
        chunk.release()
        for position, header in batches_in(data):
            found.append(data[position : position + header.size])
            offset = header.last_offset + 1
    return found


def epochs_of(partition: Partition) -> list[int]:
    return [header_at(each).leader_epoch for each in read(partition)]


@DURABILITIES
async def test_a_partition_has_a_leader_epoch_of_its_own(tmp_path: Path, durability: Durability) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 2, {}, TopicSettings(durability=durability))
        raised, other = map(log.local, topic.partitions)
        for partition in (raised, other):
            await append(partition, batch())
        changed: list[Partition] = []
        log.on_partition_changed.append(changed.append)
        await raised.raise_epoch(5)
        await raised.raise_epoch(5)
        assert changed == [raised]
        for partition in (raised, other):
            await append(partition, batch())
        assert (raised.epoch, other.epoch) == (5, 0)
        assert (epochs_of(raised), epochs_of(other)) == ([0, 5], [0, 0])
        assert [raised.epoch_end(epoch) for epoch in (0, 3, 5, 6)] == [(0, 1), (0, 1), (5, 2), (-1, -1)]
        with pytest.raises(errors.OwnerFenced, match="leader epoch 4 of t-0 has passed: it is 5"):
            await raised.raise_epoch(4)


@DURABILITIES
@ENDINGS
@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "journal"])
async def test_leader_epochs_survive_a_restart(
    tmp_path: Path, durability: Durability, clean: bool, saved: bool
) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings(durability=durability))
        await log.local(topic.partitions[1]).raise_epoch(5)
        if saved:
            await log.upkeep.checkpoint()

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        rise = 0 if clean else 1
        assert [partition.epoch for partition in log.topics["t"].partitions] == [rise, 5 + rise]
        grown = await log.alter("t", partitions=3)
        assert grown.partitions[2].epoch == log.epoch == rise


async def replicate(log: NativeLog, partition: Partition, *sent: bytes) -> Appended:
    """Append batches as they are, and wait until they are durable."""
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    (appended,) = log.append([Write(partition, bytearray(b"".join(sent)), as_is=True)], done.set_result)
    assert appended.durable or await done is None
    return appended


@DURABILITIES
@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "direct"])
async def test_batches_are_appended_as_they_are(tmp_path: Path, durability: Durability, size: int) -> None:
    async with opened(tmp_path) as log:
        partition = log.local((await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0])
        await partition.raise_epoch(7)
        sent = [batches.batch(0, 2, size=size, leader_epoch=3), batches.batch(2, size=size, leader_epoch=8)]
        assert (await replicate(log, partition, *sent)).base_offset == 0
        await replicate(log, partition, last := batches.batch(3, size=size, leader_epoch=8))
        assert b"".join(read(partition)) == b"".join([*sent, last])
        assert partition.epoch == 8, "what is appended here next is of no lower epoch"
        assert [partition.epoch_end(epoch) for epoch in (3, 7, 8)] == [(3, 2), (3, 2), (8, 4)]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (
            batches.batch(2, leader_epoch=4),
            "offset 2 and epoch 4 does not follow t-0, which ends at offset 1 in",
        ),
        (batches.batch(0, leader_epoch=4), "offset 0 and epoch 4 does not follow"),
        (batches.batch(1, leader_epoch=3), "offset 1 and epoch 3 does not follow"),
        (batches.batch(1, leader_epoch=4) + batches.batch(3, leader_epoch=4), "offset 3 and epoch 4 does not follow"),
        (batches.batch(1, leader_epoch=4)[:-1] + b"?", "does not fit its checksum"),
        (batches.batch(1, leader_epoch=4)[:-1], "says that it has"),
        (b"", "0 bytes are too few"),
    ],
    ids=["gap", "overlap", "epoch", "second", "checksum", "cut", "nothing"],
)
async def test_batches_that_do_not_follow_the_log_are_refused(tmp_path: Path, refused: bytes, reason: str) -> None:
    async with opened(tmp_path) as log:
        first, other = (await log.create("t", 2, {}, TopicSettings())).partitions
        await replicate(log, first, batches.batch(0, leader_epoch=4))
        writes = [Write(other, bytearray(batches.batch(0)), as_is=True), Write(first, bytearray(refused), as_is=True)]
        for each in (writes, writes[1:]):
            with pytest.raises(errors.AppendRefused, match=reason):
                log.append(each)
        assert (first.end, other.end) == (1, 0), "nothing has changed"


@ENDINGS
@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])
async def test_a_truncated_log_goes_on_where_it_was_cut(tmp_path: Path, durability: Durability, clean: bool) -> None:
    kept = [batches.batch(n * 2, 2, size=600, leader_epoch=1) for n in range(10)]
    other = [batches.batch(20, 3, size=5_000, leader_epoch=2), batches.batch(23, leader_epoch=3)]

    async def fill(log: NativeLog) -> None:
        settings = TopicSettings(durability=durability, segment_bytes=4_000)
        partition = log.local((await log.create("t", 1, {}, settings)).partitions[0])
        await replicate(log, partition, *kept)
        await replicate(log, partition, *(batches.batch(20 + n, size=600, leader_epoch=4) for n in range(10)))
        await log.upkeep.checkpoint()
        woken = asyncio.Event()
        partition.wait(woken.set)
        # In the middle of a batch: only whole ones stay.
        assert await partition.truncate(21) == 21
        assert await partition.truncate(20) == 20
        assert woken.is_set(), "readers learn that the log ends earlier"
        await replicate(log, partition, *other)

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        partition = log.local(log.topics["t"].partitions[0])
        await partition.load()
        assert b"".join(read(partition)) == b"".join([*kept, *other])
        assert partition.state.epochs.entries == [(1, 0), (2, 20), (3, 23)]
        with pytest.raises(errors.OffsetOutOfRange):
            await partition.truncate(25)
        assert await partition.truncate(24) == 24
        assert await partition.truncate(3) == 2
        await partition.trim(1)
        assert await partition.truncate(1) == 1
        with pytest.raises(errors.OffsetOutOfRange):
            await partition.truncate(0)
        await replicate(log, partition, batches.batch(1, leader_epoch=5))
        assert (partition.start, partition.end) == (1, 2)


async def test_nothing_is_appended_while_a_log_is_truncated(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.local((await log.create("t", 1, {}, TopicSettings())).partitions[0])
        for _ in range(3):
            await append(partition, batch())
        truncating = asyncio.ensure_future(partition.truncate(1))
        await asyncio.sleep(0)
        with pytest.raises(errors.AppendOffline, match="t-0 is being truncated"):
            partition.append(batch())
        with pytest.raises(errors.PartitionOffline, match="t-0 is being truncated"):
            await partition.trim(2)
        assert await truncating == 1
        assert (await append(partition, batch())).base_offset == 1


async def test_a_memory_topic_is_not_truncated(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.MEMORY))
        with pytest.raises(ValueError, match="t-0 is in memory only"):
            await log.local(topic.partitions[0]).truncate(0)


async def test_the_spool_does_not_bring_back_what_was_cut(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings(durability=Durability.ASYNC))
        for number in range(20):
            # What several partitions get in one turn goes to the spool, once that is made.
            for partition in topic.partitions:
                partition.append(batch(b"%d" % number))
            await asyncio.sleep(0.01)
        assert log.spool.is_used
        cut = log.local(topic.partitions[0])
        assert await cut.truncate(3) == 3
        await replicate(log, cut, batches.batch(3, [(None, b"another")]))

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        for partition in log.topics["t"].partitions:
            await partition.load()
        first, second = map(contents, log.topics["t"].partitions)
        assert first == [*((n, b"%d" % n) for n in range(3)), (3, b"another")]
        assert second == [(n, b"%d" % n) for n in range(20)]
