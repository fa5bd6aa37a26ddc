# cython: boundscheck=False, wraparound=False
"""From batches to deliveries: the records of a chunk of log are handed to one consumer in one call.

`Feed` walks over whole batches, record by record, and stops anywhere, so that a chunk can be shared out among
consumers. `claim` steps through it and marks each message in the queue's `Ledger` as in flight; what it returns,
`Claimed`, holds in flat arrays where the parts of each message lie. A door's own kernel turns that into its frames, and
`messages` into Python's objects for callers that do not count microseconds.

Messages that the queue does not want (`Rules`: a filter, a message sent back to another queue) are settled on the way.
So are those of aborted transactions, which the feed passes over batch by batch.
Where the queue keeps its keys in order, a message waits while an earlier one of its key is unsettled.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import cython

from headrace.errors import AppendRefused
from headrace.format.aborted import Aborted
from headrace.format.batch import CONTROL, TRANSACTIONAL
from headrace.format.records import Record, open_batch

if cython.compiled:
    from cython.cimports.headrace.broker.queues.ledger import Ledger
    from cython.cimports.headrace.format.records import Reader
else:
    from headrace.broker.queues.ledger import Ledger
    from headrace.format.records import Reader

CLAIM_MAX: int = 512
# The first header of a message that was sent back to one queue alone.
FOR_QUEUE: bytes = b"headrace-for-queue"

# What a filter's condition looks at, and how.
HEADER: int = 0
KEY: int = 1

PREFIX = cython.declare(cython.Py_ssize_t, 12)
HEAD = cython.declare(cython.Py_ssize_t, 61)
# One message of a Claimed: offset, attempt, time, key (place, length), value, headers (place, count), end, reader.
STRIDE = cython.declare(cython.Py_ssize_t, 11)


@cython.final
@cython.cclass
class Feed:
    """A cursor over a chunk of batches."""

    def __init__(self, unpacked_max: int) -> None:
        self.unpacked_max = unpacked_max
        self.data = b""
        self.position = 0
        self.start = 0
        self.offset = -1
        """Of the record that it stands on."""
        self.base = 0
        """The first offset of the batch that was opened last."""
        self.after = 0
        """Behind the last offset of the batches that were opened: what to fill it with next."""
        self.reader: Any = None
        self.held = False
        self.broken: Any = None
        self.aborted: Any = None

    def fill(self, data: bytes, start: int, aborted: Any = ()) -> None:
        """Stand before offset `start`, which the first batch of `data` holds, or the gap before that batch. `aborted`:
        the transactions that were aborted there, as `Aborted` wants them."""
        self.data = data
        self.aborted = Aborted(aborted) if aborted else None
        self.position = 0
        self.start = start
        self.base = start
        self.after = start
        self.reader = None
        self.held = False
        self.broken = None

    @property
    def stands(self) -> bool:
        """It stands on a record that is not taken yet."""
        return self.held

    def drop_batch(self) -> None:
        """Leave the batch under way: nothing more can be read of it."""
        self.reader = None
        self.held = False
        self.broken = None

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def open_next(self) -> cython.bint:
        """Open the next batch with records; False where the chunk holds no further whole one."""
        data: bytes = self.data
        size: cython.Py_ssize_t
        at: cython.Py_ssize_t
        while True:
            at = self.position
            if len(data) - at < HEAD:
                return False
            # Widened before it is shifted: a damaged length must not become a negative one.
            size = data[at + 8]
            size = PREFIX + (size << 24 | data[at + 9] << 16 | data[at + 10] << 8 | data[at + 11])
            if len(data) - at < size:
                return False
            self.position = at + size
            # Before it is read: a batch that cannot be is passed by its own word on where it ends.
            self.base = int.from_bytes(data[at : at + 8], "big")
            self.after = max(self.after, self.base + int.from_bytes(data[at + 23 : at + 27], "big") + 1)
            self.reader = None
            if data[at + 22] & CONTROL or (
                self.aborted is not None
                and data[at + 22] & TRANSACTIONAL
                and self.aborted.has(int.from_bytes(data[at + 43 : at + 51], "big"), self.base)
            ):
                continue
            self.reader = open_batch(memoryview(data)[at : at + size], self.unpacked_max)
            return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def step(self) -> cython.bint:
        """Step to the next record at or behind the start; False at the end of the chunk."""
        reader: Reader
        if self.held:
            self.held = False
            return True
        if self.broken is not None:
            raise self.broken
        while True:
            reader = self.reader
            if reader is None:
                if not self.open_next():
                    return False
                reader = self.reader
            while reader.next():
                self.offset = reader.base_offset + reader.offset_delta
                if self.offset >= self.start:
                    return True
            self.reader = None


@cython.final
@cython.cclass
class Claimed:
    """Messages that were just handed to one consumer."""

    def __init__(self, lane: int, capacity: int) -> None:
        self.lane = lane
        self.count = 0
        self.size = 0
        """Bytes of their keys and values."""
        self.readers: list[Any] = []
        self.cells = array("q", bytes(capacity * 88))

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def add(self, reader: Reader, attempt: cython.longlong) -> cython.int:
        at: cython.Py_ssize_t = self.count * STRIDE
        known: cython.Py_ssize_t = len(self.readers)
        if known == 0 or self.readers[known - 1] is not reader:
            self.readers.append(reader)
            known += 1
        self.cells[at] = reader.base_offset + reader.offset_delta
        self.cells[at + 1] = attempt
        self.cells[at + 2] = reader.timestamp
        self.cells[at + 3] = reader.key_at
        self.cells[at + 4] = reader.key_length
        self.cells[at + 5] = reader.value_at
        self.cells[at + 6] = reader.value_length
        self.cells[at + 7] = reader.headers_at
        self.cells[at + 8] = reader.header_count
        self.cells[at + 9] = reader.record_end
        self.cells[at + 10] = known - 1
        self.count += 1
        if reader.key_length > 0:
            self.size += reader.key_length
        if reader.value_length > 0:
            self.size += reader.value_length
        return 0

    def attempts(self) -> list[tuple[int, int]]:
        """Offset and attempt of each."""
        return [(self.cells[at * STRIDE], self.cells[at * STRIDE + 1]) for at in range(self.count)]

    def messages(self) -> list[tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
        """Offset, attempt, time, key, value, headers of each."""
        found: list = []  # type: ignore[type-arg]
        at: cython.Py_ssize_t
        number: cython.Py_ssize_t = 0
        reader: Reader
        while number < self.count:
            at = number * STRIDE
            reader = self.readers[self.cells[at + 10]]
            found.append(
                (
                    self.cells[at],
                    self.cells[at + 1],
                    self.cells[at + 2],
                    self.key_of(number),
                    part(reader, self.cells[at + 5], self.cells[at + 6]),
                    self.headers_of(number),
                )
            )
            number += 1
        return found

    @cython.cfunc
    def key_of(self, number: cython.Py_ssize_t) -> object:
        at: cython.Py_ssize_t = number * STRIDE
        reader: Reader = self.readers[self.cells[at + 10]]
        return part(reader, self.cells[at + 3], self.cells[at + 4])

    @cython.cfunc
    def headers_of(self, number: cython.Py_ssize_t) -> list:  # type: ignore[type-arg]
        at: cython.Py_ssize_t = number * STRIDE
        reader: Reader = self.readers[self.cells[at + 10]]
        # The feed may be in the middle of this batch: it goes on from where it was.
        position = reader.position
        record_end = reader.record_end
        reader.headers_at = self.cells[at + 7]
        reader.header_count = self.cells[at + 8]
        reader.record_end = self.cells[at + 9]
        headers = reader.headers()
        reader.position = position
        reader.record_end = record_end
        return headers


@cython.cfunc
def part(reader: Reader, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> object:
    if length < 0:
        return None
    return reader.bytes_at[at : at + length]


class Keys:
    """Which message of each key is unsettled, and which wait for it, on one partition."""

    def __init__(self) -> None:
        self.holders: dict[bytes, int] = {}
        self.waiting: dict[bytes, deque[int]] = {}
        self.key_of: dict[int, bytes] = {}
        """The keys of the holders, by offset."""
        self.waiter_of: dict[int, bytes] = {}
        """The keys of those that wait, by offset. Most are blocked; what was handed out before there was an order is
        not."""
        self.parked: dict[bytes, None] = {}
        """Keys all of whose messages follow a dead one."""

    def hold(self, key: bytes, offset: int) -> bool:
        """Whether the message may go: no other of its key is unsettled. If one is, the message waits."""
        holder = self.holders.get(key)
        if holder is not None and holder != offset:
            if offset not in self.waiter_of:
                self.waiting.setdefault(key, deque()).append(offset)
                self.waiter_of[offset] = key
            return False
        self.holders[key] = offset
        self.key_of[offset] = key
        return True

    def held(self, key: bytes, offset: int) -> bool:
        """Whether another message of the key is unsettled."""
        holder = self.holders.get(key)
        return holder is not None and holder != offset

    def park(self, offset: int) -> list[int]:
        """A message is dead, and its key parked: those that waited for it, which follow."""
        key = self.key_of.pop(offset, None)
        if key is None:
            return []
        del self.holders[key]
        self.parked[key] = None
        following = list(self.waiting.pop(key, ()))
        for each in following:
            del self.waiter_of[each]
        return following

    def release(self, offset: int) -> int | None:
        """A message is settled: the one that may go next."""
        key = self.key_of.pop(offset, None)
        if key is None:
            self.leave(offset)
            return None
        waiting = self.waiting.get(key)
        if not waiting:
            del self.holders[key]
            return None
        following = waiting.popleft()
        if not waiting:
            del self.waiting[key]
        del self.waiter_of[following]
        self.holders[key] = following
        self.key_of[following] = key
        return following

    def leave(self, offset: int) -> None:
        """A message that waits is settled before its turn."""
        key = self.waiter_of.pop(offset, None)
        if key is not None:
            self.waiting[key].remove(offset)
            if not self.waiting[key]:
                del self.waiting[key]

    def drop_below(self, start: int) -> list[int]:
        """The log has no messages below `start` any more: those that may go in place of the ones that held their
        keys."""
        for offset in [each for each in self.waiter_of if each < start]:
            self.leave(offset)
        gone = [each for each in self.key_of if each < start]
        return [following for offset in gone if (following := self.release(offset)) is not None]

    def clear(self) -> None:
        """All messages are settled."""
        self.holders.clear()
        self.waiting.clear()
        self.key_of.clear()
        self.waiter_of.clear()


@cython.final
@cython.cclass
class Rules:
    """Which messages a queue wants. A condition: what it looks at (HEADER or KEY), the header's name, the values one of
    which it must have (None: any value at all), and whether it is turned around."""

    def __init__(self, queue: str, conditions: list[Any], keys: Keys | None, lookahead_max: int) -> None:
        self.queue = queue.encode()
        self.conditions = conditions
        self.keys = keys
        self.lookahead_max = lookahead_max

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def wants(self, reader: Reader) -> cython.bint:
        found: list  # type: ignore[type-arg]
        # 36 is the length as a varint: only a header of this length can be the one that names a queue.
        if (
            reader.header_count > 0
            and reader.bytes_at[reader.headers_at] == 36
            and reader.bytes_at[reader.headers_at + 1 : reader.headers_at + 19] == FOR_QUEUE
        ):
            position = reader.position
            found = reader.headers()
            reader.position = position
            if found[0][1] != self.queue:
                return False
        for condition in self.conditions:  # noqa: SIM110 -- a generator would cost more than the loop
            if not self.meets(reader, condition):
                return False
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def meets(self, reader: Reader, condition: Any) -> cython.bint:
        what, name, values, negated = condition
        hit: cython.bint = False
        if what == KEY:
            key = reader.key()
            hit = key is not None and (values is None or key in values)
        elif reader.header_count > 0:
            position = reader.position
            for header, value in reader.headers():
                if header == name and (values is None or value in values):
                    hit = True
                    break
            reader.position = position
        return not hit if negated else hit


@cython.final
@cython.cclass
class Look:
    """The records of one whole batch for a client that only looks, some at a time: they may unpack to far more than is
    wanted."""

    def __init__(self, batch: Any, unpacked_max: int) -> None:
        self.reader = open_batch(batch, unpacked_max)
        self.size = len(self.reader.body)
        """Bytes that it unpacks to."""
        self.done = False
        """There are no more."""

    def some(self, rules: Rules, cursor: cython.longlong, records_max: int, bytes_max: int) -> list[Record]:
        """Those of the next records that a queue wants; about `bytes_max` of `records_max` at most are looked at. What
        lies before the queue's cursor has been asked already, by the rules of its time."""
        reader: Reader = self.reader
        start: cython.Py_ssize_t = reader.position
        most: cython.Py_ssize_t = bytes_max
        left: cython.Py_ssize_t = records_max
        found: list = []  # type: ignore[type-arg]
        while left > 0 and reader.position - start < most:
            left -= 1
            if not reader.next():
                self.done = True
                break
            offset = reader.base_offset + reader.offset_delta
            if offset < cursor or rules.wants(reader):
                found.append((offset, reader.timestamp, reader.key(), reader.value(), reader.headers()))
        return found


