"""A replica's log through crashes: batches as they are and truncations, by seed.

Each seed is a few lives of a log with `sync` and `async` partitions. They get what a leader would send, are cut back at
any offset, and get other batches there. After every start each log is one of those that the model allows, and what
follows from its batches (producers, open and aborted transactions, leader epochs) is what a fold over them says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from tests.log import batches

from headrace.config import Config
from headrace.format.batch import TRANSACTIONAL, header_at
from headrace.format.markers import control_type
from headrace.log.interface import AbortedTransaction, Durability, TopicSettings, Write
from headrace.log.native import NativeLog
from headrace.log.partition import NativePartition
from headrace.runtime import Runtime
from simulation.faults import Plan
from simulation.world import Ending, World

# The last of them found something when it was there to be found.
SEEDS = [*range(30), 58, 73, 197, 1104, 1120]
LIVES = 5
CONFIG = Config(
    journal_bytes=16_384, tail_bytes=4_096, direct_bytes=1_500, checkpoint_ms=300, retention_check_ms=3_600_000,
    compaction_check_ms=3_600_000, open_files_max=6,
)  # fmt: skip
NAMES = ("sync", "async", "other")
EPOCH_AT = 12


@dataclass
class Model:
    """What one partition should have."""

    log: list[bytes] = field(default_factory=list)
    acked: int = 0
    """How many of them were acknowledged."""
    solid: int = 0
    """How many of them no power cut can take."""
    before: Model | None = None
    """How it stood before the truncation that is under way."""

    @property
    def end(self) -> int:
        return header_at(self.log[-1]).last_offset + 1 if self.log else 0

    def cut(self, end: int) -> None:
        """A truncation to `end` begins."""
        self.before = replace(self)
        if end < self.end:
            self.log = [batch for batch in self.log if header_at(batch).base_offset < end]
            self.acked = self.solid = len(self.log)

    def allows(self, found: list[bytes], power_cut: bool) -> bool:
        """Whether a start may find this: all of the log, but for what was not promised."""
        return found == self.log[: len(found)] and len(found) >= (self.solid if power_cut else self.acked)

    def settle(self, found: list[bytes], power_cut: bool) -> None:
        """Take what a start has found."""
        allowed = [self] if self.before is None else [self, self.before]
        assert any(each.allows(found, power_cut) for each in allowed), (
            f"found {ends(found)}; allowed {[(ends(each.log), each.acked, each.solid) for each in allowed]}"
        )
        self.log, self.before = found, None
        self.acked = self.solid = len(found)


def ends(log: Iterable[bytes]) -> list[tuple[int, int]]:
    return [(header_at(batch).last_offset + 1, header_at(batch).leader_epoch) for batch in log]


@dataclass
class Folded:
    """What follows from the batches of a log."""

    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)


def fold(log: Iterable[bytes]) -> Folded:
    found = Folded()
    for batch in log:
        header = header_at(batch)
        if not found.epochs or header.leader_epoch > found.epochs[-1][0]:
            found.epochs.append((header.leader_epoch, header.base_offset))
        if header.is_control:
            first = found.open.pop(header.producer_id, None)
            if first is not None and not control_type(batch)[0]:
                found.aborted.append(AbortedTransaction(header.producer_id, first, header.base_offset))
        elif header.producer_id >= 0:
            found.sequences[header.producer_id] = header.base_sequence + header.last_offset_delta
            found.open.setdefault(header.producer_id, header.base_offset)
    return found


class Replica:
    """The lives of one log."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed)
        self.models = {name: Model() for name in NAMES}
        self.atomic: list[tuple[bytes, bytes]] = []
        self.epoch = 0
        self.truncations = self.interrupted = 0
        self.power_cut = False
        """Since what was found was last compared."""

    def run(self, config: Config = CONFIG) -> None:
        for life in range(LIVES):
            kill = self.rng.random() < 0.3
            plan = Plan(crash_chance=self.rng.choice((0.05, 0.3, 1.0)), kill=kill) if life < LIVES - 1 else Plan()
            ending = self.world.run(partial(self._live, config=config), plan)
            self.power_cut |= ending is Ending.POWER_CUT
            self.interrupted += ending is not Ending.DONE and any(model.before for model in self.models.values())

    async def _live(self, runtime: Runtime, config: Config) -> None:
        log = NativeLog(runtime, config)
        await log.start()
        for name in NAMES:
            if name not in log.topics:
                durability = Durability.SYNC if name == "sync" else Durability.ASYNC
                await log.create(name, 1, {}, TopicSettings(durability=durability, segment_bytes=4_000))
        await self._check_start(log)
        for _ in range(self.rng.randrange(10, 60)):
            draw = self.rng.random()
            name = self.rng.choice(NAMES)
            if draw < 0.7:
                await self._append(log, name)
            elif draw < 0.75:
                await self._append_both(log)
            elif draw < 0.9:
                await self._truncate(log, name)
            elif draw < 0.93:
                self.epoch += 1
            elif draw < 0.97:
                await asyncio.sleep(self.rng.random() / 2)
            else:
                await log.upkeep.checkpoint()
            if self.rng.random() < 0.2:
                await asyncio.sleep(0.01)
        if self.rng.random() < 0.5:
            await log.stop()

    def partition(self, log: NativeLog, name: str) -> NativePartition:
        return log.local(log.topics[name].partitions[0])

    # --- doing ---

    def next_batch(self, model: Model) -> bytes:
        state, base = fold(model.log), model.end
        # The log of another leader may go on in an older epoch than the one that was cut off.
        latest = state.epochs[-1][0] if state.epochs else 0
        epoch = self.rng.choice((latest, latest, max(latest, self.epoch)))
        producer = self.rng.randrange(1, 4)
        draw = self.rng.random()
        size = self.rng.choice((10, 10, 200, 2_000))
        count = self.rng.randrange(1, 4)
        if draw < 0.3:
            batch = batches.batch(base, count, size=size)
        elif draw < 0.6 and producer in state.open:
            batch = batches.marker(base, producer, 0, self.rng.random() < 0.5)
        else:
            sequence = state.sequences.get(producer, -1) + 1
            batch = batches.batch(
                base, count, size=size, producer=producer, producer_epoch=0, sequence=sequence, attributes=TRANSACTIONAL
            )
        return batch[:EPOCH_AT] + epoch.to_bytes(4, "big") + batch[EPOCH_AT + 4 :]

    async def _append(self, log: NativeLog, name: str) -> None:
        model = self.models[name]
        sent = []
        for _ in range(self.rng.choice((1, 1, 1, 3))):
            sent.append(self.next_batch(model))
            model.log.append(sent[-1])
        count = len(model.log)

        def done(error: Exception | None) -> None:
            assert error is None
            model.acked = max(model.acked, min(count, len(model.log)))

        write = Write(self.partition(log, name), bytearray(b"".join(sent)), as_is=True)
        (appended,) = log.append([write], done)
        assert appended.base_offset == header_at(sent[0]).base_offset
        if appended.durable:
            done(None)

    async def _append_both(self, log: NativeLog) -> None:
        pair = [self.next_batch(self.models[name]) for name in NAMES[:2]]
        writes = []
        for name, batch in zip(NAMES, pair, strict=False):
            self.models[name].log.append(batch)
            writes.append(Write(self.partition(log, name), bytearray(batch), as_is=True))
        self.atomic.append((pair[0], pair[1]))
        log.append(writes)

    async def _truncate(self, log: NativeLog, name: str) -> None:
        model, partition = self.models[name], self.partition(log, name)
        offset = self.rng.randint(0 if self.rng.random() < 0.3 else model.end * 2 // 3, model.end)
        wanted = max((end for end, _ in ends(model.log) if end <= offset), default=0)
        model.cut(wanted)
        # What is cut off in one partition need not be in the other.
        gone = [batch for batch in model.before.log if batch not in model.log] if model.before else []
        self.atomic = [pair for pair in self.atomic if not any(batch in gone for batch in pair)]
        assert await partition.truncate(offset) == wanted
        model.before = None
        self.truncations += 1
        check(partition, model)

    # --- checking ---

    async def _check_start(self, log: NativeLog) -> None:
        for name, model in self.models.items():
            partition = self.partition(log, name)
            await partition.load()
            model.settle(batches.read(partition), self.power_cut and name != "sync")
            check(partition, model)
        for pair in self.atomic:
            found = [batch in self.models[name].log for name, batch in zip(NAMES, pair, strict=False)]
            assert all(found) or not any(found), f"a part of an atomic append is missing: {found}"
        self.atomic = []
        self.power_cut = False


def check(partition: NativePartition, model: Model) -> None:
    """The partition has what the model has, and knows what follows from it."""
    assert batches.read(partition) == model.log
    assert partition.end == partition.high_watermark == model.end
    state = fold(model.log)
    known = {each.producer_id: each for each in partition.producers()}
    assert {key: each.last_sequence for key, each in known.items()} == state.sequences
    assert {key: each.transaction_start for key, each in known.items() if each.transaction_start >= 0} == state.open
    assert partition.last_stable == min(state.open.values(), default=model.end)
    assert partition.aborted(0, model.end) == state.aborted
    assert partition.state.epochs.entries == state.epochs
    for (epoch, _), (_, begins) in zip(state.epochs, state.epochs[1:], strict=False):
        assert partition.epoch_end(epoch) == (epoch, begins)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_ends_where_it_was_or_where_it_was_cut(seed: int) -> None:
    replica = Replica(seed)
    replica.run()
