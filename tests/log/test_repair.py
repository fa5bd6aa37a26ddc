"""Repairing a damaged directory: what is read afterwards was written, and what is not was named.

Each run draws a history (appends, transactions, checkpoints, a clean or an unclean end), damages files of partitions,
lets the log start on them or not, and repairs, with a power cut somewhere in the middle of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Config
from headrace.errors import PartitionOffline
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL, batches_in
from headrace.log import checkpoint
from headrace.log.interface import Durability, Partition, TopicSettings
from headrace.log.native import NativeLog
from headrace.log.repair.rebuild import rebuild
from headrace.log.repair.repair import Looked, look, repair, replace_checkpoint
from headrace.log.repair.salvaged import Row
from headrace.runtime import Runtime
from simulation.faults import Killed, Plan
from simulation.machine import flip_in
from simulation.storage import FileNode
from simulation.world import Ending, World

NOW = 1_700_000_000_000
CONFIG = Config(checkpoint_ms=1 << 40, direct_bytes=1 << 20, journal_bytes=65_536)
TOPIC = TopicSettings(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)
COMPACTED = replace(TOPIC, compact=True, delete=False, segment_ms=1 << 60, min_cleanable_dirty_ratio=0.0)


@dataclass
class Model:
    """What was written to a partition and acknowledged."""

    values: dict[int, bytes] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    keys: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def superseded(self) -> set[int]:
        """What compaction may have taken."""
        decided = {offset: key for offset, key in self.keys.items() if offset not in self.aborted | self.undecided}
        newest = {key: offset for offset, key in sorted(decided.items())}
        return {offset for offset, key in self.keys.items() if newest.get(key, -1) > offset} | self.aborted

    def kept(self) -> set[int]:
        """What was not deleted."""
        return {offset for offset in self.values if offset >= self.start}


async def appended(partition: Partition, batch: bytearray) -> int:
    done = asyncio.get_running_loop().create_future()
    result = partition.append(batch, done.set_result)
    if not result.durable:
        await done
    return result.base_offset


class History:
    """A topic of two partitions, its life and its damage."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.stream("history")
        self.models = [Model(), Model()]
        self.topic = TOPIC if self.rng.random() < 0.7 else COMPACTED

    async def live(self, runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        topic = log.topics.get("t") or await log.create("t", 2, {}, self.topic)
        open_transactions: dict[tuple[int, int], list[int]] = {}
        sequences: dict[tuple[int, int], int] = {}
        for _ in range(self.rng.randrange(10, 60)):
            index = self.rng.randrange(2)
            model, partition = self.models[index], topic.partitions[index]
            await partition.load()
            deed = self.rng.random()
            producer = (index, self.rng.randrange(1, 4))
            if deed < 0.5:
                values = [b"%d" % self.rng.getrandbits(200) for _ in range(self.rng.randrange(1, 4))]
                keys = [self.key() for _ in values]
                pairs = zip(keys, values, strict=True)
                base = await appended(partition, records.build([(NOW, key, value, []) for key, value in pairs]))
                model.values |= {base + at: value for at, value in enumerate(values)}
                model.keys |= {base + at: key for at, key in enumerate(keys)}
                model.end = base + len(values)
            elif deed < 0.75:
                key, value = self.key(), b"of %d, %d" % (producer[1], self.rng.getrandbits(100))
                sequence = sequences.get(producer, 0)
                sequences[producer] = sequence + 1
                batch = records.build(
                    [(NOW, key, value, [])], producer_id=producer[1], producer_epoch=0, base_sequence=sequence,
                    attributes=TRANSACTIONAL,
                )  # fmt: skip
                base = await appended(partition, batch)
                open_transactions.setdefault(producer, []).append(base)
                model.values[base], model.keys[base] = value, key
                model.undecided.add(base)
                model.end = base + 1
            elif deed < 0.9 and producer in open_transactions:
                commit = self.rng.random() < 0.5
                base = await appended(partition, records.control(int(commit), 0, producer[1], 0, NOW))
                offsets = open_transactions.pop(producer)
                model.undecided -= set(offsets)
                if not commit:
                    model.aborted |= set(offsets)
                model.end = base + 1
            elif 0.9 <= deed < 0.92:
                model.start = await partition.trim(self.rng.randrange(partition.start, partition.high_watermark + 1))
            elif deed > 0.94:
                await log.upkeep.checkpoint()
                await log.upkeep.cleaner.run()
        if self.rng.random() < 0.5:
            await log.upkeep.checkpoint()
        if self.rng.random() < 0.5:
            await log.stop()
        else:
            self.world.machine.disk.die(Killed("end of the history"))

    def key(self) -> bytes:
        return b"%d" % self.rng.randrange(8)

    def damage(self) -> str:
        """Something happens to a file of a partition."""
        files = [
            (path, node) for path, node in self.world.machine.storage.files()
            if path.startswith("t-") and path.endswith((".log", ".txnindex", ".metadata"))
        ]  # fmt: skip
        if not files:
            return "nothing"
        path, node = self.rng.choice(files)
        kind = self.rng.choice(["flip", "flip", "zero", "cut", "remove", "remove"])
        size = len(node.volatile)
        if kind == "flip" and size:
            flip_in(node, self.rng.randrange(size), 1 << self.rng.randrange(8))
        elif kind == "zero" and size:
            first = self.rng.randrange(size)
            for at in range(first, min(size, first + self.rng.randrange(1, 300))):
                if node.volatile[at]:
                    flip_in(node, at, node.volatile[at])
        elif kind == "cut" and size:
            left = self.rng.randrange(size)
            del node.volatile[left:], node.durable[left:]
        elif path.endswith(".log"):
            for storage_path in (path, path.replace(".log", ".index")):
                self.unlink(storage_path)
        return f"{kind} {path} of {size}"

    def unlink(self, path: str) -> None:
        folder, name = self.world.machine.storage.parent(path)
        if name in folder.entries:
            self.world.machine.storage.change((folder, name, None))
            self.world.machine.storage.sync_folder(folder)

    async def start_and_fail(self, runtime: Runtime) -> None:
        """A start that finds the damage."""
        log = NativeLog(runtime, CONFIG)
        await log.start()
        for partition in log.topics["t"].partitions:
            try:
                await partition.load()
            except PartitionOffline:
                continue
        if self.rng.random() < 0.5:
            await log.stop()
        else:
            self.world.machine.disk.die(Killed("end of the life"))

    async def look(self, rows: list[Row], runtime: Runtime) -> None:
        rows += looked_at(runtime).rows

    async def repair(self, rows: list[Row], runtime: Runtime) -> None:
        looked = looked_at(runtime)
        rows += looked.rows
        rows += repair(runtime.disk, looked).rows
        assert looked_at(runtime).rows == []

    async def check(self, rows: Sequence[Row], last: bool, runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        topics = [topic for name, topic in log.topics.items() if name == "t" or name.startswith("unnamed.")]
        partitions = topics[0].partitions if topics else ()
        # Of one that never had a message nothing may be left but its line in the checkpoint.
        assert all(not model.end for model in self.models[len(partitions) :])
        for model, partition in zip(self.models, partitions, strict=False):
            await partition.load()
            name = f"t-{partition.index}"
            lost = {offset for folder, offset in lost_of(rows) if folder == name}
            assert partition.end >= model.end
            found = await read(partition, committed=False)
            assert found.items() <= model.values.items()
            taken = model.superseded() if self.topic.compact else set()
            assert model.kept() - found.keys() <= lost | taken
            committed = await read(partition, committed=True)
            assert committed.items() <= model.values.items()
            assert committed.keys() & model.aborted == set()
            decided = {offset for offset in model.kept() if offset < partition.last_stable} - model.aborted
            assert decided - model.undecided - committed.keys() <= lost | taken
            if not last:
                base = await appended(partition, records.build([(NOW, b"new", b"new", [])]))
                assert base >= model.end
                model.values[base], model.keys[base], model.end = b"new", b"new", base + 1
                await log.upkeep.cleaner.run()
        await log.stop()


def lost_of(rows: Sequence[Row]) -> set[tuple[str, int]]:
    return {(row.folder, offset) for row in rows if row.lost for offset in range(row.first, row.last + 1)}


def looked_at(runtime: Runtime) -> Looked:
    found = checkpoint.load(runtime.disk)
    assert found is not None
    return look(runtime.disk, found)


async def read(partition: Partition, *, committed: bool) -> dict[int, bytes]:
    """What a reader gets."""
    found: dict[int, bytes] = {}
    offset = partition.start
    while offset < (partition.last_stable if committed else partition.high_watermark):
        chunk = partition.read(offset, 1 << 20, committed=committed)
        if chunk.cold is not None:
            chunk.cold()
            continue
        aborted = chunk.aborted
        ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        raw = chunk.read()
        chunk.release()
        assert raw, f"nothing at {offset} of {partition}"
        # As Kafka's clients do it: by the list and the markers.
        dropping: set[int] = set()
        for position, header in batches_in(raw):
            while ahead and ahead[-1].first_offset <= header.last_offset:
                dropping.add(ahead.pop().producer_id)
            if header.is_control:
                dropping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropping):
                batch = raw[position : position + header.size]
                found |= {at: value or b"" for at, _, _, value, _ in records.parse(batch, 1 << 20) if at >= offset}
            offset = max(offset, header.last_offset + 1)
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_is_read_was_written_and_what_is_not_was_named(seed: int) -> None:
    history = History(seed)
    history.world.run(history.live)
    told = [history.damage() for _ in range(history.rng.choice([1, 1, 2, 3]))]
    if history.rng.random() < 0.6:
        history.world.run(history.start_and_fail)
    rows: list[Row] = []
    foreseen: list[Row] = []
    history.world.run(partial(history.look, foreseen))
    plan = Plan()
    if history.rng.random() < 0.6:
        plan = Plan(crash_at=history.rng.randrange(1, 40), kill=history.rng.random() < 0.5)
        history.world.run(partial(history.repair, rows), plan)
    assert history.world.run(partial(history.repair, rows)) is Ending.DONE, told
    if plan.kill or plan.crash_at is None:
        # A power cut can take an index, by which more is found.
        assert lost_of(rows) <= lost_of(foreseen), told
    assert history.world.run(partial(history.check, rows, False)) is Ending.DONE, told
    assert history.world.run(partial(history.check, rows, True)) is Ending.DONE, told


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_checkpoint_is_put_together_again_wherever_it_was_damaged(seed: int) -> None:
    history = History(seed)
    history.world.run(history.live)
    node = history.world.machine.storage.find("checkpoint")
    assert isinstance(node, FileNode)
    if history.rng.random() < 0.2:
        history.unlink("checkpoint")
    else:
        for _ in range(history.rng.randrange(1, 4)):
            flip_in(node, history.rng.randrange(len(node.volatile)), 1 << history.rng.randrange(8))
    rows: list[Row] = []

    async def mend(runtime: Runtime) -> None:
        found, said = rebuild(runtime.disk, "a new one", lambda: ({}, history.topic))
        replace_checkpoint(runtime.disk, found, said)
        looked = look(runtime.disk, found)
        rows.extend(repair(runtime.disk, looked).rows)

    assert history.world.run(mend) is Ending.DONE
    assert history.world.run(partial(history.check, rows, False)) is Ending.DONE
    assert history.world.run(partial(history.check, rows, True)) is Ending.DONE
    assert not lost_of(rows)


def flip_value(world: World, folder: str, value: bytes) -> None:
    """Damage the first place in the files of a folder where a value stands."""
    for path, node in world.machine.storage.files():
        if path.startswith(f"{folder}/") and (at := bytes(node.volatile).find(value)) >= 0:
            flip_in(node, at, 1)
            return
    raise AssertionError(f"{value!r} is nowhere in {folder}")


async def offline(runtime: Runtime) -> None:
    """A start that finds the first partition damaged."""
    log = NativeLog(runtime, CONFIG)
    await log.start()
    with pytest.raises(PartitionOffline):
        await log.topics["t"].partitions[0].load()
    await log.stop()
    assert [name for name in runtime.disk.listdir("") if name.startswith("journal.kept-")]


async def values_after(runtime: Runtime, expected: dict[int, bytes]) -> None:
    log = NativeLog(runtime, CONFIG)
    await log.start()
    partition = log.topics["t"].partitions[0]
    await partition.load()
    assert await read(partition, committed=True) == expected
    await log.stop()


def test_a_journal_that_goes_on_behind_a_gap() -> None:
    world = World(1)

    async def live(runtime: Runtime) -> None:
        log = NativeLog(runtime, CONFIG)
        await log.start()
        partition = (await log.create("t", 1, {}, TOPIC)).partitions[0]
        for number in range(6):
            await appended(partition, records.build([(NOW, None, b"value %d" % number, [])]))
        world.machine.disk.die(Killed("test"))

    rows: list[Row] = []
    world.run(live)
    flip_value(world, "journal", b"value 2")
    assert world.run(offline) is Ending.DONE
    assert world.run(partial(History.repair, cast(History, None), rows)) is Ending.DONE
    assert {(row.first, row.last) for row in rows if row.lost} == {(2, 2)}
    expected = {number: b"value %d" % number for number in range(6) if number != 2}
    assert world.run(partial(values_after, expected=expected)) is Ending.DONE


async def spool(world: World, runtime: Runtime) -> None:
    """Twenty messages for each partition, the last of them in the spool only."""
    log = NativeLog(runtime, CONFIG)
    await log.start()
    partitions = (await log.create("t", 8, {}, replace(TOPIC, durability=Durability.ASYNC))).partitions
    for number in range(20):
        futures = [asyncio.get_running_loop().create_future() for _ in partitions]
        for partition, future in zip(partitions, futures, strict=True):
            batch = records.build([(NOW, None, b"value %d of %d" % (number, partition.index), [])])
            if partition.append(batch, future.set_result).durable:
                future.set_result(None)
        await asyncio.gather(*futures)
        if number == 9:
            await log.upkeep.checkpoint()
            await log.upkeep._make_spool()
    world.machine.disk.die(Killed("test"))


def test_what_only_a_kept_spool_has_is_taken_from_there() -> None:
    world = World(1)
    rows: list[Row] = []
    world.run(partial(spool, world))
    spooled = [path for path, node in world.machine.storage.files() if b"value 19 of 0" in bytes(node.volatile)]
    assert all(path.endswith(".spool") for path in spooled), spooled
    flip_value(world, "t-0", b"value 9 of 0")
    assert world.run(offline) is Ending.DONE
    assert world.run(partial(History.repair, cast(History, None), rows)) is Ending.DONE
    assert {(row.first, row.last) for row in rows if row.lost} == {(9, 9)}
    expected = {number: b"value %d of 0" % number for number in range(20) if number != 9}
    assert world.run(partial(values_after, expected=expected)) is Ending.DONE


def test_a_spool_outlives_the_checkpoint() -> None:
    world = World(1)
    world.run(partial(spool, world))
    folder, name = world.machine.storage.parent("checkpoint")
    world.machine.storage.change((folder, name, None))

    async def mend(runtime: Runtime) -> None:
        found, said = rebuild(runtime.disk, "a new one", lambda: ({}, TOPIC))
        replace_checkpoint(runtime.disk, found, said)

    assert world.run(mend) is Ending.DONE
    expected = {number: b"value %d of 0" % number for number in range(20)}
    assert world.run(partial(values_after, expected=expected)) is Ending.DONE


def test_a_compaction_that_was_cut_short_needs_no_repair() -> None:
    """Wherever it was killed: the broker completes it. With damage beside it, both are seen at once."""
    for at in range(1, 60):
        world = World(at)

        async def live(runtime: Runtime, world: World = world, at: int = at) -> None:
            log = NativeLog(runtime, CONFIG)
            await log.start()
            partition = (await log.create("t", 1, {}, COMPACTED)).partitions[0]
            for number in range(60):
                key = b"%d" % (number % 7)
                await appended(partition, records.build([(NOW, key, b"value %d" % number, [])]))
            await log.upkeep.checkpoint()
            world.machine.disk.plan = Plan(crash_at=world.machine.disk.operations + at, kill=True)
            await log.upkeep.cleaner.run()
            world.machine.disk.die(Killed("test"))

        assert world.run(live) is Ending.KILLED
        rows: list[Row] = []
        damaged = at % 2 == 0
        if damaged:
            flip_value(world, "t-0", b"value 55")
        assert world.run(partial(History.look, cast(History, None), rows)) is Ending.DONE
        assert {(row.first, row.last) for row in rows if row.lost} == ({(55, 55)} if damaged else set())
        assert damaged or not rows
        assert world.run(partial(History.repair, cast(History, None), rows)) is Ending.DONE
        expected = {number: b"value %d" % number for number in range(60) if number != 55 or not damaged}
        assert world.run(partial(newest_after, expected=expected)) is Ending.DONE


async def newest_after(runtime: Runtime, expected: dict[int, bytes]) -> None:
    log = NativeLog(runtime, CONFIG)
    await log.start()
    partition = log.topics["t"].partitions[0]
    await partition.load()
    found = await read(partition, committed=True)
    assert found.items() <= expected.items()
    assert found.keys() >= set(expected) & set(range(56, 60))
    await log.stop()
