"""The spool: many partitions in one write, what a crash finds there, and what it must not believe."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.log.test_native import SMALL, batch, contents, crash, opened, start_and_crash, watched

from headrace.errors import StorageFailed
from headrace.log.frames import FRAME
from headrace.log.interface import Durability, Partition, TopicSettings, Write
from headrace.log.journal import FOLDER
from headrace.log.native import NativeLog
from headrace.log.spool import SUFFIX, Spool, read_spool
from headrace.runtime.real import real_runtime

# Nothing is stored before its time.
ROOMY = replace(SMALL, tail_bytes=1 << 26, checkpoint_ms=3_600_000)
ASYNC = TopicSettings(durability=Durability.ASYNC)


async def turn(partitions: Sequence[Partition], value: bytes) -> None:
    """Append to all of them in one turn of the loop, and wait for the answers."""
    loop = asyncio.get_running_loop()
    answers = []
    for partition in partitions:
        future = loop.create_future()

        def done(error: Exception | None, future: asyncio.Future[None] = future) -> None:
            future.set_result(None) if error is None else future.set_exception(error)

        if not partition.append(batch(value), done).durable:
            answers.append(future)
    await asyncio.gather(*answers)


async def topic(log: NativeLog, partitions: int = 4, name: str = "t") -> Sequence[Partition]:
    """A topic that has been written to, and the spool made for it."""
    made = (await log.create(name, partitions, {}, ASYNC)).partitions
    await turn(made, b"first")
    while not log.spool._files:
        await asyncio.sleep(0.001)
    return made


def values(partition: Partition) -> list[bytes]:
    return [value for _, value in contents(partition)]


async def found(path: Path, partition: int) -> list[bytes]:
    async with opened(path) as log:
        await log.topics["t"].partitions[partition].load()
        return values(log.topics["t"].partitions[partition])


async def test_batches_of_one_turn_are_one_write(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, ROOMY, runtime) as log:
        partitions = await topic(log)
        written: list[str] = []
        disk.fail_write = written.append  # type: ignore[assignment]
        await turn(partitions, b"second")
        assert written == [f"{FOLDER}/0{SUFFIX}"]
        assert [values(each) for each in partitions] == [[b"first", b"second"]] * 4
        await turn(partitions[:1], b"alone")
        assert written[1:] == ["t-0/00000000000000000000.log"]
    assert await found(tmp_path, 0) == [b"first", b"second", b"alone"]
    assert await found(tmp_path, 1) == [b"first", b"second"]


async def test_a_crash_finds_all_of_it(tmp_path: Path) -> None:
    async def life(log: NativeLog) -> None:
        partitions = await topic(log)
        for number in range(20):
            await turn(partitions, b"%d" % number)
        assert all(each.segments.end == 1 for each in partitions)  # type: ignore[attr-defined]

    await start_and_crash(tmp_path, life, ROOMY)
    for index in range(4):
        assert await found(tmp_path, index) == [b"first", *(b"%d" % number for number in range(20))]


async def test_a_clean_stop_leaves_no_spool(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY) as log:
        await turn(await topic(log), b"second")
        assert list((tmp_path / FOLDER).glob(f"*{SUFFIX}"))
    assert not list((tmp_path / FOLDER).glob(f"*{SUFFIX}"))


async def test_a_file_is_used_again_once_all_of_it_is_stored(tmp_path: Path) -> None:
    """Two files of 64 KiB take 500 turns of four batches in turns, little by little."""
    stored = []

    async def life(log: NativeLog) -> None:
        partitions = await topic(log)
        for number in range(500):
            await turn(partitions, b"%d" % number)
            stored.append([each.segments.end for each in partitions])  # type: ignore[attr-defined]

    await start_and_crash(tmp_path, life, ROOMY)
    assert {path.stat().st_size for path in (tmp_path / FOLDER).glob(f"*{SUFFIX}")} == {SMALL.journal_bytes}
    # Never all partitions in one turn.
    assert max(sum(now != then for now, then in zip(*pair, strict=True)) for pair in pairwise(stored)) == 1
    for index in range(4):
        assert await found(tmp_path, index) == [b"first", *(b"%d" % number for number in range(500))]


async def test_another_epochs_frames_are_not_believed(tmp_path: Path) -> None:
    async def life(log: NativeLog) -> None:
        await turn(await topic(log), b"lost")

    await start_and_crash(tmp_path, life, ROOMY)
    disk = real_runtime(str(tmp_path)).disk
    assert [entry.offset for entry in read_spool(disk, 0)] == [1] * 4
    spool = next((tmp_path / FOLDER).glob(f"0{SUFFIX}"))
    kept = spool.read_bytes()
    # The frame's own start is damaged, so that these batches are lost; then a power cut undoes what happened to it.
    spool.write_bytes(bytes(4) + kept[4:])
    log = NativeLog(real_runtime(str(tmp_path)), ROOMY)
    await log.start()
    await crash(log)
    spool.write_bytes(kept)
    assert read_spool(disk, 1) == []
    assert await found(tmp_path, 1) == [b"first"]


async def test_what_stands_behind_a_gap_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a power cut may leave it: a frame is gone in one file, the next ones are in the other."""
    monkeypatch.setattr(Spool, "_settle_some", lambda spool: None)

    async def life(log: NativeLog) -> None:
        partitions = await topic(log)
        await turn(partitions[:2], b"second")
        log.spool._turn_over()
        await turn(partitions, b"third")

    await start_and_crash(tmp_path, life, ROOMY)
    spool = tmp_path / FOLDER / f"0{SUFFIX}"
    spool.write_bytes(bytes(FRAME.size) + spool.read_bytes()[FRAME.size :])
    async with opened(tmp_path) as log:
        partitions = log.topics["t"].partitions
        for partition in partitions:
            await partition.load()
        assert [values(each) for each in partitions] == [[b"first"]] * 2 + [[b"first", b"third"]] * 2
        await turn(partitions, b"next")
    assert await found(tmp_path, 0) == [b"first", b"next"]
    assert await found(tmp_path, 3) == [b"first", b"third", b"next"]


