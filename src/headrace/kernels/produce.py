"""Where the records of a Produce request are, if it is one like the last.

A producer sends the same bytes over and over between the correlation id and the records: client id, acks, topic and
partition. Whoever remembers those bytes finds the records of the next such request by one comparison. What is asked
here is everything that must hold for that, of a frame whose bounds are known; nothing is read outside of them.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp

OTHER: int = -1
UNUSUAL: int = 0

# The header of a record batch: all of it, its length field, format, and the lower byte of its attributes.
HEADER_BYTES = cython.declare(cython.Py_ssize_t, 61)
PREFIX_BYTES = cython.declare(cython.Py_ssize_t, 12)
LENGTH_AT = cython.declare(cython.Py_ssize_t, 8)
MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 22)
# Transactional batches and control batches.
SPECIAL = cython.declare(cython.int, 0x30)


def records_at(
    buffer: bytearray,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    prefix: bytes,
    flexible: cython.bint,
    codec_max: cython.int,
) -> int:
    """Where the one record batch begins in a frame that ends at `stop` and has `prefix` at `start`; it ends there too,
    or three bytes earlier in a flexible version. OTHER: the frame does not have the prefix. UNUSUAL: it is to be
    parsed, because something else than one plain batch follows, or one of a codec above `codec_max`."""
    at: cython.Py_ssize_t = start + len(prefix)
    end: cython.Py_ssize_t = stop
    data: cython.p_const_uchar = buffer
    size: cython.longlong = 0
    shift: cython.int = 0
    byte: cython.longlong
    if cython.compiled:
        expected: cython.p_const_uchar = prefix
        if at > stop or stop > len(buffer) or memcmp(data + start, expected, at - start) != 0:
            return OTHER
    elif stop > len(buffer) or not buffer.startswith(prefix, start, stop):
        return OTHER
    if end - at < HEADER_BYTES + 4:
        return UNUSUAL
    if flexible:
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                return UNUSUAL
        size -= 1
        end -= 3
        # Nothing may follow but the empty tagged fields of partition, topic and request.
        if end < at or data[end] or data[end + 1] or data[end + 2]:
            return UNUSUAL
    else:
        size = data[at]
        size = (size << 8) | data[at + 1]
        size = (size << 8) | data[at + 2]
        size = (size << 8) | data[at + 3]
        at += 4
    if size != end - at or size < HEADER_BYTES:
        return UNUSUAL
    size = data[at + LENGTH_AT]
    size = (size << 8) | data[at + LENGTH_AT + 1]
    size = (size << 8) | data[at + LENGTH_AT + 2]
    size = (size << 8) | data[at + LENGTH_AT + 3]
    if size + PREFIX_BYTES != end - at or data[at + MAGIC_AT] != 2:
        return UNUSUAL
    byte = data[at + ATTRIBUTES_AT]
    if byte & SPECIAL or byte & 7 > codec_max:
        return UNUSUAL
    return int(at)
