"""Reading a bucket's log, a chunk at a time: what is in memory at once, what is not off the loop."""

from __future__ import annotations

import asyncio

from headrace.broker.reading import read
from headrace.broker.timer.scan import Scan
from headrace.errors import CorruptLog
from headrace.log.interface import Partition
from headrace.runtime import Runtime

# A kernel takes about a millisecond for this much, in the worst case: small messages, each in a batch of its own.
CHUNK_BYTES = 131_072
# Pairs that are sorted out between two turns of the loop.
STEP_PAIRS = 50_000


async def chunk_at(runtime: Runtime, partition: Partition, offset: int, max_bytes: int = CHUNK_BYTES) -> bytes:
    """Batches from the one that holds `offset`, up to the high watermark. Raises CorruptLog where there is none."""
    data = await read(runtime, partition, offset, max_bytes, committed=False)
    if not data:
        raise CorruptLog(f"{partition.topic.name} partition {partition.index} has no batch at offset {offset}")
    return data


async def read_all(runtime: Runtime, partition: Partition, scan: Scan) -> None:
    """Read what `scan` wants to know; its index is then complete, but not in order."""
    while not scan.done:
        before = scan.next
        scan.read(await chunk_at(runtime, partition, before))
        if scan.next == before:
            raise CorruptLog(f"{partition.topic.name} partition {partition.index} has no whole batch at {before}")
        await asyncio.sleep(0)
    while True:
        if scan.finish(STEP_PAIRS):
            return
        await asyncio.sleep(0)
