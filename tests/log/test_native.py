"""The native log as a whole, on a real disk: promises, restarts, failures.

Power cuts are the simulator's business (tests/simulation); here the process only stops, cleanly or not.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.waiting import SECONDS

from headrace import errors
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in, crc_fits, header_at
from headrace.log import swap
from headrace.log.interface import MAX_TIMESTAMP, Appended, Durability, Partition, TopicSettings, Write
from headrace.log.native import NativeLog
from headrace.log.partition import NativePartition
from headrace.runtime import Runtime
from headrace.runtime.disk import Disk, File, FileRange, SystemDisk, SystemFile
from headrace.runtime.real import real_runtime

NOW = 1_700_000_000_000
SMALL = Config(journal_bytes=65_536, tail_bytes=32_768, direct_bytes=4_096, checkpoint_ms=50)


class WatchedDisk:
    """A real disk that counts what is opened and fails on request."""

    def __init__(self, inner: Disk) -> None:
        self._inner = inner
        self.opened: list[str] = []
        self.fail_write: Callable[[str], OSError | None] = lambda path: None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        self.opened.append(path)
        return WatchedFile(self, self._inner.open(path, write=write, create=create))  # type: ignore[return-value]


class WatchedFile:
    def __init__(self, disk: WatchedDisk, inner: File) -> None:
        self._disk = disk
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _check(self) -> None:
        error = self._disk.fail_write(self._inner.path)
        if error is not None:
            raise error

    def write(self, position: int, buffers: list[bytes]) -> None:
        self._check()
        self._inner.write(position, buffers)

    def write_one(self, position: int, buffer: bytes) -> None:
        self._check()
        self._inner.write_one(position, buffer)

    def write_durably(self, position: int, buffers: list[bytes]) -> None:
        self._check()
        self._inner.write_durably(position, buffers)

    def allocate(self, size: int) -> None:
        self._check()
        self._inner.allocate(size)


def watched(path: Path, kind: type[WatchedDisk] = WatchedDisk) -> tuple[Runtime, WatchedDisk]:
    runtime = real_runtime(str(path))
    disk = kind(runtime.disk)
    return Runtime(runtime.clock, disk, runtime.random, runtime.offload), disk  # type: ignore[arg-type]


@asynccontextmanager
async def opened(path: Path, config: Config = SMALL, runtime: Runtime | None = None) -> AsyncIterator[NativeLog]:
    runtime = runtime or real_runtime(str(path))
    log = NativeLog(runtime, config)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()
        runtime.offload.close()


async def crash(log: NativeLog) -> None:
    """What is left when the process dies: files as the operating system has them, no clean-up."""
    await log.upkeep.stop()
    log.runtime.disk.unlock()
    log.runtime.offload.close()


async def start_and_crash(path: Path, work: Callable[[NativeLog], Awaitable[None]], config: Config = SMALL) -> None:
    log = NativeLog(real_runtime(str(path)), config)
    await log.start()
    await work(log)
    await crash(log)


async def live(path: Path, work: Callable[[NativeLog], Awaitable[None]], clean: bool) -> None:
    """One life of a log, which ends in a clean stop or in a crash."""
    if not clean:
        await start_and_crash(path, work)
        return
    async with opened(path) as log:
        await work(log)


def batch(value: bytes = b"v", key: bytes | None = b"k", *, count: int = 1, **fields: int) -> bytearray:
    return records.build([(NOW, key, value, [])] * count, **fields)


async def append(partition: Partition, data: bytearray) -> Appended:
    """Append and wait until it is durable."""
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    appended = partition.append(data, done.set_result)
    if not appended.durable:
        error = await done
        if error is not None:
            raise error
    return appended


def contents(partition: Partition, *, committed: bool = False) -> list[tuple[int, bytes]]:
    """Every record that a reader gets, as (offset, value), read in small steps."""
    found = []
    offset = partition.start
    upto = partition.last_stable if committed else partition.high_watermark
    while offset < upto:
        chunk = partition.read(offset, 1_000, committed=committed)
        if chunk.cold is not None:
            chunk.cold()
            continue
        assert chunk.parts
        data = chunk.read()
        chunk.release()
        for position, header in batches_in(data):
            assert crc_fits(data, position, header)
            for at, _, _, value, _ in records.parse(data[position : position + header.size], 1 << 20):
                found.append((at, value or b""))
            offset = header.last_offset + 1
    return found


DURABILITIES = pytest.mark.parametrize("durability", list(Durability))
ON_DISK = pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])


@DURABILITIES
async def test_what_is_appended_is_read(tmp_path: Path, durability: Durability) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(durability=durability))
        partition = topic.partitions[0]
        assert partition.loaded
        for number in range(50):
            await append(partition, batch(b"%d" % number * (number % 7)))
        assert contents(partition) == [(n, b"%d" % n * (n % 7)) for n in range(50)]


@ON_DISK
@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "direct"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
async def test_a_restart_loses_nothing(tmp_path: Path, durability: Durability, size: int, clean: bool) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {"a": "b"}, TopicSettings(durability=durability, segment_bytes=30_000))
        for number in range(20):
            await append(topic.partitions[number % 2], batch(b"%d" % number * size))

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        assert log.clean is clean
        assert log.epoch == (0 if clean else 1)
        topic = log.topics["t"]
        assert topic.config == {"a": "b"}
        for partition in topic.partitions:
            await partition.load()
            expected = [b"%d" % n * size for n in range(20) if n % 2 == partition.index]
            assert contents(partition) == list(enumerate(expected))
            appended = await append(partition, batch(b"more"))
            assert appended.base_offset == 10
            assert partition.epoch_end(log.epoch)[1] == 11


async def test_epochs_in_which_nothing_was_written_end_where_the_log_does(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings(durability=Durability.ASYNC))
        for _ in range(3):
            await append(topic.partitions[0], batch(b"1"))

    async def nothing(log: NativeLog) -> None:
        pass

    await start_and_crash(tmp_path, fill)
    await start_and_crash(tmp_path, nothing)
    async with opened(tmp_path) as log:
        used, unused = log.topics["t"].partitions
        for partition in (used, unused):
            await partition.load()
        assert log.epoch == 2
        assert [used.epoch_end(epoch) for epoch in range(-1, 4)] == [(-1, -1), (0, 3), (1, 3), (2, 3), (-1, -1)]
        assert [unused.epoch_end(epoch) for epoch in range(-1, 4)] == [(-1, -1), (0, 0), (1, 0), (2, 0), (-1, -1)]
        await append(used, batch(b"2"))
        assert [used.epoch_end(epoch)[1] for epoch in range(3)] == [3, 3, 4]


async def test_a_start_behind_a_crash_removes_indexes_without_a_segment(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
        await append(topic.partitions[0], batch(b"1"))

    await start_and_crash(tmp_path, fill)
    orphan = tmp_path / "t-0" / f"{77:020d}"
    for suffix in (".index", ".timeindex", ".txnindex"):
        orphan.with_suffix(suffix).touch()
    async with opened(tmp_path) as log:
        await log.topics["t"].partitions[0].load()
        assert contents(log.topics["t"].partitions[0]) == [(0, b"1")]
        assert not list(tmp_path.glob(f"t-0/{orphan.name}*"))


async def test_small_and_large_batches_keep_their_order(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(segment_bytes=50_000))
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        for number in range(60):
            size = 6_000 if number % 4 == 3 else 30
            topic.partitions[0].append(batch(b"%03d" % number * (size // 3)), done.set_result if number == 59 else None)
        assert await done is None

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert [value[:3] for _, value in contents(partition)] == [b"%03d" % n for n in range(60)]


async def test_readers_stop_at_the_durable_offset(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings())
        partition = topic.partitions[0]
        woken = asyncio.Event()
        partition.wait(woken.set)
        for data in (batch(), batch(b"large" * 2_000)):
            appended = partition.append(data)
            assert not appended.durable
        assert (partition.high_watermark, partition.end) == (0, 2)
        assert partition.read(0, 1 << 20).parts == []
        assert not woken.is_set()
        await woken.wait()
        assert contents(partition) == [(0, b"v"), (1, b"large" * 2_000)]


async def test_ten_thousand_partitions_restart_without_opening_a_segment(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for number in range(10):
            topic = await log.create(f"t{number}", 1_000, {}, TopicSettings())
            await append(topic.partitions[0], batch())
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, runtime=runtime) as log:
        assert sum(len(topic.partitions) for topic in log.topics.values()) == 10_000
        assert [path for path in disk.opened if path.endswith(".log")] == []
        partition = log.topics["t3"].partitions[0]
        assert not partition.loaded
        await partition.load()
        assert contents(partition) == [(0, b"v")]
        assert {path for path in disk.opened if path.endswith(".log")} == {"t3-0/00000000000000000000.log"}


async def test_a_second_log_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        second = NativeLog(real_runtime(str(tmp_path)), SMALL)
        with pytest.raises(errors.DataDirectoryLocked, match="in use by process"):
            await second.start()
        second.runtime.offload.close()


async def test_an_append_to_several_partitions_is_one_act(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        one = await log.create("one", 1, {}, TopicSettings())
        two = await log.create("two", 1, {}, TopicSettings(durability=Durability.ASYNC))
        writes = [Write(one.partitions[0], batch(b"1")), Write(two.partitions[0], batch(b"2" * 9_000))]
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        assert [each.base_offset for each in log.append(writes, done.set_result)] == [0, 0]
        assert two.partitions[0].high_watermark == 0
        # A single append behind it waits for the journal too.
        assert not two.partitions[0].append(batch(b"3")).durable
        assert await done is None
        await log.committer.flushed()

        torn = batch(b"x")
        torn[-1] ^= 1
        three = await log.create("three", 1, {}, TopicSettings(max_batch_bytes=100))
        sent = {one: batch(b"never"), two: torn, three: batch(b"3" * 100)}
        with pytest.raises(errors.CorruptBatch) as raised:
            log.append([Write(topic.partitions[0], each) for topic, each in sent.items()])
        kinds = {number: type(error) for number, error in raised.value.refused.items()}
        assert kinds == {1: errors.CorruptBatch, 2: errors.BatchTooLarge}, "what is wrong with each"
        assert one.partitions[0].end == 1
        with pytest.raises(ValueError, match="occurs twice"):
            log.append([Write(one.partitions[0], batch()), Write(one.partitions[0], batch())])

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        for name, expected in (("one", [b"1"]), ("two", [b"2" * 9_000, b"3"])):
            partition = log.topics[name].partitions[0]
            await partition.load()
            assert contents(partition) == list(enumerate(expected))


async def test_an_append_to_several_partitions_takes_several_batches_of_each(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        one = await log.create("one", 1, {}, TopicSettings())
        two = await log.create("two", 1, {}, TopicSettings())
        several = batch(b"1") + batch(b"2") + batch(b"3")
        writes = [Write(one.partitions[0], several), Write(two.partitions[0], batch(b"4"))]
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        assert [each.base_offset for each in log.append(writes, done.set_result)] == [0, 0]
        assert await done is None
        torn = batch(b"x")
        torn[-1] ^= 1
        for wrong in (torn, b"cut", batch(b"y")[:-3]):
            with pytest.raises(errors.CorruptBatch):
                log.append([Write(one.partitions[0], batch(b"never") + wrong), Write(two.partitions[0], batch())])
        assert (one.partitions[0].end, two.partitions[0].end) == (3, 1)

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        for name, expected in (("one", [b"1", b"2", b"3"]), ("two", [b"4"])):
            partition = log.topics[name].partitions[0]
            await partition.load()
            assert contents(partition) == list(enumerate(expected))


@pytest.mark.parametrize("restart", [True, False])
async def test_a_folder_that_is_no_partitions_is_moved_aside(tmp_path: Path, restart: bool) -> None:
    for name in ("t-0", "t-1", "t-1.aside-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-0" / "notes.txt").write_text("mine")
    (tmp_path / "t-1" / f"{0:020d}.log").write_bytes(b"mine, too")
    async with opened(tmp_path) as log:
        topic = await log.create("t", 3, {}, TopicSettings())
        if not restart:
            for partition in topic.partitions:
                await append(partition, batch(b"v"))
    if restart:
        async with opened(tmp_path) as log:
            for partition in log.topics["t"].partitions:
                await partition.load()
                await append(partition, batch(b"v"))
    assert (tmp_path / "t-0.aside-1" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "t-1.aside-2" / f"{0:020d}.log").read_bytes() == b"mine, too"
    async with opened(tmp_path) as log:
        for partition in log.topics["t"].partitions:
            await partition.load()
            assert contents(partition) == [(0, b"v")]


async def test_what_is_flushed_stays_though_no_reader_sees_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativePartition, "_raise_high_watermark", lambda self, end: None)
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        assert isinstance(partition, NativePartition)
        await append(partition, batch(b"flushed"))
        partition.append(batch(b"in flight"))
        assert (partition.high_watermark, partition.flushed, partition.end) == (0, 1, 2)
        assert contents(partition) == []
        partition.roll_back()
        assert (partition.high_watermark, partition.flushed, partition.end) == (0, 1, 1)


@ON_DISK
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
async def test_an_idempotent_producer_is_remembered(tmp_path: Path, durability: Durability, clean: bool) -> None:
    def numbered(sequence: int) -> bytearray:
        return batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(durability=durability, segment_bytes=400))
        for sequence in range(10):
            await append(topic.partitions[0], numbered(sequence))
        again = await append(topic.partitions[0], numbered(8))
        assert again.duplicate
        assert again.base_offset == 8

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        again = await append(partition, numbered(9))
        assert (again.duplicate, again.base_offset) == (True, 9)
        with pytest.raises(errors.OutOfOrderSequence):
            partition.append(numbered(11))
        assert (await append(partition, numbered(10))).base_offset == 10
        assert [producer.producer_id for producer in partition.producers()] == [7]
        assert len(contents(partition)) == 11


async def test_a_duplicate_is_acknowledged_no_sooner_than_its_original(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings())
        first = topic.partitions[0].append(batch(producer_id=1, producer_epoch=0, base_sequence=0))
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        again = topic.partitions[0].append(batch(producer_id=1, producer_epoch=0, base_sequence=0), done.set_result)
        assert (first.durable, again.duplicate, again.durable) == (False, True, False)
        assert await done is None
        assert topic.partitions[0].high_watermark == 1


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
async def test_trim_sticks(tmp_path: Path, clean: bool) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(segment_bytes=300))
        for number in range(10):
            await append(topic.partitions[0], batch(b"%d" % number))
        assert await topic.partitions[0].trim(4) == 4
        with pytest.raises(errors.OffsetOutOfRange):
            await topic.partitions[0].trim(11)
        with pytest.raises(errors.OffsetOutOfRange):
            topic.partitions[0].read(3, 100)

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition) == [(n, b"%d" % n) for n in range(4, 10)]
        assert await partition.trim(-1) == 10
        assert contents(partition) == []
        assert (await append(partition, batch(b"new"))).base_offset == 10


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
async def test_a_deleted_topic_stays_deleted_and_its_name_is_free(tmp_path: Path, clean: bool) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
        await append(topic.partitions[0], batch(b"old"))
        with pytest.raises(errors.TopicExists):
            await log.create("t", 1, {}, TopicSettings())
        await log.delete("t")
        assert topic.deleted
        with pytest.raises(errors.UnknownTopic):
            await log.delete("t")
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
        await append(topic.partitions[0], batch(b"new"))
        await log.create("u", 1, {}, TopicSettings())
        await log.delete("u")

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        assert list(log.topics) == ["t"]
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition) == [(0, b"new")]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith("-delete")]


async def test_of_a_deleted_topic_with_the_longest_name_nothing_stays(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("n" * 249, 12, {}, TopicSettings(durability=Durability.ASYNC))
        for partition in topic.partitions:
            await append(partition, batch(b"old"))
        await log.delete(topic.name)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("n")]


async def test_alterations_and_counters_survive_a_crash(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        await log.create("t", 1, {}, TopicSettings())
        await log.alter("t", partitions=3)
        await log.alter("t", config=({"x": "1"}, TopicSettings(retention_ms=5)))
        with pytest.raises(errors.InvalidPartitions, match="can only grow"):
            await log.alter("t", partitions=2)
        assert await log.reserve("ids", 1_000) == 0
        assert await log.reserve("ids", 10) == 1_000

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        topic = log.topics["t"]
        assert (len(topic.partitions), topic.config, topic.settings.retention_ms) == (3, {"x": "1"}, 5)
        assert await log.reserve("ids", 1) == 1_010


@ON_DISK
async def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path, durability: Durability) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, runtime=runtime) as log:
        topic = await log.create("t", 1, {}, TopicSettings(durability=durability))
        partition = topic.partitions[0]
        accepted = []

        def full(path: str) -> OSError | None:
            return OSError(errno.ENOSPC, "no space left", path) if path.endswith(".log") else None

        disk.fail_write = full
        refused = False
        for number in range(2_000):
            try:
                await append(partition, batch(b"%d" % number))
                accepted.append(b"%d" % number)
            except errors.StorageFailed:
                refused = True
                break
        assert refused
        # Memory that waits for its segment is bounded by the tail's budget.
        assert log.tail.size <= SMALL.tail_bytes + 1_000
        assert [value for _, value in contents(partition)] == accepted
        disk.fail_write = lambda path: None
        while log.full:
            await asyncio.sleep(0.05)
        await append(partition, batch(b"again"))
        assert [value for _, value in contents(partition)] == [*accepted, b"again"]
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert [value for _, value in contents(partition)] == [*accepted, b"again"]


@pytest.mark.parametrize("noticed", [True, False], ids=["full before", "full meanwhile"])
async def test_checkpoints_on_a_full_disk_leave_the_journal_its_file(tmp_path: Path, noticed: bool) -> None:
    """There is room in the file that the journal has, and none for another. What makes room again, a start that moves,
    goes through the journal."""
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000), runtime) as log:
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
        partition = topic.partitions[0]
        await append(partition, batch(b"here"))

        def full(path: str) -> OSError | None:
            return None if path.endswith("00000000.journal") else OSError(errno.ENOSPC, "no space left", path)

        disk.fail_write = full
        if noticed:
            with pytest.raises(errors.StorageFailed):
                await append(partition, batch(b"refused"))
        for number in range(3):
            checkpoint = asyncio.ensure_future(log.upkeep.checkpoint())
            if noticed:
                # While it is under way.
                await log.create(f"t{number}", 1, {}, TopicSettings())
            with pytest.raises(OSError, match="no space left"):
                await checkpoint
            assert await partition.trim(1) == 1
            await log.create(f"u{number}", 1, {}, TopicSettings())
        disk.fail_write = lambda path: None


async def test_a_failed_flush_takes_back_what_it_carried(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, SMALL)
    await log.start()
    topic = await log.create("t", 1, {}, TopicSettings())
    partition = topic.partitions[0]
    await append(partition, batch(b"kept", producer_id=1, producer_epoch=0, base_sequence=0))
    disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "journal" in path else None
    outcomes: list[Exception | None] = []
    partition.append(batch(b"lost", producer_id=1, producer_epoch=0, base_sequence=1), outcomes.append)
    partition.append(batch(b"lost too", producer_id=1, producer_epoch=0, base_sequence=2), outcomes.append)
    while len(outcomes) < 2:
        await asyncio.sleep(0)
    assert all(isinstance(outcome, errors.StorageFailed) for outcome in outcomes)
    assert (partition.high_watermark, partition.end) == (1, 1)
    disk.fail_write = lambda path: None
    # The same sequence number is new again, and a fresh journal file takes it.
    again = await append(partition, batch(b"retried", producer_id=1, producer_epoch=0, base_sequence=1))
    assert (again.duplicate, again.base_offset) == (False, 1)
    await crash(log)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition) == [(0, b"kept"), (1, b"retried")]


async def fail_to_flush(log: NativeLog, disk: WatchedDisk, *partitions: Partition) -> None:
    """An append to several partitions whose frame the journal does not get, or is said not to have got."""
    disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "journal" in path else None
    outcomes: list[Exception | None] = []
    log.append([Write(each, batch(b"failed")) for each in partitions], outcomes.append)
    while not outcomes:
        await asyncio.sleep(0)
    assert isinstance(outcomes[0], errors.StorageFailed)
    disk.fail_write = lambda path: None


async def all_values(log: NativeLog) -> list[list[bytes]]:
    """What each partition of the topic `t` has."""
    found = []
    for partition in log.topics["t"].partitions:
        await partition.load()
        found.append([value for _, value in contents(partition)])
    return found


class LateDisk(WatchedDisk):
    """A disk whose journal says that a write has failed, though the device has it."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return LateFile(self, self._inner.open(path, write=write, create=create))  # type: ignore[return-value]


