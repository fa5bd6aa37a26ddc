"""Redrive inside the broker, where a test can choose the moment of a crash. What it does is in tests/doors/http."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.broker.conftest import Starting

from headrace.broker.broker import Broker
from headrace.broker.redrive import QUEUE, Order
from headrace.broker.store import StateTopic
from headrace.format import compression, records
from headrace.log.interface import Appended, Topic, Write

DEAD = "orders.mail.dead"


async def letters(broker: Broker, count: int, codec: int = 0) -> Topic:
    """A dead-letter topic."""
    orders = await broker.topics.create("orders", 1)
    await broker.queues.ensure(orders, "mail")
    dead = await broker.topics.create(DEAD, 1)
    await dead.partitions[0].load()
    origin = {"topic": b"orders", "partition": b"0", "offset": b"0", "queue": b"mail"}
    headers = [(f"headrace-origin-{name}", value) for name, value in origin.items()]
    now = broker.runtime.clock.now_ms()
    rows = [(now, b"k", b"%d" % number, headers) for number in range(count)]
    dead.partitions[0].append(records.build(rows, compression=codec))
    while dead.partitions[0].high_watermark < count:
        await asyncio.sleep(0.001)
    return dead


@pytest.mark.parametrize("meanwhile", ["flush", "snapshot"])
async def test_what_is_written_meanwhile_does_not_undo_a_settlement(
    start_broker: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
):
    """The letters are sent back and settled; then, before the queue has heard of it, its state is written; then the
    power goes."""
    broker = await start_broker(durability="sync", queue_flush_ms=60_000)
    await letters(broker, 30)
    first = await broker.redrive.step(Order(DEAD, limit=10))
    assert len(first.results) == 10
    queues = broker.queues
    submit = StateTopic.submit
    left = tmp_path.parent / f"{tmp_path.name}-left"
    background: list[asyncio.Task[None]] = []

    async def appended(answer: asyncio.Future[list[Appended]]) -> list[Appended]:
        found = await answer
        if not left.exists():
            work = queues.state_writer.flush() if meanwhile == "flush" else _snapshots(queues)
            background.append(asyncio.get_running_loop().create_task(work))
            # It may have to wait for the settlement.
            await asyncio.wait(background, timeout=0.2)
            shutil.copytree(tmp_path, left)
        return found

    def watched(store: StateTopic, writes: Sequence[Write]) -> asyncio.Future[list[Appended]]:
        answer = submit(store, writes)
        return asyncio.ensure_future(appended(answer)) if len(writes) > 1 else answer

    monkeypatch.setattr(StateTopic, "submit", watched)
    second = await broker.redrive.step(Order(DEAD, limit=10, place=first.next))
    assert [result.letter.offset for result in second.results] == list(range(10, 20))
    await asyncio.gather(*background)

    async with brokers.running(left) as again:
        queue = again.queues.get(DEAD, QUEUE)
        assert queue is not None
        assert [offset for offset in range(30) if queue.settled(0, offset)] == list(range(20))
        step = await again.redrive.step(Order(DEAD))
        assert [result.letter.offset for result in step.results] == list(range(20, 30))
        assert again.topics.all["orders"].partitions[0].end == 30


async def _snapshots(queues: Any) -> None:
    for shard in queues.state_writer.shards:
        await queues.state_writer.snapshot(shard)


async def test_a_compressed_batch_is_unpacked_once(start_broker: Starting, monkeypatch: pytest.MonkeyPatch):
    """Its letters are looked at some at a time, and all of them come from one unpacking."""
    broker = await start_broker()
    await letters(broker, 1_000, compression.ZSTD)
    unpack, seen = compression.unpack, list[int]()

    def unpacked(*given: Any) -> bytes:
        seen.append(1)
        return unpack(*given)

    monkeypatch.setattr(compression, "unpack", unpacked)
    step = await broker.redrive.step(Order(DEAD, dry_run=True))
    assert [result.letter.offset for result in step.results] == list(range(1_000))
    assert len(seen) == 1
