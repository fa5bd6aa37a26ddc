"""A disk without room: starting on it, and what there still is room for.

The simulator's disk has as much room as it is told. It ends lives by a kill, as an impatient operator would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from headrace.config import Config
from headrace.errors import StorageFailed
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from headrace.log.interface import AbortedTransaction, Durability, Partition, TopicSettings
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import Killed
from simulation.world import Ending, World

from .test_native import NOW, append, batch, contents

CONFIG = Config(checkpoint_ms=3_600_000, journal_bytes=65_536, tail_bytes=32_768, direct_bytes=16_384)
ON_DISK = pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])

Work = Callable[[NativeLog], Awaitable[None]]


def live(world: World, work: Work, *, config: Config = CONFIG, kill: bool = True) -> None:
    """One life of the process: it ends by a kill, or by a stop."""

    async def main(runtime: Runtime) -> None:
        log = NativeLog(runtime, config)
        await log.start()
        await work(log)
        if kill:
            world.machine.disk.die(Killed("test"))
        await log.stop()

    assert world.run(main) is (Ending.KILLED if kill else Ending.DONE)


async def append_to_all(partitions: list[Partition], value: bytes) -> None:
    """In one turn of the loop, as the spool wants it."""
    await asyncio.gather(*(append(each, batch(value)) for each in partitions))


async def values(partition: Partition) -> list[bytes]:
    await partition.load()
    return [value for _, value in contents(partition)]


def fill(world: World, free: int = 0) -> None:
    world.machine.storage.capacity = world.machine.storage.used + free


async def make_room(world: World, log: NativeLog) -> None:
    """And wait until writes are taken."""
    world.machine.storage.capacity = None
    async with asyncio.timeout(10):
        while log.full:
            await asyncio.sleep(0.1)


@ON_DISK
@pytest.mark.parametrize("free", [0, 100, 5_000], ids=["no byte", "a little", "room for some"])
def test_a_start_on_a_full_disk_serves_readers_and_takes_writes_once_there_is_room(
    durability: Durability, free: int
) -> None:
    world = World(1)
    sent = [b"%04d" % number * 50 for number in range(60)]

    async def write(log: NativeLog) -> None:
        await log.create("m", 1, {}, TopicSettings(durability=Durability.MEMORY))
        topic = await log.create("t", 3, {}, TopicSettings(durability=durability))
        for number, value in enumerate(sent):
            await append_to_all(list(topic.partitions), value)
            if not number:
                # The spool is made in the background.
                await asyncio.sleep(1)

    async def serve(log: NativeLog) -> None:
        assert log.full
        for partition in log.topics["t"].partitions:
            assert await values(partition) == sent
            with pytest.raises(StorageFailed):
                await append(partition, batch(b"refused"))
        # The new epoch is not durable: another start may give it again.
        with pytest.raises(StorageFailed):
            await append(log.topics["m"].partitions[0], batch(b"refused"))
        # Nothing happens until there is room.
        await asyncio.sleep(3)
        assert log.full

    async def recover(log: NativeLog) -> None:
        await serve(log)
        await make_room(world, log)
        await append_to_all([*log.topics["t"].partitions, *log.topics["m"].partitions], b"again")
        for partition in log.topics["t"].partitions:
            assert await values(partition) == [*sent, b"again"]

    async def compare(log: NativeLog) -> None:
        for partition in log.topics["t"].partitions:
            assert await values(partition) == [*sent, b"again"]

    live(world, write)
    # What a journal of that size has reserved would do for the replay.
    tight(world)
    fill(world, free)
    live(world, serve)
    live(world, serve, kill=False)
    live(world, recover)
    live(world, compare, kill=False)
    live(world, compare)


def test_what_was_truncated_on_a_full_disk_does_not_come_back_from_the_spool_of_the_life_before() -> None:
    world = World(1)
    ends: list[int] = []

    async def write(log: NativeLog) -> None:
        topic = await log.create("t", 3, {}, TopicSettings(durability=Durability.ASYNC))
        for number in range(60):
            await append_to_all(list(topic.partitions), b"%04d" % number * 50)
            if not number:
                # The spool is made in the background.
                await asyncio.sleep(1)

    async def truncate(log: NativeLog) -> None:
        # For a file of the journal, but not for a checkpoint.
        fill(world, 200_000)
        assert log.full
        for partition in map(log.local, log.topics["t"].partitions):
            with suppress(StorageFailed):
                await partition.truncate(3)
            ends.append(partition.end)

    async def compare(log: NativeLog) -> None:
        for partition, end in zip(log.topics["t"].partitions, ends, strict=True):
            assert len(await values(partition)) == end

    live(world, write)
    tight(world)
    fill(world)
    live(world, truncate)
    world.machine.storage.capacity = None
    live(world, compare)


def tight(world: World, suffix: str = "") -> None:
    """Let the disk have what journal and spool reserve, as if their frames had filled them."""
    for path, node in world.machine.storage.files():
        if path.startswith("journal/") and path.endswith(suffix):
            end = len(bytes(node.volatile).rstrip(b"\0")) + 8
            world.machine.storage.used -= max(0, len(node.volatile) - end)
            del node.volatile[end:], node.durable[end:]


def test_room_that_the_journal_has_reserved_and_does_not_use_is_enough_for_a_start() -> None:
    world = World(1)

    async def write(log: NativeLog) -> None:
        topic = await log.create("t", 1, {}, TopicSettings())
        for _ in range(50):
            await append(topic.partitions[0], batch(b"v" * 200))

    async def go_on(log: NativeLog) -> None:
        assert not log.full
        assert len(await values(log.topics["t"].partitions[0])) == 50
        await append(log.topics["t"].partitions[0], batch(b"more"))

    live(world, write)
    fill(world)
    live(world, go_on)


def test_room_that_the_spool_has_reserved_and_does_not_use_is_enough_for_a_start() -> None:
    world = World(1)

    async def write(log: NativeLog) -> None:
        topic = await log.create("t", 3, {}, TopicSettings(durability=Durability.ASYNC))
        for _ in range(20):
            await append_to_all(list(topic.partitions), b"v" * 200)
            await asyncio.sleep(0.1)

    async def go_on(log: NativeLog) -> None:
        assert not log.full
        for partition in log.topics["t"].partitions:
            assert len(await values(partition)) == 20
            await append(partition, batch(b"more"))

    live(world, write)
    tight(world, ".journal")
    fill(world)
    live(world, go_on)


def test_what_follows_from_batches_that_wait_in_memory_is_known() -> None:
    """Sequence numbers, transactions, leader epochs."""
    world = World(1)
    numbered = {"producer_id": 1, "producer_epoch": 0}

    async def write(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, batch(b"x" * 8_000, **numbered, base_sequence=0))
        for producer in (2, 3):
            await append(
                partition,
                batch(producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
            )
        await append(partition, records.control(0, 3, 2, 0, NOW))

    async def serve(log: NativeLog) -> None:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert log.full
        assert (partition.high_watermark, partition.last_stable) == (4, 2)
        assert partition.aborted(0, 4) == [AbortedTransaction(2, 1, 3)]
        assert partition.epoch_end(0) == (0, 4)
        await make_room(world, log)
        again = await append(partition, batch(b"x" * 8_000, **numbered, base_sequence=0))
        assert (again.duplicate, again.base_offset) == (True, 0)
        assert (await append(partition, batch(b"new", **numbered, base_sequence=1))).base_offset == 4
        assert partition.epoch_end(0) == (0, 4)
        assert partition.epoch_end(log.epoch) == (log.epoch, 5)

    async def compare(log: NativeLog) -> None:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert (partition.high_watermark, partition.last_stable) == (5, 2)
        assert partition.aborted(0, 5) == [AbortedTransaction(2, 1, 3)]

    live(world, write)
    tight(world)
    fill(world)
    live(world, serve)
    live(world, compare)


def test_a_start_on_a_full_disk_can_make_room_itself() -> None:
    """What is deleted goes through the journal, of which a small file is enough for that."""
    world = World(1)

    async def write(log: NativeLog) -> None:
        for name in ("large", "t"):
            topic = await log.create(name, 1, {}, TopicSettings())
            for _ in range(3):
                await append(topic.partitions[0], batch(b"v" * 1_000_000 if name == "large" else b"v" * 5_000))

    async def delete(log: NativeLog) -> None:
        assert log.full
        await log.delete("large")
        async with asyncio.timeout(10):
            while log.full:
                await asyncio.sleep(0.1)
        await append(log.topics["t"].partitions[0], batch(b"more"))

    async def compare(log: NativeLog) -> None:
        assert list(log.topics) == ["t"]
        assert await values(log.topics["t"].partitions[0]) == [b"v" * 5_000] * 3 + [b"more"]

    live(world, write)
    tight(world)
    fill(world, 4_500)
    live(world, delete)
    live(world, compare)


def test_a_journal_without_room_for_a_whole_file_goes_on_in_a_smaller_one() -> None:
    """A checkpoint wants a new file while the old one is still needed. What waits for it is not refused."""
    world = World(1)

    async def write(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, batch(b"first"))
        fill(world, CONFIG.journal_bytes // 2)
        for number in range(20):
            checkpoint = asyncio.ensure_future(log.upkeep.checkpoint())
            await asyncio.sleep(0)
            await append(partition, batch(b"%d" % number))
            assert await checkpoint
        # The whole file is back in use, and nothing else is left.
        assert log.runtime.disk.listdir("journal")[0] == "00000000.journal"
        assert log.journal.used < CONFIG.journal_bytes

    async def compare(log: NativeLog) -> None:
        assert await values(log.topics["t"].partitions[0]) == [b"first", *(b"%d" % number for number in range(20))]

    live(world, write)
    live(world, compare)


@pytest.mark.parametrize("full", [True, False], ids=["full", "roomy"])
def test_a_stop_on_a_full_disk_leaves_the_rest_to_the_next_start(full: bool) -> None:
    world = World(1)

    async def write(log: NativeLog) -> None:
        # What there is to store is stored: only the checkpoint has no room.
        topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
        await append(topic.partitions[0], batch(b"v"))
        if full:
            fill(world)

    async def compare(log: NativeLog) -> None:
        assert log.clean is not full
        assert await values(log.topics["t"].partitions[0]) == [b"v"]

    live(world, write, kill=False)
    world.machine.storage.capacity = None
    live(world, compare)


def test_the_journal_has_its_file_however_often_there_is_no_room_for_the_checkpoint() -> None:
    """What there is to store is stored, so the disk does not count as full. There is no room for a file of the journal
    either, and what makes room goes through it."""
    world = World(1)

    async def write(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, batch(b"first"))
        assert await log.upkeep.checkpoint()
        await append(partition, batch(b"second"))
        fill(world, 300)
        for number in range(4):
            checkpoint = asyncio.ensure_future(log.upkeep.checkpoint())
            await asyncio.sleep(0)
            await append(partition, batch(b"%d" % number))
            with pytest.raises(OSError, match="space"):
                await checkpoint
            assert not log.full
            fill(world, 300)
        assert await partition.trim(1) == 1

    async def compare(log: NativeLog) -> None:
        assert await values(log.topics["t"].partitions[0]) == [b"second", b"0", b"1", b"2", b"3"]

    live(world, write)
    world.machine.storage.capacity = None
    live(world, compare)