class LateFile(WatchedFile):
    def write_durably(self, position: int, buffers: list[bytes]) -> None:
        self._inner.write_durably(position, buffers)
        self._check()


@ON_DISK
async def test_a_frame_whose_flush_failed_takes_the_place_of_nothing_that_was_acknowledged(
    tmp_path: Path, durability: Durability
) -> None:
    """A large batch goes to its segment at the same offset, and no other frame says that the first is not on the
    chain."""
    runtime, disk = watched(tmp_path, LateDisk)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    first, second = (await log.create("t", 2, {}, TopicSettings(durability=durability))).partitions
    await fail_to_flush(log, disk, first, second)
    await append(first, batch(bytes(5_000)))
    await crash(log)
    async with opened(tmp_path) as log:
        assert await all_values(log) == [[bytes(5_000)], []]


async def test_what_a_failed_flush_had_of_a_partition_that_is_offline_is_not_carried_over(tmp_path: Path) -> None:
    """Or that part of an append to several partitions would be there alone."""
    runtime, disk = watched(tmp_path, LateDisk)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    first, second = (await log.create("t", 2, {}, TopicSettings())).partitions
    assert isinstance(first, NativePartition)
    await append(first, batch(b"kept"))
    await fail_to_flush(log, disk, first, second)
    first.fail("a sync of its segment failed")
    assert await log.upkeep.checkpoint()
    await crash(log)
    async with opened(tmp_path) as log:
        assert await all_values(log) == [[b"kept"], []]


