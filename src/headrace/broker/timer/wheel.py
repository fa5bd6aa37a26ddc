# cython: boundscheck=False, wraparound=False
"""The timer's loops over records: into buckets, out of them, and from one to another.

A message that waits is a record of its bucket: its time is when it is due, its key is its id (due time and number, 8
bytes each, big-endian), its value is the message's own, and in front of the message's headers stands one more, which
says where it goes and keeps its key. What has left a bucket has a *mark*: a record without a key whose value is
a list of offsets, 8 bytes each. So a bucket's log alone holds what still waits in it.

The buckets are a wheel of four levels of 64: a minute each (which reaches 62 minutes), an hour (62 hours), 60 hours
(155 days), 150 days (25 years). A message waits in the lowest level that reaches its time, in the bucket
`due // width % 64` (`place`). A window of a level is 60 of the level below, though a level has 64 buckets: with the
spare ones a bucket is moved down three windows of the lower level ahead of its time, and no two turns of the wheel meet
in one bucket.

In memory a waiting message is a pair of numbers in a heap (`heap.py`); looking through buckets is in `scan.py`, and
those messages that are due next are read into a stage (`stage.py`), from which they are fired without another look at
the disk.
"""

from __future__ import annotations

from array import array
from typing import Any

import cython
from crc32c import crc32c

from headrace.errors import CorruptBatch, InvalidDelay, InvalidRecords
from headrace.format.batch import CRC_FROM, HEADER_BYTES, new_header
from headrace.format.delay import DELIVER_AT, MAX_DELAY_MS
from headrace.format.faults import Faults
from headrace.format.head import seal
from headrace.format.records import open_batch

if cython.compiled:
    from cython.cimports.headrace.format.records import Reader, Writer, varint_bytes
else:
    from headrace.format.records import Reader, Writer, varint_bytes

Buffer = bytes | bytearray | memoryview

# The wheel. A window of a level is 60 of the level below, but a level has 64 buckets: three to spare for moving
# messages down ahead of their time, one for a clock that is set back.
LEVELS: int = 4
BUCKETS: int = 64
RATIO: int = 60
REACH: int = 62
WIDTH_MS: int = 60_000

ROUTE: bytes = b"headrace-timer"
# Its value: topic id, partition, when the message was scheduled, and a 0, or a 1 and the key where that is not null.

_levels = cython.declare(cython.int, 4)
_buckets = cython.declare(cython.longlong, 64)
_ratio = cython.declare(cython.longlong, 60)
_reach = cython.declare(cython.longlong, 62)
_width = cython.declare(cython.longlong, 60_000)
_route_bytes = cython.declare(cython.Py_ssize_t, 29)
_head_bytes = cython.declare(cython.Py_ssize_t, 61)
_prefix_bytes = cython.declare(cython.Py_ssize_t, 12)


@cython.ccall
@cython.exceptval(-2, check=False)
def place(due: cython.longlong, now: cython.longlong) -> cython.int:
    """The bucket for a message that is due then, if it is this time now; -1 where it is too far away. What is overdue
    belongs to the present, so that the oldest batch of a bucket is of its oldest window."""
    width: cython.longlong = _width
    level: cython.int
    if due < now:
        due = now
    for level in range(_levels):
        if due // width - now // width <= _reach:
            return level * _buckets + due // width % _buckets
        width *= _ratio
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def number_at(data: bytes, at: cython.Py_ssize_t) -> cython.longlong:
    """Eight bytes, big-endian. They must be there."""
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    for index in range(8):
        value = (value << 8) | cython.cast(cython.ulonglong, data[at + index])
    if not cython.compiled and value >> 63:
        value -= 1 << 64
    return cython.cast(cython.longlong, value)


