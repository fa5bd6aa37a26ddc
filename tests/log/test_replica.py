"""What replication needs of the log: leader epochs of partitions, batches as they are, and truncation."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.log import batches
from tests.log.test_native import (
    SMALL,
    LateDisk,
    append,
    append_keys,
    batch,
    compactable,
    contents,
    crash,
    live,
    opened,
    start_and_crash,
    watched,
)

from headrace import errors
from headrace.format.batch import CONTROL, TRANSACTIONAL, header_at
from headrace.log import compaction
from headrace.log.epochs import FILE_NAME, LeaderEpochs
from headrace.log.frames import Kind
from headrace.log.interface import Appended, Durability, Partition, TopicSettings, Write
from headrace.log.native import NativeLog

DURABILITIES = pytest.mark.parametrize("durability", list(Durability))
ENDINGS = pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])


def epochs_of(partition: Partition) -> list[int]:
    return [header_at(each).leader_epoch for each in batches.read(partition)]


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
        assert b"".join(batches.read(partition)) == b"".join([*sent, last])
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
        assert b"".join(batches.read(partition)) == b"".join([*kept, *other])
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


@ENDINGS
async def test_the_epochs_of_what_was_cut_do_not_come_back(tmp_path: Path, clean: bool) -> None:
    """A start believes the file where it ends in the epoch of the newest batch. It may: what was cut is not in it."""
    file = tmp_path / "t-0" / FILE_NAME

    async def fill(log: NativeLog) -> None:
        partition = log.local((await log.create("t", 1, {}, TopicSettings(segment_bytes=4_000))).partitions[0])
        await replicate(log, partition, *(batches.batch(n, leader_epoch=1) for n in range(10)))
        await replicate(log, partition, *(batches.batch(10 + n, leader_epoch=3) for n in range(10)))
        await replicate(log, partition, *(batches.batch(20 + n, size=600, leader_epoch=4) for n in range(10)))
        await log.upkeep.checkpoint()
        assert LeaderEpochs.load(file.read_bytes()).entries == [(1, 0), (3, 10), (4, 20)]
        assert await partition.truncate(5) == 5
        # Nothing of it rolls, which would write the file anew.
        await replicate(log, partition, *(batches.batch(5 + n, leader_epoch=2) for n in range(10)))
        await replicate(log, partition, *(batches.batch(15 + n, leader_epoch=4) for n in range(10)))
        await log.upkeep.checkpoint()

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        partition = log.local(log.topics["t"].partitions[0])
        await partition.load()
        assert partition.state.epochs.entries == [(1, 0), (2, 5), (4, 15)]


@pytest.mark.parametrize("offset", [20, 10], ids=["at an epoch", "within one"])
async def test_the_epochs_are_written_anew_after_a_cut(tmp_path: Path, offset: int) -> None:
    """Nothing of a new epoch comes that would have them written."""
    file = tmp_path / "t-0" / FILE_NAME

    async def fill(log: NativeLog) -> None:
        partition = log.local((await log.create("t", 1, {}, TopicSettings(segment_bytes=4_000))).partitions[0])
        await replicate(log, partition, *(batches.batch(n, leader_epoch=1) for n in range(20)))
        await replicate(log, partition, *(batches.batch(20 + n, size=600, leader_epoch=4) for n in range(10)))
        await partition.truncate(offset)
        assert not file.exists()

    await live(tmp_path, fill, True)
    assert LeaderEpochs.load(file.read_bytes()).entries == [(1, 0)]


async def test_nothing_is_appended_while_a_log_is_truncated(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.local((await log.create("t", 1, {}, TopicSettings())).partitions[0])
        for _ in range(3):
            await append(partition, batch())
        truncating = asyncio.ensure_future(partition.truncate(1))
        while partition.writable:
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


def failing(where: str, number: int = errno.EIO) -> Callable[[str], OSError | None]:
    """What a disk says to writes to files of such names."""
    return lambda path: OSError(number, "bad sector", path) if where in path else None


QUIET = replace(SMALL, checkpoint_ms=3_600_000)
ON_DISK = pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])


@ON_DISK
@pytest.mark.parametrize("kind", [Kind.TRUNCATE, Kind.POINT])
async def test_a_truncation_that_is_cancelled_is_completed(
    tmp_path: Path, durability: Durability, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is appended next must build on the end that a start finds."""
    log = NativeLog(watched(tmp_path)[0], QUIET)
    await log.start()
    partition = log.local((await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0])
    for number in range(5):
        await append(partition, batch(b"%d" % number))
    note = log.committer.add_note

    def cancel(noted: Kind, *fields: Any) -> asyncio.Future[None]:
        if noted is kind:
            asyncio.get_running_loop().call_soon(truncating.cancel)
        return note(noted, *fields)

    monkeypatch.setattr(log.committer, "add_note", cancel)
    truncating = asyncio.ensure_future(partition.truncate(2))
    with pytest.raises(asyncio.CancelledError):
        await truncating
    assert partition.end == 2
    await append(partition, batch(b"next"))
    expected = contents(partition)
    await crash(log)
    async with opened(tmp_path) as log:
        found = log.topics["t"].partitions[0]
        await found.load()
        assert contents(found) == expected


