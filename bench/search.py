"""What a search index costs, and what it gives.

    .venv/bin/python -m bench.search               # 4 GB, some two minutes; --gigabytes for more or less

One process, without doors: messages of 1 KiB with two keys each (RocketMQ's KEYS and UNIQ_KEY), sixteen a batch, on one
partition. It prints the size of the index, what one key takes to be found, warm and with nothing of the files in the
page cache, and what appending costs with the index and without, turn by turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from headrace.broker.broker import Broker
from headrace.broker.search.query import Query, unique_key
from headrace.config import Config
from headrace.format import records
from headrace.log.interface import Partition, Topic
from headrace.log.native import NativeLog
from headrace.runtime.real import real_runtime

GB = 1e9
BATCH = 16
VALUE = random.Random(1).randbytes(900)
FINDS = 50
ROUNDS = 7
ROUND_BATCHES = 4_000
AIM_GB = 10


def batches(first: int, count: int) -> Iterator[bytearray]:
    """Batches of messages about 1 KiB long, whose keys no other has."""
    now = time.time_ns() // 1_000_000
    for number in range(first, first + count):
        rows = []
        for index in range(number * BATCH, (number + 1) * BATCH):
            headers = [("UNIQ_KEY", b"7F0000010BB8%020X" % index), ("KEYS", b"order-%016d" % index)]
            rows.append((now, None, VALUE, [*headers, ("TAGS", b"paid")]))
        yield records.build(rows)


async def append(partition: Partition, made: list[bytearray]) -> None:
    for batch in made:
        partition.append(batch)
        if not partition.end % 1_024:
            await asyncio.sleep(0)
    if partition.high_watermark < partition.end:
        flushed = asyncio.Event()
        while partition.high_watermark < partition.end:
            partition.wait(flushed.set)
            await flushed.wait()
            flushed.clear()


async def fill(topic: Topic, size: float) -> int:
    """Batches appended."""
    partition, count = topic.partitions[0], 0
    while True:
        made = list(batches(count, 1_000))
        await append(partition, made)
        count += len(made)
        if count * len(made[0]) >= size:
            return count


async def wait_for_index(broker: Broker, topic: Topic) -> int:
    """Offsets that no index speaks of, once these are no more than a block's."""
    partition = broker.log.local(topic.partitions[0])
    question = Query((unique_key(b"x"),)).question
    while True:
        told = await partition.suspects(question, partition.high_watermark, backwards=True)
        left = partition.high_watermark - told.first if told.batches is None else 0
        if left < 20_000:
            return left
        await asyncio.sleep(0.2)


def size_of(folder: Path, suffix: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"orders-0/*{suffix}"))


def forget(folder: Path) -> None:
    """Let the page cache have nothing of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def find(
    broker: Broker, topic: Topic, numbers: list[int], folder: Path | None = None
) -> list[tuple[float, float]]:
    """Seconds that each takes, by the clock and of CPU; with a folder, nothing of it is in the page cache before."""
    took = []
    for number in numbers:
        if folder is not None:
            forget(folder)
        begun, cpu = time.perf_counter(), time.process_time()
        page = await broker.search.page(topic, Query((unique_key(b"7F0000010BB8%020X" % number),)), 10, 1 << 20)
        took.append((time.perf_counter() - begun, time.process_time() - cpu))
        assert page.next is None
        assert [match.record[0] for match in page.found] == ([number] if number < topic.partitions[0].end else [])
    return took


async def appending(broker: Broker) -> None:
    """CPU of the broker's process for a batch, on a topic without an index and on one with it, turn by turn."""
    topics = [
        await broker.topics.create("append-without", 1),
        await broker.topics.create("append-with", 1, {"index": "key,id"}),
    ]
    spent: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 else (1, 0):
            made = list(batches(number * ROUND_BATCHES, ROUND_BATCHES))
            begun = time.process_time()
            await append(topics[which].partitions[0], made)
            # What comes behind it belongs to it: storing, the checkpoint, the index.
            await asyncio.sleep(1.0)
            spent[which].append((time.process_time() - begun) / ROUND_BATCHES * 1e6)
    without, with_index = median(spent[0][1:]), median(spent[1][1:])
    print(
        f"appending a batch of {BATCH}, CPU of the broker: {without:.1f} us without an index, {with_index:.1f} us with"
    )
    print(f"  ratio {with_index / without:.3f}; the index is made in a process of its own")


async def run(folder: Path, gigabytes: float) -> None:
    config = Config(
        data=str(folder), durability="async", checkpoint_ms=1_000, search_index_check_ms=5_000, log_retention_ms=-1,
        search_index_rate_bytes=1 << 40, search_ms=600_000,
    )  # fmt: skip
    runtime = real_runtime(config.data)
    log = NativeLog(runtime, config)
    await log.start()
    broker = Broker(runtime, log, config)
    await broker.start()
    try:
        topic = await broker.topics.create("orders", 1, {"index": "key,id"})
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        count = await fill(topic, gigabytes * GB) * BATCH
        left = await wait_for_index(broker, topic)
        took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        data, index = size_of(folder, ".log"), size_of(folder, ".search")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{count} messages, {data / GB:.2f} GB, written and indexed in {took:.0f} s; {left} of them not yet indexed"
        )
        print(
            f"index: {index / 1e6:.1f} MB, {index / data * 100:.2f} % of the data; {cpu / data * GB:.2f} s of CPU a GB"
        )
        rng = random.Random(2)
        there = [rng.randrange(count) for _ in range(FINDS)]
        missing = [count + each for each in range(FINDS)]
        for what, numbers, cold in (
            ("one key", there, None),
            ("one that is not there", missing, None),
            ("one key, nothing in the page cache", there[:10], folder),
        ):
            seconds = await find(broker, topic, numbers, cold)
            middle, worst = median(each for each, _ in seconds) * 1e3, max(seconds)[0] * 1e3
            cpu_ms = median(each for _, each in seconds) * 1e3
            print(
                f"{what}: {middle:.1f} ms (worst {worst:.1f}), {cpu_ms:.1f} ms of CPU, in {data / GB:.2f} GB; "
                f"as many blocks as {AIM_GB} GB have would take {middle * AIM_GB * GB / data:.0f} ms at most"
            )
        whole = Query((("header:none", b"x" * 20),))
        begun, before_ms = time.perf_counter(), time.process_time()
        page = await broker.search.page(topic, whole, 10, 1 << 20)
        rate = page.scanned_bytes / (time.perf_counter() - begun) / GB
        cpu_rate = page.scanned_bytes / (time.process_time() - before_ms) / GB
        print(f"without an index: {rate:.2f} GB are read a second, {cpu_rate:.2f} a second of CPU")
        await appending(broker)
    finally:
        await broker.stop()
        await log.stop()
        runtime.offload.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--folder", help="where the data goes; a temporary folder if not given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        asyncio.run(run(Path(folder), arguments.gigabytes))


if __name__ == "__main__":
    main()
