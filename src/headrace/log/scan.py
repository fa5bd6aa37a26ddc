"""Walking over the batches of a file, without taking more of it into memory than a part of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from headrace.format.batch import CRC_FROM, HEADER_BYTES, MAGIC, PREFIX, PREFIX_BYTES, STEP, BatchHeader
from headrace.runtime.disk import File

# What a look-up reads at once: about two index intervals, so that one read is mostly enough.
WALK_BYTES = 8192
# What a pass over a whole file reads at once.
SCAN_BYTES = 1 << 18
CRC_BYTES = 1 << 20

# Relative offsets and positions are signed 32-bit integers to Kafka's tools.
RELATIVE_MAX = (1 << 31) - 1

# Position, base offset, size, last offset delta and largest timestamp of a batch.
Step = tuple[int, int, int, int, int]


def walk(file: File, position: int, end: int, chunk: int = WALK_BYTES) -> Iterator[tuple[int, bytes, int]]:
    """For each batch from `position` that is whole before `end`: its position, a buffer, and where in it it begins."""
    while end - position >= HEADER_BYTES:
        buffer = file.read(position, min(chunk, end - position))
        at, size = 0, len(buffer)
        if size < HEADER_BYTES:
            return
        while size - at >= HEADER_BYTES:
            length = PREFIX.unpack_from(buffer, at)[1] + PREFIX_BYTES
            if length < HEADER_BYTES or position + length > end:
                return
            yield position, buffer, at
            position += length
            at += length


def steps(file: File, first: int, position: int, end: int) -> Iterator[Step]:
    """Each batch from `position` of the segment that begins at offset `first`, as far as there are batches before
    `end`."""
    expected = first
    unpack = STEP.unpack_from
    for at, buffer, index in walk(file, position, end):
        base, length, magic, delta, timestamp = unpack(buffer, index)
        # Above the recovery point of a file that was not recovered yet, anything can look like a header.
        if magic != MAGIC or base < expected or delta < 0 or base + delta - first > RELATIVE_MAX:
            return
        expected = base + delta + 1
        yield at, base, length + PREFIX_BYTES, delta, timestamp


def checksum(file: File, position: int, header: BatchHeader, buffer: bytes, index: int) -> int:
    """The CRC-32C of the batch at `position`, which begins at `index` of `buffer`; read in parts of bounded size."""
    end = index + header.size
    crc: int = crc32c(memoryview(buffer)[index + CRC_FROM : end])
    at, rest = position + len(buffer) - index, end - len(buffer)
    while rest > 0:
        part = file.read(at, min(rest, CRC_BYTES))
        if not part:
            break
        crc = crc32c(part, crc)
        at += len(part)
        rest -= len(part)
    return crc
