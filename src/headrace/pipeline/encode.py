# cython: boundscheck=False, wraparound=False
"""Columns into records: the way back of `headrace.pipeline.arrow`, for the pipeline's sink.

One idea: nothing is made per record. A column is its bytes, and where each row's begin and how many they are; a batch
is built by copying from there. All numbers are little-endian int64, side by side in one `bytes`.
"""

from __future__ import annotations

from typing import NamedTuple

import cython

from headrace.errors import InvalidRecords
from headrace.format.batch import HEADER_BYTES, new_header
from headrace.format.head import seal

if cython.compiled:
    from cython.cimports.headrace.format.partitioning import hash_at
    from cython.cimports.headrace.format.records import Writer, varint_bytes
    from cython.cimports.libc.string import memcpy
else:
    from headrace.format.partitioning import hash_at
    from headrace.format.records import Writer, varint_bytes

RECORD_BYTES_MAX = cython.declare(cython.longlong, 2147483647)
# More than a record takes besides its key and value, and `Writer.reserve` asks for.
ROW_BYTES = cython.declare(cython.longlong, 48)
# Far beyond any calendar, and far from where the difference of two times could overflow.
TIME_MAX = cython.declare(cython.longlong, 9007199254740992)


class Texts(NamedTuple):
    """A column of byte strings."""

    data: bytes
    starts: bytes
    lengths: bytes
    """-1: the row has none."""


@cython.cfunc
@cython.exceptval(check=False)
def number_at(numbers: cython.p_const_uchar, index: cython.Py_ssize_t) -> cython.longlong:
    """One of many numbers."""
    if cython.compiled:
        number: cython.longlong = 0
        memcpy(cython.address(number), numbers + index * 8, 8)
        return number
    else:
        return int.from_bytes(numbers[index * 8 : index * 8 + 8], "little", signed=True)


@cython.cfunc
@cython.exceptval(-2)
def rows_of(texts: Texts) -> cython.Py_ssize_t:
    """How many rows a column has."""
    size: cython.Py_ssize_t = len(texts.starts)
    if size != len(texts.lengths) or size % 8:
        raise InvalidRecords(
            f"a column has {size} bytes of starts and {len(texts.lengths)} of lengths: eight each a row"
        )
    return size // 8


@cython.cfunc
@cython.exceptval(-1)
def must_lie_within(start: cython.longlong, length: cython.longlong, size: cython.longlong) -> cython.int:
    """Raise unless these bytes are there. A length of -1 needs none."""
    if length < -1 or (length >= 0 and (start < 0 or start > size or length > size - start)):
        raise InvalidRecords(f"a row has {length} bytes from {start} on, and its column has {size}")
    return 0


