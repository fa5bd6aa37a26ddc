"""One replica's journal: what it has after truncations, kills and power cuts, and what it gives to those behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from headrace.errors import CorruptLog
from headrace.log import replicated_journal
from headrace.log.group_frames import NOTHING, GroupFrame, Position, build, group_number, parse, payload_of
from headrace.log.journal import FOLDER, cut
from headrace.log.replicated_journal import FrameDiverges, FramesGone, ReplicatedJournal
from headrace.runtime import Runtime
from simulation.faults import MIDDLE, FaultSchedule, Plan
from simulation.world import Ending, World

GROUP = "g"
FAULTS = FaultSchedule(exponents=(0, 7))


async def opened(runtime: Runtime, **settings: Any) -> ReplicatedJournal:
    if not runtime.disk.exists(FOLDER):
        runtime.disk.mkdir(FOLDER)
        runtime.disk.sync_dir("")
    sizes = {"file_bytes": 20_000, "memory_bytes": 3_000} | settings
    journal = ReplicatedJournal(runtime, GROUP, **sizes, on_flushed=lambda _: None, on_failed=lambda _: None)
    await journal.open()
    return journal


def in_world(main: Any, seed: int = 0) -> None:
    """Run one life without faults."""
    assert World(seed).run(main) is Ending.DONE


class Replica:
    """A journal through many lives, and all that it may hold."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.chance = random.Random(seed)
        self.log: list[bytes] = []
        self.flushed = 0
        self.epoch = 0
        # A truncation is not durable by itself: until a newer frame stands behind it, what was cut off may be back.
        self.possible: list[list[bytes]] = [[]]
        self.truncations = 0

    async def live(self, runtime: Runtime) -> None:
        journal = await opened(runtime)
        journal._on_flushed = lambda sequence: setattr(self, "flushed", max(self.flushed, sequence))  # type: ignore[method-assign]
        found: list[bytes] = []
        while len(found) < journal.flushed:
            found += map(payload_of, await journal.read(len(found) + 1, 500))
        assert found[: self.flushed] == self.log[: self.flushed]
        assert found in [each[: len(found)] for each in self.possible]
        self.log, self.flushed, self.possible = found, len(found), [found]
        self.epoch = max(self.epoch, journal.last.epoch) + 1
        for _ in range(self.chance.randrange(60)):
            await self.act(journal)
        journal.close()

    async def act(self, journal: ReplicatedJournal) -> None:
        chance = self.chance
        draw = chance.random()
        if draw < 0.75:
            self.epoch += chance.random() < 0.2
            payload = chance.randbytes(chance.choice([0, 10, 200, 3_000]))
            self.log = [*self.log, payload]
            self.possible.append(self.log)
            journal.append(self.epoch, payload, 1)
        elif draw < 0.85:
            await asyncio.sleep(chance.choice([0, 0.001, 0.1]))
        else:
            end = chance.randint(0, len(self.log))
            await journal.truncate(end)
            assert journal.last.sequence == end
            self.truncations += 1
            # One leader an epoch: the same sequence comes again in a later one only.
            self.epoch += 1
            self.log, self.flushed = self.log[:end], min(self.flushed, end)
        if journal.flushed and chance.random() < 0.2:
            since = chance.randint(1, journal.flushed)
            read = [payload_of(data) for data in await journal.read(since, 400)]
            assert read == self.log[since - 1 : since - 1 + len(read)]
            newest = journal.newest(since)
            assert newest is None or [payload_of(data) for data in newest] == self.log[since - 1 :]


def run_lives(seed: int, lives: int = 6) -> tuple[int, int]:
    """Truncations and power cuts that there were."""
    replica = Replica(seed)
    cuts = 0
    for _ in range(lives):
        chance = replica.chance
        cuts += replica.world.run(replica.live, FAULTS.draw(chance, frozenset())) is Ending.POWER_CUT
    return replica.truncations, cuts


def run_seeds(count: int) -> list[tuple[int, int]]:
    return [run_lives(seed) for seed in range(count)]