async def test_a_sync_that_failed_with_its_flush_is_asked_for_again(tmp_path: Path) -> None:
    """The journal may not go on behind what only the operating system has: not at the second try either."""
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000), runtime) as log:
        topic = await log.create("t", 2, {}, TopicSettings(durability=Durability.ASYNC))
        first, second = topic.partitions
        assert isinstance(first, NativePartition)
        await append(first, batch(b"only the operating system has it"))
        await fail_to_flush(log, disk, first, second)
        asked = []
        jobs = first.segments.sync_jobs
        first.segments.sync_jobs = lambda **how: asked.append(how) or jobs(**how)  # type: ignore[method-assign]
        log.append([Write(each, batch(b"both")) for each in (first, second)], lambda error: None)
        assert asked


async def test_a_topic_that_is_deleted_while_it_is_synced_fails_nobody_else(tmp_path: Path) -> None:
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000)) as log:
        gone = (await log.create("gone", 1, {}, TopicSettings())).partitions[0]
        kept = (await log.create("kept", 1, {}, TopicSettings())).partitions[0]
        await append(gone, batch(b"first"))
        deleting = asyncio.ensure_future(log.delete("gone"))
        while log.committer._flying is None:
            await asyncio.sleep(0)
        # Both wait for the next flush, which finds the folder of one of them gone.
        outcomes: list[Exception | None] = []
        gone.append(batch(bytes(5_000)), outcomes.append)
        kept.append(batch(b"here"), outcomes.append)
        await deleting
        while len(outcomes) < 2:
            await asyncio.sleep(0)
        assert outcomes == [None, None]
        assert contents(kept) == [(0, b"here")]