def build_rows(
    rows: bytes, timestamp: int, keys: Texts, values: Texts, compression: int, times: bytes = b""
) -> bytearray:
    """One whole batch of these rows (their numbers), without headers and with base offset 0: all at one time (ms), or
    each at its own of `times`."""
    count: cython.Py_ssize_t = len(rows) // 8
    total: cython.Py_ssize_t = rows_of(values)
    if count == 0:
        raise InvalidRecords("a batch needs at least one record")
    if rows_of(keys) != total:
        raise InvalidRecords(f"there are {total} values and {rows_of(keys)} keys")
    if times and len(times) != total * 8:
        raise InvalidRecords(f"there are {total} values and {len(times)} bytes of times: eight each a row")
    numbers: cython.p_const_uchar = rows
    times_at: cython.p_const_uchar = times
    timed: cython.bint = len(times) > 0
    key_data: bytes = keys.data
    key_starts_of: bytes = keys.starts
    key_lengths_of: bytes = keys.lengths
    value_data: bytes = values.data
    value_starts_of: bytes = values.starts
    value_lengths_of: bytes = values.lengths
    key_starts: cython.p_const_uchar = key_starts_of
    key_lengths: cython.p_const_uchar = key_lengths_of
    value_starts: cython.p_const_uchar = value_starts_of
    value_lengths: cython.p_const_uchar = value_lengths_of
    key_size: cython.longlong = len(key_data)
    value_size: cython.longlong = len(value_data)
    index: cython.Py_ssize_t
    row: cython.longlong
    key_at: cython.longlong
    key_length: cython.longlong
    value_at: cython.longlong
    value_length: cython.longlong
    size: cython.longlong
    time: cython.longlong
    first: cython.longlong = 0
    newest: cython.longlong = 0
    delta: cython.longlong = 0
    # All of it at once: a buffer that grows touches its memory again and again.
    room: cython.longlong = HEADER_BYTES
    for index in range(count):
        row = number_at(numbers, index)
        if row < 0 or row >= total:
            raise InvalidRecords(f"there is no row {row}: the columns have {total}")
        key_length, value_length = number_at(key_lengths, row), number_at(value_lengths, row)
        must_lie_within(number_at(key_starts, row), key_length, key_size)
        must_lie_within(number_at(value_starts, row), value_length, value_size)
        room += key_length + value_length + ROW_BYTES
        if timed:
            time = number_at(times_at, row)
            if time < 0 or time > TIME_MAX:
                raise InvalidRecords(f"row {row} is of the time {time}: it is in milliseconds since 1970")
            first = time if index == 0 else first
            newest = time if time > newest else newest
    writer: Writer = Writer(HEADER_BYTES, room)
    for index in range(count):
        row = number_at(numbers, index)
        key_at, key_length = number_at(key_starts, row), number_at(key_lengths, row)
        value_at, value_length = number_at(value_starts, row), number_at(value_lengths, row)
        if timed:
            delta = number_at(times_at, row) - first
        # Attributes and the count of headers take a byte each.
        size = 2 + varint_bytes(delta) + varint_bytes(index) + varint_bytes(key_length) + varint_bytes(value_length)
        size += (key_length if key_length > 0 else 0) + (value_length if value_length > 0 else 0)
        if size > RECORD_BYTES_MAX:
            raise InvalidRecords(f"row {row} has {size} bytes, more than the format allows: use smaller ones")
        writer.reserve(size + 16)
        writer.varint(size)
        writer.bytes_at[writer.position] = 0
        writer.position += 1
        writer.varint(delta)
        writer.varint(index)
        writer.varint(key_length)
        if key_length > 0:
            writer.raw(key_data, key_at, key_length)
        writer.varint(value_length)
        if value_length > 0:
            writer.raw(value_data, value_at, value_length)
        writer.varint(0)
    if not timed:
        first = newest = timestamp
    return seal(writer.take(), new_header(count, first, newest, compression))


def partitions_of(keys: Texts, partitions: cython.longlong) -> bytes:
    """The partition of each row by its key (int64, side by side); -1 where it has none."""
    total: cython.Py_ssize_t = rows_of(keys)
    data: bytes = keys.data
    starts_of: bytes = keys.starts
    lengths_of: bytes = keys.lengths
    starts: cython.p_const_uchar = starts_of
    lengths: cython.p_const_uchar = lengths_of
    bytes_at: cython.p_const_uchar = data
    size: cython.longlong = len(data)
    if partitions < 1:
        raise InvalidRecords(f"a topic has at least one partition, not {partitions}")
    found = bytearray(b"\xff") * (8 * total)
    into: cython.p_uchar = found
    index: cython.Py_ssize_t
    place: cython.Py_ssize_t
    at: cython.longlong
    length: cython.longlong
    number: cython.longlong
    for index in range(total):
        at, length = number_at(starts, index), number_at(lengths, index)
        must_lie_within(at, length, size)
        if length < 0:
            continue
        number = (hash_at(bytes_at, at, length) & 0x7FFFFFFF) % partitions
        for place in range(8):
            into[index * 8 + place] = (number >> (8 * place)) & 0xFF
    return bytes(found)
