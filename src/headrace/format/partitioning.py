"""Which partition a key belongs to, as Kafka's clients say it: murmur2, so that all of them agree."""

from __future__ import annotations

import cython

Buffer = bytes | bytearray | memoryview


# Declared, because a literal of more than 31 bits makes an object of every number that it meets.
SEED = cython.declare(cython.uint, 0x9747B28C)
MULTIPLIER = cython.declare(cython.uint, 0x5BD1E995)
# The masks are for the interpreter, whose numbers do not wrap; compiled, they cost nothing.
WRAP = cython.declare(cython.uint, 0xFFFFFFFF)


@cython.cfunc
@cython.exceptval(check=False)
def hash_at(key: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.uint:
    """The hash of `length` bytes from `start` on, which must be there."""
    position: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + length
    mixed: cython.uint
    left: cython.Py_ssize_t = length & 3
    state: cython.uint = (SEED ^ length) & WRAP
    while position + 4 <= end:
        mixed = key[position + 3]
        mixed = (mixed << 8) | key[position + 2]
        mixed = (mixed << 8) | key[position + 1]
        mixed = (mixed << 8) | key[position]
        mixed = (mixed * MULTIPLIER) & WRAP
        mixed ^= mixed >> 24
        mixed = (mixed * MULTIPLIER) & WRAP
        state = (state * MULTIPLIER) & WRAP
        state ^= mixed
        position += 4
    if left:
        mixed = key[position]
        if left > 1:
            mixed |= key[position + 1] << 8
        if left > 2:
            mixed |= key[position + 2] << 16
        state ^= mixed
        state = (state * MULTIPLIER) & WRAP
    state ^= state >> 13
    state = (state * MULTIPLIER) & WRAP
    state ^= state >> 15
    return state


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of Kafka's default partitioner."""
    key: bytes = bytes(data)
    return int(hash_at(key, 0, len(key)))


def partition_of(key: Buffer, partitions: int) -> int:
    """The partition of a key among `partitions`, the same as Kafka's Java client and this one's other builds choose."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
