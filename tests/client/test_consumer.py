"""The consumer: order, gaps, cut batches, moved leaders, aborted transactions."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from tests.client.fake import CUT_AFTER, CUT_BEFORE, NOT_LEADER, FakeCluster, Fault, Log
from tests.waiting import SECONDS

from headrace.client import EARLIEST, LATEST, BrokerError, Client
from headrace.client.consumer import _batches
from headrace.client.wire import Fetched
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL


def fill(log: Log, batches: int, size: int = 3) -> None:
    for _ in range(batches):
        log.append(records.build([(1000 + log.end + n, None, b"%d" % (log.end + n), []) for n in range(size)]))


@pytest.mark.parametrize("seed", range(8))
async def test_faults(seed: int) -> None:
    dice = random.Random(seed)
    faults = 0
    async with FakeCluster(nodes=2, partitions=3) as fake, Client(fake.bootstrap, timeout=10) as client:
        for log in fake.topics["t"]:
            fill(log, 40)

        def fault(node: int, api: int) -> Fault:
            nonlocal faults
            if faults >= 12 or api == 18 or dice.random() < 0.5:
                return None
            faults += 1
            fake.topics["t"][dice.randrange(3)].leader = dice.randrange(2)
            return dice.choice([CUT_BEFORE, CUT_AFTER, NOT_LEADER]) if api != 3 else CUT_BEFORE

        fake.fault = fault
        async with client.consumer(partition_bytes=500, max_wait=0.01) as consumer:
            await consumer.assign({("t", index): 10 * index for index in range(3)})
            until = await consumer.end_offsets()
            found: dict[int, list[int]] = {0: [], 1: [], 2: []}
            async for record in consumer.records(until):
                assert record.value == b"%d" % record.offset
                found[record.partition].append(record.offset)
        assert found == {index: list(range(10 * index, 120)) for index in range(3)}
        assert faults > 2


async def test_new_records_arrive_and_positions_follow() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        fill(fake.topics["t"][0], 2)
        async with client.consumer() as consumer:
            await consumer.assign({("t", 0): LATEST})
            assert consumer.positions == {("t", 0): 6}
            waiting = asyncio.ensure_future(consumer.chunk())
            await asyncio.sleep(0.03)
            assert not waiting.done()
            fill(fake.topics["t"][0], 1)
            chunk = await waiting
            assert (chunk.offset, chunk.next_offset, chunk.high_watermark) == (6, 9, 9)
            assert [record.offset for record in consumer.parse(chunk)] == [6, 7, 8]
            assert consumer.positions == {("t", 0): 9}
            await consumer.assign({("t", 0): EARLIEST})
            assert (await consumer.chunk()).offset == 0


async def test_nothing_is_asked_for_beyond_the_end() -> None:
    async with FakeCluster(nodes=2, partitions=2) as fake, Client(fake.bootstrap) as client:
        asked: list[int] = []
        fake.fault = lambda node, api: asked.append(api)
        for log in fake.topics["t"]:
            fill(log, 40)
        async with client.consumer(partition_bytes=200, max_wait=0.01) as consumer:
            until = {("t", 0): 7, ("t", 1): 60}
            await consumer.assign({("t", 0): 0, ("t", 1): 0}, until=until)
            chunks = [chunk async for chunk in consumer.chunks(until)]
            assert 7 <= max(chunk.next_offset for chunk in chunks if chunk.partition == 0) < 20
            assert 60 <= max(chunk.next_offset for chunk in chunks if chunk.partition == 1) < 80
            asked.clear()
            await asyncio.sleep(0.1)
            assert asked == []


async def test_all_that_was_wanted_is_gone() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        fill(fake.topics["t"][0], 2)
        async with client.consumer(out_of_range=LATEST) as consumer:
            await consumer.assign({("t", 0): -5}, until={("t", 0): 4})
            chunk = await asyncio.wait_for(consumer.chunk(), SECONDS)
            assert (chunk.batches, chunk.next_offset) == ([], 6)


async def test_out_of_range() -> None:
    async with FakeCluster() as fake, Client(fake.bootstrap) as client:
        fill(fake.topics["t"][0], 2)
        async with client.consumer() as consumer:
            await consumer.assign({("t", 0): 50})
            with pytest.raises(BrokerError, match=r"t-0 at offset 50.*OFFSET_OUT_OF_RANGE"):
                await consumer.chunk()
        async with client.consumer(out_of_range=EARLIEST) as consumer:
            await consumer.assign({("t", 0): 50})
            assert (await consumer.chunk()).offset == 0
        async with client.consumer() as consumer:
            await consumer.assign({("t", 5): 0})
            with pytest.raises(BrokerError, match="the topic has 1 partitions"):
                await consumer.chunk()


def at(base: int, batch: bytearray) -> bytearray:
    batch[:8] = struct.pack(">q", base)
    return batch


def data(base: int, producer: int, count: int = 2, transactional: bool = True) -> bytearray:
    rows = [(1, None, b"v", [])] * count
    attributes = TRANSACTIONAL if transactional else 0
    return at(base, records.build(rows, producer_id=producer, producer_epoch=0, attributes=attributes))


def marker(base: int, kind: int, producer: int) -> bytearray:
    return at(base, records.control(kind, 0, producer, 0, 1))


def test_aborted_transactions_are_left_out() -> None:
    log = [
        data(0, 1),
        data(2, 2),
        marker(4, records.ABORT, 1),
        data(5, 1),
        marker(7, records.COMMIT, 2),
        marker(8, records.COMMIT, 1),
        data(9, 7, transactional=False),
        data(11, 1),
        marker(13, records.ABORT, 1),
    ]
    view = memoryview(b"".join(log))
    aborted = [(1, 11), (1, 0)]
    everything = Fetched("t", 0, 0, 14, 14, 0, [], view)
    found, end = _batches(everything, 0, False)
    assert (found, end) == ([log[0], log[1], log[3], log[6], log[7]], 14)
    found, end = _batches(everything._replace(aborted=aborted), 0, True)
    assert (found, end) == ([log[1], log[3], log[6]], 14)
    # A marker before the place that is asked for ends its transaction, too.
    found, end = _batches(everything._replace(aborted=aborted), 5, True)
    assert (found, end) == ([log[3], log[6]], 14)
    # From the middle, and cut in the last batch.
    found, end = _batches(everything._replace(records=view[:-1]), 3, False)
    assert (found, end) == ([log[1], log[3], log[6], log[7]], 13)
