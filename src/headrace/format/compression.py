"""The four codecs of a record batch, bounded: nothing unpacks to more than the caller allows.

The one idea: how much a frame unpacks to is the sender's word, so it is never believed. A frame is unpacked into a
buffer of our own size; where that is too small the next one is larger, up to the bound, and past the bound the frame is
refused. Snappy's blocks do say their size in front, and are refused by it before anything is allocated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cramjam

from headrace.errors import InvalidRecords, UnpacksTooLarge, UnsupportedBatch

Buffer = bytes | bytearray | memoryview

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# Snappy as the Java clients frame it: this magic, two int32 versions, then blocks, each behind its int32 length.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16
# Three bytes of snappy can stand for 64: a block that claims more than this many times its own size lies.
SNAPPY_RATIO_MAX = 22

# Levels as Kafka's clients have them. The library's own for lz4 and zstd take five and ten times as long.
GZIP_LEVEL = 6
LZ4_LEVEL = 1
ZSTD_LEVEL = 3

# The first buffer is this much larger than the frame, each further one that much larger than the last.
GROWTH = 8
FIRST_BUFFER_BYTES = 16_384
# How cramjam says that the output buffer is full; every other message means a damaged frame.
BUFFER_FULL = "failed to write whole buffer"

# Buffers up to this size are kept, one for each thread: to clear a new one costs a third of what unpacking does.
KEPT_BYTES_MAX = 1 << 20
KEPT = threading.local()

# What was unpacked before it is asked for, off the loop (`headrace.broker.unpacking`), or why it cannot be: by codec
# and compressed bytes. On one loop, and empty but for the moment in which it is needed.
AHEAD: dict[tuple[int, bytes], bytes | InvalidRecords] = {}


def compress(codec: int, data: Buffer) -> bytes:
    """Pack `data`. Snappy comes out raw, in one block, as Kafka's non-Java clients write it."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=GZIP_LEVEL))
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        # Kafka's Java client reads no frames whose blocks lean on each other, which is what lz4 writes if not told.
        frame = cramjam.lz4.Compressor(level=LZ4_LEVEL, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL))
    raise UnsupportedBatch(f"compression {codec} is not known: use 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)")


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """Unpack `data` to at most `max_bytes`. Raises InvalidRecords for a damaged frame, UnpacksTooLarge for one that
    holds more."""
    if AHEAD:
        ready = AHEAD.get((codec, bytes(data)))
        if isinstance(ready, InvalidRecords):
            raise ready
        if ready is not None:
            return ready
    if codec == NONE:
        if len(data) > max_bytes:
            raise too_large(codec, max_bytes)
        return bytes(data)
    if codec == GZIP:
        return unpack(codec, cramjam.gzip.decompress_into, data, max_bytes)
    if codec == SNAPPY:
        return unsnap(data, max_bytes)
    if codec == LZ4:
        return unpack(codec, cramjam.lz4.decompress_into, data, max_bytes)
    if codec == ZSTD:
        return unpack(codec, cramjam.zstd.decompress_into, data, max_bytes)
    raise UnsupportedBatch(f"compression {codec} is not known: use 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)")


def too_large(codec: int, max_bytes: int) -> UnpacksTooLarge:
    return UnpacksTooLarge(f"the {NAMES[codec]} records unpack to more than {max_bytes} bytes: send smaller batches")


def unpack(codec: int, decompress_into: Callable[[Buffer, memoryview], int], data: Buffer, max_bytes: int) -> bytes:
    """Unpack a frame of a streaming codec into ever larger buffers, up to the bound."""
    size = min(max_bytes, max(FIRST_BUFFER_BYTES, GROWTH * len(data)))
    while True:
        buffer = room(size)
        try:
            length = decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            if BUFFER_FULL not in str(error):
                raise InvalidRecords(f"the {NAMES[codec]} frame of the batch is damaged: {error}") from None
            if size >= max_bytes:
                raise too_large(codec, max_bytes) from None
            size = min(max_bytes, size * GROWTH)
        else:
            return bytes(buffer[:length])


def room(size: int) -> memoryview:
    """Memory to unpack into, until the next call."""
    if size > KEPT_BYTES_MAX:
        return memoryview(bytearray(size))
    kept = getattr(KEPT, "buffer", None)
    if kept is None or len(kept) < size:
        kept = KEPT.buffer = memoryview(bytearray(size))
    return kept[:size]


def unsnap(data: Buffer, max_bytes: int) -> bytes:
    """Unpack snappy, raw or in the Java clients' framing."""
    view = memoryview(data)
    if bytes(view[:8]) != XERIAL_MAGIC:
        return unsnap_block(view, max_bytes)
    parts = []
    left = max_bytes
    position = XERIAL_HEADER_BYTES
    if position > len(view):
        raise InvalidRecords(f"the snappy frame of the batch is damaged: {len(view)} bytes do not hold its header")
    while position < len(view):
        length = int.from_bytes(view[position : position + 4], "big")
        position += 4
        rest = len(view) - position
        if length > rest or length == 0:
            raise InvalidRecords(f"the snappy frame of the batch is damaged: a block of {length} bytes in {rest}")
        part = unsnap_block(view[position : position + length], left)
        parts.append(part)
        left -= len(part)
        position += length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unsnap_block(block: Buffer, max_bytes: int) -> bytes:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > max_bytes:
            raise too_large(SNAPPY, max_bytes)
        if length > SNAPPY_RATIO_MAX * len(block):
            raise InvalidRecords(
                f"the snappy frame of the batch is damaged: {len(block)} bytes cannot unpack to {length}"
            )
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise InvalidRecords(f"the snappy frame of the batch is damaged: {error}") from None
