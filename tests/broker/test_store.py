"""The store of the broker's own topics, over the native log on a simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.captured_logs import capture_logs

from headrace.broker import store
from headrace.broker.store import Change, StateTopic, batches_of
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.errors import AppendRefused, PartitionOffline
from headrace.format import compression, records
from headrace.format.batch import HEADER_BYTES, TRANSACTIONAL, BatchHeader, batches_in
from headrace.format.compression import GZIP, NONE
from headrace.format.records import ABORT, COMMIT, Record, control
from headrace.log.interface import Partition, Write
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.disk import SimulatedDisk
from simulation.world import Ending, World

NAME = "__configs"
COMPACTED = {"cleanup.policy": "compact", "durability": "sync"}


class Stage:
    """A log with one topic of the broker's own, and the state that it says."""

    def __init__(self, runtime: Runtime, settings: dict[str, str] | None = None, partitions: int = 1) -> None:
        config = Config(data="simulated", journal_bytes=1 << 18, compaction_check_ms=3_600_000)
        self.runtime = runtime
        self.log = NativeLog(runtime, config)
        self.topics = Topics(self.log, config)
        self.topic = StateTopic(runtime, self.log, self.topics, config, NAME, settings or COMPACTED, partitions)
        self.state: dict[bytes, bytes] = {}
        self.offsets: list[int] = []

    async def partition(self, index: int = 0) -> Partition:
        partition = (await self.topic.open()).partitions[index]
        await partition.load()
        return partition

    async def put(self, *changes: Change, index: int = 0) -> None:
        await self.topic.submit([self.topic.write(await self.partition(index), changes)])

    async def load(self, index: int = 0, **more: Any) -> dict[bytes, bytes]:
        found = self.topic.topic
        assert found is not None
        self.state, self.offsets = {}, []
        await self.topic.load(found.partitions[index], self.apply, **more)
        return self.state

    def apply(self, record: Record, header: BatchHeader) -> None:
        offset, _, key, value, _ = record
        assert header.base_offset <= offset <= header.last_offset
        self.offsets.append(offset)
        assert key is not None
        if key == b"unreadable":
            raise ValueError("no key of this topic")
        if value is None:
            self.state.pop(key, None)
        else:
            self.state[key] = value


Act = Callable[[Stage], Awaitable[None]]


def play(*acts: Act, world: World | None = None, clean: bool = True, **made: Any) -> World:
    """Each act is a life of the log on the same disk, ended by a stop or, unless `clean`, by a kill."""
    world = world or World(1)
    for act in acts:

        async def live(runtime: Runtime, act: Act = act) -> None:
            stage = Stage(runtime, **made)
            await stage.log.start()
            await act(stage)
            if clean:
                await stage.log.stop()

        assert world.run(live) is Ending.DONE
    return world


# --- the topic --------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_once_and_opened_as_it_is() -> None:
    async def make(stage: Stage) -> None:
        assert stage.topic.topic is None
        # All that find it missing at the same time get the one that the first of them makes.
        opened = await asyncio.gather(*(stage.topic.open() for _ in range(3)))
        assert opened[0] is opened[1] is opened[2] is stage.topic.topic
        assert opened[0].settings.compact
        assert len(opened[0].partitions) == 2

    async def find(stage: Stage) -> None:
        assert await stage.topic.open() is stage.topic.topic

    play(make, find, partitions=2)


# --- loading ----------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_loaded_in_its_order() -> None:
    async def write(stage: Stage) -> None:
        await stage.put((b"a", b"1"), (b"b", b"1"))
        await stage.put((b"a", b"2"), (b"b", None))
        await stage.put((b"c", b""), index=1)

    async def read(stage: Stage) -> None:
        assert await stage.load() == {b"a": b"2"}
        assert stage.offsets == [0, 1, 2, 3]
        assert await stage.load(1) == {b"c": b""}

    play(write, read, partitions=2)


def test_loading_goes_over_what_compaction_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOAD_BYTES", 1_000)

    async def write(stage: Stage) -> None:
        for number in range(300):
            await stage.put((b"k%d" % (number % 7), b"%d" % number), (b"gone", b"%d" % number))
        await stage.put((b"gone", None))

    async def compact(stage: Stage) -> None:
        partition = await stage.partition()
        await stage.put((b"active", b""))
        before = partition.size()
        await asyncio.sleep(1)
        await stage.log.upkeep.cleaner.run()
        assert partition.size() < before // 2

    async def read(stage: Stage) -> None:
        last = {b"k%d" % (number % 7): b"%d" % number for number in range(293, 300)}
        assert await stage.load() == {**last, b"active": b""}
        gaps = [at for at, after in zip(stage.offsets, stage.offsets[1:], strict=False) if after > at + 1]
        assert gaps
        assert stage.offsets == sorted(stage.offsets)

    play(write, compact, read, settings={**COMPACTED, "max.compaction.lag.ms": "1"})