async def test_a_disk_that_can_only_be_read_answers_everybody(tmp_path: Path) -> None:
    """As a file system is mounted again after an error: a snapshot of what did not come to be cannot be removed."""
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    first, second = (await log.create("t", 2, {}, TopicSettings(segment_bytes=200))).partitions
    assert isinstance(first, NativePartition)
    await append(first, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    await append(second, batch())
    disk.fail_write = lambda path: OSError(errno.EROFS, "read-only", path) if "journal" in path else None
    outcomes: list[Exception | None] = []
    for number in range(1, 5):
        first.append(batch(bytes(100), producer_id=1, producer_epoch=0, base_sequence=number), outcomes.append)
        first.write_back()
    second.append(batch(), outcomes.append)
    remove = disk._inner.remove

    def read_only(path: str) -> None:
        if path.endswith(".snapshot"):
            raise OSError(errno.EROFS, "read-only", path)
        remove(path)

    disk.remove = read_only  # type: ignore[attr-defined]
    async with asyncio.timeout(SECONDS):
        while len(outcomes) < 5:
            await asyncio.sleep(0.01)
    assert all(isinstance(outcome, errors.StorageFailed) for outcome in outcomes)
    assert first.offline
    assert not second.offline
    assert second.end == second.high_watermark == 1
    await crash(log)


async def test_a_second_sync_of_what_says_whose_folder_it_is_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when the first one failed."""
    log = NativeLog(real_runtime(str(tmp_path)), replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    partition = (await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))).partitions[0]
    assert isinstance(partition, NativePartition)
    await append(partition, batch())
    first, second = partition.segments.sync_jobs(), partition.segments.sync_jobs()
    sync = SystemFile.sync

    def fail(self: SystemFile) -> None:
        if self.path.endswith("partition.metadata"):
            raise OSError(errno.EIO, "bad sector", self.path)
        sync(self)

    with monkeypatch.context() as patched:
        patched.setattr(SystemFile, "sync", fail)
        with pytest.raises(OSError, match="bad sector"):
            first[0]()
    with pytest.raises(OSError, match="has failed"):
        second[0]()
    first[1]()
    second[1]()
    await crash(log)


async def test_a_failed_flush_forgets_no_producer(tmp_path: Path) -> None:
    """A segment that began with what failed goes again, and so does the snapshot of its name, which was true."""
    runtime, disk = watched(tmp_path)
    known = batch(b"known", producer_id=1, producer_epoch=0, base_sequence=0)
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000), runtime) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(segment_bytes=200))).partitions[0]
        assert isinstance(partition, NativePartition)
        await append(partition, bytearray(known))
        await append(partition, batch(b"more"))
        disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "journal" in path else None
        outcomes: list[Exception | None] = []
        partition.append(batch(bytes(5_000)), outcomes.append)
        partition.append(batch(b"lost too"), outcomes.append)
        assert [segment.base for segment in partition.segments.all] == [0, 2]
        while len(outcomes) < 2:
            await asyncio.sleep(0)
        assert [segment.base for segment in partition.segments.all] == [0]
        # What was cut off could come back with a power cut, until the next checkpoint.
        assert not partition.segments.all[0].names_synced
        assert partition in log.dirty
        disk.fail_write = lambda path: None
        await log.upkeep.checkpoint()
        assert partition.segments.all[0].names_synced
        # Nothing is left of what the producer sent but the snapshot.
        await partition.trim(2)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert (await append(partition, bytearray(known))).duplicate


async def test_open_transactions_hold_back_committed_readers(tmp_path: Path) -> None:
    transactional = {"producer_id": 5, "producer_epoch": 0, "attributes": 0x10}

    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings())
        partition = topic.partitions[0]
        await append(partition, batch(b"plain"))
        await append(partition, batch(b"doomed", base_sequence=0, **transactional))
        assert (partition.last_stable, partition.high_watermark) == (1, 2)
        assert contents(partition, committed=True) == [(0, b"plain")]
        await append(partition, records.control(0, 3, 5, 0, NOW))
        assert partition.last_stable == partition.high_watermark == 3
        await append(partition, batch(b"open", base_sequence=1, **transactional))

    await start_and_crash(tmp_path, fill)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert (partition.last_stable, partition.high_watermark) == (3, 4)
        assert [(each.producer_id, each.first_offset) for each in partition.aborted(0, 3)] == [(5, 1)]
        assert partition.aborted(3, 4) == []
        await append(partition, records.control(1, 4, 5, 0, NOW))
        assert partition.last_stable == partition.high_watermark == 5


async def test_the_log_stamps_batches_where_the_topic_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(log_append_time=True))
        before = log.runtime.clock.now_ms()
        appended = await append(topic.partitions[0], batch(count=3))
        assert before <= appended.log_append_time <= log.runtime.clock.now_ms()
        stored = topic.partitions[0].read(0, 1_000).parts[0]
        assert isinstance(stored, bytes)
        header = header_at(stored)
        assert header.attributes & 0x08
        assert header.max_timestamp == appended.log_append_time
        assert crc_fits(stored, 0, header)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:40], errors.CorruptBatch),
        (lambda data: data[:-1], errors.CorruptBatch),
        (lambda data: data[:16] + b"\x01" + data[17:], errors.UnsupportedBatch),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), errors.CorruptBatch),
        (lambda data: records.build([(NOW, b"k", b"v" * 2_000_000, [])]), errors.BatchTooLarge),
        (lambda data: records.build([(1 << 60, b"k", b"v", [])]), errors.InvalidTimestamp),
    ],
    ids=["header cut", "cut", "old magic", "crc", "too large", "future"],
)
async def test_bad_batches_are_refused_and_change_nothing(
    tmp_path: Path, damage: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings())
        with pytest.raises(error):
            topic.partitions[0].append(bytearray(damage(bytes(batch()))))
        assert topic.partitions[0].end == 0


async def test_compacted_topics_need_keys(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(compact=True))
        with pytest.raises(errors.InvalidRecords):
            topic.partitions[0].append(batch(key=None))
        await append(topic.partitions[0], batch())


async def test_memory_topics_keep_their_newest_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        settings = TopicSettings(durability=Durability.MEMORY, retention_bytes=1_000)
        topic = await log.create("t", 1, {}, settings)
        partition = topic.partitions[0]
        for number in range(100):
            assert (await append(partition, batch(b"%d" % number))).durable
        assert partition.size() <= 1_000
        assert partition.start > 80
        assert contents(partition)[-1] == (99, b"99")
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        assert (partition.loaded, partition.start, partition.end) == (True, 100, 100)


async def test_offsets_by_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(segment_bytes=500))
        partition = topic.partitions[0]
        for number in range(20):
            entries = [(NOW + number * 10 + step, b"k", b"v", []) for step in (0, 5)]
            await append(partition, records.build(entries))
        for where in ("memory", "files"):
            for number in range(40):
                assert (await partition.offset_at(NOW + number * 5)).offset == number, where
            assert (await partition.offset_at(NOW + 195 + 1)).offset == -1
            latest = await partition.offset_at(MAX_TIMESTAMP)
            assert (latest.offset, latest.timestamp) == (39, NOW + 195)
            await log.upkeep.checkpoint()


async def test_the_journal_is_reused(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 4, {}, TopicSettings())
        for number in range(600):
            await append(topic.partitions[number % 4], batch(b"x" * 1_000))
            if number % 50 == 49:
                await log.upkeep.checkpoint()
        assert len(list((tmp_path / "journal").iterdir())) <= 5


async def test_damage_below_the_recovery_point_takes_the_partition_offline(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings())
        for partition in topic.partitions:
            for number in range(10):
                await append(partition, batch(b"%d" % number))
        await log.upkeep.checkpoint()

    await start_and_crash(tmp_path, fill)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-40])
    async with opened(tmp_path) as log:
        broken, whole = log.topics["t"].partitions
        with pytest.raises(errors.PartitionOffline):
            await broken.load()
        assert broken.offline is not None
        with pytest.raises(errors.StorageFailed):
            broken.append(batch())
        await whole.load()
        assert len(contents(whole)) == 10


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
@pytest.mark.parametrize("what", ["removed", "emptied", "cut"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
async def test_a_segment_that_is_lost_takes_the_partition_offline(
    tmp_path: Path, which: str, what: str, clean: bool
) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings(segment_bytes=1_000))
        for number in range(40):
            await append(topic.partitions[0], batch(b"%d" % number * 20))
        await log.upkeep.checkpoint()

    await live(tmp_path, fill, clean)
    segments = sorted((tmp_path / "t-0").glob("*.log"))
    assert len(segments) >= 3
    lost = segments[{"first": 0, "middle": 1, "last": -1}[which]]
    contents_before = lost.read_bytes()
    if what == "removed":
        lost.unlink()
    else:
        # The last batch goes, and nothing of it is left.
        end = max((at for at, _ in batches_in(contents_before)), default=0) if what == "cut" else 0
        lost.write_bytes(contents_before[:end])
    others = {path: path.read_bytes() for path in segments if path != lost}
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        with pytest.raises(errors.PartitionOffline):
            await partition.load()
    assert {path: path.read_bytes() for path in others} == others
    lost.write_bytes(contents_before)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert len(contents(partition)) == 40


async def test_a_flipped_bit_in_the_journal_is_said_and_the_journal_is_kept(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings())
        for number in range(20):
            await append(topic.partitions[number % 2], batch(b"value %d" % number))

    await start_and_crash(tmp_path, fill, replace(SMALL, checkpoint_ms=600_000))
    journal = tmp_path / "journal" / "00000000.journal"
    damaged = journal.read_bytes().replace(b"value 10", b"value 1O")
    journal.write_bytes(damaged)
    with structlog.testing.capture_logs() as said:
        async with opened(tmp_path) as log:
            first, second = log.topics["t"].partitions
            with pytest.raises(errors.PartitionOffline):
                await first.load()
            await second.load()
            assert [value for _, value in contents(second)] == [b"value %d" % n for n in range(1, 20, 2)]
    assert any("the journal is damaged" in entry["event"] for entry in said)
    assert (tmp_path / "journal.kept-1" / "00000000.journal").read_bytes() == damaged


async def test_a_missing_checkpoint_is_no_new_directory(tmp_path: Path) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings())
        await append(topic.partitions[0], batch(b"kept"))

    await live(tmp_path, fill, True)
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(errors.DataDirectoryInvalid, match=r"'checkpoint' is missing.*t-0"):
        await NativeLog(real_runtime(str(tmp_path)), SMALL).start()
    (tmp_path / "checkpoint").write_bytes(checkpoint)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition) == [(0, b"kept")]


def test_a_disk_is_made_where_there_is_none(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path / "a" / "b"))
    assert disk.listdir("") == []
    assert disk.listdir("missing") == []


async def test_what_was_compacted_is_not_read_from_memory(tmp_path: Path) -> None:
    settings = TopicSettings(compact=True, delete=False, segment_bytes=2_000, min_cleanable_dirty_ratio=0.1)
    roomy = replace(SMALL, tail_bytes=100_000, checkpoint_ms=600_000)
    async with opened(tmp_path, roomy) as log:
        topic = await log.create("t", 1, {}, settings)
        partition = topic.partitions[0]
        for number in range(100):
            await append(partition, batch(b"%d" % number, b"key %d" % (number % 5)))
        await log.upkeep.checkpoint()
        assert len(contents(partition)) == 100
        await log.upkeep.cleaner.run()
        found = contents(partition)
        assert len(found) < 50
        assert {offset for offset, _ in found} >= set(range(95, 100))
        # What left early is not counted twice: memory is bounded as ever, and the newest stays in it.
        for number in range(3_000):
            partition.append(batch(b"%d" % number, b"key %d" % (number % 5)))
        await append(partition, batch(b"last"))
        assert log.tail.size <= roomy.tail_bytes
        assert sum(len(each[2]) for each in partition.cache.batches) == log.tail.size
        assert contents(partition)[-1][1] == b"last"


async def test_compaction_keeps_the_last_record_of_each_key(tmp_path: Path) -> None:
    settings = TopicSettings(compact=True, delete=False, segment_bytes=2_000, min_cleanable_dirty_ratio=0.1)
    async with opened(tmp_path, replace(SMALL, tail_bytes=1_000)) as log:
        topic = await log.create("t", 1, {}, settings)
        partition = topic.partitions[0]
        for number in range(200):
            await append(partition, batch(b"%d" % number, b"key %d" % (number % 5)))
        await log.upkeep.checkpoint()
        size = partition.size()
        held = partition.read(0, 10_000)
        while held.cold is not None:
            held.cold()
            held = partition.read(0, 10_000)
        await log.upkeep.cleaner.run()
        assert log.upkeep.cleaner.runs == 1
        assert partition.size() < size / 4
        # A reply that was being sent while the files changed places is not disturbed.
        (part,) = held.parts
        assert isinstance(part, FileRange)
        assert len(part.read()) == part.length
        part.release()
        # Batches that are still in memory too are read from there, so a reader at the end may see more than the last.
        values = dict(contents(partition))
        assert len(values) < 30
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        kept = dict(contents(partition))
        assert set(range(195, 200)) <= set(kept) <= set(values)
        assert (await append(partition, batch(b"next"))).base_offset == 200


async def compactable(log: NativeLog) -> NativePartition:
    """A partition of which much can go."""
    settings = TopicSettings(compact=True, delete=False, segment_bytes=2_000, min_cleanable_dirty_ratio=0.01)
    partition = (await log.create("t", 1, {}, settings)).partitions[0]
    assert isinstance(partition, NativePartition)
    await append_keys(log, partition)
    return partition


async def append_keys(log: NativeLog, partition: NativePartition) -> None:
    for number in range(100):
        await append(partition, batch(b"%d" % number, b"key %d" % (number % 5)))
    await log.upkeep.checkpoint()


async def test_a_compaction_that_could_not_be_settled_is_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a start would take what the next one has written so far for what the list of this one means."""
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000, tail_bytes=1_000))
    await log.start()
    partition = await compactable(log)
    disk.fail_write = lambda path: OSError(errno.ENOSPC, "full", path) if "cleaner-offset" in path else None
    await log.upkeep.cleaner.run()
    assert (tmp_path / "t-0" / "compaction-swap").exists()
    disk.fail_write = lambda path: None
    await append_keys(log, partition)
    begun = []

    def die(function: object, folder: str, plan: object) -> asyncio.Future[None]:
        (tmp_path / folder / f"{0:020d}.log.cleaned").write_bytes(b"as far as it came")
        begun.append(folder)
        raise OSError(errno.EIO, "the process is gone")

    monkeypatch.setattr(runtime.offload, "work", die)
    await log.upkeep.cleaner.run()
    assert begun == ["t-0"]
    expected = contents(partition)
    await crash(log)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]  # type: ignore[assignment]
        await partition.load()
        assert contents(partition) == expected


