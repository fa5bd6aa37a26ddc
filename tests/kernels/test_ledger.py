"""The ledger against a plain model of it: claims over real batches, every way to settle or give back, page edges, and
what is written down and read back at any moment; compiled and interpreted. And what it costs in memory."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.kernels.queue_kernels import COMPILED, INTERPRETED, Build, batch_at, control_at
from tests.longer import LONGER, examples

from headrace.broker.queues.ledger import (
    BEGIN,
    BLOCKED,
    CONDEMNED,
    DEFERRED,
    DONE,
    IMAGE,
    IN_FLIGHT,
    LAST_IMAGE,
    LEASED,
    NEVER,
    PAGE_CELLS,
    READY,
    STUCK,
    Ledger,
)

NOW = 1_798_761_600_000
# Where pages begin and end, and the middle of one.
EDGES = [0, 1, PAGE_CELLS - 3, PAGE_CELLS, PAGE_CELLS + 7, 2 * PAGE_CELLS - 1]
SIZES = st.sampled_from([1, 1, 2, 3, 10, 700, PAGE_CELLS - 1, PAGE_CELLS, PAGE_CELLS + 1])
OWNERS = st.integers(1, 3)
ORDINARY = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@dataclass(frozen=True)
class Cell:
    """What the model knows of a message that is not done."""

    state: int = READY
    attempts: int = 0
    owner: int = 0
    when: int = 0
    """When it is due, or times out, or its lease ends."""


class Model:
    """Messages that are not done, by offset; everything else below the cursor is."""

    def __init__(self, floor: int) -> None:
        self.cells: dict[int, Cell] = {}
        self.cursor = floor

    @property
    def floor(self) -> int:
        return min(self.cells, default=self.cursor)

    def count(self, state: int) -> int:
        return sum(cell.state == state for cell in self.cells.values())

    def all(self, *states: int) -> list[int]:
        return sorted(offset for offset, cell in self.cells.items() if cell.state in states)

    def give_back(self, offset: int, due: int, attempts_max: int) -> None:
        attempts = self.cells[offset].attempts
        if attempts_max and attempts >= attempts_max:
            self.cells[offset] = Cell(CONDEMNED, attempts)
        elif due:
            self.cells[offset] = Cell(DEFERRED, attempts, when=due)
        else:
            self.cells[offset] = Cell(READY, attempts)

    def written(self, now: int) -> dict[int, tuple[int, int, int]]:
        """Attempts and time of each message, and whether it is condemned or leased, as a crash must leave them."""
        found = {}
        for offset, cell in self.cells.items():
            due = cell.when if cell.state == LEASED or (cell.state == DEFERRED and cell.when > now) else 0
            kind = {STUCK: CONDEMNED, CONDEMNED: CONDEMNED, LEASED: LEASED}.get(cell.state, READY)
            found[offset] = (cell.attempts - (cell.state == IN_FLIGHT), due, kind)
        return found


class Replay:
    """What a start does with the words of one lane."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self.ledger: Any = None
        self._next: Any = None

    def apply(self, word: bytes) -> None:
        if word[0] == BEGIN:
            self._next = self._build.ledger.Ledger(0)
            self._next.apply(word)
            return
        for ledger in (self.ledger, self._next):
            if ledger is not None:
                ledger.apply(word)
        if word[0] == LAST_IMAGE and self._next is not None:
            self.ledger, self._next = self._next, None


def unsettled(ledger: Any, now: int) -> dict[int, tuple[int, int, int]]:
    found = {}
    offset = ledger.next_unsettled(0)
    while offset >= 0:
        state, attempts, due = ledger.state_of(offset)
        assert state in (READY, DEFERRED, CONDEMNED, LEASED), "only these are written down"
        due = due if due > now or state == LEASED else 0
        found[offset] = (attempts, due, state if state in (CONDEMNED, LEASED) else READY)
        offset = ledger.next_unsettled(offset + 1)
    return found


