# cython: boundscheck=False, wraparound=False
"""What a queue knows of each message of one partition: ready, in flight, deferred, blocked, condemned, stuck or done.

The idea: one 64-bit cell for each offset between the *floor* (everything below it is done) and the *cursor* (nothing
from it on was ever handed out), in pages of 4,096 cells. A page all of whose messages are done is dropped, so the
memory goes with what is unsettled and out of order: a backlog costs nothing, since it lies above the cursor, and one
message that stays behind costs one page, however many flow past it. There is no timer and no table per message: a page
counts its messages by state and remembers the earliest time at which one of them may want something, so that a look at
the clock scans only the pages that are due.

A cell: bits 0-2 the state, bit 3 whether it has changed since it was last written down, bits 4-19 the attempts; above
them, for a deferred message, the time at which it is due (ms since 1970, 44 bits), and for one in flight its consumer
(16 bits) and the low 28 bits of its deadline in ms, which is why no deadline may lie more than a day ahead. One that is
leased has no consumer: like a deferred one it has the whole time at which its lease ends, and a client that names the
attempt and that time settles it.

What is written down (`drain`, `begin`, `images`, `apply`) are runs of equal cells as varints. A lease is written, and
outlives the process. Being in flight is never written: after a crash such a message is ready again, with one attempt
less than it had. One that is stuck (condemned, and refused by its dead-letter topic) is written as condemned: after a
start it is tried again.
"""

from __future__ import annotations

from array import array
from typing import Any

import cython

PAGE_CELLS = 4096

READY: int = 0
IN_FLIGHT: int = 1
DEFERRED: int = 2
DONE: int = 3
BLOCKED: int = 4
CONDEMNED: int = 5
STUCK: int = 6
LEASED: int = 7

ATTEMPTS_MAX: int = 65_535
OWNERS_MAX: int = 65_535
TIMEOUT_MAX_MS: int = 86_400_000
NEVER: int = (1 << 62) - 1

# Kinds of what is written down.
DELTA: int = 0
BEGIN: int = 1
IMAGE: int = 2
LAST_IMAGE: int = 3

PAGE = cython.declare(cython.longlong, 4096)
SHIFT = cython.declare(cython.int, 12)
INDEX = cython.declare(cython.longlong, 4095)
STATE = cython.declare(cython.ulonglong, 7)
DIRTY = cython.declare(cython.ulonglong, 8)
ATTEMPT_SHIFT = cython.declare(cython.int, 4)
ATTEMPT_MASK = cython.declare(cython.ulonglong, 0xFFFF)
DUE_SHIFT = cython.declare(cython.int, 20)
DUE_MASK = cython.declare(cython.ulonglong, (1 << 44) - 1)
OWNER_MASK = cython.declare(cython.ulonglong, 0xFFFF)
DEADLINE_SHIFT = cython.declare(cython.int, 36)
DEADLINE_MASK = cython.declare(cython.ulonglong, (1 << 28) - 1)
HALF = cython.declare(cython.ulonglong, 1 << 27)
LATER = cython.declare(cython.longlong, (1 << 62) - 1)
S_READY = cython.declare(cython.ulonglong, 0)
S_IN_FLIGHT = cython.declare(cython.ulonglong, 1)
S_DEFERRED = cython.declare(cython.ulonglong, 2)
S_DONE = cython.declare(cython.ulonglong, 3)
S_BLOCKED = cython.declare(cython.ulonglong, 4)
S_CONDEMNED = cython.declare(cython.ulonglong, 5)
S_STUCK = cython.declare(cython.ulonglong, 6)
S_LEASED = cython.declare(cython.ulonglong, 7)
ONE = cython.declare(cython.ulonglong, 1)
# Looked for: a message in any state but done.
UNSETTLED = cython.declare(cython.ulonglong, 8)
ATTEMPTS_END = cython.declare(cython.longlong, 65_535)
DUE_MAX = cython.declare(cython.longlong, (1 << 44) - 1)
NUMBER_MAX = cython.declare(cython.ulonglong, (1 << 62) - 1)
# What is handed out, and passed over, between two flushes is far less: a record with more is rejected.
GROWTH_MAX = cython.declare(cython.longlong, 1 << 26)
PASSED_MAX = cython.declare(cython.longlong, 1 << 34)