def test_what_was_forgotten_is_not_loaded() -> None:
    async def write(stage: Stage) -> None:
        for number in range(10):
            await stage.put((b"%d" % number, b"v"))
        assert await stage.topic.forget(await stage.partition(), 8)

    async def read(stage: Stage) -> None:
        assert set(await stage.load()) == {b"8", b"9"}

    play(write, read, settings={"durability": "sync"})


def test_a_trim_that_fails_is_logged_and_tried_again() -> None:
    async def act(stage: Stage) -> None:
        await stage.put((b"a", b"1"), (b"b", b"1"))
        partition = await stage.partition()
        disk = stage.runtime.disk
        assert isinstance(disk, SimulatedDisk)
        disk.plan.sync_error_chance = 1.0
        with capture_logs() as lines:
            assert not await stage.topic.forget(partition, 1)
        disk.plan.sync_error_chance = 0.0
        assert [(line["topic"], line["partition"], line["before"]) for line in lines] == [(NAME, 0, 1)]
        assert await stage.topic.forget(partition, 1)
        assert partition.start == 1

    play(act, settings={"durability": "sync"})


def test_a_torn_tail_ends_what_is_loaded() -> None:
    async def write(stage: Stage) -> None:
        for number in range(5):
            await stage.put((b"%d" % number, b"v" * 100))

    async def read(stage: Stage) -> None:
        assert set(await stage.load()) == {b"0", b"1", b"2", b"3"}
        await stage.put((b"next", b"v"))
        assert stage.offsets == [0, 1, 2, 3]
        assert set(await stage.load()) == {b"0", b"1", b"2", b"3", b"next"}

    made = {"settings": {"durability": "async"}}
    world = play(write, clean=False, **made)
    (node,) = [node for path, node in world.machine.storage.files() if NAME in path and path.endswith(".log")]
    whole = bytes(node.volatile).rstrip(b"\0")
    del node.volatile[len(whole) - 50 :]
    play(read, world=world, **made)


def test_a_partition_that_is_offline_is_not_loaded_and_the_others_are() -> None:
    async def write(stage: Stage) -> None:
        await stage.put((b"a", b"1"))
        await stage.put((b"b", b"1"), index=1)

    async def read(stage: Stage) -> None:
        topic: Any = await stage.topic.open()
        topic.partitions[0].offline = "damaged"
        with pytest.raises(PartitionOffline, match="damaged"):
            await stage.load()
        assert await stage.load(1) == {b"b": b"1"}

    play(write, read, partitions=2)


def test_a_record_that_cannot_be_read_is_logged_and_skipped() -> None:
    async def act(stage: Stage) -> None:
        await stage.put((b"a", b"1"), (b"unreadable", b"1"), (b"b", b"1"))
        with capture_logs() as lines:
            assert await stage.load() == {b"a": b"1", b"b": b"1"}
        assert [(line["topic"], line["partition"], line["offset"]) for line in lines] == [(NAME, 0, 1)]

    play(act)


def test_markers_come_where_they_stand() -> None:
    async def act(stage: Stage) -> None:
        partition = await stage.partition()
        for producer, kind in ((7, COMMIT), (8, ABORT)):
            rows = [(0, b"of %d" % producer, b"v", [])]
            of_producer = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
            batch = records.build(rows, **of_producer, attributes=TRANSACTIONAL)
            await stage.topic.submit([Write(partition, batch)])
            await stage.topic.submit([Write(partition, control(kind, 0, producer, 0, 0))])
        met: list[tuple[int, bool, int]] = []
        await stage.load(on_marker=lambda producer, commit: met.append((producer, commit, len(stage.state))))
        assert met == [(7, True, 1), (8, False, 2)]
        # Where transactions mean nothing, markers are passed over.
        assert len(await stage.load()) == 2

    play(act)


