"""Reading the log's bytes inside the broker: what is in memory at once, what is on a cold disk off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace.errors import CorruptLog
from headrace.ground import Ground
from headrace.kernels import records
from headrace.kernels.aborted import Aborted
from headrace.log.batch import BatchHeader, batches_in
from headrace.log.interface import AbortedTransaction, Chunk, FileRange, Partition

REPLAY_BYTES = 262_144
# Records decoded between two turns of the loop: about half a millisecond.
STEP_RECORDS = 128


def bytes_now(chunk: Chunk) -> bytes | None:
    """The chunk's bytes, if no part of it would wait for the device; its files are let go. None: nothing was let go,
    and `bytes_of` is the way."""
    parts = chunk.parts
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    ranges = [part for part in parts if isinstance(part, FileRange)]
    if not all(part.file.resident(part.position, part.length) for part in ranges):
        return None
    try:
        return b"".join(
            part.file.read(part.position, part.length) if isinstance(part, FileRange) else part for part in parts
        )
    finally:
        for part in ranges:
            part.file.unpin()


async def bytes_of(ground: Ground, chunk: Chunk) -> bytes:
    """The chunk's bytes, its files read off the loop and let go."""
    found = []
    ranges = [part for part in chunk.parts if isinstance(part, FileRange)]
    try:
        for part in chunk.parts:
            if isinstance(part, FileRange):
                part = await ground.offload.run(part.file.read, part.position, part.length)
            found.append(part)
    finally:
        for part in ranges:
            part.file.unpin()
    return b"".join(found)


async def read(ground: Ground, partition: Partition, offset: int, max_bytes: int, *, committed: bool = True) -> bytes:
    """Whole batches from the one that holds `offset`; the last may be cut. Raises OffsetOutOfRange."""
    while True:
        chunk = partition.read(offset, max_bytes, committed=committed)
        if chunk.cold is None:
            return await bytes_of(ground, chunk)
        await ground.offload.run(chunk.cold)


async def batches(
    ground: Ground, partition: Partition, offset: int, max_bytes: int
) -> list[tuple[BatchHeader, bytes | None]]:
    """Whole batches from the one that holds `offset`, for whoever wants committed records: None in the place of one
    that has none, because it is a marker or was aborted. Raises OffsetOutOfRange."""
    while True:
        chunk = partition.read(offset, max_bytes, committed=True)
        if chunk.cold is None:
            break
        await ground.offload.run(chunk.cold)
    aborted = Aborted(aborted_in(partition, offset, chunk))
    raw = await bytes_of(ground, chunk)
    return [
        (
            header,
            None
            if header.is_control or (header.is_transactional and aborted.has(header.producer_id, header.base_offset))
            else raw[at : at + header.size],
        )
        for at, header in batches_in(raw)
    ]


def aborted_in(partition: Partition, offset: int, chunk: Chunk) -> list[AbortedTransaction]:
    """The aborted transactions of a chunk that was just read at `offset`; if they cannot be told, it is let go."""
    try:
        return partition.aborted(offset, chunk.before)
    except BaseException:
        for part in chunk.parts:
            if isinstance(part, FileRange):
                part.file.unpin()
        raise


async def replay(
    ground: Ground, partition: Partition, unpacked_max: int
) -> AsyncIterator[tuple[BatchHeader, bytes, list[records.Record]]]:
    """All that is durable in a loaded partition of the broker's own, batch by batch and a bounded number of records a
    step, with turns of the loop between. A marker comes without records. Raises CorruptLog."""
    position, end = partition.start, partition.durable
    step = 0
    while position < end:
        raw = await read(ground, partition, position, REPLAY_BYTES, committed=False)
        before = position
        for at, header in batches_in(raw):
            if header.last_offset < position:
                continue
            batch = raw[at : at + header.size]
            # A batch that compaction left empty, and a marker, are a step too.
            for start in range(0, 1 if header.is_control else max(header.record_count, 1), STEP_RECORDS):
                found = [] if header.is_control else records.parse(batch, unpacked_max, start, STEP_RECORDS)
                yield header, batch, found
                step += len(found) + 1
                if step >= STEP_RECORDS:
                    step = 0
                    await asyncio.sleep(0)
            position = header.last_offset + 1
        if position == before:
            raise CorruptLog(
                f"{partition.topic.name} partition {partition.index} has no whole batch at offset {position}"
            )