class LedgerMachine(RuleBasedStateMachine):
    """Every call of the ledger, in any order."""

    build: Build = COMPILED

    @initialize(floor=st.sampled_from(EDGES), attempts_max=st.sampled_from([0, 0, 1, 3]))
    def begin(self, floor: int, attempts_max: int) -> None:
        kernels = self.build
        self.ledger = kernels.ledger.Ledger(floor, attempts_max)
        self.model = Model(floor)
        self.now = NOW
        self.batches: list[tuple[int, bytes]] = []
        self.there: list[int] = []
        self.end = floor
        self.fresh = kernels.delivery.Feed(1 << 24)
        self.again = kernels.delivery.Feed(1 << 24)
        self.rules = kernels.delivery.Rules("q", [], None, 1)
        # Words since the last whole snapshot, and how far the next one is.
        self.words = [self.ledger.begin(), self.ledger.images(0, 1 << 20)[0]]
        self.ledger.drain(0)
        self.snapshot_at: int | None = None
        self.next_page = -1

    # --- the log ---

    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=3),
        codec=st.sampled_from([0, 0, 1, 4]),
        gap=st.sampled_from([0, 0, 5, 9_000]),
    )
    def append(self, sizes: list[int], codec: int, gap: int) -> None:
        self.end += gap
        for size in sizes:
            self.batches.append((self.end, batch_at(self.end, [(None, b"v", [])] * size, codec)))
            self.there += range(self.end, self.end + size)
            self.end += size

    @rule(size=SIZES, every=st.sampled_from([2, 3, 100]))
    def append_compacted(self, size: int, every: int) -> None:
        keep = [number % every == 1 for number in range(size)]
        self.batches.append((self.end, batch_at(self.end, [(None, b"v", [])] * size, 0, keep)))
        self.there += [self.end + number for number in range(size) if keep[number]]
        self.end += size

    @rule()
    def append_control(self) -> None:
        self.batches.append((self.end, control_at(self.end)))
        self.end += 1

    def fill(self, feed: Any, offset: int, count: int) -> bool:
        first = bisect_left(self.batches, offset, key=lambda batch: batch[0] + int.from_bytes(batch[1][23:27], "big"))
        feed.fill(b"".join(batch for _, batch in self.batches[first : first + count]), offset)
        return first < len(self.batches)

    # --- handing out ---

    @rule(owner=OWNERS, limit=st.sampled_from([1, 3, 300, 512]), chunk=st.integers(1, 4), timeout=st.integers(1, 5_000))
    def claim(self, owner: int, limit: int, chunk: int, timeout: int) -> None:
        ledger, model = self.ledger, self.model
        deadline = self.now + timeout
        for _ in range(50):
            before = ledger.cursor
            claimed = self.build.delivery.claim(
                self.fresh, ledger, self.rules, 0, owner, deadline, limit, 1 << 20, False
            )
            got = claimed.attempts()
            passed = self.there[bisect_left(self.there, before) : bisect_left(self.there, ledger.cursor)]
            assert got == [(offset, 1) for offset in passed]
            assert len(got) <= limit
            for offset, attempt in got:
                model.cells[offset] = Cell(IN_FLIGHT, attempt, owner, deadline)
            model.cursor = max(model.cursor, ledger.cursor)
            if got or ledger.cursor >= self.end:
                return
            self.fill(self.fresh, ledger.cursor, chunk)
        pytest.fail("the feed gets no further")

    @rule(owner=OWNERS, limit=st.sampled_from([1, 2, 512]), chunk=st.integers(1, 3), timeout=st.integers(1, 5_000))
    def claim_again(self, owner: int, limit: int, chunk: int, timeout: int) -> None:
        ledger, model = self.ledger, self.model
        deadline = self.now + timeout
        first = ledger.next_ready(0)
        assert first == (model.all(READY) or [-1])[0]
        if first < 0:
            return
        self.fill(self.again, first, chunk)
        claimed = self.build.delivery.claim(self.again, ledger, self.rules, 0, owner, deadline, limit, 1 << 20, True)
        got = claimed.attempts()
        if first in set(self.there):
            assert got[0][0] == first
        else:
            # A word said that there was a message, and the log has none.
            assert ledger.settle(first)
            del model.cells[first]
        for offset, attempt in got:
            cell = model.cells[offset]
            assert cell.state == READY
            assert attempt == cell.attempts + 1
            model.cells[offset] = Cell(IN_FLIGHT, attempt, owner, deadline)

    @rule(count=st.sampled_from([600, 5_000, 9_000]), stay=st.sampled_from([1, 2, 700, 100_000]), again=st.booleans())
    def work_through(self, count: int, stay: int, again: bool) -> None:
        """Many messages are handed out and settled, but one in `stay`, which is given back or stays in flight."""
        if self.end - self.ledger.cursor < count:
            self.append([count], 0, 0)
        goal = self.ledger.cursor + count
        while self.ledger.cursor < goal:
            self.claim(1, 512, 3, 1_000)
        ids = array("q")
        for number, offset in enumerate(self.model.all(IN_FLIGHT)):
            cell = self.model.cells[offset]
            if cell.owner == 1 and number % stay:
                ids.extend((0, offset, cell.attempts))
        assert self.ledger.finish_many(ids, 0, 1) == []
        for offset in ids[1::3]:
            del self.model.cells[offset]
        if again:
            self.release(1)

    def pick(self, data: Any, *states: int) -> int | None:
        offsets = self.model.all(*states)
        return data.draw(st.sampled_from(offsets)) if offsets else None

    # --- settling ---

    @rule(data=st.data(), wrong=st.sampled_from(["", "", "owner", "attempt", "offset"]))
    def finish(self, data: Any, wrong: str) -> None:
        offset = self.pick(data, IN_FLIGHT)
        if offset is None:
            return
        cell = self.model.cells[offset]
        owner = cell.owner + (wrong == "owner")
        attempt = cell.attempts + (wrong == "attempt")
        if wrong == "offset":
            assert not self.ledger.finish(self.ledger.cursor, owner, attempt)
            assert not self.ledger.finish(self.ledger.floor - 1, owner, attempt)
            return
        assert self.ledger.finish(offset, owner, attempt) == (not wrong)
        if not wrong:
            del self.model.cells[offset]

    @rule(data=st.data(), owner=OWNERS, step=st.sampled_from([1, 1, 2, 3]))
    def finish_many(self, data: Any, owner: int, step: int) -> None:
        mine = [offset for offset in self.model.all(IN_FLIGHT) if self.model.cells[offset].owner == owner][::step]
        ids = array("q")
        for offset in mine:
            ids.extend((0, offset, self.model.cells[offset].attempts))
        # What is not in flight to this one, and what is of another lane.
        ids.extend((0, self.ledger.cursor + 5, 1, 7, 0, 1))
        others = [offset for offset in self.model.all(IN_FLIGHT, DEFERRED, READY) if offset not in set(mine)][:2]
        for offset in others:
            ids.extend((0, offset, self.model.cells[offset].attempts + 1))
        failed = self.ledger.finish_many(ids, 0, owner)
        assert failed == [len(mine), *range(len(mine) + 2, len(mine) + 2 + len(others))]
        for offset in mine:
            del self.model.cells[offset]

    @rule(data=st.data(), delay=st.sampled_from([0, 0, 1, 700, 10_000]), wrong=st.booleans())
    def requeue(self, data: Any, delay: int, wrong: bool) -> None:
        offset = self.pick(data, IN_FLIGHT)
        if offset is None:
            return
        cell = self.model.cells[offset]
        due = self.now + delay if delay else 0
        assert self.ledger.requeue(offset, cell.owner, cell.attempts + wrong, due) == (not wrong)
        if not wrong:
            self.model.give_back(offset, due, self.ledger.attempts_max)

    @rule(data=st.data(), timeout=st.integers(1, 20_000))
    def touch(self, data: Any, timeout: int) -> None:
        offset = self.pick(data, IN_FLIGHT)
        if offset is None:
            return
        cell = self.model.cells[offset]
        assert self.ledger.deadline_of(offset, self.now) == max(cell.when, self.now)
        assert not self.ledger.touch(offset, cell.owner, cell.attempts + 1, self.now)
        assert self.ledger.touch(offset, cell.owner, cell.attempts, self.now + timeout)
        self.model.cells[offset] = replace(cell, when=self.now + timeout)

    # --- leases ---

    @rule(data=st.data(), time=st.sampled_from([1, 700, 20_000, 500_000_000]), wrong=st.booleans())
    def lease(self, data: Any, time: int, wrong: bool) -> None:
        offset = self.pick(data, IN_FLIGHT)
        if offset is None:
            return
        cell = self.model.cells[offset]
        assert self.ledger.lease(offset, cell.owner, cell.attempts + wrong, self.now + time) == (not wrong)
        if not wrong:
            self.model.cells[offset] = Cell(LEASED, cell.attempts, when=self.now + time)

    @rule(
        data=st.data(),
        way=st.sampled_from(["finish", "extend", "return", "defer"]),
        wrong=st.sampled_from(["", "", "", "attempt", "end", "offset"]),
        time=st.sampled_from([1, 700, 500_000_000]),
    )
    def answer_lease(self, data: Any, way: str, wrong: str, time: int) -> None:
        offset = self.pick(data, LEASED)
        if offset is None:
            return
        cell = self.model.cells[offset]
        which = (
            self.ledger.cursor if wrong == "offset" else offset,
            cell.attempts + (wrong == "attempt"),
            cell.when + (wrong == "end"),
        )
        taken = {
            "finish": lambda: self.ledger.finish_lease(*which),
            "extend": lambda: self.ledger.extend_lease(*which, self.now + time),
            "return": lambda: self.ledger.return_lease(*which, 0),
            "defer": lambda: self.ledger.return_lease(*which, self.now + time),
        }[way]()
        assert taken == (not wrong)
        if wrong:
            return
        if way == "finish":
            del self.model.cells[offset]
        elif way == "extend":
            self.model.cells[offset] = replace(cell, when=self.now + time)
        else:
            self.model.give_back(offset, 0 if way == "return" else self.now + time, self.ledger.attempts_max)

    @rule(owner=OWNERS)
    def release(self, owner: int) -> None:
        mine = [offset for offset in self.model.all(IN_FLIGHT) if self.model.cells[offset].owner == owner]
        assert self.ledger.release(owner) == mine
        for offset in mine:
            self.model.give_back(offset, 0, self.ledger.attempts_max)

    @rule(later=st.sampled_from([1, 100, 3_000, 30_000]), ladder=st.sampled_from([(), (50,), (0, 2_000)]))
    def time_passes(self, later: int, ladder: tuple[int, ...]) -> None:
        self.now += later
        model = self.model
        due = [offset for offset in model.all(DEFERRED) if model.cells[offset].when <= self.now]
        assert self.ledger.wake(self.now) == due
        for offset in due:
            model.cells[offset] = Cell(READY, model.cells[offset].attempts)
        ended = [offset for offset in model.all(LEASED) if model.cells[offset].when <= self.now]
        assert self.ledger.end_leases(self.now, ladder) == [(each, model.cells[each].attempts) for each in ended]
        for offset in ended:
            delay = ladder[min(model.cells[offset].attempts, len(ladder)) - 1] if ladder else 0
            model.give_back(offset, self.now + delay if delay else 0, self.ledger.attempts_max)
        over = [offset for offset in model.all(IN_FLIGHT) if model.cells[offset].when <= self.now]
        expected = [(offset, model.cells[offset].owner, model.cells[offset].attempts) for offset in over]
        assert self.ledger.expire(self.now, ladder) == expected
        for offset in over:
            delay = ladder[min(model.cells[offset].attempts, len(ladder)) - 1] if ladder else 0
            model.give_back(offset, self.now + delay if delay else 0, self.ledger.attempts_max)

    @rule()
    def nobody_waits_longer_than_he_must(self) -> None:
        moments = [cell.when for cell in self.model.cells.values() if cell.state in (IN_FLIGHT, DEFERRED, LEASED)]
        assert self.ledger.next_time() <= min(moments, default=NEVER)
        if not moments:
            assert self.ledger.next_time() == NEVER

    # --- passing over ---

    @rule(
        ahead=st.sampled_from([0, 1, 30, PAGE_CELLS, 9_000]),
        way=st.sampled_from(["skip", "pass", "reach", "defer"]),
        attempts=st.integers(0, 5),
        delay=st.sampled_from([0, 1_000, 100_000]),
    )
    def move_the_cursor(self, ahead: int, way: str, attempts: int, delay: int) -> None:
        if self.end <= self.ledger.cursor + ahead:
            self.append([ahead + 1], 0, 0)
        if way == "defer":
            self.defer(ahead, attempts, delay)
        else:
            {"skip": self.skip, "pass": self.pass_to, "reach": self.reach}[way](ahead)

    def skip(self, ahead: int) -> None:
        offset = self.ledger.cursor + ahead
        if offset < self.end:
            self.ledger.skip(offset)
            self.model.cursor = offset + 1

    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        offset = self.pick(data, READY, IN_FLIGHT, DEFERRED, BLOCKED, CONDEMNED, STUCK, LEASED)
        if offset is not None:
            assert self.ledger.settle(offset)
            assert not self.ledger.settle(offset)
            del self.model.cells[offset]
        assert not self.ledger.settle(self.ledger.cursor)

    @rule(data=st.data())
    def block(self, data: Any) -> None:
        offset = self.pick(data, READY)
        if offset is not None:
            self.ledger.block(offset)
            self.model.cells[offset] = replace(self.model.cells[offset], state=BLOCKED)
        elif self.ledger.cursor < self.end:
            offset = self.ledger.cursor
            self.ledger.block(offset)
            self.model.cells[offset] = Cell(BLOCKED)
            self.model.cursor = offset + 1

    @rule(data=st.data())
    def unblock(self, data: Any) -> None:
        offset = self.pick(data, READY, BLOCKED)
        if offset is not None:
            self.ledger.unblock(offset)
            self.model.cells[offset] = replace(self.model.cells[offset], state=READY)

    @rule(data=st.data())
    def condemn(self, data: Any) -> None:
        offset = self.pick(data, READY, BLOCKED)
        if offset is not None:
            self.ledger.condemn(offset)
            self.model.cells[offset] = replace(self.model.cells[offset], state=CONDEMNED)

    @rule(data=st.data())
    def stick(self, data: Any) -> None:
        offset = self.pick(data, READY, CONDEMNED)
        if offset is not None:
            self.ledger.stick(offset)
            if self.model.cells[offset].state == CONDEMNED:
                self.model.cells[offset] = replace(self.model.cells[offset], state=STUCK)

    @rule()
    def unstick(self) -> None:
        self.ledger.unstick()
        for offset in self.model.all(STUCK):
            self.model.cells[offset] = replace(self.model.cells[offset], state=CONDEMNED)

    @rule(ahead=st.sampled_from([-1, 0, 1, 500, PAGE_CELLS]), limit=st.sampled_from([1, 2, 64, 100_000]))
    def look_for_the_dead(self, ahead: int, limit: int) -> None:
        start = self.ledger.floor + ahead
        condemned = [offset for offset in self.model.all(CONDEMNED) if offset >= start]
        assert self.ledger.condemned_from(start, limit) == condemned[:limit]
        assert self.ledger.first_dead() == min(self.model.all(CONDEMNED, STUCK), default=-1)

    @rule(
        states=st.sets(st.sampled_from([READY, IN_FLIGHT, DEFERRED, BLOCKED, CONDEMNED, STUCK, LEASED]), min_size=1),
        ahead=st.sampled_from([-1, 0, 1, 500, PAGE_CELLS]),
        limit=st.sampled_from([1, 2, 64, 100_000]),
    )
    def list_by_state(self, states: set[int], ahead: int, limit: int) -> None:
        start = self.ledger.floor + ahead
        wanted = [offset for offset in self.model.all(*states) if offset >= start]
        assert self.ledger.offsets_in(sum(1 << each for each in states), start, limit) == wanted[:limit]

    @rule(data=st.data(), delay=st.sampled_from([0, 1, 90_000]))
    def put_back(self, data: Any, delay: int) -> None:
        offset = self.pick(data, READY, IN_FLIGHT, DEFERRED, BLOCKED, CONDEMNED, STUCK, LEASED, DONE)
        if offset is not None:
            cell = self.model.cells[offset]
            moves = cell.state not in (DONE, BLOCKED)
            assert self.ledger.put_back(offset, self.now + delay if delay else 0) == moves
            if moves:
                due = self.now + delay if delay else 0
                self.model.cells[offset] = Cell(DEFERRED if due else READY, cell.attempts, when=due)

    @rule(limit=st.sampled_from([0, 1, 2, 4]))
    def limit_attempts(self, limit: int) -> None:
        self.ledger.attempts_max = limit
        spent = [offset for offset in self.model.all(READY) if limit and self.model.cells[offset].attempts >= limit]
        assert self.ledger.condemn_spent() == len(spent)
        for offset in spent:
            self.model.cells[offset] = replace(self.model.cells[offset], state=CONDEMNED)

    def defer(self, ahead: int, attempts: int, delay: int) -> None:
        offset = self.ledger.cursor + ahead
        if offset < self.end:
            due = self.now + delay if delay else 0
            self.ledger.defer(offset, attempts, due)
            self.model.cursor = offset + 1
            self.model.cells[offset] = Cell(READY, attempts)
            self.model.give_back(offset, due, self.ledger.attempts_max)

    def pass_to(self, ahead: int) -> None:
        offset = min(self.ledger.cursor + ahead, self.end)
        self.ledger.pass_to(offset)
        self.model.cursor = max(self.model.cursor, offset)

    def reach(self, ahead: int) -> None:
        cursor = min(self.ledger.cursor + ahead, self.end)
        self.ledger.reach(cursor)
        for offset in range(self.model.cursor, cursor):
            self.model.cells[offset] = Cell()
        self.model.cursor = max(self.model.cursor, cursor)

    @rule(ahead=st.sampled_from([-1, 0, 1, 10, 2_000, PAGE_CELLS, 9_000]))
    def skip_below(self, ahead: int) -> None:
        start = min(self.ledger.floor + ahead, self.end)
        gone = [offset for offset in self.model.cells if offset < start]
        assert self.ledger.skip_below(start) == len(gone)
        for offset in gone:
            del self.model.cells[offset]
        self.model.cursor = max(self.model.cursor, start)

    @precondition(lambda self: self.snapshot_at is None)
    @rule(behind=st.sampled_from([0, 1, 3, 500, PAGE_CELLS, 6_000]))
    def cut(self, behind: int) -> None:
        """The log lost its end. The state is written whole then: a delta could not say what a cut took."""
        end = max(self.ledger.cursor - behind, 0)
        self.ledger.cut(end)
        self.model.cells = {offset: cell for offset, cell in self.model.cells.items() if offset < end}
        self.model.cursor = min(self.model.cursor, end)
        self.batches = [(base, batch) for base, batch in self.batches if base < end]
        self.there = self.there[: bisect_left(self.there, end)]
        self.end = end
        if self.batches and self.batches[-1][0] + int.from_bytes(self.batches[-1][1][23:27], "big") >= end:
            base, _ = self.batches.pop()
            left = [offset for offset in self.there if offset >= base]
            keep = [base + number in set(left) for number in range(end - base)]
            self.batches.append((base, batch_at(base, [(None, b"v", [])] * len(keep), 0, keep)))
        for feed in (self.fresh, self.again):
            feed.fill(b"", 0)
        self.write_whole()

    # --- writing down ---

    def write_whole(self) -> None:
        self.words = [self.ledger.begin()]
        page = 0
        while page >= 0:
            word, page = self.ledger.images(page, 200)
            self.words.append(word)
        self.ledger.drain(0)
        self.snapshot_at = None

    @rule(limit=st.sampled_from([8, 60, 1_000, 1 << 20]), times=st.integers(1, 3))
    def drain(self, limit: int, times: int) -> None:
        for _ in range(times):
            word = self.ledger.drain(limit)
            if word is not None:
                self.words.append(word)

    @precondition(lambda self: self.snapshot_at is None)
    @rule(limit=st.sampled_from([1, 60, 1 << 20]))
    def begin_snapshot(self, limit: int) -> None:
        self.snapshot_at = len(self.words)
        self.words.append(self.ledger.begin())
        self.next_page = 0
        self.go_on_with_snapshot(limit)

    @precondition(lambda self: self.snapshot_at is not None)
    @rule(limit=st.sampled_from([1, 60, 1 << 20]))
    def go_on_with_snapshot(self, limit: int) -> None:
        word, self.next_page = self.ledger.images(self.next_page, limit)
        assert word[0] == (IMAGE if self.next_page >= 0 else LAST_IMAGE)
        self.words.append(word)
        if self.next_page < 0:
            assert self.snapshot_at is not None
            del self.words[: self.snapshot_at]
            self.snapshot_at = None

    @rule(data=st.data())
    def settle_with_a_word(self, data: Any) -> None:
        offsets = sorted({self.pick(data, CONDEMNED), self.pick(data, CONDEMNED)} - {None})  # type: ignore[type-var]
        if offsets:
            self.words.append(self.ledger.word_of(offsets))
            for offset in offsets:
                assert self.ledger.settle(offset)  # type: ignore[arg-type]
                del self.model.cells[offset]  # type: ignore[arg-type]

    @rule(attempts=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, NOW + 100_000])), min_size=1, max_size=3))
    def arrive_with_a_word(self, attempts: list[tuple[int, int]]) -> None:
        if self.ledger.cursor != self.end or self.ledger.attempts_max:
            return
        self.words.append(self.ledger.word_of_arrivals(self.end, attempts))
        self.batches.append((self.end, batch_at(self.end, [(None, b"v", [])] * len(attempts))))
        for behind, due in attempts:
            self.ledger.defer(self.end, behind, due)
            self.model.cells[self.end] = Cell(READY, behind)
            self.model.give_back(self.end, due, 0)
            self.there.append(self.end)
            self.end += 1
        self.model.cursor = self.end

    @rule(limit=st.sampled_from([20, 1 << 20]))
    def crash(self, limit: int) -> None:
        """What was written down so far gives the same state, in the middle of a snapshot too."""
        while (word := self.ledger.drain(limit)) is not None:
            self.words.append(word)
        replay = Replay(self.build)
        for word in self.words:
            replay.apply(word)
        found = replay.ledger
        found.arrange()
        assert unsettled(found, self.now) == self.model.written(self.now)
        assert (found.floor, found.cursor) == (self.model.floor, self.model.cursor)
        assert list(found.pages) == sorted(found.pages)
        written_down = found.ready + found.deferred + found.condemned + found.leased
        assert written_down == found.unsettled() == len(self.model.cells)
        assert found.next_time() <= min(
            (when for _, when, _ in self.model.written(self.now).values() if when), default=NEVER
        )

    @precondition(lambda self: self.snapshot_at is None)
    @rule()
    def restart(self) -> None:
        """Go on with what was read back."""
        self.crash(1 << 20)
        replay = Replay(self.build)
        for word in self.words:
            replay.apply(word)
        limit = self.ledger.attempts_max
        self.ledger = replay.ledger
        self.ledger.arrange()
        self.ledger.attempts_max = limit
        now = self.model.written(self.now)
        self.model.cells = {}
        for offset, (attempts, due, kind) in now.items():
            state = self.ledger.state_of(offset)
            due = due or state[2]
            kind = DEFERRED if due and kind == READY else kind
            self.model.cells[offset] = Cell(kind, attempts, when=due)

    # --- at all times ---

    @invariant()
    def the_counts_are_right(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, model = self.ledger, self.model
        ledger.advance()
        assert (ledger.floor, ledger.cursor) == (model.floor, model.cursor)
        counts = (ledger.ready, ledger.in_flight, ledger.deferred, ledger.blocked, ledger.condemned, ledger.stuck)
        assert counts == tuple(map(model.count, (READY, IN_FLIGHT, DEFERRED, BLOCKED, CONDEMNED, STUCK)))
        assert ledger.leased == model.count(LEASED)
        assert ledger.unsettled() == len(model.cells)
        for number, page in ledger.pages.items():
            assert page.done < PAGE_CELLS, f"page {number} is whole and still there"

    @rule()
    def every_message_is_as_it_should_be(self) -> None:
        ledger, model = self.ledger, self.model
        for offset in range(max(0, ledger.floor - 2), ledger.cursor):
            state, attempts, due = ledger.state_of(offset)
            cell = model.cells.get(offset)
            owner = ledger.owner_of(offset)
            if cell is None:
                assert (state, owner) == (DONE, 0)
            else:
                assert (state, attempts) == (cell.state, cell.attempts)
                assert owner == (cell.owner if cell.state == IN_FLIGHT else 0)
                assert due == (cell.when if cell.state in (DEFERRED, LEASED) else 0)
                assert ledger.lease_of(offset) == ((attempts, due) if cell.state == LEASED else (0, 0))
        assert ledger.state_of(ledger.cursor) == (READY, 0, 0)
        assert ledger.owner_of(ledger.cursor) == 0


def machine_of(build: Build) -> type[LedgerMachine]:
    return type("Machine", (LedgerMachine,), {"build": build})


@pytest.mark.hypothesis
def test_the_compiled_ledger_against_its_model() -> None:
    run_state_machine_as_test(
        machine_of(COMPILED), settings=settings(ORDINARY, max_examples=examples(25), stateful_step_count=40)
    )


def test_the_interpreted_ledger_against_its_model() -> None:
    run_state_machine_as_test(
        machine_of(INTERPRETED), settings=settings(ORDINARY, max_examples=5, stateful_step_count=25)
    )


@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
def test_the_ledger_against_its_model_for_long() -> None:
    run_state_machine_as_test(
        machine_of(COMPILED), settings=settings(ORDINARY, max_examples=5_000 * LONGER, stateful_step_count=60)
    )


# --- nonsense ---


def snapshot(ledger: Any) -> list[bytes]:
    words = [ledger.begin()]
    page = 0
    while page >= 0:
        image, page = ledger.images(page, 100)
        words.append(image)
    return words


def small_ledger(build: Build) -> Any:
    ledger = build.ledger.Ledger(PAGE_CELLS - 5)
    ledger.reach(PAGE_CELLS + 20)
    ledger.settle(PAGE_CELLS + 3)
    ledger.defer(PAGE_CELLS + 25, 2, NOW)
    return ledger


NUMBERS = st.sampled_from([0, 1, 2, 5, PAGE_CELLS, 1 << 26, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 64) - 1])


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