def claim(
    feed: Feed,
    ledger: Ledger,
    rules: Rules,
    lane: int,
    owner: cython.longlong,
    deadline: cython.longlong,
    limit: int,
    max_bytes: cython.Py_ssize_t,
    again: bool,
    sample: cython.longlong = 100,
) -> Claimed:
    """Hand messages of the feed to a consumer: at most `limit`, about `max_bytes` of them. `again`: those that were
    handed out before and are ready again; otherwise those from the cursor on. Of these only `sample` in a hundred, by
    a hash of the offset, are handed out; the others are settled, as NSQ has it."""
    capacity: cython.Py_ssize_t = min(limit, CLAIM_MAX)
    claimed: Claimed = Claimed(lane, capacity)
    second: cython.bint = again
    keys: Any = rules.keys
    ordered: cython.bint = keys is not None
    offset: cython.longlong
    attempt: cython.int
    try:
        while claimed.count < capacity and claimed.size < max_bytes:
            if not feed.step():
                # What the chunk had no record for up to its end is a gap, or a marker of a transaction.
                if not second:
                    ledger.pass_to(feed.after)
                break
            offset = feed.offset
            if second:
                if offset >= ledger.cursor:
                    feed.held = True
                    break
            else:
                if offset < ledger.cursor:
                    continue
                if not rules.wants(feed.reader) or (sample < 100 and (offset * 40503 >> 7) % 100 >= sample):
                    ledger.skip(offset)
                    continue
                if ordered and feed.reader.key_length >= 0:
                    key = feed.reader.key()
                    if keys.parked and key in keys.parked:
                        ledger.condemn(offset)
                        continue
                    if keys.held(key, offset) and ledger.blocked >= rules.lookahead_max:
                        feed.held = True
                        break
                    if not keys.hold(key, offset):
                        ledger.block(offset)
                        continue
            attempt = ledger.take(offset, owner, deadline)
            if attempt > 0:
                claimed.add(feed.reader, attempt)
    except AppendRefused as error:
        # What was taken before the batch broke is handed out first; the next call raises what is wrong.
        feed.broken = error
        if not claimed.count:
            raise
    return claimed
