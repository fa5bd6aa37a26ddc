"""Many partitions that come into a transaction at once, through power cuts and kills: all of them, or none.

A request brings partitions of a `sync` and of an `async` topic in, which hold something that only the operating system
has. The process ends at some operation of the disk. Whatever the moment, the coordinator knows of every transaction
that a partition has open, and ends it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.longer import seeds

from headrace.broker.broker import Broker
from headrace.broker.durable import durable
from headrace.broker.transactions import Status, TransactionalBatch
from headrace.broker.transactions.store import Store
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from headrace.log.interface import Appended, Partition
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import PHASES, Plan
from simulation.world import Ending, World

PARTITIONS = 4
TOPICS = ("sync", "async")
ID = "payments"
TIMEOUT_MS = 500

Living = Callable[[Runtime], Coroutine[Any, Any, None]]


async def start(runtime: Runtime) -> tuple[NativeLog, Broker, list[Partition]]:
    config = Config(data="simulated", journal_bytes=16_384, checkpoint_ms=50, transactions_partitions=1)
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config)
    await broker.start()
    found: list[Partition] = []
    for name in TOPICS:
        topic = broker.topics.get(name) or await broker.topics.create(name, PARTITIONS, {"durability": name})
        found += topic.partitions
    for partition in found:
        await partition.load()
    await broker.transactions.load()
    return log, broker, found


def writing(answered: list[int], rounds: int = 4) -> Living:
    """A life in which a client writes; how many partitions of each request were answered, is noted."""

    async def live(runtime: Runtime) -> None:
        _, broker, partitions = await start(runtime)
        producer_id, epoch = await broker.transactions.init(ID, TIMEOUT_MS)
        for number in range(rounds):
            now = runtime.clock.now_ms()
            offered, waiters = [], []
            for partition in partitions:
                partition.append(records.build([(now, None, b"plain", [])]))
                batch = records.build(
                    [(now, None, b"%d" % number, [])],
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=0,
                    attributes=TRANSACTIONAL,
                )
                waiter, done = durable(None)
                waiters.append(waiter)
                offered.append(TransactionalBatch(partition, batch, done))
            outcomes = broker.transactions.produce(ID, offered, 2)
            assert all(isinstance(each, Appended) and not each.durable for each in outcomes)
            await asyncio.gather(*waiters)
            answered.append(len(outcomes))
            producer_id, epoch = await broker.transactions.end(ID, producer_id, epoch, number % 2 == 0, 2)

    return live


async def look(runtime: Runtime) -> None:
    """The life after: nothing is open that the coordinator does not know, and in the end nothing is."""
    log, broker, partitions = await start(runtime)
    opened = {
        (each.topic.name, each.index)
        for each in partitions
        if any(producer.transaction_start >= 0 for producer in each.producers())
    }
    state = dict(await broker.transactions.list()).get(ID)
    listed = state.places if state is not None and state.status is Status.ONGOING else frozenset()
    assert opened == listed, f"open in {sorted(opened)}, and known of {sorted(listed)}"
    assert len(opened) in (0, len(partitions))
    await asyncio.sleep(TIMEOUT_MS / 1000 + 2)
    for each in partitions:
        assert each.last_stable == each.end, f"{each} is held up"
    await broker.stop()
    await log.stop()


def cut_at(seed: int, operations: int, count: int, kill: bool) -> int:
    """Lives that end at some operations, and what is found after them; how many did end there."""
    rng = random.Random(seed)
    ended = 0
    for at in sorted(rng.sample(range(1, operations), count)):
        world = World(seed)
        if world.run(writing([]), Plan(crash_at=at, phase=rng.choice(PHASES), kill=kill)) is not Ending.DONE:
            ended += 1
        assert world.run(look) is Ending.DONE
    return ended


def operations_of(seed: int) -> int:
    world, answered = World(seed), []
    assert world.run(writing(answered)) is Ending.DONE
    assert answered == [len(TOPICS) * PARTITIONS] * 4
    operations = world.machine.disk.operations
    assert world.run(look) is Ending.DONE
    return operations


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_all_partitions_of_a_request_come_in_or_none(seed: int, kill: bool) -> None:
    operations = operations_of(seed)
    assert cut_at(seed, operations, 40, kill) > 30


def test_partitions_that_come_in_without_their_note_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the state left out of the append, and written behind it."""
    whole = Store.append

    def apart(self: Store, entry: Any, state: Any, writes: Any, done: Any) -> list[Appended]:
        if state is None or state.status is not Status.ONGOING:
            return whole(self, entry, state, writes, done)
        appended = self._state.append(writes, lambda _: None)
        asyncio.get_running_loop().call_later(0.01, whole, self, entry, state, [], done)
        return [appended[0], *appended]

    monkeypatch.setattr(Store, "append", apart)
    with pytest.raises(AssertionError, match="open in"):
        cut_at(0, operations_of(0), 100, False)
