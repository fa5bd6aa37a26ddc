# cython: boundscheck=False, wraparound=False
"""PendingMessages through a bucket of the timer: what waits in it, where one message is, what must move on.

A mark stands behind the messages that it speaks of, so a search for what still waits reads the whole bucket first. The
formats are in `wheel.py`.
"""

from __future__ import annotations

from array import array
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.headrace.broker.timer.heap import Heap
    from cython.cimports.headrace.broker.timer.wheel import (
        BucketBatch,
        Walk,
        int_at,
        is_entry,
        number_at,
        place,
        route_at,
    )
    from cython.cimports.headrace.format.records import Reader
else:
    from headrace.broker.timer.heap import Heap
    from headrace.broker.timer.wheel import BucketBatch, Walk, int_at, is_entry, number_at, place, route_at
    from headrace.format.records import Reader

_route_bytes = cython.declare(cython.Py_ssize_t, 29)
_never = cython.declare(cython.longlong, 9223372036854775807)


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
        """Whether the message has left, by a mark."""
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

    def read(self, data: bytes, now: int) -> tuple[dict[int, BucketBatch], Any]:
        """Take a chunk that begins with the batch that holds `next`: what moves, by bucket, and its offsets here."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        waiting: Heap = self.waiting
        buckets: dict = {}  # type: ignore[type-arg]
        moved: Any = array("q")
        entering: BucketBatch
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
                    buckets[bucket] = BucketBatch()
                entering = buckets[bucket]
                entering.carry(reader)
                moved.append(offset)
        return buckets, moved
