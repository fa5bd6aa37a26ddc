"""What a trim gives back: whole segments, the newest too once nothing of it is left, and memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.log.test_native import append, batch, contents, live, opened

from headrace.config import Config
from headrace.log.interface import Durability, Partition, TopicSettings
from headrace.log.native import NativeLog

DURABILITIES = [Durability.SYNC, Durability.ASYNC]


async def fill(partition: Partition, count: int = 20) -> None:
    for number in range(count):
        await append(partition, batch(b"%02d" % number))


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("t-0/*.log"))


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
async def test_a_trim_to_the_end_leaves_no_bytes(tmp_path: Path, durability: Durability, clean: bool) -> None:
    async def life(log: NativeLog) -> None:
        partition = (await log.create("t", 1, {}, TopicSettings(durability=durability))).partitions[0]
        await fill(partition)
        assert partition.freed_by(19) == 0
        assert partition.freed_by(20) == partition.size() > 0
        assert await partition.trim(20) == 20
        assert partition.size() == 0
        assert logs(tmp_path) == [f"{20:020d}.log"]
        assert await partition.trim(20) == 20
        assert (await append(partition, batch(b"next"))).base_offset == 20

    await live(tmp_path, life, clean)
    async with opened(tmp_path) as log:
        partition = log.topics["t"].partitions[0]
        await partition.load()
        assert contents(partition) == [(20, b"next")]


async def test_a_trim_does_not_close_what_is_still_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(segment_bytes=300))).partitions[0]
        await fill(partition)
        await log.upkeep.checkpoint()
        before = logs(tmp_path)
        assert await partition.trim(19) == 19
        assert 0 < partition.size() <= 300
        assert logs(tmp_path) == before[-1:]


async def test_bytes_freed_are_those_that_a_trim_frees(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(segment_bytes=300))).partitions[0]
        await fill(partition)
        await log.upkeep.checkpoint()
        for before in range(1, 21):
            expected, size = partition.freed_by(before), partition.size()
            await partition.trim(before)
            assert size - partition.size() == expected
        assert partition.size() == 0


@pytest.mark.parametrize("durability", [*DURABILITIES, Durability.MEMORY])
@pytest.mark.parametrize("segment_bytes", [300, 1 << 20], ids=["segments", "one segment"])
async def test_shrink_holds_every_limit(tmp_path: Path, durability: Durability, segment_bytes: int) -> None:
    async with opened(tmp_path) as log:
        settings = TopicSettings(durability=durability, segment_bytes=segment_bytes)
        partition = (await log.create("t", 1, {}, settings)).partitions[0]
        await fill(partition)
        whole = partition.size()
        assert await partition.shrink(whole) == 0
        for limit in range(whole - 1, 99, -100):
            start = await partition.shrink(limit)
            assert start == partition.start
            assert partition.size() <= limit
            if segment_bytes == 300:
                # No more goes than must.
                assert partition.size() > limit - 300
            assert [offset for offset, _ in contents(partition)] == list(range(start, 20))
        assert (await append(partition, batch(b"next"))).base_offset == 20


async def test_shrink_leaves_what_is_not_durable(tmp_path: Path) -> None:
    async with opened(tmp_path, Config(checkpoint_ms=60_000)) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await fill(partition, 3)
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        partition.append(batch(b"on its way"), done.set_result)
        assert await partition.shrink(0) == 0
        assert await done is None
        assert await partition.shrink(0) == 4
        assert partition.size() == 0


async def test_shrink_leaves_segments_that_are_not_durable(tmp_path: Path) -> None:
    async with opened(tmp_path, Config(direct_bytes=1)) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(segment_bytes=100))).partitions[0]
        await fill(partition, 3)
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        for call in (None, None, done.set_result):
            partition.append(batch(b"on its way"), call)
        assert await partition.shrink(0) == 3
        assert await done is None
        assert await partition.shrink(0) == 6


async def test_a_trim_of_a_memory_topic_frees_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings(durability=Durability.MEMORY))).partitions[0]
        await fill(partition)
        one = partition.size() // 20
        assert partition.freed_by(7) == 7 * one
        assert await partition.trim(7) == 7
        assert partition.size() == 13 * one
        assert contents(partition)[0] == (7, b"07")
        assert await partition.trim(-1) == 20
        assert partition.size() == 0


@pytest.mark.parametrize("where", ["in memory", "in files"])
async def test_a_time_is_found_in_what_a_trim_left_of_a_batch(tmp_path: Path, where: str) -> None:
    async with opened(tmp_path) as log:
        partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
        await append(partition, batch(count=10))
        await append(partition, batch(b"later"))
        if where == "in files":
            await log.upkeep.checkpoint()
        assert (await partition.offset_at(0)).offset == 0
        await partition.trim(4)
        assert (await partition.offset_at(0)).offset == 4
