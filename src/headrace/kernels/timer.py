# cython: boundscheck=False, wraparound=False
"""The timer's loops over records: into buckets, out of them, and from one to another.

A message that waits is a record of its bucket: its time is when it is due, its key is its id (due time and number, 8
bytes each, big-endian), its value is the message's own, and in front of the message's headers stands one more, which
says where it goes and keeps its key. What has left a bucket is said by a *mark*: a record without a key whose value is
a list of offsets, 8 bytes each. So a bucket's log alone says what still waits in it.

The buckets are a wheel of four levels; `place` is its geometry, and `docs/timer.md` explains it. In memory a waiting
message is a pair of numbers in a `Heap`; only those that are due next are read, into a `Stage`, from which they are
fired without another look at the disk.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Any

import cython
from crc32c import crc32c

from headrace.errors import CorruptBatch, InvalidDelay, InvalidRecords
from headrace.kernels.head import CRC_FROM, HEADER_BYTES, Head, seal
from headrace.kernels.records import open_batch

if cython.compiled:
    from cython.cimports.headrace.kernels.records import Reader, Writer, varint_bytes
else:
    from headrace.kernels.records import Reader, Writer, varint_bytes

Buffer = bytes | bytearray | memoryview

# The wheel. A window of a level is 60 of the level below, but a level has 64 buckets: three to spare for moving
# messages down ahead of their time, one for a clock that is set back.
LEVELS: int = 4
BUCKETS: int = 64
RATIO: int = 60
REACH: int = 62
WIDTH_MS: int = 60_000

DELIVER_AT: bytes = b"headrace-deliver-at"
ROUTE: bytes = b"headrace-timer"
# Topic id, partition, and when the message was scheduled; then, unless the key is null, a 1 and the key.
ROUTE_BYTES: int = 29
NEVER: int = (1 << 63) - 1

_levels = cython.declare(cython.int, 4)
_buckets = cython.declare(cython.longlong, 64)
_ratio = cython.declare(cython.longlong, 60)
_reach = cython.declare(cython.longlong, 62)
_width = cython.declare(cython.longlong, 60_000)
_route_bytes = cython.declare(cython.Py_ssize_t, 29)
_head_bytes = cython.declare(cython.Py_ssize_t, 61)
_prefix_bytes = cython.declare(cython.Py_ssize_t, 12)
_never = cython.declare(cython.longlong, 9223372036854775807)


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
    if cython.compiled:
        return cython.cast(cython.longlong, value)
    return value if value < 1 << 63 else value - (1 << 64)


@cython.cfunc
@cython.exceptval(check=False)
def int_at(data: bytes, at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes, big-endian, without a sign. They must be there."""
    value: cython.longlong = data[at]
    value = (value << 8) | data[at + 1]
    value = (value << 8) | data[at + 2]
    return (value << 8) | data[at + 3]


