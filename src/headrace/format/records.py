"""The records inside a batch: every loop over them that Headrace has.

One idea: Python hands over a whole batch and gets back whole answers. The source is Cython's pure Python mode, so it
runs compiled or interpreted with the same results; the annotations of local variables are the C types. Every length and
count in a batch is the sender's word, and is checked against the bytes that are there before it is used; `Reader` is
the only code that indexes them.

A record: length (varint), attributes (int8), timestamp delta (varlong), offset delta, key length and key, value length
and value, header count, and per header key length, key, value length, value. All integers but the attributes are zigzag
varints, and -1 is the length of a null.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any

import cython

from headrace.errors import InvalidRecords, InvalidTimestamp
from headrace.format.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    new_header,
)
from headrace.format.compression import decompress
from headrace.format.faults import Faults
from headrace.format.head import open_head, seal

if cython.compiled:
    from cython.cimports.libc.string import memcpy

Buffer = bytes | bytearray | memoryview
RecordHeaders = list[tuple[str, bytes | None]]
Record = tuple[int, int, bytes | None, bytes | None, RecordHeaders]

# The kinds of control records that end a transaction.
ABORT = 0
COMMIT = 1
CONTROL_KEY = Struct(">hh")
CONTROL_VALUE = Struct(">hi")

# What `build` takes as a time. The bound keeps any difference of two times inside 64 bits.
TIMESTAMP_MIN: int = -1
TIMESTAMP_MAX: int = (1 << 62) - 1

# Constants of the inner loops, declared so that they are C numbers when compiled.
# The smallest record (seven fields of one byte) and the smallest header (two) bound an announced count.
RECORD_BYTES_MIN = cython.declare(cython.longlong, 7)
RECORD_HEADER_BYTES_MIN = cython.declare(cython.longlong, 2)
INT32_MAX = cython.declare(cython.longlong, 2147483647)
INT64_MAX = cython.declare(cython.longlong, 9223372036854775807)


@cython.final
@cython.cclass
class Reader:
    """A bounded cursor over the unpacked records of one batch, and the fields of the record it stands on.

    The value that says "an exception was raised" is in each method one that it never returns, or hardly ever: asking
    the interpreter after every number would take a third of the time.
    """

    head: Any
    body: bytes
    bytes_at: cython.p_const_uchar
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    count: cython.Py_ssize_t
    """Records that the header announces."""
    base_offset: cython.longlong
    base_timestamp: cython.longlong
    last_offset_delta: cython.longlong
    append_time: cython.longlong
    stamped: cython.bint
    """The log set the time of all records: they have the batch's."""

    index: cython.Py_ssize_t
    """Records begun so far."""
    record_start: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    offset_delta: cython.longlong
    previous_delta: cython.longlong
    timestamp: cython.longlong
    fields_at: cython.Py_ssize_t
    """Where the key's length stands: what follows does not change when a record is copied."""
    key_length: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    header_count: cython.Py_ssize_t

    def __init__(self, body: bytes, head: BatchHeader) -> None:
        self.head = head
        self.body = body
        self.bytes_at = body
        self.position = 0
        self.end = len(body)
        self.count = head.record_count
        self.base_offset = head.base_offset
        self.base_timestamp = head.base_timestamp
        self.last_offset_delta = head.last_offset_delta
        self.append_time = head.max_timestamp
        self.stamped = (head.attributes & LOG_APPEND_TIME) != 0
        self.index = 0
        self.previous_delta = -1

    @cython.cfunc
    @cython.exceptval(-4611686018427387905)
    def varlong(self, end: cython.Py_ssize_t) -> cython.longlong:
        """A zigzag number of at most 64 bits that stops before `end`."""
        position: cython.Py_ssize_t = self.position
        result: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        while True:
            if position >= end:
                raise InvalidRecords(f"record {self.index} of the batch ends inside a number")
            byte = self.bytes_at[position]
            position += 1
            # The tenth byte has room for one bit more.
            if shift == 63 and byte > 1:
                raise InvalidRecords(f"record {self.index} of the batch has a number of more than 64 bits")
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        self.position = position
        value: cython.longlong = result >> 1
        return -value - 1 if result & 1 else value

    @cython.cfunc
    @cython.exceptval(-4294967296, check=False)
    def varint(self, end: cython.Py_ssize_t) -> cython.longlong:
        """A zigzag number of at most 32 bits that stops before `end`."""
        value: cython.longlong
        # Nearly all are of one byte or two.
        if self.position < end:
            value = self.bytes_at[self.position]
            if value < 0x80:
                self.position += 1
                return -(value >> 1) - 1 if value & 1 else value >> 1
            if end - self.position > 1 and self.bytes_at[self.position + 1] < 0x80:
                value = (value & 0x7F) | (cython.cast(cython.longlong, self.bytes_at[self.position + 1]) << 7)
                self.position += 2
                return -(value >> 1) - 1 if value & 1 else value >> 1
        value = self.varlong(end)
        if value > INT32_MAX or value < -INT32_MAX - 1:
            raise InvalidRecords(f"record {self.index} of the batch has a length or count of more than 32 bits")
        return value

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def field(self, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The length of a nullable byte string, -1 for null, known to end before `end`."""
        length: cython.longlong = self.varint(end)
        if length < -1 or length > end - self.position:
            raise InvalidRecords(
                f"record {self.index} of the batch has a field of {length} bytes where {end - self.position} are left"
            )
        return length

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def begin(self) -> cython.bint:
        """Step to the next record and read its length; False behind the last one."""
        if self.index >= self.count:
            if self.position != self.end:
                raise InvalidRecords(
                    f"{self.end - self.position} bytes are left behind the {self.count} records of the batch"
                )
            return False
        length: cython.longlong
        self.record_start = self.record_end = self.position
        length = self.varint(self.end)
        if length < RECORD_BYTES_MIN - 1 or length > self.end - self.position:
            raise InvalidRecords(
                f"record {self.index} of the batch claims {length} bytes where {self.end - self.position} are left"
            )
        self.record_end = self.position + length
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def skip(self) -> cython.bint:
        """Step over a record without looking into it."""
        if not self.begin():
            return False
        self.position = self.record_end
        self.index += 1
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def next(self) -> cython.bint:
        """Step to the next record and read it whole; False behind the last one."""
        end: cython.Py_ssize_t
        delta: cython.longlong
        number: cython.Py_ssize_t
        length: cython.Py_ssize_t
        if not self.begin():
            return False
        end = self.record_end
        self.position += 1
        delta = self.varlong(end)
        if self.stamped:
            self.timestamp = self.append_time
        else:
            self.timestamp = add(self.base_timestamp, delta, self.index)
        self.offset_delta = self.varint(end)
        if self.offset_delta <= self.previous_delta or self.offset_delta > self.last_offset_delta:
            raise InvalidRecords(
                f"record {self.index} of the batch has offset delta {self.offset_delta}: "
                f"not between {self.previous_delta + 1} and {self.last_offset_delta}"
            )
        self.previous_delta = self.offset_delta
        self.fields_at = self.position
        self.key_length = self.field(end)
        self.key_at = self.position
        if self.key_length > 0:
            self.position += self.key_length
        self.value_length = self.field(end)
        self.value_at = self.position
        if self.value_length > 0:
            self.position += self.value_length
        number = self.varint(end)
        if number < 0 or number * RECORD_HEADER_BYTES_MIN > end - self.position:
            raise InvalidRecords(
                f"record {self.index} of the batch announces {number} headers in {end - self.position} bytes"
            )
        self.header_count = number
        self.headers_at = self.position
        while number > 0:
            length = self.field(end)
            if length < 0:
                raise InvalidRecords(f"record {self.index} of the batch has a header without a key")
            self.position += length
            length = self.field(end)
            if length > 0:
                self.position += length
            number -= 1
        if self.position != end:
            raise InvalidRecords(
                f"record {self.index} of the batch has {end - self.position} bytes left behind its headers"
            )
        self.index += 1
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def next_readable(self, faults: Faults) -> cython.bint:
        """As `next`, but records that cannot be read are noted, and stepped over as long as their lengths can be."""
        while True:
            try:
                return self.next()
            except InvalidRecords as error:
                if self.index >= self.count:
                    if faults.count:
                        return False
                    raise
                faults.note(self.index, str(error))
                if self.record_end == self.record_start:
                    return False
                self.position = self.record_end
                self.previous_delta = self.index
                self.index += 1

    @cython.cfunc
    def key(self) -> object:
        if self.key_length < 0:
            return None
        return self.bytes_at[self.key_at : self.key_at + self.key_length]

    @cython.cfunc
    def value(self) -> object:
        if self.value_length < 0:
            return None
        return self.bytes_at[self.value_at : self.value_at + self.value_length]

    @cython.cfunc
    def headers(self) -> list:  # type: ignore[type-arg]
        """The headers of the record that `next` has just checked."""
        found: list = []  # type: ignore[type-arg]
        number: cython.Py_ssize_t = self.header_count
        length: cython.Py_ssize_t
        name: bytes
        if number == 0:
            return found
        self.position = self.headers_at
        while number > 0:
            length = self.field(self.record_end)
            name = self.bytes_at[self.position : self.position + length]
            self.position += length
            length = self.field(self.record_end)
            if length < 0:
                found.append((name.decode("utf-8", "surrogateescape"), None))
            else:
                found.append(
                    (
                        name.decode("utf-8", "surrogateescape"),
                        self.bytes_at[self.position : self.position + length],
                    )
                )
                self.position += length
            number -= 1
        return found


@cython.final
@cython.cclass
class Writer:
    """A growing buffer of encoded records. The pointer is taken anew whenever the buffer has moved."""

    buffer: bytearray
    bytes_at: cython.p_uchar
    position: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self, position: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        self.buffer = bytearray(size)
        self.bytes_at = self.buffer
        self.position = position
        self.size = size

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, count: cython.Py_ssize_t) -> cython.int:
        """Make room for `count` bytes more."""
        if count > self.size - self.position:
            self.buffer.extend(bytes(count + self.size))
            self.bytes_at = self.buffer
            self.size = len(self.buffer)
        return 0

    @cython.cfunc
    def take(self) -> bytearray:
        """What was written."""
        del self.buffer[self.position :]
        return self.buffer

    @cython.cfunc
    @cython.exceptval(check=False)
    def varint(self, value: cython.longlong) -> cython.void:
        """Write a zigzag number. Ten bytes must be reserved."""
        rest: cython.ulonglong
        # Shifted only once it is unsigned: the sign's place is a bit like the others then.
        if value < 0:
            rest = -(value + 1)
            rest = (rest << 1) | 1
        else:
            rest = value
            rest <<= 1
        while rest > 0x7F:
            self.bytes_at[self.position] = 0x80 | (rest & 0x7F)
            self.position += 1
            rest >>= 7
        self.bytes_at[self.position] = rest
        self.position += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def raw(self, data: bytes, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.void:
        """Write a part of `data`. Its length must be reserved, and the part must be there."""
        if cython.compiled:
            memcpy(self.bytes_at + self.position, cython.cast(cython.p_const_uchar, data) + start, length)
        else:
            self.bytes_at[self.position : self.position + length] = data[start : start + length]
        self.position += length

    @cython.cfunc
    @cython.exceptval(-1)
    def copy(self, reader: Reader, base_timestamp: cython.longlong) -> cython.int:
        """Write the record that `reader` stands on again, its time now relative to `base_timestamp`."""
        delta: cython.longlong = subtract(reader.timestamp, base_timestamp)
        tail: cython.Py_ssize_t = reader.record_end - reader.fields_at
        self.reserve(tail + 32)
        self.varint(1 + varint_bytes(delta) + varint_bytes(reader.offset_delta) + tail)
        self.bytes_at[self.position] = 0
        self.position += 1
        self.varint(delta)
        self.varint(reader.offset_delta)
        self.raw(reader.body, reader.fields_at, tail)
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def varint_bytes(value: cython.longlong) -> cython.int:
    """The bytes that a zigzag number takes."""
    count: cython.int = 1
    rest: cython.ulonglong
    rest = (-(value + 1) if value < 0 else value) >> 6
    while rest:
        count += 1
        rest >>= 7
    return count


@cython.cfunc
def add(base: cython.longlong, delta: cython.longlong, index: cython.Py_ssize_t) -> cython.longlong:
    """A record's time; refuses what does not fit in 64 bits."""
    if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < -INT64_MAX - 1 - delta):
        raise InvalidRecords(f"record {index} of the batch has a time of more than 64 bits")
    return base + delta


