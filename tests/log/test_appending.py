"""Between the roads of a batch: the journal goes on behind nothing that a power cut could take."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest
from tests.log import batches

from headrace.config import Config
from headrace.errors import StorageFailed
from headrace.log.interface import Appended, Durability, Partition, TopicSettings, Write
from headrace.log.native import NativeLog
from headrace.log.segments import Segments
from headrace.runtime import Runtime
from simulation.faults import PowerCut
from simulation.world import Ending, World

CONFIG = Config(checkpoint_ms=3_600_000, journal_bytes=65_536, tail_bytes=32_768, direct_bytes=16_384)
ASYNC = TopicSettings(durability=Durability.ASYNC)
LOOSE = 20

Road = Callable[[NativeLog, Partition], Awaitable[None]]


async def append(log: NativeLog, *writes: Write) -> list[Appended]:
    """Append, and wait until that is durable."""
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    appended = log.append(writes, done.set_result)
    appended[0].complete(done.set_result)
    if (error := await done) is not None:
        raise error
    return appended


def some(offset: int = 0) -> bytearray:
    return bytearray(batches.batch(offset, size=600))


async def alone(log: NativeLog, partition: Partition) -> None:
    await log.alter("t", config=({}, TopicSettings()))
    await append(log, Write(partition, some()))


async def with_others(log: NativeLog, partition: Partition) -> None:
    await append(log, Write(log.topics["other"].partitions[0], some()), Write(partition, some()))


async def several(log: NativeLog, partition: Partition) -> None:
    await append(log, Write(partition, some() + some()))


async def as_they_are(log: NativeLog, partition: Partition) -> None:
    await append(log, Write(partition, some(partition.end) + some(partition.end + 1), as_is=True))


ROADS = pytest.mark.parametrize("road", [alone, with_others, several, as_they_are])


async def fill(log: NativeLog, count: int = LOOSE) -> Partition:
    """A partition with batches that only the operating system has."""
    await log.create("other", 1, {}, ASYNC)
    partition = (await log.create("t", 1, {}, ASYNC)).partitions[0]
    for _ in range(count):
        await append(log, Write(partition, some()))
    return partition


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


@ROADS
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fails", [False, True], ids=["at once", "the second time"])
def test_what_only_the_operating_system_has_is_synced_before_the_journal_goes_on(
    road: Road, seed: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed)

    async def write(runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        partition = await fill(log)
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(Segments, "sync_jobs", lambda *_, **__: [fail])
                with pytest.raises(StorageFailed, match="could not be flushed"):
                    await road(log, partition)
        await road(log, partition)
        world.machine.disk.die(PowerCut("test"))

    async def read(runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert len(batches.read(partition)) == partition.end == LOOSE + (2 if road in (several, as_they_are) else 1)
        await log.stop()

    assert world.run(write) is Ending.POWER_CUT
    assert world.run(read) is Ending.DONE


@ROADS
def test_a_batch_is_refused_where_that_cannot_be_synced(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        partition = await fill(log)
        with monkeypatch.context() as patch:
            patch.setattr(Segments, "sync_jobs", fail)
            with pytest.raises(StorageFailed, match="t-0 could not be synced"):
                await road(log, partition)
        assert partition.end == LOOSE
        assert log.topics["other"].partitions[0].end == 0, "all or nothing"
        while log.full:
            await asyncio.sleep(0.1)
        await road(log, partition)
        assert partition.high_watermark > LOOSE
        await log.stop()

    assert World(1).run(main) is Ending.DONE


@pytest.mark.parametrize("road", [with_others, several, as_they_are])
def test_a_batch_is_refused_where_what_waits_in_memory_cannot_be_stored(road: Road) -> None:
    world = World(1)

    async def main(runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        partition = await fill(log, 0)
        # It waits in memory until the turn of the loop is over.
        partition.append(some())
        world.machine.storage.capacity = world.machine.storage.used
        with pytest.raises(StorageFailed, match="the disk is full"):
            await road(log, partition)
        assert partition.end == 1
        world.machine.storage.capacity = None
        while log.full:
            await asyncio.sleep(0.1)
        await road(log, partition)
        assert partition.high_watermark > 1
        await log.stop()

    assert world.run(main) is Ending.DONE