# --- what waits, in memory --------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class Heap:
    """Pairs of numbers in two flat arrays, 16 bytes each; the pair with the least key comes out first, of those the one
    with the least value. Until `order` has been through, it is only a heap by name."""

    keys: cython.longlong[::1]
    values: cython.longlong[::1]
    count: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    unordered: cython.Py_ssize_t
    """How many of the first pairs are not in order yet, each with those below it."""

    def __init__(self) -> None:
        self.count = 0
        self.capacity = 64
        self.keys = array("q", bytes(512))
        self.values = array("q", bytes(512))
        self.unordered = 0

    def __len__(self) -> int:
        return self.count

    @property
    def top(self) -> int:
        """The least key, or NEVER."""
        return self.keys[0] if self.count else _never

    def add_run(self, key: cython.longlong, first: cython.longlong, count: cython.Py_ssize_t) -> None:
        """Add pairs of one key and consecutive values."""
        index: cython.Py_ssize_t
        for index in range(count):
            self.add(key, first + index)

    def add_keys(self, keys: Any, first: cython.longlong) -> None:
        """Add pairs of these keys and consecutive values."""
        index: cython.Py_ssize_t
        given: cython.longlong[::1] = keys
        for index in range(len(keys)):
            self.add(given[index], first + index)

    def move(self, upto: cython.longlong, limit: cython.Py_ssize_t, into: Heap) -> None:
        """Move up to `limit` pairs whose key is at most `upto`, key and value changing places."""
        key: cython.longlong
        while limit > 0 and self.count and self.keys[0] <= upto:
            key = self.keys[0]
            into.add(self.values[0], key)
            self.drop()
            limit -= 1

    def remove(self, value: cython.longlong) -> bool:
        """Take the pair of that value out, wherever it is."""
        index: cython.Py_ssize_t
        for index in range(self.count):
            if self.values[index] == value:
                self.count -= 1
                if index < self.count:
                    self.keys[index] = self.keys[self.count]
                    self.values[index] = self.values[self.count]
                    self.down(index)
                    self.up(index)
                return True
        return False

    def order(self, budget: cython.Py_ssize_t) -> bool:
        """Bring up to `budget` pairs more into order; True once all are."""
        while budget > 0 and self.unordered > 0:
            self.unordered -= 1
            self.down(self.unordered)
            budget -= 1
        return self.unordered == 0

    def unsettle(self) -> None:
        """Take pairs in any order from now on, until `settle`."""
        self.unordered = _never

    def settle(self) -> None:
        """All are there that come in any order: what `order` has to do."""
        self.unordered = self.count // 2

    @cython.ccall
    def add(self, key: cython.longlong, value: cython.longlong) -> cython.void:
        if self.count == self.capacity:
            self.grow()
        self.keys[self.count] = key
        self.values[self.count] = value
        self.count += 1
        self.up(self.count - 1)

    @cython.cfunc
    def grow(self) -> cython.void:
        keys: cython.longlong[::1]
        values: cython.longlong[::1]
        # By half: what is spare of the largest heaps stays a third.
        self.capacity += self.capacity // 2
        keys = array("q", bytes(self.capacity * 8))
        values = array("q", bytes(self.capacity * 8))
        keys[: self.count] = self.keys
        values[: self.count] = self.values
        self.keys = keys
        self.values = values

    @cython.cfunc
    @cython.exceptval(check=False)
    def drop(self) -> cython.void:
        """Take the first pair out."""
        self.count -= 1
        if self.count:
            self.keys[0] = self.keys[self.count]
            self.values[0] = self.values[self.count]
            self.down(0)

    @cython.cfunc
    @cython.exceptval(check=False)
    def up(self, at: cython.Py_ssize_t) -> cython.void:
        key: cython.longlong = self.keys[at]
        value: cython.longlong = self.values[at]
        above: cython.Py_ssize_t
        while at > 0:
            above = (at - 1) // 2
            # What is not in order yet goes down in its own time.
            if (
                above < self.unordered
                or self.keys[above] < key
                or (self.keys[above] == key and self.values[above] <= value)
            ):
                break
            self.keys[at] = self.keys[above]
            self.values[at] = self.values[above]
            at = above
        self.keys[at] = key
        self.values[at] = value

    @cython.cfunc
    @cython.exceptval(check=False)
    def down(self, at: cython.Py_ssize_t) -> cython.void:
        key: cython.longlong = self.keys[at]
        value: cython.longlong = self.values[at]
        below: cython.Py_ssize_t = 2 * at + 1
        while below < self.count:
            if below + 1 < self.count and (
                self.keys[below + 1] < self.keys[below]
                or (self.keys[below + 1] == self.keys[below] and self.values[below + 1] < self.values[below])
            ):
                below += 1
            if key < self.keys[below] or (key == self.keys[below] and value <= self.values[below]):
                break
            self.keys[at] = self.keys[below]
            self.values[at] = self.values[below]
            at = below
            below = 2 * at + 1
        self.keys[at] = key
        self.values[at] = value


# --- reading buckets --------------------------------------------------------------------------------------------------


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
        self.reader = Reader(data, Head(0, 0, 0, 0, 0, 0, 0, 0, 0, 0))

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