async def test_a_spool_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, ROOMY, runtime) as log:
        partitions = await topic(log)
        await turn(partitions, b"second")
        broken = OSError(errno.EIO, "broken")
        disk.fail_write = lambda path: broken if path.endswith(SUFFIX) else None
        await turn(partitions, b"third")
        await turn(partitions, b"fourth")
        assert not log.spool._files
    assert await found(tmp_path, 2) == [b"first", b"second", b"third", b"fourth"]


async def test_without_room_for_the_spool_partitions_write_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def make() -> None:
        asked.append(True)
        raise OSError(errno.ENOSPC, "full")

    async with opened(tmp_path, ROOMY) as log:
        monkeypatch.setattr(log.spool, "make", make)
        partitions = (await log.create("t", 4, {}, ASYNC)).partitions
        for number in range(10):
            await turn(partitions, b"%d" % number)
    assert asked == [True]
    assert len(await found(tmp_path, 3)) == 10


async def test_a_full_disk_keeps_what_the_spool_has(tmp_path: Path) -> None:
    """Partitions cannot store what waits; the spool's files are not used again for that long, and appends are refused
    once both are full."""
    runtime, disk = watched(tmp_path)
    full = OSError(errno.ENOSPC, "full")
    log = NativeLog(runtime, ROOMY)
    await log.start()
    partitions = await topic(log)
    disk.fail_write = lambda path: full if path.endswith(".log") else None
    taken = 0
    try:
        while taken < 1_000:
            await turn(partitions, b"%d" % taken)
            taken += 1
    except StorageFailed:
        pass
    assert 100 < taken < 1_000
    await crash(log)
    for index in range(4):
        assert (await found(tmp_path, index))[: taken + 1] == [b"first", *(b"%d" % number for number in range(taken))]


async def test_a_deleted_topic_does_not_hold_the_spool(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY) as log:
        kept = await topic(log)
        gone = await topic(log, name="gone")
        await turn([*kept, *gone], b"second")
        await log.delete("gone")
        for number in range(600):
            await turn(kept, b"%d" % number)
        assert len(values(kept[0])) == 602
        assert log.spool._files


async def test_large_batches_are_not_written_twice(tmp_path: Path) -> None:
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, ROOMY, runtime) as log:
        partitions = await topic(log)
        written: list[str] = []
        disk.fail_write = written.append  # type: ignore[assignment]
        await turn(partitions, bytes(5_000))
        assert sorted(set(written)) == [f"t-{index}/00000000000000000000.log" for index in range(4)]


async def test_what_no_file_of_the_spool_can_take_goes_to_the_segments(tmp_path: Path) -> None:
    async with opened(tmp_path, replace(ROOMY, journal_bytes=16_384)) as log:
        partitions = await topic(log, 6)
        await turn(partitions, bytes(3_500))
        await turn(partitions, b"small")
        assert [values(each)[2] for each in partitions] == [b"small"] * 6
        assert all(each.filled <= 16_384 for each in log.spool._files)


async def test_what_a_failed_flush_takes_back_is_not_acknowledged_with_its_turn(tmp_path: Path) -> None:
    """An append to several partitions stores what has come in its turn of the loop, to go on behind it. If a flush that
    was under way fails before the turn is over, all of that is gone, and the spool has nothing of it either."""
    runtime, disk = watched(tmp_path)
    async with opened(tmp_path, ROOMY, runtime) as log:
        first, second, third, _ = await topic(log)
        durable = (await log.create("s", 1, {}, TopicSettings())).partitions[0]
        outcomes: dict[str, Exception | None] = {}
        disk.fail_write = lambda path: OSError(errno.EIO, "bad sector") if path.endswith(".journal") else None
        durable.append(batch(), partial(outcomes.__setitem__, "flying"))
        while log.committer._flying is None:
            await asyncio.sleep(0)
        first.append(batch(b"gone"), partial(outcomes.__setitem__, "gone"))
        second.append(batch(b"here"), partial(outcomes.__setitem__, "here"))
        log.append([Write(each, batch()) for each in (first, third)], partial(outcomes.__setitem__, "behind"))
        executor = runtime.offload._executors[0]  # type: ignore[attr-defined]
        while not executor._results:
            time.sleep(0.001)  # noqa: ASYNC251
        executor._deliver()
        while len(outcomes) < 4:
            await asyncio.sleep(0)
        disk.fail_write = lambda path: None
        assert {name for name, error in outcomes.items() if error is None} == {"here"}
        assert [values(each) for each in (first, second, third)] == [[b"first"], [b"first", b"here"], [b"first"]]
        assert first.high_watermark == first.end == 1
        await turn([first, second], b"more")
    assert await found(tmp_path, 0) == [b"first", b"more"]
    assert await found(tmp_path, 1) == [b"first", b"here", b"more"]
