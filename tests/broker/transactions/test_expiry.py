"""Transactional ids that never had a transaction: bounded for each client, forgotten soon, and no harm to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.transactions import Holder, TransactionCoordinator
from headrace.config import Config
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.world import Ending, World

MINUTE = 60.0
USED_MS = 3_600_000


@asynccontextmanager
async def broker_on(runtime: Runtime, **settings: Any) -> AsyncIterator[Broker]:
    config = Config(data="simulated", transactions_partitions=2, **settings)
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await log.stop()


def in_world(life: Callable[[Runtime], Awaitable[None]]) -> None:
    assert World(0).run(life) is Ending.DONE


async def names(transactions: TransactionCoordinator) -> list[str]:
    return sorted(name for name, _ in await transactions.list())


async def use(broker: Broker, name: str, holder: Holder) -> None:
    """Take an id and have a transaction with it."""
    transactions = broker.transactions
    granted = await transactions.init(name, 60_000, holder=holder)
    await transactions.add(name, *granted, [("rain", 0)])
    await transactions.end(name, *granted, commit=True, client_version=1)


def test_a_flood_of_ids_is_bounded_and_leaves_the_others_theirs() -> None:
    async def live(runtime: Runtime) -> None:
        async with broker_on(runtime, transactional_ids_max=100, transactional_ids_unused_max=10) as broker:
            await broker.topics.create("rain", 1)
            transactions = broker.transactions
            flooding, other, elsewhere = Holder("10.0.0.1"), Holder("10.0.0.1"), Holder("10.0.0.2")
            waiting = await transactions.init("waits", 60_000, holder=other)
            for number in range(300):
                await transactions.init(f"flood-{number}", 60_000, holder=flooding)
                if number % 100 == 50:
                    await use(broker, f"near-{number}", Holder("10.0.0.1"))
                    await use(broker, f"far-{number}", elsewhere)
            used = [f"{place}-{number}" for place in ("far", "near") for number in (50, 150, 250)]
            kept = [f"flood-{number}" for number in range(291, 300)]
            assert await names(transactions) == sorted([*used, *kept, "waits"])
            # A producer that is still connected has its id, however long the flood.
            await transactions.add("waits", *waiting, [("rain", 0)])

    in_world(live)


def test_an_id_without_a_transaction_is_forgotten_after_minutes() -> None:
    async def live(runtime: Runtime) -> None:
        async with broker_on(runtime, transactional_id_expiration_ms=USED_MS) as broker:
            await broker.topics.create("rain", 1)
            transactions = broker.transactions
            holder, gone = Holder("10.0.0.1"), Holder("10.0.0.1")
            for name in ("first", "second", "latest"):
                await transactions.init(name, 60_000, holder=holder)
            await transactions.init("left", 60_000, holder=gone)
            gone.is_open = False
            await use(broker, "used", Holder("10.0.0.1"))
            # Taken again, it has no transaction yet, but it had one.
            await transactions.init("used", 60_000, holder=Holder("10.0.0.1"))
            await asyncio.sleep(14 * MINUTE)
            assert len(await names(transactions)) == 5
            await asyncio.sleep(3 * MINUTE)
            assert await names(transactions) == ["latest", "used"]
            holder.is_open = False
        async with broker_on(runtime, transactional_id_expiration_ms=USED_MS) as broker:
            assert await names(broker.transactions) == ["latest", "used"]
            await asyncio.sleep(30 * MINUTE)
            assert await names(broker.transactions) == ["used"]
            await asyncio.sleep(20 * MINUTE)
            assert await names(broker.transactions) == []

    in_world(live)


def test_many_ids_are_forgotten_in_few_flushes() -> None:
    async def live(runtime: Runtime) -> None:
        async with broker_on(runtime) as broker:
            holder = Holder("10.0.0.1")
            await asyncio.gather(
                *(broker.transactions.init(f"id-{number}", 60_000, holder=holder) for number in range(1_000))
            )
            holder.is_open = False
            before = broker.log.sizes()["journal_flushes"]
            await asyncio.sleep(20 * MINUTE)
            assert await names(broker.transactions) == []
            assert broker.log.sizes()["journal_flushes"] - before < 100

    in_world(live)