@cython.cfunc
def subtract(timestamp: cython.longlong, base: cython.longlong) -> cython.longlong:
    """The distance of two times; refuses what does not fit in 64 bits."""
    if (base < 0 and timestamp > INT64_MAX + base) or (base > 0 and timestamp < -INT64_MAX - 1 + base):
        raise InvalidRecords(f"the times {timestamp} and {base} of one batch lie more than 64 bits apart")
    return timestamp - base


def open_batch(batch: Buffer, max_bytes: int) -> Reader:
    """Unpack a batch, to at most `max_bytes`, and stand before its first record."""
    head, packed = open_head(batch)
    codec = head.attributes & COMPRESSION_MASK
    # A cleaned batch without records is only a header, whichever compression that names.
    # The bound is on what is not here yet.
    body = decompress(codec, packed, max_bytes if codec else len(packed)) if len(packed) else b""
    if head.record_count > len(body) // RECORD_BYTES_MIN:
        raise InvalidRecords(f"the batch claims {head.record_count} records in {len(body)} bytes")
    return Reader(body, head)


def parse(batch: Buffer, max_bytes: int, start: int = 0, limit: int = -1) -> list[Record]:
    """The records of one whole batch: offset, time, key, value, headers.

    `start` and `limit` are a budget: at most `limit` records (-1: all) from the record number `start` on. Only what was
    looked at has been checked.
    """
    reader: Reader = open_batch(batch, max_bytes)
    found: list = []  # type: ignore[type-arg]
    left: cython.Py_ssize_t = reader.count if limit < 0 else min(limit, reader.count)
    before: cython.Py_ssize_t = min(start, reader.count)
    while reader.index < before:
        reader.skip()
    while left != 0 and reader.next():
        found.append(
            (reader.base_offset + reader.offset_delta, reader.timestamp, reader.key(), reader.value(), reader.headers())
        )
        left -= 1
    if reader.index >= reader.count:
        reader.next()
    return found


