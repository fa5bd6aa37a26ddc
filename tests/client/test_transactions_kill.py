"""Read, transform, write and commit both while broker and workers are killed: each input counts once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from tests.longer import LONGER
from tests.serve_process import ServeProcess

from headrace.client import EARLIEST, LATEST, Client, ClientError
from headrace.client import coordinator as coordinator_module
from headrace.client.cluster import Partition
from headrace.client.transactional import TransactionalProducer

INPUT, OUTPUT, GROUP = "numbers", "squares", "squaring"
PARTITIONS, COUNT = 2, 300
PLACES: list[Partition] = [(INPUT, index) for index in range(PARTITIONS)]


async def transform(bootstrap: str, dice: random.Random) -> None:
    """One worker, from its start until it has come to the end or is cancelled; it never says goodbye."""
    async with Client(bootstrap, timeout=20) as client:
        producer = client.transactional("worker", linger=0)
        await producer.init()
        marks = await client.admin.committed(GROUP, PLACES, stable=True)
        ends = await client.admin.list_offsets(dict.fromkeys(PLACES, LATEST))
        async with client.consumer(committed=True, partition_bytes=200) as consumer:
            await consumer.assign({each: marks[each].offset if each in marks else 0 for each in PLACES})
            async for chunk in consumer.chunks({each: ends[each].offset for each in PLACES}):
                await one(producer, consumer.parse(chunk), {(chunk.topic, chunk.partition): chunk.next_offset}, dice)


async def one(
    producer: TransactionalProducer, found: list[object], marks: dict[Partition, int], dice: random.Random
) -> None:
    producer.begin()
    for record in found:
        number = int(record.value)  # type: ignore[attr-defined]
        await producer.send(OUTPUT, b"%d" % number**2, partition=number % PARTITIONS)
        if dice.random() < 0.05:
            await producer.flush()
    await producer.send_offsets(GROUP, marks)
    await (producer.abort() if dice.random() < 0.1 else producer.commit())
    if producer._commits is False:
        raise ClientError("given up by the dice: start again from the mark")


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 2 + 10 * LONGER))]
)
async def test_each_input_counts_once(seed: int, second: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not second:
        monkeypatch.setattr(coordinator_module, "SECOND_GENERATION", 99)
    dice = random.Random(seed)
    kills, most = 0, 3 if seed == 1 else 10
    with ServeProcess(tmp_path / "data") as serving:
        async with Client(serving.kafka) as client:
            for topic in (INPUT, OUTPUT):
                await client.admin.create_topic(topic, PARTITIONS)
            async with client.producer(batch_bytes=100) as producer:
                for number in range(COUNT):
                    await producer.send(INPUT, b"%d" % number, partition=number % PARTITIONS)
        while True:
            worker = asyncio.ensure_future(transform(serving.kafka, dice))
            done, _ = await asyncio.wait([worker], timeout=dice.uniform(0.05, 0.6) if kills < most else 60)
            if done and worker.exception() is None:
                break
            if kills < most:
                kills += 1
                if dice.random() < 0.6:
                    await asyncio.to_thread(serving.kill)
                    await asyncio.to_thread(serving.start)
                    # A worker that lived through it goes on by itself.
                    if dice.random() < 0.5:
                        done, _ = await asyncio.wait([worker], timeout=5)
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientError):
                await worker
        async with Client(serving.kafka) as client, client.consumer(committed=True) as consumer:
            await consumer.assign({(OUTPUT, index): EARLIEST for index in range(PARTITIONS)})
            found = [record async for record in consumer.records(await consumer.end_offsets())]
            left = await client.admin.committed(GROUP, PLACES, stable=True)
            ends = await client.admin.list_offsets(dict.fromkeys(PLACES, LATEST))
    assert kills >= 2
    for index in range(PARTITIONS):
        squares = [int(record.value or b"") for record in found if record.partition == index]
        assert squares == [number**2 for number in range(index, COUNT, PARTITIONS)]
    assert {each: at.offset for each, at in left.items()} == {each: at.offset for each, at in ends.items()}
