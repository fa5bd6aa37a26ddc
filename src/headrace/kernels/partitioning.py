"""Which partition a key belongs to, as Kafka's clients say it: murmur2, so that all of them agree."""

from __future__ import annotations

import cython

Buffer = bytes | bytearray | memoryview


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of Kafka's default partitioner."""
    key: bytes = bytes(data)
    at: cython.p_const_uchar = key
    length: cython.Py_ssize_t = len(key)
    position: cython.Py_ssize_t = 0
    mixed: cython.uint
    left: cython.Py_ssize_t = length & 3
    # The masks are for the interpreter, whose numbers do not wrap; compiled, they cost nothing.
    state: cython.uint = (0x9747B28C ^ length) & 0xFFFFFFFF
    while position + 4 <= length:
        mixed = at[position + 3]
        mixed = (mixed << 8) | at[position + 2]
        mixed = (mixed << 8) | at[position + 1]
        mixed = (mixed << 8) | at[position]
        mixed = (mixed * 0x5BD1E995) & 0xFFFFFFFF
        mixed ^= mixed >> 24
        mixed = (mixed * 0x5BD1E995) & 0xFFFFFFFF
        state = (state * 0x5BD1E995) & 0xFFFFFFFF
        state ^= mixed
        position += 4
    if left:
        mixed = at[position]
        if left > 1:
            mixed |= at[position + 1] << 8
        if left > 2:
            mixed |= at[position + 2] << 16
        state ^= mixed
        state = (state * 0x5BD1E995) & 0xFFFFFFFF
    state ^= state >> 13
    state = (state * 0x5BD1E995) & 0xFFFFFFFF
    state ^= state >> 15
    return int(state)


def partition_of(key: Buffer, partitions: int) -> int:
    """The partition of a key among `partitions`, the same as Kafka's Java client and this one's other builds choose."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