nonsense = st.binary(max_size=60) | st.builds(
    lambda kind, numbers: bytes([kind]) + b"".join(map(varint, numbers)),
    st.integers(0, 5),
    st.lists(NUMBERS, max_size=12),
)


@pytest.mark.parametrize("build", [COMPILED, INTERPRETED], ids=["compiled", "interpreted"])
@given(words=st.lists(nonsense, max_size=4), flip=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(ORDINARY, max_examples=examples(200))
def test_nonsense_is_refused_or_taken_but_never_believed_without_bound(
    build: Build, words: list[bytes], flip: int, bit: int
) -> None:
    ledger = small_ledger(build)
    written = bytearray(b"".join(snapshot(ledger)[1:2]))
    written[flip % len(written)] ^= 1 << bit
    for word in [*words, bytes(written)]:
        with contextlib.suppress(ValueError, IndexError):
            ledger.apply(word)
        assert len(ledger.pages) < 50_000
    ledger.arrange()
    ledger.images(0, 1_000)
    ledger.next_unsettled(0)


@pytest.mark.hypothesis
def test_both_builds_refuse_the_same() -> None:
    @given(nonsense)
    @settings(ORDINARY, max_examples=examples(200))
    def same(word: bytes) -> None:
        outcomes = []
        for build in (COMPILED, INTERPRETED):
            ledger = small_ledger(build)
            try:
                ledger.apply(word)
                outcomes.append((ledger.floor, ledger.cursor, ledger.ready, ledger.deferred, sorted(ledger.pages)))
            except (ValueError, IndexError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]

    same()


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(bytes([0]) + varint(9) + varint(5), id="the cursor before the floor"),
        pytest.param(bytes([7]) + varint(0) + varint(0), id="an unknown kind"),
        pytest.param(bytes([0]) + varint(0) + varint(1 << 50), id="a cursor far away"),
        pytest.param(bytes([0, 0, 9, 0, 10, DONE, 0, 0]), id="a run behind the cursor"),
        pytest.param(bytes([0, 0, 9, 0, 1, IN_FLIGHT, 0, 0]), id="a message in flight"),
        pytest.param(bytes([0, 0, 9, 0, 1, DONE]), id="cut inside a run"),
        pytest.param(bytes([2, 0, 9, 1, 0, 1, DONE, 0, 0, 0, 0]), id="a page behind the cursor"),
        pytest.param(bytes([0]) + b"\xff" * 12, id="a number without end"),
    ],
)
def test_words_that_nobody_writes_are_refused(word: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        Ledger(0).apply(word)


# --- memory ---

MANY = 10_000_000


def bytes_of(ledger: Any) -> int:
    """Of its cells; a page adds two hundred bytes to their 32 KiB."""
    return len(ledger.pages) * PAGE_CELLS * 8


def claim_all(ledger: Ledger, count: int) -> None:
    """Hand out `count` messages to one consumer."""
    feed, rules = COMPILED.delivery.Feed(1 << 24), COMPILED.delivery.Rules("q", [], None, 1)
    size = 40_000
    batch = batch_at(0, [(None, b"", [])] * size)
    for base in range(0, count, size):
        feed.fill(base.to_bytes(8, "big") + batch[8:], base)
        for _ in range(-(-size // 512)):
            COMPILED.delivery.claim(feed, ledger, rules, 0, 1, NOW + 60_000, 512, 1 << 30, False)
    assert ledger.in_flight == count


def finish_range(ledger: Ledger, offsets: range) -> None:
    for start in range(0, len(offsets), 100_000):
        part = offsets[start : start + 100_000]
        ids = array("q", bytes(24 * len(part)))
        ids[1::3] = array("q", part)
        ids[2::3] = array("q", [1]) * len(part)
        assert ledger.finish_many(ids, 0, 1) == []
        ledger.advance()


def test_alternate_acknowledgements_over_10_million_cost_8_bytes_each() -> None:
    ledger = Ledger(0)
    claim_all(ledger, MANY)
    finish_range(ledger, range(0, MANY, 2))
    assert ledger.in_flight == MANY // 2
    assert bytes_of(ledger) < 8 * MANY + PAGE_CELLS * 8
    finish_range(ledger, range(1, MANY - 1, 2))
    assert len(ledger.pages) == 1, "only the page with the last message is left"
    assert ledger.floor == MANY - 1


def test_one_message_left_behind_10_million_costs_a_page() -> None:
    ledger = Ledger(0)
    claim_all(ledger, MANY)
    finish_range(ledger, range(1, MANY))
    assert (ledger.floor, ledger.cursor, ledger.in_flight) == (0, MANY, 1)
    assert bytes_of(ledger) <= 2 * PAGE_CELLS * 8
    words = snapshot(ledger)
    assert sum(map(len, words)) < 100
    found = Ledger(0)
    for word in words:
        found.apply(word)
    found.arrange()
    assert (found.floor, found.cursor, found.ready) == (0, MANY, 1)


def test_a_gap_of_a_billion_offsets_costs_nothing() -> None:
    """Compaction may leave such; a message waits before it."""
    ledger = Ledger(0)
    found = Ledger(0)
    for word in snapshot(ledger):
        found.apply(word)
    ledger.reach(1)
    ledger.pass_to(1_000_000_000)
    assert bytes_of(ledger) <= 2 * PAGE_CELLS * 8
    while (word := ledger.drain(1 << 17)) is not None:
        found.apply(word)
    found.arrange()
    assert (found.floor, found.cursor, found.ready) == (0, 1_000_000_000, 1)
    assert bytes_of(found) <= 2 * PAGE_CELLS * 8
