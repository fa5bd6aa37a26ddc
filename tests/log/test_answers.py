"""The answer to an append: `done` is called exactly once if the answer was not durable, and never if it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.log.test_native import batch, contents, opened

from headrace.log.interface import Appended, Durability, Topic, TopicSettings, Write
from headrace.log.native import NativeLog

ANY = pytest.mark.parametrize("durability", list(Durability))


class Calls:
    """Counts what an append calls back."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.errors.append(error)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[NativeLog]:
    async with opened(tmp_path) as opened_log:
        yield opened_log


async def make(log: NativeLog, durability: Durability, name: str = "t") -> Topic:
    return await log.create(name, 2, {}, TopicSettings(durability=durability))


async def settled(log: NativeLog, answers: list[Appended], calls: Calls) -> None:
    """Wait until everything was flushed, and compare answer and calls."""
    assert not calls.errors, "before the append had returned"
    assert len({each.durable for each in answers}) == 1, "one append, one answer"
    for _ in range(3):
        await asyncio.sleep(0)
    await log.committer.flushed()
    assert calls.errors == ([] if answers[0].durable else [None])


def numbered(sequence: int) -> bytearray:
    return batch(producer_id=1, producer_epoch=0, base_sequence=sequence)


@ANY
async def test_one_batch(log: NativeLog, durability: Durability) -> None:
    partition = (await make(log, durability)).partitions[0]
    for size in (1, 100_000):
        calls = Calls()
        await settled(log, [partition.append(batch(b"v" * size), calls)], calls)


@ANY
async def test_a_duplicate_in_flight_and_afterwards(log: NativeLog, durability: Durability) -> None:
    partition = (await make(log, durability)).partitions[0]
    first, second, third = Calls(), Calls(), Calls()
    answer, again = partition.append(numbered(0), first), partition.append(numbered(0), second)
    await settled(log, [answer], first)
    assert second.errors == ([] if again.durable else [None])
    late = partition.append(numbered(0), third)
    assert late.durable
    await settled(log, [late], third)


@ANY
async def test_several_batches_of_which_the_last_is_a_duplicate(log: NativeLog, durability: Durability) -> None:
    partition = (await make(log, durability)).partitions[0]
    partition.append(numbered(0))
    await log.committer.flushed()
    calls = Calls()
    await settled(log, [partition.append(batch() + numbered(0), calls)], calls)


@ANY
async def test_several_partitions(log: NativeLog, durability: Durability) -> None:
    one, two = (await make(log, durability)).partitions
    for _ in range(2):
        # The second time, all of it is a duplicate.
        calls = Calls()
        await settled(log, log.append([Write(one, numbered(0)), Write(two, batch())], calls), calls)


async def test_what_only_memory_has_waits_for_the_journal_together(log: NativeLog) -> None:
    """One of two partitions waits behind an append that the journal may yet refuse: then neither may be read."""
    kept = (await make(log, Durability.SYNC, "kept")).partitions[0]
    one, two = (await make(log, Durability.MEMORY)).partitions
    log.append([Write(kept, batch()), Write(one, batch(b"first"))])
    calls = Calls()
    answers = log.append([Write(one, batch(b"both")), Write(two, batch(b"both"))], calls)
    assert (one.high_watermark, two.high_watermark, answers[0].durable) == (0, 0, False)
    await settled(log, answers, calls)
    assert (contents(one), contents(two)) == ([(0, b"first"), (1, b"both")], [(0, b"both")])
