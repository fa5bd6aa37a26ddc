"""Bodies that a producer has compressed: unpacked on their way in, so that every door reads the same.

A few kilobytes can unpack to megabytes. What fits into a small bound is unpacked on the loop, since a hand-over would
cost more; the rest in a thread. Nothing unpacks to more than a message may have.
"""

from __future__ import annotations

import zlib

from headrace.doors.rocketmq.messages import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT
from headrace.errors import HeadraceError, InvalidRecords, UnpacksTooLarge
from headrace.format.compression import LZ4, ZSTD, decompress

INLINE_BYTES = 65_536

# RocketMQ's numbers; 0 is what clients write that know of one only.
_ZLIB = (0, 3)
_CODECS = {1: LZ4, 2: ZSTD}


class TooLargeHere(HeadraceError):
    """A body is to be unpacked off the loop."""


def clear_compression(sys_flag: int) -> int:
    """The system flag of an unpacked message."""
    return sys_flag & ~(COMPRESSED | COMPRESSION_MASK)


def unpack(sys_flag: int, body: bytes, max_bytes: int, here_bytes: int = INLINE_BYTES) -> bytes:
    """A body unpacked. Raises TooLargeHere where it has more than `here_bytes`, UnpacksTooLarge where it has more than
    `max_bytes`, InvalidRecords where it is damaged."""
    bound = min(max_bytes, here_bytes)
    try:
        return _unpack((sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT, body, bound)
    except UnpacksTooLarge:
        if bound < max_bytes:
            raise TooLargeHere(f"the body unpacks to more than {bound} bytes") from None
        raise


def _unpack(kind: int, body: bytes, max_bytes: int) -> bytes:
    if kind in _CODECS:
        return decompress(_CODECS[kind], body, max_bytes)
    if kind not in _ZLIB:
        raise InvalidRecords(f"compression {kind} is not known: use 1 (lz4), 2 (zstd) or 3 (zlib)")
    # With the head of either format: clients of gRPC call theirs gzip.
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        unpacked = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRecords(f"the compressed body is damaged: {error}") from None
    if len(unpacked) > max_bytes:
        raise UnpacksTooLarge(f"the body unpacks to more than {max_bytes} bytes: send smaller messages")
    if not stream.eof:
        raise InvalidRecords("the compressed body is cut")
    return unpacked
