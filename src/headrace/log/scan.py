"""Walking over the batches of a file, without taking more of it into memory than a part of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from headrace.ground.disk import File
from headrace.log.batch import CRC_FROM, HEADER_BYTES, PREFIX, PREFIX_BYTES, BatchHeader

MAGIC = 2
# What a look-up reads at once: about two index intervals, so that one read is mostly enough.
WALK_BYTES = 8192
# What a pass over a whole file reads at once.
SCAN_BYTES = 1 << 18
CRC_BYTES = 1 << 20


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