@ON_DISK
async def test_nothing_is_appended_behind_a_truncation_of_which_no_start_would_know_that_it_is_complete(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, QUIET)
    await log.start()
    partition = log.local((await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0])
    for number in range(5):
        await append(partition, batch(b"%d" % number))
    synced = log.upkeep.sync

    async def fail_from_now_on(each: Any) -> bool:
        disk.fail_write = failing("journal")
        return await synced(each)

    monkeypatch.setattr(log.upkeep, "sync", fail_from_now_on)
    with pytest.raises(errors.StorageFailed):
        await partition.truncate(2)
    disk.fail_write = lambda path: None
    with pytest.raises(errors.AppendOffline):
        await append(partition, batch(bytes(5_000)))
    await crash(log)
    async with opened(tmp_path) as log:
        found = log.topics["t"].partitions[0]
        await found.load()
        assert contents(found) == [(0, b"0"), (1, b"1")]


@ON_DISK
async def test_a_truncation_that_the_journal_is_said_not_to_have_takes_nothing_that_comes_later(
    tmp_path: Path, durability: Durability
) -> None:
    runtime, disk = watched(tmp_path, LateDisk)
    log = NativeLog(runtime, QUIET)
    await log.start()
    partition = log.local((await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0])
    await partition.raise_epoch(1)
    for number in range(5):
        await append(partition, batch(b"%d" % number))
    barrier = log.committer.barrier

    async def fail_from_now_on() -> None:
        await barrier()
        disk.fail_write = failing("journal")

    log.committer.barrier = fail_from_now_on  # type: ignore[assignment, method-assign]
    with pytest.raises(errors.StorageFailed):
        await partition.truncate(2)
    disk.fail_write = lambda path: None
    await append(partition, batch(b"next"))
    expected = contents(partition)
    assert len(expected) == 6
    await crash(log)
    async with opened(tmp_path) as log:
        found = log.topics["t"].partitions[0]
        await found.load()
        assert contents(found) == expected


async def test_a_spool_that_was_given_up_does_not_bring_back_what_was_cut(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(QUIET, tail_bytes=1 << 26))
    await log.start()
    topic = await log.create("t", 2, {}, TopicSettings(durability=Durability.ASYNC))
    for number in range(20):
        if number == 19:
            assert log.spool.is_used
            disk.fail_write = failing(".spool")
        for partition in topic.partitions:
            partition.append(batch(b"%d" % number))
        await asyncio.sleep(0.01)
    cut = log.local(topic.partitions[0])
    assert await cut.truncate(3) == 3
    await crash(log)
    async with opened(tmp_path) as log:
        for partition in log.topics["t"].partitions:
            await partition.load()
        first, second = map(contents, log.topics["t"].partitions)
        assert first == [(n, b"%d" % n) for n in range(3)]
        assert second == [(n, b"%d" % n) for n in range(20)]