async def test_a_compaction_that_is_put_in_place_by_half_is_completed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = NativeLog(real_runtime(str(tmp_path)), replace(SMALL, checkpoint_ms=3_600_000, tail_bytes=1_000))
    await log.start()
    partition = await compactable(log)
    rename = log.runtime.disk.rename
    done = []

    def fail_at_last(old: str, new: str) -> None:
        if new.endswith(".deleted"):
            done.append(new)
            if len(done) > 4:
                raise OSError(errno.EIO, "bad sector", new)
        rename(old, new)

    monkeypatch.setattr(log.runtime.disk, "rename", fail_at_last)
    await log.upkeep.cleaner.run()
    # What it has in memory is of neither the old files nor the new ones.
    assert partition.offline
    await crash(log)
    monkeypatch.undo()
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]  # type: ignore[assignment]
        await partition.load()
        found = contents(partition)
        assert len(found) < 60
        assert found[-5:] == [(number, b"%d" % number) for number in range(95, 100)]


async def test_a_stop_waits_for_a_compaction_that_is_being_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is renamed in a directory that another process may have taken."""
    settle, begun, ended = swap.settle, threading.Event(), threading.Event()

    def slowly(*args: Any) -> None:
        begun.set()
        time.sleep(0.3)
        settle(*args)
        ended.set()

    monkeypatch.setattr(swap, "settle", slowly)
    log = NativeLog(real_runtime(str(tmp_path)), replace(SMALL, compaction_check_ms=10, tail_bytes=1_000))
    await log.start()
    await compactable(log)
    async with asyncio.timeout(SECONDS):
        while not begun.is_set():
            await asyncio.sleep(0.01)
    await log.stop()
    assert ended.is_set()
    log.runtime.offload.close()


async def test_after_a_stop_nobody_tries_a_full_disk_again(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    await append((await log.create("t", 1, {}, TopicSettings())).partitions[0], batch())
    disk.fail_write = lambda path: OSError(errno.ENOSPC, "full", path) if path.startswith("t-") else None
    await log.stop()
    assert log.full
    disk.opened.clear()
    disk.fail_write = lambda path: None
    await asyncio.sleep(0.7)
    assert not disk.opened
    runtime.offload.close()


async def test_a_place_that_is_looked_up_while_its_topic_is_made_anew(tmp_path: Path) -> None:
    """What it finds under the name of its segment is another one, and no damage."""
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000, tail_bytes=1_000)) as log:
        chunk = (await compactable(log)).read(20, 10_000)
        assert chunk.cold is not None
        await log.delete("t")
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, batch(bytes(5_000)))
        chunk.cold()
        assert contents(partition) == [(0, bytes(5_000))]


async def test_a_stop_whose_last_flush_fails_is_not_a_clean_one(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
    await append(partition, batch(b"kept"))
    disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if "journal" in path else None
    with pytest.raises(errors.StorageFailed):
        await append(partition, batch(b"failed"))
    await log.stop()
    runtime.offload.close()
    async with opened(tmp_path) as log:
        assert not log.clean
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition)[0] == (0, b"kept")


async def test_a_backfill_of_old_records_rolls_by_their_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC, segment_ms=1_000))
        partition = topic.partitions[0]
        for step in range(30):
            await append(partition, records.build([(1_000 + step * 100, b"k", b"v", [])]))
        assert len(list((tmp_path / "t-0").glob("*.log"))) == 3


async def test_retention_by_size_and_by_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        by_size = await log.create("size", 1, {}, TopicSettings(segment_bytes=1_000, retention_bytes=3_000))
        by_time = await log.create("time", 1, {}, TopicSettings(segment_bytes=1_000, retention_ms=1_000))
        for topic in (by_size, by_time):
            for number in range(100):
                await append(
                    topic.partitions[0], records.build([(log.runtime.clock.now_ms(), b"k", b"%d" % number, [])])
                )
        await log.upkeep.checkpoint()
        await log.upkeep.retain()
        kept = by_size.partitions[0]
        assert 2_000 < kept.size() <= 4_000
        assert kept.start > 0
        assert contents(kept)[-1] == (99, b"99")
        await asyncio.sleep(1.2)
        await log.upkeep.retain()
        gone = by_time.partitions[0]
        assert (gone.start, gone.high_watermark, gone.size()) == (100, 100, 0)
        assert (await append(gone, batch())).base_offset == 100


async def test_retention_goes_on_behind_a_partition_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may be why, and then what others give up makes room."""
    async with opened(tmp_path) as log:
        topic = await log.create("t", 2, {}, TopicSettings(segment_bytes=1_000, retention_bytes=3_000))
        for number in range(100):
            for partition in topic.partitions:
                await append(partition, batch(b"%d" % number))
    load = NativePartition.load_now

    def refuse(self: NativePartition) -> object:
        if self.index:
            return load(self)
        raise OSError(errno.ENOSPC, "not now")

    monkeypatch.setattr(NativePartition, "load_now", refuse)
    async with opened(tmp_path) as log:
        await log.upkeep.retain()
        first, second = log.topics["t"].partitions
        assert (first.start, first.offline) == (0, None)  # type: ignore[attr-defined]
        assert second.start > 0


