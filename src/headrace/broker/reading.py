"""Reading the log's bytes inside the broker: what is in memory at once, what is on a cold disk off the loop."""

from __future__ import annotations

from headrace.ground import Ground
from headrace.log.interface import Chunk, FileRange, Partition


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