def test_a_journal_keeps_what_was_flushed_and_nothing_that_never_was() -> None:
    happened = run_seeds(40)
    assert sum(truncations for truncations, _ in happened) > 300
    assert sum(cuts for _, cuts in happened) > 20


def test_recovery_by_the_highest_sequence_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(found: Iterable[Position]) -> Position:
        return max(found, key=lambda at: (at.sequence, at.epoch), default=NOTHING)

    monkeypatch.setattr(replicated_journal, "newest", newest)
    with pytest.raises((AssertionError, CorruptLog)):
        run_seeds(200)


def rely_on_kill(seed: int) -> None:
    """Killed in a write, then a power cut: what the life between relied on is there in the last one."""
    world = World(seed)
    flushed = []

    async def write(runtime: Runtime) -> None:
        journal = await opened(runtime)
        journal.append(1, b"x" * 2_000, 1)
        await asyncio.sleep(1)

    async def rely(runtime: Runtime) -> None:
        flushed.append((await opened(runtime)).flushed)
        await asyncio.sleep(10)

    world.run(write, Plan(crash_at=4 + seed % 12, phase=MIDDLE, kill=True))
    world.run(rely, Plan(crash_after=5))
    world.run(rely, Plan(crash_after=5))
    assert flushed == sorted(flushed)


def rely_on_kills() -> None:
    for seed in range(120):
        rely_on_kill(seed)


def test_what_the_life_before_left_in_the_page_cache_is_synced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on_kills()
    monkeypatch.setattr(replicated_journal, "write_again", lambda *_: None)
    with pytest.raises(AssertionError):
        rely_on_kills()


def frame(epoch: int, sequence: int, previous_epoch: int, payload: bytes = b"x", group: str = GROUP) -> bytes:
    header = GroupFrame(0, group_number(group), epoch, sequence, previous_epoch, 0, 0, 1, len(payload))
    return build(header, payload)


def test_a_follower_stores_only_what_follows() -> None:
    async def main(runtime: Runtime) -> None:
        journal = await opened(runtime)
        journal.store(frame(1, 1, 0))
        journal.store(frame(3, 2, 1))
        for wrong in (
            frame(3, 2, 3),  # again
            frame(3, 4, 3),  # a gap
            frame(3, 3, 1),  # behind another frame of that sequence
            frame(2, 3, 3),  # an epoch that has passed
            frame(3, 3, 3, group="other"),
        ):
            with pytest.raises(FrameDiverges):
                journal.store(wrong)
        with pytest.raises(CorruptLog, match="not a whole frame"):
            journal.store(frame(3, 3, 3)[:-1])
        assert journal.last == Position(3, 2)
        assert journal.ends() == [Position(1, 1), Position(3, 2)]
        journal.close()

    in_world(main)


def test_frames_older_than_what_was_cut_off_are_found_behind_it() -> None:
    """A node that was elected and never heard gets what its successor has from the leader before both."""
    world = World(0)
    chain = [(1, 1), (1, 2), (1, 3), (3, 4)]

    async def write(runtime: Runtime) -> None:
        journal = await opened(runtime)
        journal.store(frame(1, 1, 0))
        journal.append(2, b"", 0, begin=True)
        await journal.truncate(1)
        for each in (frame(1, 2, 1), frame(1, 3, 1), frame(3, 4, 1)):
            journal.store(each)
        await asyncio.sleep(1)

    async def read(runtime: Runtime) -> None:
        journal = await opened(runtime)
        found = [data for since in (1, 2) for data in await journal.read(since)]
        assert [parse(data).position for data in found] == chain

    assert world.run(write) is Ending.DONE
    assert world.run(read) is Ending.DONE


@pytest.mark.parametrize(
    ("theirs", "common"),
    [
        ([], 0),
        ([(1, 2)], 2),
        ([(1, 3), (2, 5)], 5),
        ([(1, 3), (2, 9)], 5),
        ([(1, 4), (4, 6)], 3),
        ([(1, 3), (2, 5), (5, 7)], 7),
        ([(7, 9)], 0),
    ],
)
def test_the_common_end_goes_by_epochs(theirs: list[tuple[int, int]], common: int) -> None:
    async def main(runtime: Runtime) -> None:
        journal = await opened(runtime)
        for epoch in (1, 1, 1, 2, 2, 5, 5, 5):
            journal.append(epoch, b"", 0)
        assert journal.common_end([Position(*each) for each in theirs]) == common
        journal.close()

    in_world(main)