async def test_a_segment_begun_while_others_are_synced_gets_its_name_synced(tmp_path: Path) -> None:
    """A trim to the end begins a segment at the very offset up to which a sync is under way. Its name was once taken
    for durable with that sync, and a power cut lost the file with what was synced in it later."""
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))).partitions[0]
        assert isinstance(partition, NativePartition)
        await append(partition, batch())
        point, jobs = partition.prepare_sync(gently=False)
        for job in jobs:
            job()
        assert await partition.trim(1) == 1
        partition.mark_synced(point)
        begun = partition.segments.active
        assert begun is not None
        assert begun.base == point
        assert not begun.names_synced
        for job in partition.segments.sync_jobs():
            job()
        assert begun.names_synced


async def test_a_partition_that_is_offline_does_not_hold_the_whole_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync failed: what the journal has of that partition must last until the next start. All else goes."""
    config = replace(SMALL, checkpoint_ms=3_600_000)
    log = NativeLog(real_runtime(str(tmp_path)), config)
    await log.start()
    bad = (await log.create("bad", 1, {}, TopicSettings())).partitions[0]
    good = (await log.create("good", 1, {}, TopicSettings())).partitions[0]
    assert isinstance(bad, NativePartition)
    for number in range(20):
        await append(bad, batch(b"%d" % number))

    def fail() -> None:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(bad.segments, "sync_jobs", lambda **_: [fail])
    checkpoint = asyncio.ensure_future(log.upkeep.checkpoint())
    await asyncio.sleep(0)
    # Behind what the checkpoint is about, and before the partition is offline.
    await append(bad, batch(b"20"))
    assert await checkpoint
    for number in range(400):
        await append(good, batch(bytes(2_000)))
        if number % 20 == 19:
            await log.upkeep.checkpoint()
    assert bad.offline
    kept = sum(file.stat().st_size for file in (tmp_path / "journal").iterdir())
    assert kept <= 6 * config.journal_bytes
    await crash(log)
    # The device has nothing of it, as it said.
    shutil.rmtree(tmp_path / "bad-0")
    async with opened(tmp_path) as log:
        bad = log.topics["bad"].partitions[0]
        await bad.load()
        assert contents(bad) == [(number, b"%d" % number) for number in range(21)]
        good = log.topics["good"].partitions[0]
        await good.load()
        assert len(contents(good)) == 400


async def test_a_partition_that_is_offline_holds_up_no_other(tmp_path: Path) -> None:
    """What waits for its segment for ever takes no memory from others, and does not make the disk a full one."""
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000))
    await log.start()
    bad, good = (await log.create("t", 2, {}, TopicSettings())).partitions
    assert isinstance(bad, NativePartition)
    await append(bad, batch(b"kept"))
    disk.fail_write = lambda path: OSError(errno.ENOSPC, "full", path) if path.startswith("t-") else None
    assert not bad.write_back()
    assert log.full
    disk.fail_write = lambda path: OSError(errno.EIO, "bad sector", path) if path.startswith("t-0") else None
    async with asyncio.timeout(SECONDS):
        while log.full:
            await asyncio.sleep(0.05)
    assert bad.offline
    for _ in range(100):
        await append(good, batch(bytes(1_000)))
    assert log.tail.size <= SMALL.tail_bytes + 2_000
    assert await log.upkeep.checkpoint()
    await crash(log)
    async with opened(tmp_path) as log:
        bad = log.topics["t"].partitions[0]
        await bad.load()
        assert contents(bad) == [(0, b"kept")]


@pytest.mark.parametrize("what", ["segments", "indexes", "folders"])
async def test_without_descriptors_a_checkpoint_is_made_later(tmp_path: Path, what: str) -> None:
    """It takes no partition offline, and forgets none."""
    runtime, disk = watched(tmp_path)
    log = NativeLog(runtime, replace(SMALL, checkpoint_ms=3_600_000, open_files_max=1))
    await log.start()
    partitions = (await log.create("t", 3, {}, TopicSettings())).partitions
    for partition in partitions:
        await append(partition, batch(b"v"))
        assert partition.write_back()  # type: ignore[attr-defined]
    opens = disk.open

    def refuse(path: str, *, write: bool = False, create: bool = False) -> File:
        if path.endswith(".log") is (what == "segments"):
            raise OSError(errno.EMFILE, "no descriptors", path)
        return opens(path, write=write, create=create)

    def refuse_to_sync(path: str) -> None:
        raise OSError(errno.EMFILE, "no descriptors", path)

    if what == "folders":
        disk.sync_dir = refuse_to_sync  # type: ignore[attr-defined]
    else:
        disk.open = refuse  # type: ignore[method-assign]
    assert not await log.upkeep.checkpoint()
    assert not any(partition.offline for partition in partitions)
    # One file was open already.
    assert set(log.dirty) == set(partitions[:2] if what == "segments" else partitions)
    assert log.full
    vars(disk).pop("open", None)
    vars(disk).pop("sync_dir", None)
    async with asyncio.timeout(SECONDS):
        while log.full:
            await asyncio.sleep(0.05)
    assert await log.upkeep.checkpoint()
    assert [partition.point for partition in partitions] == [1, 1, 1]  # type: ignore[attr-defined]
    await crash(log)


async def test_a_checkpoint_that_raises_forgets_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next one would let go of the frames that have their batches."""
    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000)) as log:
        partitions = (await log.create("t", 3, {}, TopicSettings())).partitions
        for partition in partitions:
            await append(partition, batch(b"v"))

        def raises(self: NativePartition) -> bool:
            raise errors.CorruptLog("a broken batch")

        with monkeypatch.context() as patched:
            patched.setattr(NativePartition, "write_back", raises)
            with pytest.raises(errors.CorruptLog):
                await log.upkeep.checkpoint()
        assert set(log.dirty) == set(partitions)