@cython.final
@cython.cclass
class Picker:
    """Picks records out of one batch by their offsets. It goes on where it stood: however often it is asked, the batch
    is unpacked once and each record stepped over once."""

    def __init__(self, batch: Buffer, max_bytes: int) -> None:
        self.reader = open_batch(batch, max_bytes)
        self.after = self.reader.base_offset
        """What there is below this offset is known."""
        self.stands = False
        self.broken: Any = None

    def pick(self, offsets: list[int], size_max: int, steps_max: int, alone: bool) -> list[Record]:
        """The records at these offsets, which rise, as far as there are any: up to `size_max` bytes of them (but one,
        if it may be `alone`), found in at most `steps_max` steps. Those below `after` then, and not among them, are not
        in the batch. Raises InvalidRecords where the batch breaks, once all before that place were picked."""
        found: list = []  # type: ignore[type-arg]
        reader: Reader = self.reader
        at: cython.Py_ssize_t = 0
        left: cython.longlong = size_max
        steps: cython.longlong = steps_max
        wanted: cython.longlong
        offset: cython.longlong
        if self.broken is not None:
            raise self.broken
        while at < len(offsets):
            wanted = offsets[at]
            if wanted < self.after:
                at += 1
                continue
            if not self.stands:
                if steps == 0:
                    break
                steps -= 1
                try:
                    self.stands = reader.next()
                except InvalidRecords as error:
                    self.broken = error
                    if found:
                        break
                    raise
                if not self.stands:
                    self.after = reader.base_offset + reader.last_offset_delta + 1
                    break
            offset = reader.base_offset + reader.offset_delta
            if offset == wanted:
                left -= reader.record_end - reader.record_start
                if left < 0 and (found or not alone):
                    break
                found.append((offset, reader.timestamp, reader.key(), reader.value(), reader.headers()))
            if offset <= wanted:
                self.stands = False
                self.after = offset + 1
            else:
                self.after = wanted + 1
        return found


