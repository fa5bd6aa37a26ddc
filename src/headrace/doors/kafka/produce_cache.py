# cython: boundscheck=False, wraparound=False
"""The request cache of Produce: a request like one before, and its reply.

A producer sends the same bytes over and over between the correlation id and the records: client id, acks, topic and
partition. With those bytes cached, one comparison finds the records of the next such request, and its reply is the last
one with four numbers written over it. A hit is checked for everything that must hold for that; nothing is read outside
of the frame.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp

# A request: its length, API key and version, correlation id; what is remembered begins behind them.
KIND_AT = cython.declare(cython.Py_ssize_t, 4)
CORRELATION_AT = cython.declare(cython.Py_ssize_t, 8)
PREFIX_AT = cython.declare(cython.Py_ssize_t, 12)
FLEXIBLE = cython.declare(cython.int, 9)

# The header of a record batch: all of it, its length field, format, and the lower byte of its attributes.
HEADER_BYTES = cython.declare(cython.Py_ssize_t, 61)
LENGTH_END = cython.declare(cython.Py_ssize_t, 12)
LENGTH_AT = cython.declare(cython.Py_ssize_t, 8)
MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 22)
# Transactional batches and control batches.
SPECIAL = cython.declare(cython.int, 0x30)

# Declared, because a literal of more than 31 bits makes an object of every number that it meets.
INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
INT32_SPAN = cython.declare(cython.longlong, 0x100000000)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def uint32(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    found: cython.longlong = data[at]
    found = (found << 8) | data[at + 1]
    found = (found << 8) | data[at + 2]
    return (found << 8) | data[at + 3]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put(data: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    """Write the lower `size` bytes of a number."""
    last: cython.Py_ssize_t = at + size
    while last > at:
        last -= 1
        data[last] = value & 0xFF
        value >>= 8


@cython.cclass
class CachedRequest:
    """What the requests of one kind have in common, and their replies."""

    def __init__(
        self, version: int, prefix: bytes, codec_max: int, size_max: int, head: bytes, tail: bytes, with_start: bool
    ) -> None:
        self.version = version
        self.prefix = prefix
        self.codec_max = codec_max
        self.size_max = size_max
        # Length, correlation id, up to the partition, error, base offset, append time, log start, the rest.
        self.offset_at = 8 + len(head) + 2
        self.with_start = with_start
        numbers: int = 24 if with_start else 16
        size: int = self.offset_at + numbers + len(tail)
        self.model = (size - 4).to_bytes(4, "big") + bytes(4) + head + bytes(2 + numbers) + tail

    def match(
        self, buffer: bytearray, position: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> tuple[int, int, int, int] | None:
        """Of the frame at `position`, if it is whole before `end`: where its one record batch begins and ends, where
        the frame ends, and its correlation id. None: a miss, or something else than one plain batch of a known codec
        stands in it, and it is to be parsed."""
        at: cython.Py_ssize_t = position + PREFIX_AT + len(self.prefix)
        data: cython.p_const_uchar = buffer
        stop: cython.Py_ssize_t
        until: cython.Py_ssize_t
        size: cython.longlong
        shift: cython.int = 0
        byte: cython.longlong
        if end > len(buffer) or end - at < HEADER_BYTES + 4:
            return None
        size = uint32(data, position)
        if size > self.size_max or size > end - position - 4 or uint32(data, position + KIND_AT) != self.version:
            return None
        stop = until = position + 4 + size
        if cython.compiled:
            expected: cython.p_const_uchar = self.prefix
            if memcmp(data + position + PREFIX_AT, expected, at - position - PREFIX_AT) != 0:
                return None
        elif not buffer.startswith(self.prefix, position + PREFIX_AT):
            return None
        if stop - at < HEADER_BYTES + 4:
            return None
        if self.version >= FLEXIBLE:
            size = 0
            while True:
                byte = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 28:
                    return None
            size -= 1
            until -= 3
            # Nothing may follow but the empty tagged fields of partition, topic and request.
            if until < at or data[until] or data[until + 1] or data[until + 2]:
                return None
        else:
            size = uint32(data, at)
            at += 4
        if size != until - at or size < HEADER_BYTES or uint32(data, at + LENGTH_AT) + LENGTH_END != size:
            return None
        byte = data[at + ATTRIBUTES_AT]
        if data[at + MAGIC_AT] != 2 or byte & SPECIAL or byte & 7 > self.codec_max:
            return None
        size = uint32(data, position + CORRELATION_AT)
        return at, until, stop, size if size <= INT32_MAX else size - INT32_SPAN

    def reply(
        self,
        correlation: cython.longlong,
        base_offset: cython.longlong,
        append_time: cython.longlong,
        start: cython.longlong,
    ) -> bytes:
        """The reply of one that went well."""
        made: bytearray = bytearray(self.model)
        data: cython.p_uchar = made
        put(data, 4, 4, correlation)
        put(data, self.offset_at, 8, base_offset)
        put(data, self.offset_at + 8, 8, append_time)
        if self.with_start:
            put(data, self.offset_at + 16, 8, start)
        return bytes(made)
