# cython: boundscheck=False, wraparound=False
"""The timer's stage: the messages that are due next, read and ready to be fired.

Dispatcher is then a matter of memory alone: take what is due, and make one batch for each of its targets.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Any

import cython

from headrace.broker.timer.heap import NEVER
from headrace.format.batch import HEADER_BYTES

if cython.compiled:
    from cython.cimports.headrace.broker.timer.heap import Heap
    from cython.cimports.headrace.broker.timer.wheel import Walk, int_at, is_entry, route_at, sealed
    from cython.cimports.headrace.format.records import Reader, Writer, varint_bytes
else:
    from headrace.broker.timer.heap import Heap
    from headrace.broker.timer.wheel import Walk, int_at, is_entry, route_at, sealed
    from headrace.format.records import Reader, Writer, varint_bytes

_route_bytes = cython.declare(cython.Py_ssize_t, 29)


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
