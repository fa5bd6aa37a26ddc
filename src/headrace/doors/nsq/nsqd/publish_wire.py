# cython: boundscheck=False, wraparound=False
"""Messages in: the bodies of PUB, MPUB and DPUB into record batches.

One idea: a receive buffer goes in whole and comes out as batches. Every length on the wire is the client's word and is
held against the bytes that are there before it is used. What a kernel does not take (a command that is cut, or that
breaks a rule) it leaves where it stands, and the codec reports what is wrong with it.

Under the extension (`docs/nsq.md`) a message is the end of a Kafka record from its key on, and is copied as it is.
"""

from __future__ import annotations

from typing import Any

import cython
from crc32c import crc32c

from headrace.doors.nsq.errors import CommandError
from headrace.format.batch import CRC, CRC_AT, CRC_FROM, HEADER, HEADER_BYTES, LENGTH_MAX, MAGIC, PREFIX_BYTES
from headrace.format.partitioning import partition_of
from headrace.format.records import open_batch

if cython.compiled:
    from cython.cimports.headrace.format.records import Reader, Writer
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from headrace.format.records import Reader, Writer

# Named, because a literal beyond 32 bits is a Python number in compiled code too, and makes one for every message.
INT32_MAX = cython.declare(cython.longlong, 2147483647)
UINT32_MAX = cython.declare(cython.longlong, 4294967295)


