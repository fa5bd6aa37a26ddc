# cython: boundscheck=False, wraparound=False
"""Messages out, and back: deliveries into frames, FINs into numbers.

A claim goes in whole and comes out as frames that are ready to be written; a run of FINs in a receive buffer comes out
as numbers. A message's id carries where it is (`message_id.py`), so there is no table of ids.
"""

from __future__ import annotations

from array import array

import cython

from headrace.format.message_id import ALPHABET, NUMBERS

if cython.compiled:
    from cython.cimports.headrace.broker.queues.delivery import Claimed
    from cython.cimports.headrace.doors.nsq.nsqd.publish_wire import number_bytes, put_number
    from cython.cimports.headrace.format.records import Reader
    from cython.cimports.libc.string import memcpy
else:
    from headrace.broker.queues.delivery import Claimed
    from headrace.doors.nsq.nsqd.publish_wire import number_bytes, put_number
    from headrace.format.records import Reader

# "FIN ", an id, a line's end.
FIN_BYTES = cython.declare(cython.Py_ssize_t, 21)
# Named, because a literal beyond 32 bits is a Python number in compiled code too, and makes one for every message.
UINT32_MAX = cython.declare(cython.longlong, 4294967295)
# The last millisecond whose nanoseconds fit 64 bits.
TIMESTAMP_MS_MAX = cython.declare(cython.longlong, 9223372036854)
# Before the body of a message frame: size, kind, time, attempts, id.
FRAME_HEAD = cython.declare(cython.Py_ssize_t, 34)
# The cells of one message of a Claimed, as `headrace.broker.queues.delivery` lays them out.
STRIDE = cython.declare(cython.Py_ssize_t, 11)


@cython.cfunc
@cython.exceptval(check=False)
def half(at: cython.p_const_uchar, position: cython.Py_ssize_t, numbers: cython.p_const_uchar) -> cython.longlong:
    """48 bits of an id, or -1 where they are none."""
    value: cython.longlong = 0
    bad: cython.uint = 0
    index: cython.Py_ssize_t
    number: cython.uint
    for index in range(8):
        number = numbers[at[position + index]]
        bad |= number
        value = (value << 6) | number
    return -1 if bad > 63 else value