def check(
    batch: Buffer,
    need_keys: bool,
    max_bytes: int,
    earliest: int = -INT64_MAX - 1,
    latest: int = INT64_MAX,
    sparse: bool = False,
) -> int:
    """Refuse a producer's batch unless its records parse, with offset deltas 0, 1, 2, ..., (`need_keys`) keys, and
    times between `earliest` and `latest` if they have any. All records are looked at, and all bad ones named. Returns
    the largest time. `sparse`: records were taken out of it, and those that are left have kept their deltas."""
    reader: Reader = open_batch(batch, max_bytes)
    faults = Faults()
    keyed: cython.bint = need_keys
    dense: cython.bint = not sparse
    first: cython.longlong = earliest
    last: cython.longlong = latest
    newest: cython.longlong = -1
    if dense and (reader.count == 0 or reader.count != reader.last_offset_delta + 1):
        raise InvalidRecords(
            f"the batch claims {reader.count} records, but its last offset delta is {reader.last_offset_delta}"
        )
    if reader.count == 0:
        return reader.append_time
    while reader.next_readable(faults):
        if dense and reader.offset_delta != reader.index - 1:
            faults.note(
                reader.index - 1,
                f"record {reader.index - 1} of the batch has offset delta {reader.offset_delta}: number them from 0 on",
            )
            reader.previous_delta = reader.index - 1
            continue
        if keyed and reader.key_length < 0:
            faults.note(
                reader.offset_delta,
                f"record {reader.offset_delta} of the batch has no key, which a compacted topic needs",
            )
        elif reader.timestamp != -1 and (reader.timestamp < first or reader.timestamp > last):
            faults.note(
                reader.offset_delta,
                f"record {reader.offset_delta} of the batch has the time {reader.timestamp}, the topic takes {first} "
                f"to {last} (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                InvalidTimestamp,
            )
        newest = max(newest, reader.timestamp)
    faults.check()
    return newest