@cython.cfunc
@cython.exceptval(check=False)
def size_at(at: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    """A big-endian int32."""
    value: cython.longlong = at[position]
    value = (value << 8) | at[position + 1]
    value = (value << 8) | at[position + 2]
    value = (value << 8) | at[position + 3]
    return value if value <= INT32_MAX else value - UINT32_MAX - 1


@cython.cfunc
@cython.exceptval(check=False)
def number_bytes(value: cython.longlong) -> cython.Py_ssize_t:
    """The bytes that a number of 0 or more takes as a zigzag varint."""
    count: cython.Py_ssize_t = 1
    value >>= 6
    while value:
        count += 1
        value >>= 7
    return count


@cython.cfunc
@cython.exceptval(check=False)
def put_number(out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number of 0 or more as a zigzag varint; the position behind it."""
    value <<= 1
    while value > 0x7F:
        out[position] = 0x80 | (value & 0x7F)
        position += 1
        value >>= 7
    out[position] = value
    return position + 1


@cython.cfunc
@cython.exceptval(check=False)
def record_bytes(size: cython.Py_ssize_t, delta: cython.longlong, extended: cython.bint) -> cython.Py_ssize_t:
    """The bytes of a record behind its length field, for a message of `size` bytes on the wire."""
    if extended:
        return 2 + number_bytes(delta) + size
    return 4 + number_bytes(delta) + number_bytes(size) + size


@cython.cfunc
@cython.exceptval(check=False)
def put_record(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    at: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    delta: cython.longlong,
    extended: cython.bint,
) -> cython.Py_ssize_t:
    """Write one message as a record; the position behind it. There must be room."""
    position = put_number(out, position, record_bytes(size, delta, extended))
    out[position] = 0
    out[position + 1] = 0
    position = put_number(out, position + 2, delta)
    if not extended:
        # A key of -1 bytes: none.
        out[position] = 1
        position = put_number(out, position + 1, size)
    if cython.compiled:
        memcpy(out + position, at + start, size)
    else:
        out[position : position + size] = at[start : start + size]
    position += size
    if not extended:
        out[position] = 0
        position += 1
    return position


@cython.cfunc
@cython.exceptval(-2, check=False)
def field(
    at: cython.p_const_uchar, position: cython.Py_ssize_t, stop: cython.Py_ssize_t, least: cython.longlong
) -> cython.Py_ssize_t:
    """Step over a byte string of a Kafka record with its length (-1: null, where `least` allows it); the position
    behind it, or -1 where it does not end before `stop`."""
    result: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    length: cython.longlong
    while True:
        if position >= stop or shift > 28:
            return -1
        byte = at[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    length = result >> 1
    if result & 1:
        length = -length - 1
    if length < least or length > stop - position:
        return -1
    return position + length if length > 0 else position


@cython.cfunc
@cython.exceptval(check=False)
def whole(at: cython.p_const_uchar, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    """Whether the bytes are the end of a Kafka record: key, value, headers, and nothing behind them."""
    position: cython.Py_ssize_t = field(at, start, stop, -1)
    if position < 0:
        return False
    position = field(at, position, stop, -1)
    if position < 0:
        return False
    count: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while True:
        if position >= stop or shift > 28:
            return False
        byte = at[position]
        position += 1
        count |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    # An odd number is below 0; each header takes two bytes at least.
    if count & 1 or count > cython.cast(cython.ulonglong, stop - position):
        return False
    count >>= 1
    while count > 0:
        position = field(at, position, stop, 0)
        if position < 0:
            return False
        position = field(at, position, stop, -1)
        if position < 0:
            return False
        count -= 1
    return position == stop


def seal(out: bytearray, count: int, now_ms: int) -> None:
    """Write the header of a batch whose records stand behind the room for it."""
    length = len(out) - PREFIX_BYTES
    if length > LENGTH_MAX:
        raise CommandError("E_BAD_BODY", f"{length} bytes are more than a record batch can hold")
    HEADER.pack_into(out, 0, 0, length, -1, MAGIC, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    with memoryview(out) as view:
        CRC.pack_into(out, CRC_AT, crc32c(view[CRC_FROM:]))


def pubs(
    buffer: bytearray,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    line: bytes,
    size_max: cython.longlong,
    batch_max: cython.longlong,
    now_ms: int,
    extended: cython.bint,
) -> tuple[bytearray | None, int, int]:
    """One batch of the run of whole commands at `position` that all begin with `line` ("PUB topic" and its end); how
    many they are, and where the next command stands. None where not even the first can be taken.

    The run ends before a message that would make the batch larger than `batch_max`, but the first is always taken: the
    log then refuses it as too large.
    """
    at: cython.p_const_uchar = buffer
    begins: cython.p_const_uchar = line
    prefix: cython.Py_ssize_t = len(line)
    total: cython.Py_ssize_t = HEADER_BYTES
    count: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t = position
    size: cython.longlong
    body: cython.Py_ssize_t
    record: cython.Py_ssize_t
    while position + prefix + 4 <= end:
        if cython.compiled:
            if memcmp(at + position, begins, prefix) != 0:
                break
        elif not buffer.startswith(line, position):
            break
        body = position + prefix + 4
        size = size_at(at, body - 4)
        if size <= 0 or size > size_max or size > end - body:
            break
        if extended and not whole(at, body, body + size):
            break
        record = record_bytes(size, count, extended)
        record += number_bytes(record)
        if count and total + record > batch_max:
            break
        total += record
        count += 1
        position = body + size
    if count == 0:
        return None, 0, first
    return one_batch(buffer, first, prefix, count, total, now_ms, extended), count, position


def mpub(
    buffer: bytearray,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    size_max: cython.longlong,
    body_max: cython.longlong,
    batch_max: cython.longlong,
    now_ms: int,
    extended: cython.bint,
) -> tuple[bytearray, int]:
    """The messages of a whole MPUB body as batches one behind the other, each of at most `batch_max` bytes where its
    messages allow it; and how many they are. Raises CommandError, and then nothing was made."""
    at: cython.p_const_uchar = buffer
    number: cython.longlong
    size: cython.longlong
    record: cython.Py_ssize_t
    index: cython.Py_ssize_t
    position: cython.Py_ssize_t = start + 4
    first: cython.Py_ssize_t = position
    total: cython.Py_ssize_t = HEADER_BYTES
    delta: cython.Py_ssize_t = 0
    cuts: list[tuple[int, int, int]] = []
    if stop - start < 4:
        raise CommandError("E_BAD_BODY", "MPUB failed to read message count")
    number = size_at(at, start)
    # As nsqd judges it: by the largest body, in which the shortest message has a length and one byte.
    if number <= 0 or number > (body_max - 4) // 5:
        raise CommandError("E_BAD_BODY", f"MPUB invalid message count {number}")
    for index in range(number):
        if stop - position < 4:
            raise CommandError("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
        size = size_at(at, position)
        position += 4
        if size <= 0:
            raise CommandError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
        if size > size_max:
            raise CommandError("E_BAD_MESSAGE", f"MPUB message too big {size} > {size_max}")
        if size > stop - position:
            raise CommandError("E_BAD_MESSAGE", "MPUB failed to read message body")
        if extended and not whole(at, position, position + size):
            raise CommandError("E_BAD_MESSAGE", f"MPUB message({index}) is not a key, a value and headers")
        record = record_bytes(size, delta, extended)
        record += number_bytes(record)
        if delta and total + record > batch_max:
            cuts.append((first, delta, total))
            first = position - 4
            delta = 0
            total = HEADER_BYTES
            record = record_bytes(size, 0, extended)
            record += number_bytes(record)
        total += record
        delta += 1
        position += size
    if position != stop:
        raise CommandError("E_BAD_BODY", f"MPUB has {stop - position} bytes behind its last message")
    last: bytearray = one_batch(buffer, first, 0, delta, total, now_ms, extended)
    if not cuts:
        return last, number
    out: bytearray = bytearray()
    for begin, count, length in cuts:
        out += one_batch(buffer, begin, 0, count, length, now_ms, extended)
    return out + last, number


@cython.cfunc
def one_batch(
    buffer: bytearray,
    position: cython.Py_ssize_t,
    prefix: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
    now_ms: Any,
    extended: cython.bint,
) -> bytearray:
    """A batch of `count` checked messages that is `total` bytes long. Each message stands behind its size, and that
    behind `prefix` other bytes."""
    out: bytearray = bytearray(total)
    at: cython.p_const_uchar = buffer
    into: cython.p_uchar = out
    written: cython.Py_ssize_t = HEADER_BYTES
    index: cython.Py_ssize_t
    size: cython.longlong
    for index in range(count):
        position += prefix + 4
        size = size_at(at, position - 4)
        written = put_record(into, written, at, position, size, index, extended)
        position += size
    seal(out, count, now_ms)
    return out


def route(batches: bytearray, partitions: int, own: int, now_ms: int) -> dict[int, bytearray]:
    """Batches of now, shared out among partitions as Kafka's producers do it: by key, and to `own` without one."""
    view = memoryview(batches)
    routed: dict[int, bytearray] = {}
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while position < len(batches):
        size = PREFIX_BYTES + size_at(batches, position + 8)
        route_one(open_batch(view[position : position + size], size), partitions, own, now_ms, routed)
        position += size
    return routed


@cython.cfunc
@cython.exceptval(-1)
def route_one(reader: Reader, partitions: int, own: int, now_ms: Any, routed: Any) -> cython.int:
    """Put each record of a batch into a batch of its partition. None of these becomes larger than the one it is of."""
    writers: dict = {}  # type: ignore[type-arg]
    counts: dict = {}  # type: ignore[type-arg]
    writer: Writer
    count: cython.longlong
    tail: cython.Py_ssize_t
    while reader.next():
        key = reader.key()
        index = own if key is None else partition_of(key, partitions)
        if index not in writers:
            writers[index] = Writer(HEADER_BYTES, HEADER_BYTES + 256)
            counts[index] = 0
        writer = writers[index]
        count = counts[index]
        tail = reader.record_end - reader.fields_at
        writer.reserve(tail + 32)
        writer.varint(2 + number_bytes(count) + tail)
        writer.bytes_at[writer.position] = 0
        writer.position += 1
        writer.varint(0)
        writer.varint(count)
        writer.raw(reader.body, reader.fields_at, tail)
        counts[index] = count + 1
    for index, count in counts.items():
        writer = writers[index]
        batch = writer.take()
        seal(batch, count, now_ms)
        routed.setdefault(index, bytearray()).extend(batch)
    return 0