@cython.final
@cython.cclass
class Page:
    """The cells of 4,096 offsets."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cells = array("Q", bytes(PAGE_CELLS * 8))
        # Of the messages below the cursor, by state.
        self.ready = 0
        self.in_flight = 0
        self.deferred = 0
        self.blocked = 0
        self.condemned = 0
        self.stuck = 0
        self.leased = 0
        self.done = 0
        self.dirty = False
        # No message of the page times out, is due, or comes back from its lease, before these.
        self.deadline = LATER
        self.due = LATER
        self.lease_end = LATER


@cython.final
@cython.cclass
class Ledger:
    """The state of one queue on one partition."""

    def __init__(self, floor: int, attempts_max: int = 0) -> None:
        self.floor = floor
        self.cursor = floor
        self.attempts_max = attempts_max
        """A request for a message again after this many attempts condemns it; 0: never."""
        self.ready = 0
        self.in_flight = 0
        self.deferred = 0
        self.blocked = 0
        self.condemned = 0
        self.stuck = 0
        self.leased = 0
        self.moved = True
        """Floor or cursor have changed since they were last written down."""
        self.pages: dict[int, Any] = {}
        # Pages that were dropped, because all of them is done, since that was last written down.
        self.dropped: list[int] = []
        self.last: Any = None

    # --- cells ---

    @cython.cfunc
    def find(self, number: cython.longlong) -> Page:
        if self.last is not None and self.last.number == number:
            return self.last
        page: Page = self.pages.get(number)  # type: ignore[assignment]
        if page is not None:
            self.last = page
        return page

    @cython.cfunc
    def make(self, number: cython.longlong) -> Page:
        page: Page = self.find(number)
        index: cython.longlong
        if page is None:
            page = Page(number)
            # What lies below the floor counts as done, or the page would never be whole.
            index = 0
            while index < PAGE and (number << SHIFT) + index < self.floor:
                page.cells[index] = S_DONE
                page.done += 1
                index += 1
            self.pages[number] = page
            self.last = page
        return page

    @cython.cfunc
    @cython.exceptval(-1)
    def change(self, page: Page, index: cython.Py_ssize_t, cell: cython.ulonglong) -> cython.int:
        """Put a cell below the cursor in place of the one that is there."""
        old: cython.ulonglong = page.cells[index] & STATE
        new: cython.ulonglong = cell & STATE
        page.cells[index] = cell
        if cell & DIRTY:
            page.dirty = True
        if old == new:
            return 0
        if old == S_READY:
            page.ready -= 1
            self.ready -= 1
        elif old == S_IN_FLIGHT:
            page.in_flight -= 1
            self.in_flight -= 1
        elif old == S_DEFERRED:
            page.deferred -= 1
            self.deferred -= 1
        elif old == S_DONE:
            page.done -= 1
        elif old == S_BLOCKED:
            page.blocked -= 1
            self.blocked -= 1
        elif old == S_CONDEMNED:
            page.condemned -= 1
            self.condemned -= 1
        elif old == S_STUCK:
            page.stuck -= 1
            self.stuck -= 1
        else:
            page.leased -= 1
            self.leased -= 1
        if new == S_READY:
            page.ready += 1
            self.ready += 1
        elif new == S_IN_FLIGHT:
            page.in_flight += 1
            self.in_flight += 1
        elif new == S_DEFERRED:
            page.deferred += 1
            self.deferred += 1
        elif new == S_DONE:
            page.done += 1
            if page.done == PAGE:
                self.dropped.append(page.number)
                self.forget(page)
        elif new == S_BLOCKED:
            page.blocked += 1
            self.blocked += 1
        elif new == S_CONDEMNED:
            page.condemned += 1
            self.condemned += 1
        elif new == S_STUCK:
            page.stuck += 1
            self.stuck += 1
        else:
            page.leased += 1
            self.leased += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def forget(self, page: Page) -> cython.int:
        """Drop a page, with what its messages counted for."""
        self.ready -= page.ready
        self.in_flight -= page.in_flight
        self.deferred -= page.deferred
        self.blocked -= page.blocked
        self.condemned -= page.condemned
        self.stuck -= page.stuck
        self.leased -= page.leased
        self.pages.pop(page.number, None)
        if self.last is page:
            self.last = None
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put(self, offset: cython.longlong, cell: cython.ulonglong) -> cython.int:
        """Move the cursor to `offset`, over offsets that hold no message, and past it, with its first cell."""
        page: Page
        index: cython.Py_ssize_t
        self.moved = True
        if self.cursor < offset:
            self.pass_over(offset)
        page = self.make(offset >> SHIFT)
        index = offset & INDEX
        # A cell at the cursor is clear, and counts for nothing until the cursor has passed it.
        page.ready += 1
        self.ready += 1
        self.cursor = offset + 1
        self.change(page, index, cell)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def take(self, offset: cython.longlong, owner: cython.longlong, deadline: cython.longlong) -> cython.int:
        """Hand a message out: the number of this attempt, or 0 if it is not ready."""
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        attempts: cython.longlong
        tail: cython.ulonglong
        moment: cython.ulonglong = deadline
        who: cython.ulonglong = owner
        tail = ((moment & DEADLINE_MASK) << DEADLINE_SHIFT) | (who << DUE_SHIFT) | S_IN_FLIGHT
        if offset >= self.cursor:
            self.put(offset, tail | (1 << ATTEMPT_SHIFT))
            page = self.find(offset >> SHIFT)
            attempts = 1
        else:
            page = self.find(offset >> SHIFT)
            if offset < self.floor or page is None:
                return 0
            index = offset & INDEX
            cell = page.cells[index]
            if cell & STATE != S_READY:
                return 0
            attempts = (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK
            if attempts < ATTEMPTS_END:
                attempts += 1
            # A change that is not written down yet stays to be: as one that is in flight it reads the same.
            self.change(page, index, tail | (attempts << ATTEMPT_SHIFT) | (cell & DIRTY))
        if deadline < page.deadline:
            page.deadline = deadline
        return attempts

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def owned(self, offset: cython.longlong, owner: cython.longlong, attempt: cython.longlong) -> cython.longlong:
        """The index of a cell in its page if it is in flight to `owner` as that attempt, or -1."""
        page: Page
        cell: cython.ulonglong
        index: cython.Py_ssize_t
        if offset < self.floor or offset >= self.cursor:
            return -1
        page = self.find(offset >> SHIFT)
        if page is None:
            return -1
        index = offset & INDEX
        cell = page.cells[index]
        if cell & STATE != S_IN_FLIGHT:
            return -1
        if (cell >> DUE_SHIFT) & OWNER_MASK != owner or (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK != attempt:
            return -1
        return index

    # --- settling ---

    def finish(self, offset: cython.longlong, owner: cython.longlong, attempt: cython.longlong) -> bool:
        """Settle a message; False if it is not in flight to `owner` as that attempt. Call `advance` after a run."""
        index: cython.longlong = self.owned(offset, owner, attempt)
        if index < 0:
            return False
        self.change(self.find(offset >> SHIFT), index, S_DONE | DIRTY)
        return True

    def finish_many(self, ids: Any, lane: cython.longlong, owner: cython.longlong) -> list[int]:
        """Settle the messages of `ids` (an array of lane, offset, attempt) that are of this lane; the places (0, 1, ..)
        of those that were not in flight."""
        failed: list = []  # type: ignore[type-arg]
        triples = cython.declare(cython.longlong[::1], ids)
        count: cython.Py_ssize_t = len(ids) // 3
        at: cython.Py_ssize_t = 0
        index: cython.longlong
        while at < count:
            if triples[at * 3] == lane:
                index = self.owned(triples[at * 3 + 1], owner, triples[at * 3 + 2])
                if index < 0:
                    failed.append(at)
                else:
                    self.change(self.find(triples[at * 3 + 1] >> SHIFT), index, S_DONE | DIRTY)
            at += 1
        return failed

    def advance(self) -> bool:
        """Move the floor up to the first message that is not done; whether it moved."""
        before: cython.longlong = self.floor
        floor: cython.longlong = self.floor
        page: Page
        end: cython.longlong
        while floor < self.cursor:
            page = self.find(floor >> SHIFT)
            end = ((floor >> SHIFT) + 1) << SHIFT
            if end > self.cursor:
                end = self.cursor
            if page is not None:
                while floor < end and page.cells[floor & INDEX] & STATE == S_DONE:
                    floor += 1
                if floor < end:
                    break
                if floor & INDEX == 0:
                    self.forget(page)
            else:
                # Pages that are not there are done: on to the next that is, however far it is.
                end = self.cursor
                for number in self.pages:
                    if number > floor >> SHIFT and number << SHIFT < end:
                        end = number << SHIFT
                floor = end
        self.floor = floor
        if floor == before:
            return False
        self.moved = True
        return True

    def requeue(
        self, offset: cython.longlong, owner: cython.longlong, attempt: cython.longlong, due: cython.longlong
    ) -> bool:
        """Give a message back: ready at once (`due` 0) or from `due` on; condemned if it has had its attempts, or if
        `due` is negative."""
        index: cython.longlong = self.owned(offset, owner, attempt)
        if index < 0:
            return False
        self.give_back(self.find(offset >> SHIFT), index, attempt, due)
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def give_back(
        self, page: Page, index: cython.Py_ssize_t, attempt: cython.longlong, due: cython.longlong
    ) -> cython.int:
        attempts: cython.ulonglong = attempt
        moment: cython.ulonglong = due
        attempts = (attempts << ATTEMPT_SHIFT) | DIRTY
        if due < 0 or (self.attempts_max > 0 and attempt >= self.attempts_max):
            self.change(page, index, attempts | S_CONDEMNED)
        elif due > 0:
            self.change(page, index, ((moment & DUE_MASK) << DUE_SHIFT) | attempts | S_DEFERRED)
            if due < page.due:
                page.due = due
        else:
            self.change(page, index, attempts | S_READY)
        return 0

    def touch(
        self, offset: cython.longlong, owner: cython.longlong, attempt: cython.longlong, deadline: cython.longlong
    ) -> bool:
        """Set a message's deadline anew."""
        index: cython.longlong = self.owned(offset, owner, attempt)
        if index < 0:
            return False
        page: Page = self.find(offset >> SHIFT)
        moment: cython.ulonglong = deadline
        cell: cython.ulonglong = page.cells[index] & ~(DEADLINE_MASK << DEADLINE_SHIFT)
        page.cells[index] = cell | ((moment & DEADLINE_MASK) << DEADLINE_SHIFT)
        if deadline < page.deadline:
            page.deadline = deadline
        return True

    def deadline_of(self, offset: cython.longlong, now: cython.longlong) -> int:
        """When a message that is in flight times out."""
        page: Page = self.find(offset >> SHIFT)
        clock: cython.ulonglong = now
        left: cython.ulonglong
        if page is None:
            return now
        left = ((page.cells[offset & INDEX] >> DEADLINE_SHIFT) + DEADLINE_MASK + 1 - (clock & DEADLINE_MASK)) & (
            DEADLINE_MASK
        )
        return now if left > HALF else now + left

    def word_of(self, offsets: list[int]) -> bytes:
        """What would be written down if these messages were done now, in rising order of their offsets."""
        out: bytearray = bytearray()
        last: cython.longlong = self.floor
        out.append(DELTA)
        put_varint(out, self.floor)
        put_varint(out, max(self.cursor, offsets[len(offsets) - 1] + 1))
        for offset in offsets:
            if offset >= last:
                put_run(out, offset - last, 1, S_DONE, 0, 0)
                last = offset + 1
        return bytes(out)

    def word_of_arrivals(self, start: cython.longlong, arrivals: list[tuple[int, int]]) -> bytes:
        """What would be written down if messages came in from `start` on, each with attempts behind it and the time at
        which it is due (0: at once)."""
        out: bytearray = bytearray()
        out.append(DELTA)
        put_varint(out, self.floor)
        put_varint(out, start + len(arrivals))
        gap: cython.longlong = start - self.floor
        for attempts, due in arrivals:
            put_run(out, gap, 1, S_DEFERRED if due > 0 else S_READY, attempts, due)
            gap = 0
        return bytes(out)

    # --- leases ---

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def leased_as(self, offset: cython.longlong, attempt: cython.longlong, until: cython.longlong) -> cython.longlong:
        """The index of a cell in its page if it is leased as that attempt until then, or -1."""
        page: Page
        cell: cython.ulonglong
        index: cython.Py_ssize_t
        if offset < self.floor or offset >= self.cursor:
            return -1
        page = self.find(offset >> SHIFT)
        if page is None:
            return -1
        index = offset & INDEX
        cell = page.cells[index]
        if cell & STATE != S_LEASED:
            return -1
        moment: cython.longlong = cell >> DUE_SHIFT
        if (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK != attempt or moment != until:
            return -1
        return index

    @cython.cfunc
    @cython.exceptval(-1)
    def put_lease(
        self, page: Page, index: cython.Py_ssize_t, attempt: cython.longlong, until: cython.longlong
    ) -> cython.int:
        attempts: cython.ulonglong = attempt
        moment: cython.ulonglong = until
        self.change(page, index, ((moment & DUE_MASK) << DUE_SHIFT) | (attempts << ATTEMPT_SHIFT) | DIRTY | S_LEASED)
        if until < page.lease_end:
            page.lease_end = until
        return 0

    def lease(
        self, offset: cython.longlong, owner: cython.longlong, attempt: cython.longlong, until: cython.longlong
    ) -> bool:
        """A message that is in flight to `owner` as that attempt has no consumer until then, but is leased."""
        index: cython.longlong = self.owned(offset, owner, attempt)
        if index < 0:
            return False
        self.put_lease(self.find(offset >> SHIFT), index, attempt, until)
        return True

    def lease_of(self, offset: cython.longlong) -> tuple[int, int]:
        """The attempt and the end of a message's lease; (0, 0) where it has none."""
        page: Page = self.find(offset >> SHIFT)
        if page is None or offset < self.floor or offset >= self.cursor:
            return 0, 0
        cell: cython.ulonglong = page.cells[offset & INDEX]
        if cell & STATE != S_LEASED:
            return 0, 0
        return (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK, cell >> DUE_SHIFT

    def extend_lease(
        self, offset: cython.longlong, attempt: cython.longlong, until: cython.longlong, later: cython.longlong
    ) -> bool:
        """Let a lease end at another time, sooner or later; False where there is no such lease."""
        index: cython.longlong = self.leased_as(offset, attempt, until)
        if index < 0:
            return False
        self.put_lease(self.find(offset >> SHIFT), index, attempt, later)
        return True

    def finish_lease(self, offset: cython.longlong, attempt: cython.longlong, until: cython.longlong) -> bool:
        """Settle a message by its lease; False where there is no such lease. Call `advance` after a run."""
        index: cython.longlong = self.leased_as(offset, attempt, until)
        if index < 0:
            return False
        self.change(self.find(offset >> SHIFT), index, S_DONE | DIRTY)
        return True

    def return_lease(
        self, offset: cython.longlong, attempt: cython.longlong, until: cython.longlong, due: cython.longlong
    ) -> bool:
        """`requeue`, by a lease."""
        index: cython.longlong = self.leased_as(offset, attempt, until)
        if index < 0:
            return False
        self.give_back(self.find(offset >> SHIFT), index, attempt, due)
        return True

    def end_leases(self, now: cython.longlong, schedule: Any) -> list[tuple[int, int]]:
        """`expire`, of leases: offset and attempt of each."""
        found: list = []  # type: ignore[type-arg]
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        until: cython.longlong
        earliest: cython.longlong
        attempt: cython.longlong
        for page in self.pages.values():
            if page.leased == 0 or page.lease_end > now:
                continue
            earliest = LATER
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_LEASED:
                    until = cell >> DUE_SHIFT
                    if until <= now:
                        attempt = (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK
                        delay = delay_of(schedule, attempt)
                        self.give_back(page, index, attempt, now + delay if delay else 0)
                        found.append(((page.number << SHIFT) + index, attempt))
                    elif until < earliest:
                        earliest = until
                index += 1
            page.lease_end = earliest
        return found

    # --- time ---

    def release(self, owner: cython.longlong) -> list[int]:
        """A consumer has left: what it had is ready again (or condemned). The offsets."""
        found: list = []  # type: ignore[type-arg]
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        for page in self.pages.values():
            if page.in_flight == 0:
                continue
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_IN_FLIGHT and (cell >> DUE_SHIFT) & OWNER_MASK == owner:
                    self.give_back(page, index, (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK, 0)
                    found.append((page.number << SHIFT) + index)
                index += 1
        return found

    def owners(self) -> dict[int, int]:
        """How many messages each consumer has in flight."""
        found: dict = {}  # type: ignore[type-arg]
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        for page in self.pages.values():
            if page.in_flight == 0:
                continue
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_IN_FLIGHT:
                    owner = (cell >> DUE_SHIFT) & OWNER_MASK
                    found[owner] = found.get(owner, 0) + 1
                index += 1
        return found

    def expire(self, now: cython.longlong, schedule: Any) -> list[tuple[int, int, int]]:
        """Give back what has passed its deadline, after the delay (ms) that `schedule` has for its attempt: offset,
        owner and attempt of each."""
        found: list = []  # type: ignore[type-arg]
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        left: cython.ulonglong
        clock: cython.ulonglong = now
        earliest: cython.longlong
        attempt: cython.longlong
        for page in self.pages.values():
            if page.in_flight == 0 or page.deadline > now:
                continue
            earliest = LATER
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_IN_FLIGHT:
                    left = ((cell >> DEADLINE_SHIFT) + DEADLINE_MASK + 1 - (clock & DEADLINE_MASK)) & DEADLINE_MASK
                    if left == 0 or left > HALF:
                        attempt = (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK
                        delay = delay_of(schedule, attempt)
                        self.give_back(page, index, attempt, now + delay if delay else 0)
                        found.append(((page.number << SHIFT) + index, (cell >> DUE_SHIFT) & OWNER_MASK, attempt))
                    elif cython.cast(cython.longlong, left) < earliest:
                        earliest = left
                index += 1
            page.deadline = now + earliest if earliest < LATER else LATER
        return found

    def wake(self, now: cython.longlong) -> list[int]:
        """Make the deferred messages ready that are due; their offsets."""
        found: list = []  # type: ignore[type-arg]
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        due: cython.longlong
        earliest: cython.longlong
        for page in self.pages.values():
            if page.deferred == 0 or page.due > now:
                continue
            earliest = LATER
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_DEFERRED:
                    due = cell >> DUE_SHIFT
                    if due <= now:
                        # Not written down: after a crash the time has passed as well.
                        self.change(page, index, (cell & (ATTEMPT_MASK << ATTEMPT_SHIFT | DIRTY)) | S_READY)
                        found.append((page.number << SHIFT) + index)
                    elif due < earliest:
                        earliest = due
                index += 1
            page.due = earliest
        return found

    def next_time(self) -> int:
        """When `expire`, `wake` or `end_leases` may next have something to do; NEVER where nothing waits."""
        earliest: cython.longlong = LATER
        page: Page
        if self.in_flight == 0 and self.deferred == 0 and self.leased == 0:
            return earliest
        for page in self.pages.values():
            if page.in_flight and page.deadline < earliest:
                earliest = page.deadline
            if page.deferred and page.due < earliest:
                earliest = page.due
            if page.leased and page.lease_end < earliest:
                earliest = page.lease_end
        return earliest

    # --- looking for work ---

    def next_ready(self, start: cython.longlong) -> int:
        """The first ready message from `start` on that was handed out or passed over before; -1 where none is."""
        return self.first(start, S_READY)

    def condemned_from(self, start: cython.longlong, limit: cython.Py_ssize_t) -> list[int]:
        """The first condemned messages from `start` on, at most `limit`."""
        return self.offsets_in(1 << CONDEMNED, start, limit)

    def offsets_in(self, states: cython.ulonglong, start: cython.longlong, limit: cython.Py_ssize_t) -> list[int]:
        """The first messages from `start` on, below the cursor, in one of the states whose bits `states` has; at most
        `limit`."""
        found: list = []  # type: ignore[type-arg]
        page: Page
        offset: cython.longlong
        end: cython.longlong
        for page in self.pages.values():
            end = (page.number + 1) << SHIFT
            if end <= start or not has_any(page, states):
                continue
            if end > self.cursor:
                end = self.cursor
            offset = max(page.number << SHIFT, start)
            while offset < end:
                if ONE << (page.cells[offset & INDEX] & STATE) & states:
                    if len(found) == limit:
                        return found
                    found.append(offset)
                offset += 1
        return found

    def first_dead(self) -> int:
        """The first message that is condemned or stuck; -1 where none is."""
        page: Page
        index: cython.Py_ssize_t
        state: cython.ulonglong
        if self.condemned == 0 and self.stuck == 0:
            return -1
        for page in self.pages.values():
            if page.condemned == 0 and page.stuck == 0:
                continue
            index = 0
            while index < PAGE:
                state = page.cells[index] & STATE
                if state in (S_CONDEMNED, S_STUCK):
                    return (page.number << SHIFT) + index
                index += 1
        return -1

    def next_unsettled(self, start: cython.longlong) -> int:
        """The first message from `start` on, below the cursor, that is not done; -1 where none is."""
        return self.first(start, UNSETTLED)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def first(self, start: cython.longlong, state: cython.ulonglong) -> cython.longlong:
        page: Page
        offset: cython.longlong
        end: cython.longlong
        if start < self.floor:
            start = self.floor
        if state == S_READY and self.ready == 0:
            return -1
        for page in self.pages.values():
            end = (page.number + 1) << SHIFT
            if end <= start or (state == S_READY and page.ready == 0):
                continue
            offset = page.number << SHIFT
            if offset < start:
                offset = start
            if end > self.cursor:
                end = self.cursor
            while offset < end:
                if state == UNSETTLED:
                    if page.cells[offset & INDEX] & STATE != S_DONE:
                        return offset
                elif page.cells[offset & INDEX] & STATE == state:
                    return offset
                offset += 1
        return -1

    def state_of(self, offset: cython.longlong) -> tuple[int, int, int]:
        """State, attempts, and the time at which a deferred message is due or a lease ends (0 for others)."""
        if offset < self.floor:
            return 3, 0, 0
        if offset >= self.cursor:
            return 0, 0, 0
        page: Page = self.find(offset >> SHIFT)
        if page is None:
            return 3, 0, 0
        cell: cython.ulonglong = page.cells[offset & INDEX]
        state: cython.ulonglong = cell & STATE
        due: cython.ulonglong = cell >> DUE_SHIFT if state in (S_DEFERRED, S_LEASED) else 0
        return state, (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK, due

    def owner_of(self, offset: cython.longlong) -> int:
        """The consumer to which a message is in flight; 0 where it is in flight to none."""
        if offset < self.floor or offset >= self.cursor:
            return 0
        page: Page = self.find(offset >> SHIFT)
        if page is None:
            return 0
        cell: cython.ulonglong = page.cells[offset & INDEX]
        return (cell >> DUE_SHIFT) & OWNER_MASK if cell & STATE == S_IN_FLIGHT else 0

    # --- passing over ---

    def skip(self, offset: cython.longlong) -> None:
        """A message at or above the cursor is none of this queue's: done. The cursor passes it."""
        self.put(offset, S_DONE | DIRTY)

    def settle(self, offset: cython.longlong) -> bool:
        """A message below the cursor is done, whatever it was; False if it was done before."""
        page: Page = self.find(offset >> SHIFT)
        if offset < self.floor or offset >= self.cursor or page is None:
            return False
        if page.cells[offset & INDEX] & STATE == S_DONE:
            return False
        self.change(page, offset & INDEX, S_DONE | DIRTY)
        return True

    def block(self, offset: cython.longlong) -> None:
        """A message at or above the cursor, or a ready one, waits for another of its key."""
        page: Page
        if offset >= self.cursor:
            self.put(offset, S_BLOCKED)
        else:
            page = self.find(offset >> SHIFT)
            if page is not None and page.cells[offset & INDEX] & STATE == S_READY:
                self.change(page, offset & INDEX, page.cells[offset & INDEX] | S_BLOCKED)

    def condemn(self, offset: cython.longlong) -> None:
        """Condemn a message that no consumer holds, whatever its attempts."""
        page: Page
        cell: cython.ulonglong
        if offset >= self.cursor:
            self.put(offset, S_CONDEMNED | DIRTY)
            return
        page = self.find(offset >> SHIFT)
        if page is not None:
            cell = page.cells[offset & INDEX]
            if cell & STATE == S_BLOCKED or cell & STATE == S_READY:
                self.change(page, offset & INDEX, (cell & ~STATE) | S_CONDEMNED | DIRTY)

    def stick(self, offset: cython.longlong) -> None:
        """A condemned message cannot move to the dead-letter topic."""
        page: Page = self.find(offset >> SHIFT)
        cell: cython.ulonglong
        if page is not None:
            cell = page.cells[offset & INDEX]
            if cell & STATE == S_CONDEMNED:
                self.change(page, offset & INDEX, (cell & ~STATE) | S_STUCK)

    def unstick(self) -> None:
        """Let everything that is stuck be tried again."""
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        for page in self.pages.values():
            if page.stuck == 0:
                continue
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                if cell & STATE == S_STUCK:
                    self.change(page, index, (cell & ~STATE) | S_CONDEMNED)
                index += 1

    def unblock(self, offset: cython.longlong) -> None:
        """A blocked message is ready."""
        page: Page = self.find(offset >> SHIFT)
        if page is not None and page.cells[offset & INDEX] & STATE == S_BLOCKED:
            self.change(page, offset & INDEX, page.cells[offset & INDEX] & ~STATE)

    def defer(self, offset: cython.longlong, attempt: cython.longlong, due: cython.longlong) -> None:
        """A message at or above the cursor starts with this many attempts behind it, and not before `due`."""
        self.put(offset, S_READY)
        self.give_back(self.find(offset >> SHIFT), offset & INDEX, attempt, due)

    def put_back(self, offset: cython.longlong, due: cython.longlong) -> bool:
        """Let a message below the cursor be ready (`due` 0), or deferred, whoever holds it and whatever its attempts;
        False if it is done, or waits for another of its key."""
        page: Page = self.find(offset >> SHIFT)
        moment: cython.ulonglong = due
        cell: cython.ulonglong
        if offset < self.floor or offset >= self.cursor or page is None:
            return False
        cell = page.cells[offset & INDEX]
        if cell & STATE in (S_DONE, S_BLOCKED):
            return False
        cell = (cell & (ATTEMPT_MASK << ATTEMPT_SHIFT)) | DIRTY
        if due > 0:
            self.change(page, offset & INDEX, cell | ((moment & DUE_MASK) << DUE_SHIFT) | S_DEFERRED)
            if due < page.due:
                page.due = due
        else:
            self.change(page, offset & INDEX, cell | S_READY)
        return True

    def condemn_spent(self) -> int:
        """Condemn the ready messages that have had their attempts, now that there is a limit; how many."""
        found: cython.Py_ssize_t = 0
        page: Page
        index: cython.Py_ssize_t
        cell: cython.ulonglong
        attempts: cython.longlong
        if self.attempts_max <= 0:
            return 0
        for page in self.pages.values():
            if page.ready == 0:
                continue
            index = 0
            while index < PAGE:
                cell = page.cells[index]
                attempts = (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK
                if cell & STATE == S_READY and attempts >= self.attempts_max:
                    self.change(page, index, cell | S_CONDEMNED | DIRTY)
                    found += 1
                index += 1
        return found

    def skip_below(self, start: cython.longlong) -> int:
        """Everything below `start` is done: the log has no more of it, or no reader wants it. How many messages that
        settles that were handed out once and not settled; what lay above the cursor is not among them."""
        before: cython.Py_ssize_t = self.unsettled()
        if start <= self.floor:
            return 0
        self.drop_below(start)
        self.advance()
        return before - self.unsettled()

    @cython.ccall
    @cython.exceptval(-1)
    def unsettled(self) -> cython.Py_ssize_t:
        """Messages below the cursor that are not done."""
        return self.ready + self.in_flight + self.deferred + self.blocked + self.condemned + self.stuck + self.leased

    @cython.cfunc
    @cython.exceptval(-1)
    def drop_below(self, start: cython.longlong) -> cython.int:
        """Raise the floor to `start`, and the cursor if it is lower."""
        page: Page
        index: cython.Py_ssize_t
        cursor: cython.longlong = self.cursor
        if start > cursor:
            self.cursor = start
        self.moved = True
        self.floor = start
        for page in list(self.pages.values()):
            if (page.number + 1) << SHIFT <= start:
                self.forget(page)
            elif page.number << SHIFT < start:
                index = 0
                while (page.number << SHIFT) + index < start:
                    if (page.number << SHIFT) + index >= cursor:
                        page.cells[index] = S_DONE
                        page.done += 1
                    elif page.cells[index] & STATE != S_DONE:
                        self.change(page, index, S_DONE)
                    index += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def pass_over(self, offset: cython.longlong) -> cython.int:
        """Offsets from the cursor to `offset` hold no message (a gap that compaction left, or a marker)."""
        page: Page
        end: cython.longlong
        while self.cursor < offset:
            end = ((self.cursor >> SHIFT) + 1) << SHIFT
            if self.cursor & INDEX == 0 and end <= offset:
                # A whole page of nothing needs no page.
                self.dropped.append(self.cursor >> SHIFT)
                self.cursor = end
                continue
            if end > offset:
                end = offset
            page = self.make(self.cursor >> SHIFT)
            while self.cursor < end:
                page.ready += 1
                self.ready += 1
                self.change(page, self.cursor & INDEX, S_DONE | DIRTY)
                self.cursor += 1
        return 0

    def pass_to(self, offset: cython.longlong) -> None:
        """Offsets from the cursor up to `offset` hold no message: done, without having been any."""
        if self.cursor < offset:
            self.moved = True
            self.pass_over(offset)

    def cut(self, end: cython.longlong) -> None:
        """The log was cut back to `end`: what was known of offsets from there on is void."""
        page: Page
        index: cython.Py_ssize_t
        if end >= self.cursor:
            return
        self.moved = True
        for page in list(self.pages.values()):
            if page.number << SHIFT >= end:
                self.forget(page)
        self.dropped = [number for number in self.dropped if (number + 1) << SHIFT <= end]
        page = self.find(end >> SHIFT)
        if page is None and self.floor < end and end & INDEX:
            # The page was whole, and dropped: what remains of it is done.
            page = self.make(end >> SHIFT)
            index = 0
            while index < (end & INDEX):
                if page.cells[index] & STATE != S_DONE:
                    page.cells[index] = S_DONE | DIRTY
                    page.done += 1
                index += 1
        elif page is not None:
            index = end & INDEX
            while index < PAGE:
                # As if the cursor had never passed: clear, and counted for nothing.
                if (page.number << SHIFT) + index < self.cursor:
                    self.change(page, index, S_READY)
                    page.ready -= 1
                    self.ready -= 1
                page.cells[index] = 0
                index += 1
        self.cursor = end
        if self.floor > end:
            self.floor = end

    # --- writing down ---

    def drain(self, limit: int) -> bytes | None:
        """What has changed since the last call, about `limit` bytes of it at most; None where nothing has."""
        out: bytearray = bytearray()
        page: Page
        last: cython.longlong = self.floor
        if not self.moved and not self.dropped:
            dirty = [page.number for page in self.pages.values() if page.dirty]
            if not dirty:
                return None
        else:
            dirty = [page.number for page in self.pages.values() if page.dirty]
        out.append(DELTA)
        put_varint(out, self.floor)
        put_varint(out, self.cursor)
        for number in sorted([*self.dropped, *dirty]):
            page = self.pages.get(number)  # type: ignore[assignment]
            if page is None:
                if (number + 1) << SHIFT > last:
                    first = max(number << SHIFT, last)
                    put_run(out, first - last, ((number + 1) << SHIFT) - first, S_DONE, 0, 0)
                    last = (number + 1) << SHIFT
            elif len(out) < limit:
                last = self.encode(page, out, last, DIRTY)
                page.dirty = False
        self.dropped = []
        self.moved = False
        return bytes(out)

    def begin(self) -> bytes:
        """The beginning of a snapshot, to be followed by the images of all pages that are there then. Until the last of
        them is there, the snapshot before it holds, with every word since."""
        out: bytearray = bytearray()
        out.append(BEGIN)
        put_varint(out, self.floor)
        put_varint(out, self.cursor)
        return bytes(out)

    def images(self, start: int, limit: int) -> tuple[bytes, int]:
        """Whole pages from number `start` on, one at least, about `limit` bytes of them; and the number to go on from,
        -1 where that was all. Changes of those pages need not be drained any more."""
        out: bytearray = bytearray()
        page: Page
        out.append(IMAGE)
        put_varint(out, self.floor)
        put_varint(out, self.cursor)
        head: cython.Py_ssize_t = len(out)
        for page in self.pages.values():
            number = page.number
            if number < start:
                continue
            if len(out) >= limit and len(out) > head:
                return bytes(out), number
            # The cells below the floor need no word; the rest of the page follows as runs, ended by an empty one.
            put_varint(out, number)
            self.encode(page, out, max(number << SHIFT, self.floor), 0)
            put_varint(out, 0)
            put_varint(out, 0)
            page.dirty = False
        out[0] = LAST_IMAGE
        return bytes(out), -1

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def encode(self, page: Page, out: bytearray, last: cython.longlong, only: cython.ulonglong) -> cython.longlong:
        """Append the runs of a page's cells: those that have all bits of `only`, and (an image) are not fresh. Offsets
        count from `last`; where the next run's count from."""
        offset: cython.longlong = page.number << SHIFT
        end: cython.longlong = offset + PAGE
        start: cython.longlong
        cell: cython.ulonglong
        written: cython.ulonglong
        if offset < self.floor:
            offset = self.floor
        if offset < last:
            offset = last
        if end > self.cursor:
            end = self.cursor
        while offset < end:
            cell = page.cells[offset & INDEX]
            written = as_written(cell)
            if cell & only != only or (only == 0 and written == 0):
                offset += 1
                continue
            start = offset
            while offset < end:
                cell = page.cells[offset & INDEX]
                if cell & only != only or as_written(cell) != written:
                    break
                page.cells[offset & INDEX] = cell & ~DIRTY
                offset += 1
            put_run(
                out, start - last, offset - start, written & STATE, (written >> ATTEMPT_SHIFT) & ATTEMPT_MASK,
                written >> DUE_SHIFT,
            )  # fmt: skip
            last = offset
        return last

    def apply(self, written: bytes) -> None:
        """Take what `drain`, `begin` or `images` wrote down; `arrange` follows the last of it. Raises IndexError or
        ValueError where that cannot be."""
        at: cython.Py_ssize_t
        number: cython.longlong
        floor: cython.longlong
        cursor: cython.longlong
        end: cython.longlong
        if not written:
            raise IndexError("the state of a queue is empty")
        kind: int = written[0]
        floor, at = get_varint(written, 1)
        cursor, at = get_varint(written, at)
        if kind > LAST_IMAGE or floor > cursor:
            raise ValueError(f"the state of a queue cannot be of kind {kind} with floor {floor} and cursor {cursor}")
        if kind == BEGIN:
            self.pages = {}
            self.last = None
            self.ready = self.in_flight = self.deferred = self.blocked = self.condemned = self.stuck = self.leased = 0
            self.dropped = []
            self.floor = floor
            self.cursor = cursor
            return
        if cursor < self.cursor:
            self.cut(cursor)
        # The floor goes no further than was written: a page that is not there may be one whose image is still to come.
        if floor > self.floor:
            self.drop_below(floor)
        if kind == DELTA:
            self.decode(written, at, floor, cursor)
            self.believe(cursor)
        else:
            # The pages up to there may come with a later image, or never, if a crash came first.
            self.believe(cursor)
            while at < len(written):
                number, at = get_varint(written, at)
                if number > cursor >> SHIFT or (number + 1) << SHIFT <= floor:
                    raise ValueError(f"the state of a queue between {floor} and {cursor} has no page {number}")
                end = min(cursor, (number + 1) << SHIFT)
                self.load(number, end)
                at = self.decode(written, at, max(number << SHIFT, floor), end)
        self.dropped = []

    def reach(self, cursor: cython.longlong) -> None:
        """Raise the cursor over messages that are ready from now on."""
        if cursor > self.cursor:
            self.moved = True
            self.grow(cursor)

    def arrange(self) -> None:
        """All that was written down has been applied: let the pages stand in their order, and the floor where it can,
        as everything else leaves them."""
        self.pages = dict(sorted(self.pages.items()))
        self.advance()

    @cython.cfunc
    @cython.exceptval(-1)
    def grow(self, cursor: cython.longlong) -> cython.int:
        """Raise the cursor over messages that were handed out: ready, until another state is set."""
        page: Page
        end: cython.longlong
        while self.cursor < cursor:
            page = self.make(self.cursor >> SHIFT)
            end = min(cursor, ((self.cursor >> SHIFT) + 1) << SHIFT)
            page.ready += end - self.cursor
            self.ready += end - self.cursor
            self.cursor = end
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def believe(self, cursor: cython.longlong) -> cython.int:
        """`grow`, by what was written down."""
        if cursor - self.cursor > GROWTH_MAX:
            raise ValueError(f"the state of a queue cannot go from {self.cursor} to {cursor} at once")
        return self.grow(cursor)

    @cython.cfunc
    @cython.exceptval(-1)
    def load(self, number: cython.longlong, end: cython.longlong) -> cython.int:
        """Make a page anew, with messages up to `end`: its image follows."""
        page: Page = self.find(number)
        first: cython.longlong
        if page is not None:
            self.forget(page)
        page = self.make(number)
        first = max(number << SHIFT, self.floor)
        if end > first:
            page.ready += end - first
            self.ready += end - first
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def decode(
        self, written: bytes, at: cython.Py_ssize_t, last: cython.longlong, limit: cython.longlong
    ) -> cython.Py_ssize_t:
        """Set the cells of the runs that stand at `at`, all of them below `limit`; where they end (at an empty run, or
        with the bytes)."""
        page: Page
        cell: cython.ulonglong
        state: cython.ulonglong
        attempts: cython.longlong
        due: cython.longlong
        gap: cython.longlong
        length: cython.longlong
        offset: cython.longlong = last
        end: cython.longlong
        while at < len(written):
            gap, at = get_varint(written, at)
            length, at = get_varint(written, at)
            if length == 0:
                break
            if at >= len(written):
                raise IndexError("the state of a queue ends inside a run")
            state = written[at]
            attempts, at = get_varint(written, at + 1)
            due, at = get_varint(written, at)
            if gap > limit - offset or length > limit - offset - gap:
                raise ValueError(f"a run of {length} in the state of a queue ends behind {limit}")
            known = state in (S_READY, S_DEFERRED, S_DONE, S_CONDEMNED, S_LEASED)
            if not known or attempts > ATTEMPTS_END or due > DUE_MAX:
                raise ValueError(f"the state of a queue has state {state}, attempt {attempts}, due at {due}")
            cell = (cython.cast(cython.ulonglong, due) << DUE_SHIFT) | (attempts << ATTEMPT_SHIFT) | state
            offset += gap
            end = offset + length
            if end > self.cursor:
                self.believe(offset)
                if state != S_DONE:
                    self.believe(end)
                elif end - self.cursor > PASSED_MAX:
                    raise ValueError(f"the state of a queue cannot pass from {self.cursor} to {end}")
                else:
                    self.pass_over(end)
            while offset < end:
                if offset < self.floor:
                    offset = min(end, self.floor)
                    continue
                page = self.find(offset >> SHIFT)
                if state == S_DONE and (page is None or (offset & INDEX == 0 and end - offset >= PAGE)):
                    # A page that is not there is done.
                    if page is not None:
                        self.forget(page)
                    offset = min(end, ((offset >> SHIFT) + 1) << SHIFT)
                    continue
                if page is None:
                    page = self.revive(offset >> SHIFT)
                self.change(page, offset & INDEX, cell)
                if state == S_DEFERRED and due < page.due:
                    page.due = due
                elif state == S_LEASED and due < page.lease_end:
                    page.lease_end = due
                offset += 1
        return at

    @cython.cfunc
    def revive(self, number: cython.longlong) -> Page:
        """A page that counted as done, with every cell done."""
        page: Page = self.make(number)
        index: cython.longlong = 0
        while index < PAGE and (number << SHIFT) + index < self.cursor:
            if page.cells[index] & STATE != S_DONE:
                page.cells[index] = S_DONE
                page.done += 1
            index += 1
        return page


@cython.cfunc
@cython.exceptval(-1, check=False)
def has_any(page: Page, states: cython.ulonglong) -> cython.bint:
    """Whether a page has messages, not done, in one of these states."""
    return (
        (page.ready > 0 and states & ONE << S_READY != 0)
        or (page.in_flight > 0 and states & ONE << S_IN_FLIGHT != 0)
        or (page.deferred > 0 and states & ONE << S_DEFERRED != 0)
        or (page.blocked > 0 and states & ONE << S_BLOCKED != 0)
        or (page.condemned > 0 and states & ONE << S_CONDEMNED != 0)
        or (page.stuck > 0 and states & ONE << S_STUCK != 0)
        or (page.leased > 0 and states & ONE << S_LEASED != 0)
    )


def delay_of(schedule: Any, attempt: int) -> int:
    """The delay after an attempt (from 1) that a retry schedule has; its last step repeats."""
    return schedule[min(attempt, len(schedule)) - 1] if schedule else 0


@cython.cfunc
@cython.exceptval(check=False)
def as_written(cell: cython.ulonglong) -> cython.ulonglong:
    """A cell as it is written down: without its consumer, ready where it is in flight or blocked, and condemned where
    it is stuck."""
    state: cython.ulonglong = cell & STATE
    attempts: cython.ulonglong = (cell >> ATTEMPT_SHIFT) & ATTEMPT_MASK
    if state == S_DONE:
        return S_DONE
    if state in (S_DEFERRED, S_LEASED):
        return cell & ~DIRTY
    if state in (S_CONDEMNED, S_STUCK):
        return attempts << ATTEMPT_SHIFT | S_CONDEMNED
    if state == S_IN_FLIGHT and attempts > 0:
        attempts -= 1
    return attempts << ATTEMPT_SHIFT


@cython.cfunc
@cython.exceptval(-1)
def put_run(
    out: bytearray, gap: cython.longlong, length: cython.longlong, state: cython.ulonglong,
    attempts: cython.ulonglong, due: cython.ulonglong,
) -> cython.int:  # fmt: skip
    put_varint(out, gap)
    put_varint(out, length)
    out.append(state)
    put_varint(out, attempts)
    put_varint(out, due)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def put_varint(out: bytearray, value: cython.ulonglong) -> cython.int:
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return 0


def get_varint(data: bytes, at: cython.Py_ssize_t) -> tuple[int, int]:
    """A number and where it ends. Raises IndexError where the bytes end before it does, ValueError where it is larger
    than any of ours."""
    value: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while True:
        if at >= len(data):
            raise IndexError("the state of a queue ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if shift > 56 or value > NUMBER_MAX:
            raise ValueError("the state of a queue has a number of more than 62 bits")
        if byte < 0x80:
            return value, at
        shift += 7
