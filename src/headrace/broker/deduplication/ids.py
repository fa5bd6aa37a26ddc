# cython: boundscheck=False, wraparound=False
"""The deduplication ids of one topic: found in batches, remembered for a while, forgotten in the order they came.

An id is remembered as the 128 bits of its keyed BLAKE2b. Taking two ids for one would lose a message, so the hash is a
cryptographic one: among a million ids the chance of that is 1 in 10^27, and a client cannot make two that collide.
Entries lie in pages in the order in which they came, 40 bytes each, numbered from 0: what is oldest goes first, and a
page goes when all of it has. The way from a hash to its entry are 256 small open-addressing tables of entry numbers, so
that one that must grow holds the loop for microseconds, however many ids there are.

Times are of any clock that does not go back, in ms; the caller brings them. What is too old counts as absent from that
moment on, wherever it stands; `expire` then frees it.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Any

import cython

from headrace.errors import InvalidRecords
from headrace.format.batch import HEADER_BYTES, PREFIX_BYTES
from headrace.format.faults import Faults
from headrace.format.records import open_batch

if cython.compiled:
    from cython.cimports.headrace.broker.timer.wheel import Walk, int_at, number_at
    from cython.cimports.headrace.format.records import Reader
else:
    from headrace.broker.timer.wheel import Walk, int_at, number_at
    from headrace.format.records import Reader

Buffer = bytes | bytearray | memoryview

HEADER: bytes = b"headrace-dedup-id"
ID_BYTES_MAX: int = 1024
# What is written down of an id: its hash, and how far from the first offset of its batch it is.
ENTRY_BYTES: int = 20
# A duplicate: number of the record in its batch, of the entry it repeats, and where the first one is.
STRIDE: int = 4

_name_bytes = cython.declare(cython.Py_ssize_t, 17)
_id_bytes_max = cython.declare(cython.Py_ssize_t, 1024)
_entry_bytes = cython.declare(cython.Py_ssize_t, 20)
_place_bytes = cython.declare(cython.Py_ssize_t, 13)
_stride = cython.declare(cython.Py_ssize_t, 4)
_page_entries = cython.declare(cython.longlong, 256)
_page_shift = cython.declare(cython.int, 8)
_page_index = cython.declare(cython.longlong, 255)
_cells = cython.declare(cython.Py_ssize_t, 5)
_tables = cython.declare(cython.longlong, 256)
_table_index = cython.declare(cython.longlong, 255)
_slots_min = cython.declare(cython.longlong, 4)


class Claim:
    """What the ids of one batch came to."""

    __slots__ = ("duplicates", "entries", "first", "keep", "last")

    def __init__(self, keep: bytearray, duplicates: array[int], entries: bytearray, first: int, last: int) -> None:
        self.keep = keep
        """A byte for each record: 0 where it repeats an id."""
        self.duplicates = duplicates
        """For each of those, its number, the entry that it repeats, the partition and the offset of that."""
        self.entries = entries
        """The new ids, as they are written down."""
        self.first = first
        """The numbers of their entries are from here ..."""
        self.last = last
        """... to before this."""


@cython.final
@cython.cclass
class Page:
    """256 entries: two halves of the hash, offset, time, partition."""

    cells: cython.longlong[::1]

    def __init__(self) -> None:
        self.cells = array("q", bytes(256 * 5 * 8))


@cython.final
@cython.cclass
class Slots:
    """A table of entry numbers plus one, by linear probing; 0 is a gap."""

    cells: cython.longlong[::1]
    mask: cython.longlong
    count: cython.longlong

    def __init__(self, size: int) -> None:
        self.cells = array("q", bytes(size * 8))
        self.mask = size - 1
        self.count = 0


@cython.final
@cython.cclass
class Table:
    """The ids of one topic."""

    start: Any
    """The hash with its key, before any id."""
    tables: list  # type: ignore[type-arg]
    pages: list  # type: ignore[type-arg]
    first_page: cython.longlong
    first: cython.longlong
    """The number of the oldest entry."""
    next: cython.longlong
    """The number of the next one."""
    live: cython.longlong

    def __init__(self, key: bytes) -> None:
        self.start = blake2b(digest_size=16, key=key)
        self.tables = [None] * 256
        self.pages = []
        self.first_page = 0
        self.first = 0
        self.next = 0
        self.live = 0

    def __len__(self) -> int:
        """Ids that are remembered."""
        return self.live

    @property
    def held_bytes(self) -> int:
        """Memory for entries and tables, but for the objects around them."""
        slots: Slots
        size: cython.longlong = len(self.pages) * _page_entries * _cells * 8
        for each in self.tables:
            if each is not None:
                slots = each
                size += (slots.mask + 1) * 8
        return size

    # --- ids of a batch ---

    def claim(
        self,
        batch: Buffer,
        max_bytes: int,
        partition: cython.longlong,
        base: cython.longlong,
        now: cython.longlong,
        since: cython.longlong,
    ) -> Claim | None:
        """Look the ids of a batch up and remember the new ones, as those of records that will stand from offset `base`
        on (-1: that have no place in the log). What is older than `since` counts as new. None where no record has one.
        Raises InvalidRecords, and has then remembered nothing."""
        reader: Reader = open_batch(batch, max_bytes)
        # Nearly always the end of it, at the speed of a search for bytes.
        if HEADER not in reader.body:
            return None
        keep: bytearray = bytearray(b"\1") * reader.count
        duplicates: Any = array("q")
        entries: bytearray = bytearray()
        faults = Faults()
        before: cython.longlong = self.next
        high: cython.longlong
        low: cython.longlong
        number: cython.longlong
        at: cython.Py_ssize_t
        any_id: cython.bint = False
        page: Page
        digest: bytes
        if reader.count == 0 or reader.count != reader.last_offset_delta + 1:
            raise InvalidRecords(
                f"the batch claims {reader.count} records, but its last offset delta is {reader.last_offset_delta}"
            )
        try:
            while reader.next_readable(faults):
                if reader.header_count == 0:
                    continue
                try:
                    said: Any = id_of(reader)
                except InvalidRecords as error:
                    faults.note(reader.index - 1, str(error))
                    reader.position = reader.record_end
                    continue
                if said is None:
                    continue
                any_id = True
                digest = self.hash(said)
                high = number_at(digest, 0)
                low = number_at(digest, 8)
                number = self.look(high, low)
                if number >= 0:
                    page = self.page(number)
                    at = (number & _page_index) * _cells
                    if page.cells[at + 3] >= since:
                        keep[reader.index - 1] = 0
                        duplicates.append(reader.index - 1)
                        duplicates.append(number)
                        duplicates.append(page.cells[at + 4])
                        duplicates.append(page.cells[at + 2])
                        continue
                self.add(high, low, partition, base + reader.offset_delta if base >= 0 else -1, now)
                entries += digest
                entries += int(reader.offset_delta).to_bytes(4, "big")
            faults.check()
        except InvalidRecords:
            self.forget(before, self.next)
            raise
        if not any_id:
            return None
        return Claim(keep, duplicates, entries, before, self.next)

    def forget(self, first: cython.longlong, last: cython.longlong) -> None:
        """The records of these entries never came."""
        number: cython.longlong
        for number in range(max(first, self.first), min(last, self.next)):
            self.drop(number)

    def replay(
        self,
        data: bytes,
        position: cython.longlong,
        topic: bytes,
        now_ms: cython.longlong,
        now: cython.longlong,
        span: cython.longlong,
        budget: cython.longlong,
    ) -> int:
        """Remember what a chunk of the ids' log says of a topic (the bytes of its id), from the offset `position` on,
        until that were `budget` ids; the next offset to read, of this chunk or the next. The calendar says `now_ms`
        where the caller's clock says `now`."""
        walk: Walk = Walk(data)
        reader: Reader = walk.reader
        age: cython.longlong
        enough: cython.longlong = self.next + budget
        while self.next < enough and walk.next():
            if walk.after <= position:
                continue
            walk.check()
            while reader.next():
                age = now_ms - reader.timestamp
                if age > span or reader.key() != topic:
                    continue
                # A calendar that was set back must not make an id last longer.
                self.remember(reader, now - (age if age > 0 else 0))
            position = walk.after
        return position

    @cython.cfunc
    @cython.exceptval(-1)
    def remember(self, reader: Reader, time: cython.longlong) -> cython.int:
        """Take one record of the ids' log; one of an unknown version says nothing."""
        at: cython.Py_ssize_t = reader.value_at
        end: cython.Py_ssize_t = at + reader.value_length
        partition: cython.longlong
        base: cython.longlong
        if reader.value_length < _place_bytes or reader.body[at] != 0:
            return 0
        partition = int_at(reader.body, at + 1)
        base = number_at(reader.body, at + 5)
        at += _place_bytes
        while at + _entry_bytes <= end:
            self.add(
                number_at(reader.body, at),
                number_at(reader.body, at + 8),
                partition,
                base + int_at(reader.body, at + 16) if base >= 0 else -1,
                time,
            )
            at += _entry_bytes
        return 0

    # --- forgetting ---

    def expire(self, since: cython.longlong, budget: cython.longlong) -> bool:
        """Free what is older than `since`, at most `budget` entries a call; whether that was all."""
        page: Page
        while self.first < self.next:
            page = self.page(self.first)
            if page.cells[(self.first & _page_index) * _cells + 3] >= since:
                return True
            if budget <= 0:
                return False
            budget -= 1
            self.shift()
        return True

    def evict(self, count: cython.longlong) -> int:
        """Forget the oldest ids before their time, at most so many; how many they were."""
        before: cython.longlong = self.live
        while self.first < self.next and before - self.live < count:
            self.shift()
        return before - self.live

    @cython.cfunc
    @cython.exceptval(-1)
    def shift(self) -> cython.int:
        """Let the oldest entry go."""
        self.drop(self.first)
        self.first += 1
        if self.first == self.next or self.first >> _page_shift > self.first_page:
            self.release()
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def release(self) -> cython.int:
        """Free the pages that no entry is in any more."""
        if self.first == self.next:
            self.pages = []
            # The next entry begins a page of its own: numbers go on, nothing counts them.
            self.first = self.next = ((self.next >> _page_shift) + 1) << _page_shift
            self.first_page = self.first >> _page_shift
        while self.first_page < self.first >> _page_shift:
            del self.pages[0]
            self.first_page += 1
        return 0

    # --- entries ---

    @cython.cfunc
    def hash(self, said: bytes) -> bytes:
        state: Any = self.start.copy()
        state.update(said)
        return state.digest()

    @cython.cfunc
    def page(self, number: cython.longlong) -> Page:
        return self.pages[(number >> _page_shift) - self.first_page]

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def look(self, high: cython.longlong, low: cython.longlong) -> cython.longlong:
        """The number of the entry of a hash; -1 where there is none."""
        if self.tables[high & _table_index] is None:
            return -1
        slots: Slots = self.tables[high & _table_index]
        return slots.cells[self.seek(slots, high, low)] - 1

    @cython.cfunc
    @cython.exceptval(-1)
    def seek(self, slots: Slots, high: cython.longlong, low: cython.longlong) -> cython.longlong:
        """The slot of a hash, or the gap where it would stand. There always is a gap."""
        at: cython.longlong = low & slots.mask
        index: cython.Py_ssize_t
        page: Page
        while slots.cells[at]:
            page = self.page(slots.cells[at] - 1)
            index = ((slots.cells[at] - 1) & _page_index) * _cells
            if page.cells[index] == high and page.cells[index + 1] == low:
                return at
            at = (at + 1) & slots.mask
        return at

    @cython.cfunc
    @cython.exceptval(-1)
    def add(
        self,
        high: cython.longlong,
        low: cython.longlong,
        partition: cython.longlong,
        offset: cython.longlong,
        time: cython.longlong,
    ) -> cython.int:
        """Remember a hash; what was known of it before is forgotten."""
        slots: Slots
        at: cython.longlong
        index: cython.Py_ssize_t = (self.next & _page_index) * _cells
        page: Page
        if index == 0 or not self.pages:
            self.pages.append(Page())
        page = self.page(self.next)
        page.cells[index] = high
        page.cells[index + 1] = low
        page.cells[index + 2] = offset
        page.cells[index + 3] = time
        page.cells[index + 4] = partition
        if self.tables[high & _table_index] is None:
            self.tables[high & _table_index] = Slots(_slots_min)
        slots = self.tables[high & _table_index]
        # Half full to three quarters, by the number of the table: they must not all grow at the same time.
        if (slots.count + 1) * 512 > (slots.mask + 1) * (256 + ((high & _table_index) >> 1)):
            slots = self.resized(slots, (slots.mask + 1) * 2)
            self.tables[high & _table_index] = slots
        at = self.seek(slots, high, low)
        if slots.cells[at] == 0:
            slots.count += 1
            self.live += 1
        slots.cells[at] = self.next + 1
        self.next += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def drop(self, number: cython.longlong) -> cython.int:
        """Let no hash lead to an entry any more. If a newer entry of the same hash has taken its place, none does."""
        page: Page = self.page(number)
        index: cython.Py_ssize_t = (number & _page_index) * _cells
        high: cython.longlong = page.cells[index]
        low: cython.longlong = page.cells[index + 1]
        if self.tables[high & _table_index] is None:
            return 0
        slots: Slots = self.tables[high & _table_index]
        gap: cython.longlong = self.seek(slots, high, low)
        at: cython.longlong
        home: cython.longlong
        if slots.cells[gap] != number + 1:
            return 0
        # Those behind it move up, as far as they do not stand at home: so there are no marks of what was removed.
        at = gap
        while True:
            at = (at + 1) & slots.mask
            if slots.cells[at] == 0:
                break
            page = self.page(slots.cells[at] - 1)
            home = page.cells[((slots.cells[at] - 1) & _page_index) * _cells + 1] & slots.mask
            if ((at - home) & slots.mask) >= ((at - gap) & slots.mask):
                slots.cells[gap] = slots.cells[at]
                gap = at
        slots.cells[gap] = 0
        slots.count -= 1
        self.live -= 1
        if slots.count == 0:
            self.tables[high & _table_index] = None
        elif slots.mask >= _slots_min and slots.count * 8 < slots.mask:
            self.tables[high & _table_index] = self.resized(slots, (slots.mask + 1) // 2)
        return 0

    @cython.cfunc
    def resized(self, slots: Slots, size: cython.longlong) -> Slots:
        made: Slots = Slots(size)
        at: cython.longlong
        to: cython.longlong
        page: Page
        for at in range(slots.mask + 1):
            if slots.cells[at]:
                page = self.page(slots.cells[at] - 1)
                to = page.cells[((slots.cells[at] - 1) & _page_index) * _cells + 1] & made.mask
                while made.cells[to]:
                    to = (to + 1) & made.mask
                made.cells[to] = slots.cells[at]
        made.count = slots.count
        return made


@cython.cfunc
def id_of(reader: Reader) -> object:
    """The id of the record that `reader` stands on, the first if it has several; None where it has none. The reader's
    position is the same afterwards."""
    number: cython.Py_ssize_t = reader.header_count
    length: cython.Py_ssize_t
    back: cython.Py_ssize_t = reader.position
    wanted: cython.bint
    found: object = None
    reader.position = reader.headers_at
    while number > 0:
        length = reader.field(reader.record_end)
        wanted = length == _name_bytes and reader.body[reader.position : reader.position + _name_bytes] == HEADER
        reader.position += length
        length = reader.field(reader.record_end)
        if wanted:
            if length < 1 or length > _id_bytes_max:
                raise InvalidRecords(
                    f"record {reader.index - 1} of the batch has a headrace-dedup-id of {max(length, 0)} bytes: give "
                    f"1 to {_id_bytes_max}"
                )
            found = reader.body[reader.position : reader.position + length]
            break
        if length > 0:
            reader.position += length
        number -= 1
    reader.position = back
    return found


def carries_ids(batches: bytearray, max_bytes: int) -> bool:
    """Whether a record of a batch, or of several one behind the other, has an id."""
    reader: Reader
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    if HEADER not in batches:
        return False
    while at + HEADER_BYTES <= len(batches):
        size = int.from_bytes(batches[at + 8 : at + 12], "big") + PREFIX_BYTES
        reader = open_batch(memoryview(batches)[at : at + size], max_bytes)
        while reader.next():
            if reader.header_count and id_of(reader) is not None:
                return True
        at += size
    return False


def newest(duplicates: Any) -> int:
    """The largest number of an entry that is repeated; -1 where none is."""
    given: cython.longlong[::1] = duplicates
    largest: cython.longlong = -1
    at: cython.Py_ssize_t
    for at in range(1, len(duplicates), _stride):
        if given[at] > largest:
            largest = given[at]
    return largest


def within(duplicates: Any, first: cython.longlong, last: cython.longlong) -> bool:
    """Whether an entry from `first` to before `last` is repeated."""
    given: cython.longlong[::1] = duplicates
    at: cython.Py_ssize_t
    found: cython.bint = False
    for at in range(1, len(duplicates), _stride):
        if first <= given[at] < last:
            found = True
    return found


def run_from(duplicates: Any, partition: cython.longlong) -> int:
    """The offset at which the records of a batch stand, if all of it is repeated from one partition, in that order and
    without gaps; -1 where it is not."""
    given: cython.longlong[::1] = duplicates
    at: cython.Py_ssize_t
    for at in range(0, len(duplicates), _stride):
        if given[at + 2] != partition or given[at + 3] < 0 or given[at + 3] != given[3] + at // _stride:
            return -1
    return given[3] if len(duplicates) else -1