def test_frames_that_are_gone_are_reported() -> None:
    async def main(runtime: Runtime) -> None:
        journal = await opened(runtime)
        with pytest.raises(FramesGone):
            await journal.read(1)
        journal.append(1, b"one", 1)
        await asyncio.sleep(1)
        assert [parse(data).position for data in await journal.read(1)] == [(1, 1)]
        with pytest.raises(FramesGone):
            await journal.read(2)
        journal.close()

    in_world(main)


def test_a_file_that_is_done_is_cut_to_its_frames() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        journal = await opened(runtime, memory_bytes=0)
        for epoch in range(1, 4):
            journal.append(epoch, bytes(400), 1)
            await asyncio.sleep(0.1)
            journal.switch()
        found = journal.surplus()
        assert len(found) == 3
        assert journal.surplus() == []
        for path, size in found:
            assert size < 1_000
            cut(disk, path, size)
            with closing(disk.open(path)) as file:
                assert file.size() == size
        assert len(await journal.read(1)) == 1
        journal.append(4, b"", 0)
        await asyncio.sleep(0.1)
        journal.close()
        # Those of the life before had not been cut.
        again = await opened(runtime)
        assert again.last == (4, 4)
        assert [parse(data).epoch for since in range(1, 5) for data in await again.read(since)][:1] == [1]
        assert len(again.surplus()) == 4
        again.close()

    in_world(main)


def test_files_go_by_age_though_older_ones_end_in_frames_that_were_cut_off() -> None:
    # Otherwise newer files went first, and a follower that asked for their frames was refused for ever, but never
    # told to copy.
    async def main(runtime: Runtime) -> None:
        journal = await opened(runtime, file_bytes=10_000, memory_bytes=1_000, keep_bytes=5_000)
        for epoch, count in ((1, 60), (2, 5), (3, 5), (4, 5), (5, 5), (6, 5)):
            for _ in range(count):
                journal.append(epoch, bytes(400), 1)
                await asyncio.sleep(0.01)
            if epoch == 1:
                # What follows stands in the same file, behind what was cut off.
                await journal.truncate(10)
            else:
                journal.switch()
        assert journal.last == (6, 35)
        journal.commit(35)
        for before in range(1, 36):
            journal.applied = before - 1
            for path in journal.retire(before):
                runtime.disk.remove(path)
            assert journal.first <= before
            found: list[bytes] = []
            while len(found) < 36 - journal.first:
                found += await journal.read(journal.first + len(found))
            assert [parse(data).sequence for data in found] == list(range(journal.first, 36))
            assert not journal.hold(journal.first - 1)
        assert journal.first > 25

    in_world(main)


def test_a_write_that_fails_is_cut_off_and_the_journal_goes_on() -> None:
    async def main(runtime: Runtime) -> None:
        failed: list[BaseException] = []
        journal = await opened(runtime)
        journal._on_failed = failed.append  # type: ignore[method-assign]
        journal.append(1, b"one", 1)
        await asyncio.sleep(1)
        write = type(runtime.disk).step

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime.disk), "step", fail)
            journal.append(1, b"two", 1)
            await asyncio.sleep(1)
        assert write is type(runtime.disk).step
        assert len(failed) == 1
        with pytest.raises(CorruptLog, match="Input/output"):
            journal.append(1, b"three", 1)
        await journal.truncate(2)
        assert journal.last == Position(1, 1)
        journal.append(2, b"again", 1)
        await asyncio.sleep(1)
        assert [payload_of(data) for data in await journal.read(1)] == [b"one"]
        assert [payload_of(data) for data in await journal.read(2)] == [b"again"]
        journal.close()

    in_world(main)
