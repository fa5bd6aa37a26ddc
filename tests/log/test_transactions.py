"""Transactions in the native log: what is open, what was aborted, and what of it survives failures and crashes."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import errors
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import AbortedTransaction, Durability, Partition, TopicSettings
from headrace.log.native import NativeLog
from headrace.log.txnindex import ABORTED_ENTRY

from .test_native import NOW, SMALL, append, batch, opened, start_and_crash, watched

TINY = TopicSettings(segment_bytes=400)
# No checkpoint of its own: what a crash leaves is above the recovery point.
UNCHECKED = replace(SMALL, checkpoint_ms=1 << 40)


def data(value: bytes, producer: int, sequence: int, epoch: int = 0) -> bytearray:
    """One batch of a transaction."""
    return batch(value, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=0x10)


def marker(commit: bool, producer: int, epoch: int = 0) -> bytearray:
    return records.control(int(commit), 3, producer, epoch, NOW)


def committed(partition: Partition) -> list[bytes | None]:
    """What a reader of committed records gets."""
    found: list[bytes | None] = []
    offset = partition.start
    while offset < partition.last_stable:
        chunk = partition.read(offset, 1 << 20, committed=True)
        if chunk.cold is not None:
            chunk.cold()
            continue
        aborted = chunk.aborted
        raw = chunk.read()
        chunk.release()
        for position, header in batches_in(raw):
            offset = header.last_offset + 1
            gone = any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset < each.last_offset
                for each in aborted
            )
            assert header.last_offset < chunk.before
            if not header.is_control and not gone:
                found += [value for _, _, _, value, _ in records.parse(raw[position : position + header.size], 1 << 20)]
    return found


async def test_a_decision_that_was_not_flushed_is_none(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, runtime=runtime) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, data(b"older", 4, 0))
        await append(partition, data(b"kept", 5, 0))
        disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "journal" in path else None
        with pytest.raises(errors.StorageFailed):
            await append(partition, marker(False, 5, 1))
        disk.fail_write = lambda path: None
        assert (partition.last_stable, partition.end) == (0, 2)
        assert partition.aborted(0, 10) == []
        assert [each.transaction_start for each in partition.producers()] == [0, 1]
        # The producer goes on in its transaction as if nothing had been, and it is decided otherwise.
        await append(partition, data(b"more", 5, 1))
        await append(partition, marker(True, 5, 1))
        assert partition.last_stable == 0
        await append(partition, marker(False, 4))
        assert partition.last_stable == partition.end == 5
        assert committed(partition) == [b"kept", b"more"]
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert committed(partition) == [b"kept", b"more"]
        assert partition.aborted(0, 10) == [AbortedTransaction(4, 0, 4)]


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])
async def test_aborted_transactions_outlive_a_kill(tmp_path: Path, durability: Durability) -> None:
    """Snapshots of producers were written beyond the recovery point, the indexes of aborted transactions were not."""

    async def fill(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, replace(TINY, durability=durability))).partitions[0]
        await append(partition, data(b"open", 9, 0))
        for number in range(12):
            await append(partition, data(b"doomed", 5, number))
            await append(partition, data(b"kept", 6, number))
            await append(partition, marker(False, 5))
            await append(partition, marker(True, 6))
        await append(partition, marker(True, 9))
        partition.write_back()  # type: ignore[attr-defined]

    await start_and_crash(tmp_path, fill, UNCHECKED)
    assert not list(tmp_path.glob("t-0/*.txnindex"))
    assert list(tmp_path.glob("t-0/*.snapshot"))
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert committed(partition) == [b"open", *[b"kept"] * 12]
        assert len(partition.aborted(0, partition.end)) == 12
        # Not every transaction for every place in the log.
        assert partition.aborted(0, 2) == [AbortedTransaction(5, 1, 3)]
        assert len(partition.aborted(1, 6)) == 2
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert committed(partition) == [b"open", *[b"kept"] * 12]


async def test_what_a_power_cut_left_of_an_index_is_made_anew(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        for number in range(3):
            await append(partition, data(b"doomed", 5, number))
            await append(partition, marker(False, 5))
            if number == 0:
                await log.upkeep.checkpoint()
        partition.write_back()  # type: ignore[attr-defined]

    await start_and_crash(tmp_path, fill, UNCHECKED)
    index = tmp_path / "t-0" / f"{0:020d}.txnindex"
    assert ABORTED_ENTRY.unpack(index.read_bytes()) == (0, 5, 0, 1, 2)
    torn = ABORTED_ENTRY.pack(0, 5, 2, 3, 4)[:20]
    index.write_bytes(index.read_bytes() + torn + bytes(34))
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert partition.aborted(0, 10) == [AbortedTransaction(5, at, at + 1) for at in (0, 2, 4)]
    written = [fields[1:4] for fields in ABORTED_ENTRY.iter_unpack(index.read_bytes())]
    assert written == [(5, 0, 1), (5, 2, 3), (5, 4, 5)]


async def test_the_index_of_a_segment_that_is_lost_is_there_when_that_is_put_back(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TINY)).partitions[0]
        await append(partition, data(b"aborted", 1, 0))
        await append(partition, marker(False, 1))
        for number in range(10):
            await append(partition, batch(b"%d" % number * 20))
        await log.upkeep.checkpoint()

    await start_and_crash(tmp_path, fill, UNCHECKED)
    lost = tmp_path / "t-0" / f"{0:020d}.log"
    contents = lost.read_bytes()
    lost.unlink()
    async with opened(tmp_path) as log:
        with pytest.raises(errors.PartitionOffline):
            await log.topics["t"].partitions[0].load()
    lost.write_bytes(contents)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert partition.aborted(0, 12) == [AbortedTransaction(1, 0, 1)]


async def test_a_memory_topic_forgets_what_it_has_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        settings = TopicSettings(durability=Durability.MEMORY, retention_bytes=1_000)
        partition = (await log.create("t", 1, {}, settings)).partitions[0]
        for number in range(200):
            partition.append(data(b"%d" % number, 5, number))
            partition.append(marker(number % 2 == 0, 5))
        assert len(partition.aborted(0, partition.end)) < 10
        assert len(partition.state.producers._ended) <= 1  # type: ignore[attr-defined]
        kept = committed(partition)
        assert kept == [b"%d" % number for number in range(200 - 2 * len(kept), 200, 2)]


async def test_a_trim_into_an_open_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, data(b"first", 5, 0))
        await append(partition, data(b"second", 5, 1))
        assert partition.last_stable == 0
        await partition.trim(1)
        assert partition.last_stable == partition.start == 1


async def test_compaction_trusts_no_marker_that_a_power_cut_could_take(tmp_path: Path) -> None:
    """What it drops for an abort must not be there again as the open transaction that it was before."""
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, replace(UNCHECKED, compaction_check_ms=1 << 40), runtime) as log:
        settings = TopicSettings(
            compact=True, delete=False, segment_bytes=300, segment_ms=1 << 60, min_cleanable_dirty_ratio=0.0
        )
        partition = (await log.create("t", 1, {}, settings)).partitions[0]
        await append(partition, batch(b"kept"))
        await append(partition, data(b"doomed", 5, 0))
        for _ in range(3):
            await append(partition, batch(b"other", b"other"))
        await log.upkeep.checkpoint()
        await append(partition, marker(False, 5))
        assert [path.name for path in tmp_path.glob("t-0/*.txnindex")] == []
        assert partition.last_stable == partition.end
        disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "checkpoint" in path else None
        await log.upkeep.cleaner.run()
        assert log.upkeep.cleaner.runs == 0
        disk.fail_write = lambda path: None
        await log.upkeep.cleaner.run()
        assert log.upkeep.cleaner.runs == 1
        assert set(committed(partition)) == {b"kept", b"other"}
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert set(committed(partition)) == {b"kept", b"other"}


async def test_a_full_disk_that_does_not_take_an_index_passes(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, UNCHECKED, runtime) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, data(b"doomed", 5, 0))
        await append(partition, marker(False, 5))
        disk.fail_write = lambda path: OSError(errno.ENOSPC, "full", path) if path.endswith(".txnindex") else None
        assert not await log.upkeep.checkpoint()
        assert partition.offline is None
        assert log.full
        # A large batch is synced where it lies, and with it the index.
        log.full = False
        with pytest.raises(errors.StorageFailed):
            await append(partition, batch(b"large" * 2_000))
        assert partition.offline is None
        assert partition.end == 2
        disk.fail_write = lambda path: None
        await append(partition, batch(b"large"))
        assert await log.upkeep.checkpoint()
        assert committed(partition) == [b"large"]
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert committed(partition) == [b"large"]


async def test_without_its_index_nothing_counts_as_committed(tmp_path: Path) -> None:
    """An index that vanishes under a running broker, or with its topic, does not say that nothing was aborted."""
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, data(b"aborted", 5, 0))
        await append(partition, marker(False, 5))
    for lost in (True, False):
        async with opened(tmp_path) as log:
            partition = log.topics["t"].partitions[0]
            await partition.load()
            if lost:
                [index] = (tmp_path / "t-0").glob("*.txnindex")
                contents = index.read_bytes()
                index.unlink()
                with pytest.raises(errors.CorruptLog, match="is missing"):
                    partition.read(0, 1 << 20, committed=True)
                index.write_bytes(contents)
            chunk = partition.read(0, 1 << 20, committed=True)
            chunk.release()
            assert chunk.aborted == [AbortedTransaction(5, 0, 1)]
            if not lost:
                await log.delete("t")
                with pytest.raises(errors.PartitionOffline):
                    partition.read(0, 1 << 20, committed=True)