@cython.final
@cython.cclass
class Scan:
    """What still waits in a bucket, from all that was written to it.

    Marks stand behind what they speak of, so messages are gathered first and left out again in `finish`: a bit for each
    offset, and 16 bytes for each message."""

    heap: Heap
    start: cython.longlong
    end: cython.longlong
    position: cython.longlong
    left: bytearray
    gather: cython.bint
    checked: cython.Py_ssize_t
    kept: cython.Py_ssize_t

    def __init__(self, start: int, end: int, gather: bool = True) -> None:
        self.heap = Heap()
        self.heap.unsettle()
        self.start = start
        self.end = end
        self.position = start
        self.left = bytearray((end - start) // 8 + 1)
        self.gather = gather
        self.checked = 0
        self.kept = 0

    @property
    def index(self) -> Heap:
        """What waits: due time and offset."""
        return self.heap

    @property
    def next(self) -> int:
        """The offset to read from."""
        return self.position

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def read(self, data: bytes) -> None:
        """Take a chunk that begins with the batch that holds `next`."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        offset: cython.longlong
        while self.position < self.end and walk.next():
            if walk.after <= self.position:
                continue
            walk.check()
            while reader.next():
                offset = reader.base_offset + reader.offset_delta
                if offset < self.position:
                    continue
                if not is_entry(reader):
                    self.mark(reader)
                elif self.gather:
                    self.heap.add(reader.timestamp, offset)
            self.position = walk.after

    @cython.cfunc
    @cython.exceptval(-1)
    def mark(self, reader: Reader) -> cython.int:
        at: cython.Py_ssize_t = reader.value_at
        end: cython.Py_ssize_t = reader.value_at + reader.value_length
        offset: cython.longlong
        while at + 8 <= end:
            offset = number_at(reader.body, at) - self.start
            if 0 <= offset < self.end - self.start:
                self.left[offset >> 3] |= 1 << (offset & 7)
            at += 8
        return 0

    @cython.ccall
    @cython.exceptval(-1, check=False)
    def has_left(self, offset: cython.longlong) -> cython.bint:
        """Whether a mark says that the message has left."""
        offset -= self.start
        if offset < 0 or offset >= self.end - self.start:
            return False
        return (self.left[offset >> 3] >> (offset & 7)) & 1

    def finish(self, budget: cython.Py_ssize_t) -> bool:
        """Leave out what has left: at most `budget` messages a call; True when done. The index is still to be ordered.
        Pairs that are added to it meanwhile stay."""
        heap: Heap = self.heap
        while budget > 0 and self.checked < heap.count:
            if not self.has_left(heap.values[self.checked]):
                heap.keys[self.kept] = heap.keys[self.checked]
                heap.values[self.kept] = heap.values[self.checked]
                self.kept += 1
            self.checked += 1
            budget -= 1
        if self.checked < heap.count:
            return False
        heap.count = self.kept
        self.checked = self.kept
        heap.settle()
        return True


@cython.final
@cython.cclass
class Seek:
    """Looks for one message by its id, and for the mark that it has left."""

    due: cython.longlong
    number: cython.longlong
    found: cython.longlong
    gone: cython.bint

    def __init__(self, due: int, number: int) -> None:
        self.due = due
        self.number = number
        self.found = -1
        self.gone = False

    @property
    def offset(self) -> int:
        """Where it waits; -1 where it does not."""
        return -1 if self.gone else self.found

    def read(self, data: bytes, position: cython.longlong) -> int:
        """Take a chunk, from the offset `position` on; the next offset to read."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        offset: cython.longlong
        at: cython.Py_ssize_t
        while walk.next():
            if walk.after <= position:
                continue
            walk.check()
            while reader.next():
                offset = reader.base_offset + reader.offset_delta
                if offset < position:
                    continue
                if is_entry(reader):
                    if reader.timestamp == self.due and number_at(reader.body, reader.key_at + 8) == self.number:
                        self.found = offset
                        self.gone = False
                elif self.found >= 0:
                    for at in range(reader.value_at, reader.value_at + reader.value_length - 7, 8):
                        if number_at(reader.body, at) == self.found:
                            self.gone = True
            position = walk.after
        return position


def page(
    data: bytes, position: int, scan: Scan, after: tuple[int, int], before: tuple[int, int], topic: bytes
) -> tuple[int, list[tuple[Any, ...]]]:
    """The messages of a chunk from offset `position` on that wait with an id between the two, for that topic (its id;
    empty: any): due time, number, topic id, partition, time of scheduling, key, size of the value. And the next offset
    to read."""
    walk: Walk = Walk(data)
    reader: Reader = walk.reader
    found: list = []  # type: ignore[type-arg]
    offset: cython.longlong
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    first: cython.longlong = after[0]
    last: cython.longlong = before[0]
    reached: cython.longlong = position
    while walk.next():
        if walk.after <= reached:
            continue
        walk.check()
        while reader.next():
            offset = reader.base_offset + reader.offset_delta
            if offset < reached or not is_entry(reader) or reader.timestamp < first or reader.timestamp > last:
                continue
            if scan.has_left(offset) or offset >= scan.end:
                continue
            number = number_at(reader.body, reader.key_at + 8)
            if not after < (reader.timestamp, number) < before:
                continue
            end = route_at(reader)
            at = reader.position
            # `route_at` has moved it.
            reader.position = reader.record_end
            if topic and reader.body[at : at + 16] != topic:
                continue
            found.append(
                (
                    reader.timestamp,
                    number,
                    reader.body[at : at + 16],
                    int_at(reader.body, at + 16),
                    number_at(reader.body, at + 20),
                    reader.body[at + _route_bytes : end] if reader.body[at + 28] else None,
                    reader.value_length,
                )
            )
        reached = walk.after
    return reached, found


# --- into buckets -----------------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class Entering:
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
    return seal(writer.take(), Head(0, -1, 0, count - 1, base, highest, -1, -1, -1, count))


def route_of(topic_id: bytes, partition: int, scheduled_ms: int) -> bytes:
    """The fixed part of a route: where messages go, and since when they wait."""
    return topic_id + partition.to_bytes(4, "big") + scheduled_ms.to_bytes(8, "big")


def enter(batch: Buffer, max_bytes: int, due: int, number: int, route: bytes) -> Entering:
    """All messages of a batch, which are due at the same time; their numbers count up from `number`."""
    reader: Reader = open_batch(batch, max_bytes)
    entering: Entering = Entering()
    time: cython.longlong = due
    first: cython.longlong = number
    if reader.count == 0:
        raise InvalidRecords("a batch without records cannot be scheduled")
    while reader.next():
        entering.add(reader, time, first + entering.count, route)
    return entering


def split(
    batch: Buffer, max_bytes: int, now: int, number: int, route: bytes, room: int
) -> tuple[bytearray, dict[int, Entering]] | None:
    """Divide a producer's batch by what `headrace-deliver-at` says: a byte for each record that is for now (1) or for
    later (0), and the later ones by their buckets. None where nothing is for later. `room` is what one record may take
    when it is fired, alone in a batch."""
    reader: Reader = open_batch(batch, max_bytes)
    marks: bytearray = bytearray(b"\1") * reader.count
    buckets: dict = {}  # type: ignore[type-arg]
    entering: Entering
    next_number: cython.longlong = number
    present: cython.longlong = now
    room_bytes: cython.Py_ssize_t = room
    due: cython.longlong
    bucket: cython.int
    if reader.count == 0 or reader.count != reader.last_offset_delta + 1:
        raise InvalidRecords(
            f"the batch claims {reader.count} records, but its last offset delta is {reader.last_offset_delta}"
        )
    while reader.next():
        if reader.header_count == 0:
            continue
        due = deliver_at(reader)
        if due <= present:
            continue
        bucket = place(due, present)
        if bucket < 0:
            raise InvalidDelay(
                f"record {reader.index - 1} of the batch is to be delivered at {due}, more than "
                f"{max_delay_ms()} ms from now: choose an earlier time"
            )
        if reader.record_end - reader.record_start + _head_bytes > room_bytes:
            raise InvalidRecords(
                f"record {reader.index - 1} of the batch has {reader.record_end - reader.record_start} bytes, which "
                f"the topic would not take uncompressed when it is due (max.message.bytes, {room_bytes})"
            )
        marks[reader.index - 1] = 0
        if bucket not in buckets:
            buckets[bucket] = Entering()
        entering = buckets[bucket]
        entering.add(reader, due, next_number, route)
        next_number += 1
    return (marks, buckets) if buckets else None


def max_delay_ms() -> int:
    """No delay up to this is too long."""
    return WIDTH_MS * RATIO ** (LEVELS - 1) * (REACH - 1)


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
    """The batch that says that the messages at these offsets have left their bucket."""
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


# --- from bucket to bucket --------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class Cascade:
    """Moves what waits in a bucket to the buckets of the level below, in the order of its log."""

    waiting: Heap
    own: cython.int
    at: cython.Py_ssize_t
    earliest: cython.longlong

    def __init__(self, waiting: Heap, bucket: int) -> None:
        self.waiting = waiting
        self.own = bucket
        self.at = 0
        self.earliest = _never

    @property
    def next(self) -> int:
        """The offset to read from; -1 when all has been seen."""
        return self.waiting.values[self.at] if self.at < self.waiting.count else -1

    @property
    def stays(self) -> int:
        """The earliest due time of what must stay, since it is for a later turn of the wheel; or NEVER."""
        return self.earliest

    def read(self, data: bytes, now: int) -> tuple[dict[int, Entering], Any]:
        """Take a chunk that begins with the batch that holds `next`: what moves, by bucket, and its offsets here."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        waiting: Heap = self.waiting
        buckets: dict = {}  # type: ignore[type-arg]
        moved: Any = array("q")
        entering: Entering
        offset: cython.longlong
        bucket: cython.int
        present: cython.longlong = now
        while self.at < waiting.count and walk.next():
            if walk.after <= waiting.values[self.at]:
                continue
            walk.check()
            while self.at < waiting.count and reader.next():
                offset = reader.base_offset + reader.offset_delta
                if offset != waiting.values[self.at]:
                    continue
                self.at += 1
                bucket = place(reader.timestamp, present)
                if bucket == self.own or bucket < 0:
                    self.earliest = min(self.earliest, reader.timestamp)
                    continue
                if bucket not in buckets:
                    buckets[bucket] = Entering()
                entering = buckets[bucket]
                entering.carry(reader)
                moved.append(offset)
        return buckets, moved


# --- out of buckets ---------------------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class Fired:
    """One slice of what was due: the batches for their targets, and what it takes to put it back."""

    entries: list  # type: ignore[type-arg]
    written: dict  # type: ignore[type-arg]
    unwanted: cython.Py_ssize_t
    late: cython.longlong

    def __init__(self) -> None:
        self.entries = []
        self.written = {}
        self.unwanted = 0
        self.late = 0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def batches(self) -> dict[int, bytearray]:
        """By the number of the target."""
        return self.written

    @property
    def dropped(self) -> int:
        """How many went to targets that are gone."""
        return self.unwanted

    @property
    def late_ms(self) -> int:
        """The sum of how late they are."""
        return self.late

    @property
    def offsets(self) -> Any:
        """Where they waited."""
        entry: tuple  # type: ignore[type-arg]
        found: Any = array("q")
        for entry in self.entries:
            found.append(entry[1])
        return found

    def count_late(self, now: cython.longlong, bounds: Any, counts: list) -> None:  # type: ignore[type-arg]
        """Add each to the count of the first bound (ms) that it is not later than, or to the last."""
        entry: tuple  # type: ignore[type-arg]
        given: cython.longlong[::1] = bounds
        last: cython.Py_ssize_t = len(bounds)
        at: cython.Py_ssize_t
        late: cython.longlong
        for entry in self.entries:
            late = now - cython.cast(cython.longlong, entry[0])
            at = 0
            while at < last and given[at] < late:
                at += 1
            counts[at] += 1


@cython.final
@cython.cclass
class Stage:
    """The messages that are due next, read and ready: a bounded number of them, ordered by due time and offset.

    An entry is (due time, offset, target, the record from its key on). Targets are numbered in the order in which they
    are first seen."""

    entries: list  # type: ignore[type-arg]
    size: cython.Py_ssize_t
    numbers: dict  # type: ignore[type-arg]
    routes: list  # type: ignore[type-arg]

    def __init__(self) -> None:
        self.entries = []
        self.size = 0
        self.numbers = {}
        self.routes = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def held_bytes(self) -> int:
        return self.size

    @property
    def top(self) -> int:
        """The least due time, or NEVER."""
        return self.entries[0][0] if self.entries else NEVER

    @property
    def targets(self) -> list[tuple[bytes, int]]:
        """Topic id and partition of each target, by its number."""
        return self.routes

    def forget_targets(self) -> None:
        """Begin to number targets anew. Only while nothing is staged."""
        self.numbers = {}
        self.routes = []

    def read(self, data: bytes, wanted: Heap, room: int) -> None:
        """Take the wanted messages (by offset) out of a chunk that begins with the batch that holds the first, until
        the stage holds `room` bytes."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        offset: cython.longlong
        while wanted.count and self.size < room and walk.next():
            if walk.after <= wanted.keys[0]:
                continue
            walk.check()
            while wanted.count and reader.next():
                offset = reader.base_offset + reader.offset_delta
                if offset < wanted.keys[0]:
                    continue
                # One that is not a message cannot be asked for; a damaged list must not hold the timer up for ever.
                if offset == wanted.keys[0] and is_entry(reader):
                    self.take(reader, offset)
                while wanted.count and wanted.keys[0] <= offset:
                    wanted.drop()

    @cython.cfunc
    @cython.exceptval(-1)
    def take(self, reader: Reader, offset: cython.longlong) -> cython.int:
        writer: Writer
        body: bytes = reader.body
        value: cython.Py_ssize_t = reader.value_length if reader.value_length > 0 else 0
        end: cython.Py_ssize_t = route_at(reader)
        at: cython.Py_ssize_t = reader.position
        key: cython.Py_ssize_t = end - at - _route_bytes
        tail: cython.Py_ssize_t = reader.record_end - end
        target: bytes = body[at : at + 20]
        number: Any = self.numbers.get(target)
        if number is None:
            number = len(self.routes)
            self.numbers[target] = number
            self.routes.append((target[:16], int_at(target, 16)))
        writer = Writer(0, 32 + key + value + tail)
        writer.varint(key if body[at + 28] else -1)
        writer.raw(body, at + _route_bytes, key)
        writer.varint(reader.value_length)
        writer.raw(body, reader.value_at, value)
        writer.varint(reader.header_count - 1)
        writer.raw(body, end, tail)
        record: bytes = bytes(writer.take())
        heappush(self.entries, (reader.timestamp, offset, number, record))
        self.size += len(record)
        reader.position = reader.record_end
        return 0

    def fire(self, now: int, limit: int, max_bytes: int, gone: Any) -> Fired:
        """Take what is due, at most `limit` messages and about `max_bytes` (but one at least), and make the batches for
        its targets, stamped with `now`. Those for targets in `gone` are taken and left out."""
        fired: Fired = Fired()
        present: cython.longlong = now
        left: cython.Py_ssize_t = limit
        room: cython.Py_ssize_t = max_bytes
        entry: tuple  # type: ignore[type-arg]
        writers: dict = {}  # type: ignore[type-arg]
        counts: dict = {}  # type: ignore[type-arg]
        record: bytes
        while left > 0 and self.entries:
            entry = self.entries[0]
            record = entry[3]
            if entry[0] > present or (fired.entries and len(record) + 16 > room):
                break
            heappop(self.entries)
            self.size -= len(record)
            fired.entries.append(entry)
            fired.late += present - cython.cast(cython.longlong, entry[0])
            left -= 1
            if entry[2] in gone:
                fired.unwanted += 1
                continue
            room -= len(record) + 16
            if entry[2] not in writers:
                writers[entry[2]] = Writer(HEADER_BYTES, 1024)
                counts[entry[2]] = 0
            put_record(writers[entry[2]], counts[entry[2]], record)
            counts[entry[2]] += 1
        for target, writer in writers.items():
            fired.written[target] = sealed(writer, counts[target], present, present)
        return fired

    def put_back(self, fired: Fired) -> None:
        """What was fired was not: it is due again."""
        entry: tuple  # type: ignore[type-arg]
        for entry in fired.entries:
            heappush(self.entries, entry)
            self.size += len(entry[3])

    def remove(self, offset: cython.longlong) -> bool:
        """Take one message out."""
        index: cython.Py_ssize_t
        entry: tuple  # type: ignore[type-arg]
        for index in range(len(self.entries)):
            entry = self.entries[index]
            if entry[1] == offset:
                self.size -= len(entry[3])
                del self.entries[index]
                # Rare, and there are few: sorted is ordered.
                self.entries.sort()
                return True
        return False


@cython.cfunc
@cython.exceptval(-1)
def put_record(writer: Writer, index: cython.Py_ssize_t, record: bytes) -> cython.int:
    """Write one record of a batch whose records all have its base time."""
    size: cython.Py_ssize_t = 2 + varint_bytes(index) + len(record)
    writer.reserve(size + 16)
    writer.varint(size)
    writer.bytes_at[writer.position] = 0
    writer.position += 1
    writer.varint(0)
    writer.varint(index)
    writer.raw(record, 0, len(record))
    return 0