def first_at_or_after(batch: Buffer, timestamp: int, max_bytes: int, start: int = 0) -> tuple[int, int] | None:
    """Offset and time of the first record from offset `start` on that is not older than `timestamp`; None where there
    is none."""
    reader: Reader = open_batch(batch, max_bytes)
    wanted: cython.longlong = timestamp
    begin: cython.longlong = start
    while reader.next():
        if reader.timestamp >= wanted and reader.base_offset + reader.offset_delta >= begin:
            return reader.base_offset + reader.offset_delta, reader.timestamp
    return None


def latest(batch: Buffer, max_bytes: int) -> tuple[int, int] | None:
    """Offset and time of the record with the largest time, the first of them; None for a batch without records."""
    reader: Reader = open_batch(batch, max_bytes)
    offset: cython.longlong = -1
    timestamp: cython.longlong = 0
    while reader.next():
        if offset < 0 or reader.timestamp > timestamp:
            offset = reader.base_offset + reader.offset_delta
            timestamp = reader.timestamp
    return (offset, timestamp) if offset >= 0 else None


def keys(batch: Buffer, max_bytes: int) -> list[tuple[int, bytes | None, bool]]:
    """Per record: offset, key, and whether it is a tombstone (a null value)."""
    reader: Reader = open_batch(batch, max_bytes)
    found: list = []  # type: ignore[type-arg]
    while reader.next():
        found.append((reader.base_offset + reader.offset_delta, reader.key(), reader.value_length < 0))
    return found


def retain(batch: Buffer, keep: Buffer, max_bytes: int, delete_horizon: int | None) -> bytearray | None:
    """The batch with only the records whose byte in `keep` is not 0; None if none is kept (see `empty`).

    As Kafka's cleaner does it: base offset, last offset delta, leader epoch, producer fields and compression stay; the
    largest time is that of the records kept. A delete horizon, once set, stays; it takes the place of the base time,
    and the records' times are written relative to it.
    """
    reader: Reader = open_batch(batch, max_bytes)
    head: BatchHeader = reader.head
    if len(keep) != head.record_count:
        raise ValueError(f"the batch has {head.record_count} records, but {len(keep)} are marked")
    attributes = head.attributes
    marks: bytes = bytes(keep)
    wanted: cython.p_const_uchar = marks
    base: cython.longlong = 0
    based: cython.bint = False
    highest: cython.longlong = 0
    count: cython.Py_ssize_t = 0
    if attributes & DELETE_HORIZON:
        base = head.base_timestamp
        based = True
    elif delete_horizon is not None:
        base = delete_horizon
        based = True
        attributes |= DELETE_HORIZON
    writer: Writer = Writer(HEADER_BYTES, HEADER_BYTES + reader.end)
    while reader.next():
        if wanted[reader.index - 1] == 0:
            continue
        if not based:
            base = reader.timestamp
            based = True
        if count == 0 or reader.timestamp > highest:
            highest = reader.timestamp
        writer.copy(reader, base)
        count += 1
    if count == 0:
        return None
    return seal(
        writer.take(),
        head._replace(attributes=attributes, base_timestamp=base, max_timestamp=highest, record_count=count),
    )