@cython.cfunc
@cython.exceptval(check=False)
def int_at(data: bytes, at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes, big-endian, without a sign. They must be there."""
    value: cython.longlong = data[at]
    value = (value << 8) | data[at + 1]
    value = (value << 8) | data[at + 2]
    return (value << 8) | data[at + 3]


# --- into buckets -----------------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class BucketBatch:
    """What one bucket gets: a batch that grows."""

    writer: Writer
    count: cython.Py_ssize_t
    base: cython.longlong
    highest: cython.longlong
    times: Any

    def __init__(self) -> None:
        self.writer = Writer(HEADER_BYTES, 1024)
        self.count = 0
        self.base = 0
        self.highest = 0
        self.times = array("q")

    @property
    def dues(self) -> Any:
        """The due time of each message, in their order."""
        return self.times

    def batch(self) -> bytearray:
        """The batch, sealed. Nothing can be added then."""
        return sealed(self.writer, self.count, self.base, self.highest)

    @cython.cfunc
    @cython.exceptval(-1)
    def stamp(self, due: cython.longlong) -> cython.int:
        if self.count == 0:
            self.base = due
            self.highest = due
        elif due > self.highest:
            self.highest = due
        self.times.append(due)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def add(self, reader: Reader, due: cython.longlong, number: cython.longlong, route: bytes) -> cython.int:
        """Add the message that `reader` stands on."""
        writer: Writer = self.writer
        tail: cython.Py_ssize_t = reader.record_end - reader.headers_at
        value: cython.Py_ssize_t = reader.value_length if reader.value_length > 0 else 0
        key: cython.Py_ssize_t = reader.key_length if reader.key_length > 0 else 0
        size: cython.Py_ssize_t
        self.stamp(due)
        size = 1 + varint_bytes(due - self.base) + varint_bytes(self.count) + 17
        size += varint_bytes(reader.value_length) + value + varint_bytes(reader.header_count + 1)
        size += varint_bytes(len(ROUTE)) + len(ROUTE) + varint_bytes(_route_bytes + key) + _route_bytes + key + tail
        writer.reserve(size + 16)
        writer.varint(size)
        writer.bytes_at[writer.position] = 0
        writer.position += 1
        writer.varint(due - self.base)
        writer.varint(self.count)
        writer.varint(16)
        put_number(writer, due)
        put_number(writer, number)
        writer.varint(reader.value_length)
        writer.raw(reader.body, reader.value_at, value)
        writer.varint(reader.header_count + 1)
        writer.varint(len(ROUTE))
        writer.raw(ROUTE, 0, len(ROUTE))
        writer.varint(_route_bytes + key)
        writer.raw(route, 0, _route_bytes - 1)
        writer.bytes_at[writer.position] = 0 if reader.key_length < 0 else 1
        writer.position += 1
        writer.raw(reader.body, reader.key_at, key)
        writer.raw(reader.body, reader.headers_at, tail)
        self.count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def carry(self, reader: Reader) -> cython.int:
        """Add the message of another bucket that `reader` stands on, as it is."""
        self.stamp(reader.timestamp)
        reader.offset_delta = self.count
        self.writer.copy(reader, self.base)
        self.count += 1
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def put_number(writer: Writer, value: cython.longlong) -> cython.void:
    """Write eight bytes, big-endian. They must be reserved."""
    shift: cython.int
    for shift in range(56, -8, -8):
        writer.bytes_at[writer.position] = (value >> shift) & 0xFF
        writer.position += 1


@cython.cfunc
def sealed(writer: Writer, count: cython.Py_ssize_t, base: cython.longlong, highest: cython.longlong) -> bytearray:
    return seal(writer.take(), new_header(count, base, highest))


def route_of(topic_id: bytes, partition: int, scheduled_ms: int) -> bytes:
    """The fixed part of a route: where messages go, and since when they wait."""
    return topic_id + partition.to_bytes(4, "big") + scheduled_ms.to_bytes(8, "big")


def enter(
    batches: Buffer, max_bytes: int, due: int, number: int, route: bytes, into: BucketBatch | None = None
) -> BucketBatch:
    """All messages of a batch, or of several one behind the other, which are due at the same time; their numbers count
    up from `number`. They go `into` what the bucket gets besides."""
    view = memoryview(batches)
    reader: Reader
    entering: BucketBatch = BucketBatch() if into is None else into
    time: cython.longlong = due
    # The number of the bucket's first message, if all before these had been numbered too.
    first: cython.longlong = number - entering.count
    size: cython.Py_ssize_t
    while len(view):
        # A length that makes no sense is found out when the batch is opened.
        size = int.from_bytes(view[8:12], "big") + _prefix_bytes
        reader = open_batch(view[:size], max_bytes)
        if reader.count == 0:
            raise InvalidRecords("a batch without records cannot be scheduled")
        while reader.next():
            entering.add(reader, time, first + entering.count, route)
        view = view[size:]
    return entering


def split(
    batch: Buffer,
    max_bytes: int,
    now: int,
    number: int,
    route: bytes,
    room: int,
    later: dict[int, BucketBatch],
    keep: bytearray | None = None,
) -> tuple[bytearray, int] | None:
    """Divide a producer's batch by its `headrace-deliver-at` headers: a byte for each record that is for now (1) or not
    (0), and the count of those that were added to `later`, by bucket. None where all is for now. Records whose byte in
    `keep` is 0 are for neither. `room` is what one record may take when it is fired, alone in a batch."""
    reader: Reader = open_batch(batch, max_bytes)
    marks: bytearray = bytearray(b"\1") * reader.count if keep is None else bytearray(keep)
    faults = Faults()
    entering: BucketBatch
    next_number: cython.longlong = number
    present: cython.longlong = now
    room_bytes: cython.Py_ssize_t = room
    due: cython.longlong
    bucket: cython.int
    if reader.count == 0 or reader.count != reader.last_offset_delta + 1:
        raise InvalidRecords(
            f"the batch claims {reader.count} records, but its last offset delta is {reader.last_offset_delta}"
        )
    if keep is not None and len(keep) != reader.count:
        raise ValueError(f"the batch has {reader.count} records, but {len(keep)} are marked")
    while reader.next_readable(faults):
        if reader.header_count == 0 or marks[reader.index - 1] == 0:
            continue
        try:
            due = deliver_at(reader)
        except InvalidRecords as error:
            faults.note(reader.index - 1, str(error))
            reader.position = reader.record_end
            continue
        if due <= present:
            continue
        bucket = place(due, present)
        if bucket < 0:
            faults.note(
                reader.index - 1,
                f"record {reader.index - 1} of the batch is to be delivered at {due}, more than "
                f"{MAX_DELAY_MS} ms from now: choose an earlier time",
                InvalidDelay,
            )
            continue
        if reader.record_end - reader.record_start + _head_bytes > room_bytes:
            faults.note(
                reader.index - 1,
                f"record {reader.index - 1} of the batch has {reader.record_end - reader.record_start} bytes, which "
                f"the topic would not take uncompressed when it is due (max.message.bytes, {room_bytes})",
            )
            continue
        marks[reader.index - 1] = 0
        if bucket not in later:
            later[bucket] = BucketBatch()
        entering = later[bucket]
        entering.add(reader, due, next_number, route)
        next_number += 1
    faults.check()
    return (marks, next_number - number) if next_number > number or keep is not None else None


@cython.cfunc
@cython.exceptval(-2)
def deliver_at(reader: Reader) -> cython.longlong:
    """When the record that `reader` stands on asks to be delivered; -1 where it does not ask. The reader's position is
    the same afterwards."""
    number: cython.Py_ssize_t = reader.header_count
    length: cython.Py_ssize_t
    back: cython.Py_ssize_t = reader.position
    wanted: cython.bint
    found: cython.longlong = -1
    reader.position = reader.headers_at
    while number > 0:
        length = reader.field(reader.record_end)
        wanted = length == 19 and reader.body[reader.position : reader.position + 19] == DELIVER_AT
        reader.position += length
        length = reader.field(reader.record_end)
        if wanted:
            found = moment(reader.body[reader.position : reader.position + length] if length >= 0 else b"")
            if found < 0:
                raise InvalidRecords(
                    f"record {reader.index - 1} of the batch has a headrace-deliver-at that is no time: give "
                    "milliseconds since 1970 as decimal text, or as 8 bytes, big-endian"
                )
            break
        if length > 0:
            reader.position += length
        number -= 1
    reader.position = back
    return found


@cython.cfunc
@cython.exceptval(-2)
def moment(value: bytes) -> cython.longlong:
    """A time as text or as eight bytes; -1 for anything else. Eight digits are text: as a number they would lie a
    hundred million years ahead."""
    if value.isdigit():
        return int(value) if len(value) <= 18 else -1
    if len(value) == 8:
        return number_at(value, 0) if value[0] < 0x80 else -1
    return -1


def mark(offsets: Any, now: int) -> bytearray:
    """The batch that marks the messages at these offsets as having left their bucket."""
    writer: Writer = Writer(HEADER_BYTES, 128 + len(offsets) * 8)
    length: cython.Py_ssize_t = len(offsets) * 8
    size: cython.Py_ssize_t = 4 + varint_bytes(length) + length + 1
    writer.reserve(size + 16)
    writer.varint(size)
    writer.bytes_at[writer.position] = 0
    writer.position += 1
    writer.varint(0)
    writer.varint(0)
    writer.varint(-1)
    writer.varint(length)
    for offset in offsets:
        put_number(writer, offset)
    writer.varint(0)
    return sealed(writer, 1, now, now)


# --- out of them ------------------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class Walk:
    """Over the batches of a chunk of a bucket, which the timer wrote itself: never compressed, so they are read where
    they lie."""

    data: bytes
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    after: cython.longlong
    """Behind the last offset of the batch it stands on."""
    reader: Reader

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0
        self.after = -1
        self.reader = Reader(data, new_header(0, 0, 0))

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def next(self) -> cython.bint:
        """Stand before the records of the next whole batch; False where there is none."""
        data: bytes = self.data
        reader: Reader = self.reader
        at: cython.Py_ssize_t = self.at
        length: cython.Py_ssize_t
        if self.size - at < _head_bytes:
            return False
        length = int_at(data, at + 8) + _prefix_bytes
        if length < _head_bytes or data[at + 16] != 2 or data[at + 22] & 7:
            raise CorruptBatch(f"what stands at byte {at} of a chunk of the timer is not a batch that it wrote")
        if self.size - at < length:
            return False
        reader.position = at + _head_bytes
        reader.end = at + length
        reader.base_offset = number_at(data, at)
        reader.last_offset_delta = int_at(data, at + 23)
        reader.base_timestamp = number_at(data, at + 27)
        reader.count = int_at(data, at + 57)
        reader.index = 0
        reader.previous_delta = -1
        self.at = at + length
        self.after = reader.base_offset + reader.last_offset_delta + 1
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def check(self) -> cython.int:
        """Refuse the batch that it stands before, if it does not fit its checksum."""
        start: cython.Py_ssize_t = self.reader.position - _head_bytes
        if crc32c(memoryview(self.data)[start + CRC_FROM : self.at]) != int_at(self.data, start + 17):
            raise CorruptBatch(f"the batch of the timer at offset {self.reader.base_offset} does not fit its checksum")
        return 0


@cython.cfunc
@cython.exceptval(-1, check=False)
def is_entry(reader: Reader) -> cython.bint:
    """Whether the record is a message that waits, and not a mark."""
    return reader.key_length == 16


@cython.cfunc
@cython.exceptval(-1, check=False)
def route_at(reader: Reader) -> cython.Py_ssize_t:
    """Go to the route of a message; its end. The reader then stands at its beginning."""
    length: cython.Py_ssize_t
    reader.position = reader.headers_at
    if reader.header_count < 1:
        raise InvalidRecords(f"record {reader.index} of the batch waits for nothing: it has no route")
    length = reader.field(reader.record_end)
    reader.position += length
    length = reader.field(reader.record_end)
    if length < _route_bytes:
        raise InvalidRecords(f"record {reader.index} of the batch has a route of {length} bytes")
    return reader.position + length