def fins(buffer: bytearray, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> array[int]:
    """The run of whole FINs that begins at `position`, 21 bytes each: their lanes, offsets and attempts as triples."""
    at: cython.p_const_uchar = buffer
    table: bytes = NUMBERS
    letters: cython.p_const_uchar = table
    count: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    high: cython.longlong
    low: cython.longlong
    while position + (count + 1) * FIN_BYTES <= end and fin_at(at, position + count * FIN_BYTES):
        count += 1
    out: array[int] = array("q", bytes(24 * count))
    numbers: cython.longlong[::1] = out
    for index in range(count):
        high = half(at, position + index * FIN_BYTES + 4, letters)
        low = half(at, position + index * FIN_BYTES + 12, letters)
        if high < 0 or low < 0:
            return out[: 3 * index]
        numbers[3 * index] = high >> 31
        numbers[3 * index + 1] = ((high & 0x7FFFFFFF) << 32) | (low >> 16)
        numbers[3 * index + 2] = low & 0xFFFF
    return out


@cython.cfunc
@cython.exceptval(check=False)
def fin_at(at: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.bint:
    """Whether the 21 bytes there are a FIN, as far as the id is not looked at."""
    return (
        at[position] == 0x46
        and at[position + 1] == 0x49
        and at[position + 2] == 0x4E
        and at[position + 3] == 0x20
        and at[position + 20] == 0x0A
    )


@cython.cfunc
@cython.exceptval(check=False)
def put_int(
    out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t
) -> cython.void:
    """Write a number of 0 or more, big-endian."""
    while size > 0:
        size -= 1
        out[position + size] = value & 0xFF
        value >>= 8


@cython.cfunc
@cython.exceptval(check=False)
def put_half(
    out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong, letters: cython.p_const_uchar
) -> cython.void:
    """Write 48 bits of an id."""
    index: cython.Py_ssize_t = 8
    while index > 0:
        index -= 1
        out[position + index] = letters[value & 63]
        value >>= 6


@cython.cfunc
@cython.exceptval(check=False)
def put_bytes(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    at: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a part of a record; the position behind it. A part of -1 bytes is none."""
    if size <= 0:
        return position
    if cython.compiled:
        memcpy(out + position, at + start, size)
    else:
        out[position : position + size] = at[start : start + size]
    return position + size


@cython.cfunc
@cython.exceptval(check=False)
def length_bytes(length: cython.longlong) -> cython.Py_ssize_t:
    """The bytes of a nullable length, -1 for null."""
    return number_bytes(length) if length >= 0 else 1


@cython.cfunc
@cython.exceptval(check=False)
def put_length(out: cython.p_uchar, position: cython.Py_ssize_t, length: cython.longlong) -> cython.Py_ssize_t:
    """Write a nullable length, -1 for null."""
    if length >= 0:
        return put_number(out, position, length)
    out[position] = 1
    return position + 1


@cython.cfunc
@cython.exceptval(-1)
def body_bytes(claimed: Claimed, cell: cython.Py_ssize_t, extended: cython.bint) -> cython.Py_ssize_t:
    """The bytes of one message's body on the wire."""
    key: cython.longlong = claimed.cells[cell + 4]
    value: cython.longlong = claimed.cells[cell + 6]
    size: cython.Py_ssize_t = value if value > 0 else 0
    if extended:
        size += length_bytes(key) + length_bytes(value) + number_bytes(claimed.cells[cell + 8])
        size += claimed.cells[cell + 9] - claimed.cells[cell + 7]
        if key > 0:
            size += key
    return size


def frames(claimed: Claimed, extended: cython.bint) -> bytearray:
    """The frames of messages that were just handed to a consumer, ready to be written."""
    alphabet: bytes = ALPHABET
    letters: cython.p_const_uchar = alphabet
    lane: cython.longlong = claimed.lane
    total: cython.Py_ssize_t = claimed.count * FRAME_HEAD
    number: cython.Py_ssize_t
    cell: cython.Py_ssize_t
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    offset: cython.longlong
    attempt: cython.longlong
    timestamp: cython.longlong
    reader: Reader
    at: cython.p_const_uchar
    for number in range(claimed.count):
        total += body_bytes(claimed, number * STRIDE, extended)
    out: bytearray = bytearray(total)
    into: cython.p_uchar = out
    for number in range(claimed.count):
        cell = number * STRIDE
        size = body_bytes(claimed, cell, extended)
        offset = claimed.cells[cell]
        attempt = claimed.cells[cell + 1]
        timestamp = claimed.cells[cell + 2]
        reader = claimed.readers[claimed.cells[cell + 10]]
        at = reader.bytes_at
        # Size without itself; a message is of kind 2. NSQ counts nanoseconds from 1970, in 64 bits.
        put_int(into, position, size + FRAME_HEAD - 4, 4)
        put_int(into, position + 4, 2, 4)
        put_int(into, position + 8, timestamp * 1000000 if 0 <= timestamp <= TIMESTAMP_MS_MAX else 0, 8)
        put_int(into, position + 16, attempt, 2)
        put_half(into, position + 18, (lane << 31) | (offset >> 32), letters)
        put_half(into, position + 26, ((offset & UINT32_MAX) << 16) | attempt, letters)
        position += FRAME_HEAD
        if extended:
            position = put_length(into, position, claimed.cells[cell + 4])
            position = put_bytes(into, position, at, claimed.cells[cell + 3], claimed.cells[cell + 4])
            position = put_length(into, position, claimed.cells[cell + 6])
        position = put_bytes(into, position, at, claimed.cells[cell + 5], claimed.cells[cell + 6])
        if extended:
            position = put_number(into, position, claimed.cells[cell + 8])
            position = put_bytes(
                into, position, at, claimed.cells[cell + 7], claimed.cells[cell + 9] - claimed.cells[cell + 7]
            )
    return out