def empty(batch: Buffer) -> bytearray:
    """The batch without any record: the header that keeps a producer's last sequence through compaction."""
    head, _ = open_head(batch)
    attributes = head.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    return seal(bytearray(HEADER_BYTES), head._replace(attributes=attributes, base_timestamp=-1, record_count=0))


def build(
    records: Iterable[tuple[int, bytes | None, bytes | None, Iterable[tuple[str | bytes, bytes | None]]]],
    *,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """One whole batch of (time in ms, key, value, headers), with base offset 0."""
    writer: Writer = Writer(HEADER_BYTES, 4096)
    count: cython.Py_ssize_t = 0
    base: cython.longlong = 0
    highest: cython.longlong = 0
    timestamp: cython.longlong
    size: cython.Py_ssize_t
    for given, key, value, headers in records:
        if not TIMESTAMP_MIN <= given <= TIMESTAMP_MAX:
            raise InvalidRecords(f"record {count} has the time {given}: give milliseconds since 1970, or -1 for none")
        timestamp = given
        if count == 0:
            base = timestamp
            highest = timestamp
        elif timestamp > highest:
            highest = timestamp
        key_bytes: bytes | None = plain(key)
        value_bytes: bytes | None = plain(value)
        size = 1 + varint_bytes(timestamp - base) + varint_bytes(count)
        size += field_bytes(key_bytes) + field_bytes(value_bytes)
        encoded: list = encode_headers(headers)  # type: ignore[type-arg]
        size += varint_bytes(len(encoded) // 2)
        for field in encoded:
            size += field_bytes(field)
        if size > INT32_MAX:
            raise InvalidRecords(f"record {count} has {size} bytes, more than the format allows: use smaller ones")
        writer.reserve(size + 16)
        writer.varint(size)
        writer.bytes_at[writer.position] = 0
        writer.position += 1
        writer.varint(timestamp - base)
        writer.varint(count)
        put(writer, key_bytes)
        put(writer, value_bytes)
        writer.varint(len(encoded) // 2)
        for field in encoded:
            put(writer, field)
        count += 1
    if count == 0:
        raise InvalidRecords("a batch needs at least one record")
    attributes |= compression
    head = new_header(count, base, highest, attributes, producer_id, producer_epoch, base_sequence)
    return seal(writer.take(), head)


def control(kind: int, coordinator_epoch: int, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """The batch that ends a producer's transaction: `kind` is ABORT or COMMIT."""
    if kind not in (ABORT, COMMIT):
        raise ValueError(f"{kind} is not the kind of a transaction's marker: use ABORT (0) or COMMIT (1)")
    return build(
        [(timestamp, CONTROL_KEY.pack(0, kind), CONTROL_VALUE.pack(0, coordinator_epoch), [])],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


@cython.cfunc
def plain(data: Any) -> Any:
    """Bytes of their own, whichever buffer they came in."""
    if data is None or type(data) is bytes:
        return data
    return bytes(memoryview(data))


@cython.cfunc
def encode_headers(headers: Any) -> list:  # type: ignore[type-arg]
    """Name, value, name, value, ... as bytes."""
    encoded: list = []  # type: ignore[type-arg]
    if headers:
        for name, value in headers:
            if isinstance(name, str):
                encoded.append(name.encode("utf-8", "surrogateescape"))
            else:
                encoded.append(bytes(memoryview(name)))
            encoded.append(plain(value))
    return encoded


@cython.cfunc
@cython.exceptval(-1)
def field_bytes(data: bytes | None) -> cython.Py_ssize_t:
    """The bytes that a nullable byte string takes with its length."""
    if data is None:
        return 1
    length: cython.Py_ssize_t = len(data)
    return varint_bytes(length) + length


@cython.cfunc
@cython.exceptval(-1)
def put(writer: Writer, data: bytes | None) -> cython.int:
    """Write a nullable byte string with its length. Its bytes must be reserved."""
    length: cython.Py_ssize_t
    if data is None:
        writer.varint(-1)
    else:
        length = len(data)
        writer.varint(length)
        writer.raw(data, 0, length)
    return 0