@pytest.mark.parametrize("compression", [NONE, GZIP])
def test_a_large_batch_is_applied_in_steps(monkeypatch: pytest.MonkeyPatch, compression: int) -> None:
    """Other tasks have their turns meanwhile."""
    monkeypatch.setattr(store, "STEP_RECORDS", 10)

    async def act(stage: Stage) -> None:
        partition = await stage.partition()
        rows = [(0, b"%d" % number, b"v" * 10_000, []) for number in range(100)]
        await stage.topic.submit([Write(partition, records.build(rows, compression=compression))])
        in_turn, most = 0, 0

        def end_turn() -> None:
            nonlocal in_turn
            in_turn = 0

        def apply(record: Record, header: BatchHeader) -> None:
            nonlocal in_turn, most
            in_turn += 1
            most = max(most, in_turn)
            asyncio.get_running_loop().call_soon(end_turn)
            stage.apply(record, header)

        await stage.topic.load(partition, apply)
        assert len(stage.state) == 100
        assert most <= 10

    play(act)


def test_a_compressed_batch_is_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    unpack = compression.unpack
    monkeypatch.setattr(compression, "unpack", lambda *given: unpacked.append(1) or unpack(*given))

    async def act(stage: Stage) -> None:
        partition = await stage.partition()
        rows = [(0, b"%d" % number, b"v", []) for number in range(10 * store.STEP_RECORDS + 1)]
        await stage.topic.submit([Write(partition, records.build(rows, compression=GZIP))])
        unpacked.clear()
        assert len(await stage.load()) == len(rows)
        assert stage.offsets == list(range(len(rows)))
        assert len(unpacked) == 1

    play(act)


# --- appending --------------------------------------------------------------------------------------------------------


def test_changes_are_appended_with_other_writes_or_not_at_all() -> None:
    async def act(stage: Stage) -> None:
        partition = await stage.partition()
        other = (await stage.topics.create("orders", 1, {"max.message.bytes": "1000"})).partitions[0]
        told: list[Exception | None] = []
        durable = asyncio.Event()

        def done(error: Exception | None) -> None:
            told.append(error)
            durable.set()

        def with_message(size: int) -> list[Write]:
            message = records.build([(0, None, b"v" * size, [])])
            return [stage.topic.write(partition, [(b"a", b"%d" % size)]), Write(other, message)]

        with pytest.raises(AppendRefused):
            stage.topic.append(with_message(2_000), done)
        assert (partition.end, other.end) == (0, 0)
        assert [each.base_offset for each in stage.topic.append(with_message(10), done)] == [0, 0]
        assert not told
        await durable.wait()
        assert told == [None]
        assert await stage.load() == {b"a": b"10"}
        refused = stage.topic.submit(with_message(2_000))
        with pytest.raises(AppendRefused):
            await refused

    play(act)


def test_done_is_called_where_an_append_is_durable_at_once() -> None:
    async def act(stage: Stage) -> None:
        partition = await stage.partition()
        told: list[Exception | None] = []
        [appended] = stage.topic.append([stage.topic.write(partition, [(b"a", b"1")])], told.append)
        assert (appended.base_offset, told) == (0, [])
        await asyncio.sleep(0)
        assert told == [None]

    play(act, settings={"durability": "memory"})


# --- the bound on a batch ---------------------------------------------------------------------------------------------


def rows_of(*sizes: int) -> list[store.Row]:
    """Rows that count so many bytes against the bound."""
    return [(5, b"k", b"v" * (size - store.RECORD_BYTES - 1), []) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ((), []),
        ((500, 500), [2]),
        ((500, 501), [1, 1]),
        ((1_000, 1_000), [1, 1]),
        # Above the bound: a batch of its own.
        ((100, 5_000, 100, 100), [1, 1, 2]),
    ],
)
def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], counts: list[int]) -> None:
    monkeypatch.setattr(store, "BATCH_BYTES", 1_000)
    raw = batches_of(rows_of(*sizes))
    assert [header.record_count for _, header in batches_in(raw)] == counts


def test_rows_stand_in_their_order_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH_BYTES", 1_000)
    rows: list[store.Row] = [
        (
            number,
            None if number % 5 == 0 else b"k%d" % number,
            None if number % 7 == 0 else b"v" * (number % 300),
            [("h" * (number % 50), b"w" * (number % 90))] * (number % 3),
        )
        for number in range(200)
    ]
    raw = batches_of(rows)
    found = list(batches_in(raw))
    assert sum(header.size for _, header in found) == len(raw)
    assert max(header.size for _, header in found) <= 1_000 + HEADER_BYTES
    read = [records.parse(bytes(raw[at : at + header.size]), 1 << 20) for at, header in found]
    assert [row for part in read for _, *row in part] == [list(row) for row in rows]