@ON_DISK
@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_batch_that_the_disk_refused_leaves_no_epoch_behind(
    tmp_path: Path, durability: Durability, size: int
) -> None:
    """Another leader's log may go on in an epoch before that."""
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, QUIET, runtime) as log:
        partition = log.local((await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0])
        await replicate(log, partition, batches.batch(0, leader_epoch=1))
        disk.fail_write = failing("", errno.ENOSPC)
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        write = Write(partition, bytearray(batches.batch(1, size=size, leader_epoch=3)), as_is=True)
        try:
            log.append([write], done.set_result)
        except errors.StorageFailed as error:
            done.set_result(error)
        assert isinstance(await done, errors.StorageFailed)
        disk.fail_write = lambda path: None
        while log.full:
            await asyncio.sleep(0.1)
        await replicate(log, partition, batches.batch(1, leader_epoch=2))
        assert partition.state.epochs.entries == [(1, 0), (2, 1)]


async def test_a_marker_that_cannot_be_read_is_refused_before_anything_has_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        first, other = (await log.create("t", 2, {}, TopicSettings())).partitions
        broken = batches.batch(1, [(b"", b"")], producer=1, producer_epoch=0, attributes=CONTROL | TRANSACTIONAL)
        await replicate(log, first, batches.batch(0))
        writes = [Write(other, bytearray(batches.batch(0)), as_is=True), Write(first, bytearray(broken), as_is=True)]
        for each in (writes, writes[1:]):
            with pytest.raises(errors.InvalidRecords):
                log.append(each)
        assert (first.end, other.end) == (1, 0), "nothing has changed"
        await replicate(log, first, batches.batch(1))
        assert len(batches.read(first)) == 2


async def test_committed_readers_are_woken_once_it_is_known_again_what_is_committed(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.local((await log.create("t", 1, {}, TopicSettings())).partitions[0])
        for _ in range(3):
            await append(partition, batch())
        seen: list[int] = []

        def look() -> None:
            seen.append(partition.last_stable)
            partition.wait(look)

        partition.wait(look)
        await partition.truncate(2)
        assert seen[-1] == 2


async def test_a_compaction_that_could_not_be_settled_takes_nothing_that_comes_behind_a_cut(tmp_path: Path) -> None:
    """Its list has the names of segments that are gone, and others get them again."""
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(QUIET, tail_bytes=1_000))
    await log.start()
    partition = await compactable(log)
    # Segments that have become small become one.
    await log.upkeep.cleaner.run()
    await append_keys(log, partition)
    bases = [segment.base for segment in partition.segments.all]
    disk.fail_write = failing("cleaner-offset", errno.ENOSPC)
    await log.upkeep.cleaner.run()
    assert (tmp_path / "t-0" / "compaction-swap").exists()
    disk.fail_write = lambda path: None
    again = next(base for base in bases if base not in [segment.base for segment in partition.segments.all])
    await partition.truncate(again)
    while partition.end < again:
        await append(partition, batch(b"filled up"))
    assert partition.close_active()
    await append(partition, batch(b"next"))
    await log.upkeep.checkpoint()
    expected = contents(partition)
    assert expected[-1] == (again, b"next")
    await crash(log)
    async with opened(tmp_path) as log:
        found = log.topics["t"].partitions[0]
        await found.load()
        assert contents(found) == expected


async def test_a_truncation_beside_a_compaction_puts_nothing_in_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _ = watched(tmp_path)
    async with opened(tmp_path, replace(QUIET, tail_bytes=1_000), runtime) as log:
        partition = await compactable(log)

        async def read_what_is_cut(*_: object) -> compaction.Cleaned:
            await partition.truncate(1)
            return compaction.Cleaned(broken=(0, "it ends early"))

        monkeypatch.setattr(runtime.offload, "work", read_what_is_cut)
        await log.upkeep.cleaner.run()
        assert partition.truncations == 1
        assert not log.upkeep.cleaner.quarantined