async def test_the_journal_does_not_go_on_behind_what_nothing_can_sync(tmp_path: Path) -> None:
    """There is no descriptor for it just now."""

    def refuse(**_: bool) -> list[Callable[[], None]]:
        raise OSError(errno.EMFILE, "no descriptors")

    async with opened(tmp_path, replace(SMALL, checkpoint_ms=3_600_000)) as log:
        durable = (await log.create("s", 1, {}, TopicSettings())).partitions[0]
        loose = (await log.create("a", 1, {}, TopicSettings(durability=Durability.ASYNC))).partitions[0]
        assert isinstance(durable, NativePartition)
        assert isinstance(loose, NativePartition)
        await append(loose, batch(b"only the operating system has it"))
        for partition in (durable, loose):
            assert partition.loaded
            partition.segments.sync_jobs = refuse  # type: ignore[method-assign]
        # A large batch, which goes to its segment at once, is in the journal too.
        flushed = log.committer.flushed_bytes
        await append(durable, batch(bytes(5_000)))
        assert log.committer.flushed_bytes > flushed + 5_000
        for _ in range(2):
            log.full = False
            with pytest.raises(errors.StorageFailed):
                log.append([Write(each, batch(b"both")) for each in (durable, loose)])
        log.full = False
        for partition in (durable, loose):
            del partition.segments.sync_jobs


async def test_a_load_that_fails_after_its_waiters_have_gone_is_no_unhandled_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await append((await log.create("t", 1, {}, TopicSettings())).partitions[0], batch(b"v"))
    is_given_up = threading.Event()

    def refuse(self: NativePartition) -> None:
        assert is_given_up.wait(SECONDS)
        raise OSError(errno.EIO, "no more")

    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        monkeypatch.setattr(NativePartition, "load_now", refuse)
        waiter = asyncio.create_task(partition.load())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        is_given_up.set()
        async with asyncio.timeout(SECONDS):
            while not partition.offline:
                await asyncio.sleep(0.01)
        del waiter
        gc.collect()
        await asyncio.sleep(0)
    assert not unhandled


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
async def test_a_partition_that_cannot_be_opened_just_now_can_be_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with opened(tmp_path) as log:
        await append((await log.create("t", 1, {}, TopicSettings())).partitions[0], batch(b"v"))

    def refuse(self: NativePartition) -> None:
        raise OSError(number, "not now")

    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        with monkeypatch.context() as patched:
            patched.setattr(NativePartition, "load_now", refuse)
            with pytest.raises(errors.PartitionOffline, match="not now"):
                await partition.load()
        await partition.load()
        assert contents(partition) == [(0, b"v")]
