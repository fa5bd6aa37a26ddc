"""The ids of a topic, against a dict."""

from __future__ import annotations

import random
from hashlib import blake2b
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.kernels.conftest import interpreted_together
from tests.longer import examples

from headrace.broker.deduplication import ids as installed
from headrace.errors import CorruptBatch, InvalidRecords
from headrace.format import records

MAX = 1 << 20
KEY = b"0123456789abcdef"
NAME = "headrace-dedup-id"


@pytest.fixture(scope="module", params=["installed", "interpreted"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "installed":
        return installed
    return interpreted_together(
        "format.records", "broker.timer.heap", "broker.timer.wheel", "broker.deduplication.ids"
    )["broker.deduplication.ids"]


def batch_of(*ids: bytes | None, **options: Any) -> bytearray:
    """A record for each id, with other headers around it."""
    rows = [
        (5, b"k", b"v", [("a", b"1"), (NAME, each), ("z", None)] if each is not None else [("a", b"1")]) for each in ids
    ]
    return records.build(rows, **options)


def duplicates(claim: Any) -> list[tuple[int, int, int]]:
    """Record, partition and offset of each."""
    if claim is None:
        return []
    found = claim.duplicates.tolist()
    return [(found[at], found[at + 2], found[at + 3]) for at in range(0, len(found), 4)]


@pytest.mark.parametrize("codec", range(5))
def test_new_and_repeated(kernel: ModuleType, codec: int):
    table = kernel.Table(KEY)
    claim = table.claim(batch_of(b"a", None, b"b", b"a", compression=codec), MAX, 3, 100, 0, -10)
    assert list(claim.keep) == [1, 1, 1, 0]
    assert duplicates(claim) == [(3, 3, 100)]
    assert (claim.first, claim.last, len(table), len(claim.entries)) == (0, 2, 2, 40)
    claim = table.claim(batch_of(b"b", b"c", compression=codec), MAX, 1, 7, 1, -10)
    assert list(claim.keep) == [0, 1]
    assert duplicates(claim) == [(0, 3, 102)]


def test_batches_without_ids(kernel: ModuleType):
    table = kernel.Table(KEY)
    assert table.claim(batch_of(None, None), MAX, 0, 0, 0, 0) is None
    # The name alone, in a value or as the name of another header, is no id.
    other = records.build([(0, None, NAME.encode(), [(NAME + "s", b"x")])])
    assert table.claim(other, MAX, 0, 0, 0, 0) is None
    assert not kernel.carries_ids(other, MAX)
    assert kernel.carries_ids(other + batch_of(None, b"a"), MAX)
    assert len(table) == 0


@pytest.mark.parametrize("wrong", [b"", b"x" * 1025, None])
def test_what_is_no_id(kernel: ModuleType, wrong: bytes | None):
    table = kernel.Table(KEY)
    batch = records.build([(0, None, b"v", [(NAME, b"good")]), (0, None, b"v", [(NAME, wrong)])])
    with pytest.raises(InvalidRecords, match="record 1 of the batch"):
        table.claim(batch, MAX, 0, 0, 0, 0)
    assert len(table) == 0, "nothing of a refused batch is remembered"
    assert table.claim(batch_of(b"good", b"x" * 1024), MAX, 0, 0, 0, 0).last > 0


def test_a_damaged_batch(kernel: ModuleType):
    batch = batch_of(b"a")
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        kernel.Table(KEY).claim(batch, MAX, 0, 0, 0, 0)


def test_the_first_of_two_headers_counts(kernel: ModuleType):
    table = kernel.Table(KEY)
    table.claim(records.build([(0, None, b"", [(NAME, b"1"), (NAME, b"2")])]), MAX, 0, 0, 0, 0)
    assert not table.claim(batch_of(b"2"), MAX, 0, 1, 0, 0).duplicates
    assert table.claim(batch_of(b"1"), MAX, 0, 2, 0, 0).duplicates


def test_what_never_came_is_free_again(kernel: ModuleType):
    table = kernel.Table(KEY)
    first = table.claim(batch_of(b"a", b"b"), MAX, 0, 0, 0, 0)
    second = table.claim(batch_of(b"c"), MAX, 0, 2, 0, 0)
    table.forget(first.first, first.last)
    assert len(table) == 1
    again = table.claim(batch_of(b"a", b"b", b"c"), MAX, 1, 9, 0, 0)
    assert list(again.keep) == [1, 1, 0]
    table.forget(second.first, second.last)
    table.forget(second.first, second.last)
    assert len(table) == 2
    # The entry that was forgotten first must not take the newer one of its id along when it is freed.
    assert table.evict(1) == 1
    assert duplicates(table.claim(batch_of(b"b"), MAX, 0, 0, 0, 0)) == [(0, 1, 10)]


def test_ids_grow_old(kernel: ModuleType):
    table = kernel.Table(KEY)
    table.claim(batch_of(b"a"), MAX, 0, 0, 1_000, 0)
    table.claim(batch_of(b"b"), MAX, 0, 1, 2_000, 0)
    assert table.claim(batch_of(b"a"), MAX, 0, 2, 2_000, 1_000).duplicates, "not older than the window yet"
    renewed = table.claim(batch_of(b"a"), MAX, 0, 3, 2_001, 1_001)
    assert not renewed.duplicates, "older, though nothing has freed it"
    assert table.expire(1_001, 100)
    assert len(table) == 2
    assert duplicates(table.claim(batch_of(b"a"), MAX, 0, 4, 2_001, 1_001)) == [(0, 0, 3)]
    assert not table.expire(5_000, 1)
    assert table.expire(5_000, 10)
    assert (len(table), table.held_bytes) == (0, 0)


def test_many_ids_in_bounded_memory():
    table = installed.Table(KEY)
    count = 100_000
    for first in range(0, count, 1_000):
        table.claim(batch_of(*(b"%d" % each for each in range(first, first + 1_000))), MAX, 0, first, 0, 0)
    assert len(table) == count
    assert table.held_bytes / count < 64
    claim = table.claim(batch_of(*(b"%d" % each for each in range(count - 1_000, count + 1_000))), MAX, 0, 0, 0, 0)
    assert sum(claim.keep) == 1_000
    assert installed.run_from(claim.duplicates, 0) == count - 1_000
    assert table.evict(count) == count
    assert len(table) == 1_000


def test_runs(kernel: ModuleType):
    table = kernel.Table(KEY)
    table.claim(batch_of(b"a", b"b", b"c"), MAX, 2, 50, 0, 0)

    def run(*ids: bytes, partition: int = 2) -> int:
        return kernel.run_from(table.claim(batch_of(*ids), MAX, partition, 99, 0, 0).duplicates, partition)

    assert run(b"a", b"b", b"c") == 50
    assert run(b"b", b"c") == 51
    assert run(b"c", b"b") == -1
    assert run(b"a", b"c") == -1
    assert run(b"a", partition=1) == -1
    assert run(b"new") == -1


def test_which_entries_are_repeated(kernel: ModuleType):
    table = kernel.Table(KEY)
    table.claim(batch_of(b"a", b"b", b"c"), MAX, 0, 0, 0, 0)
    found = table.claim(batch_of(b"b", b"a"), MAX, 0, 3, 0, 0).duplicates
    assert kernel.newest(found) == 1
    assert kernel.within(found, 0, 1)
    assert kernel.within(found, 1, 2)
    assert not kernel.within(found, 2, 9)
    assert kernel.newest(table.claim(batch_of(b"new"), MAX, 0, 3, 0, 0).duplicates) == -1


def written(kernel: ModuleType, claim: Any, partition: int, base: int, now_ms: int, topic: bytes = KEY) -> bytearray:
    """The batch of the ids' log."""
    place = b"\0" + partition.to_bytes(4, "big") + base.to_bytes(8, "big", signed=True)
    return records.build([(now_ms, topic, place + claim.entries, [])])


def test_replay(kernel: ModuleType):
    first = kernel.Table(KEY)
    data = bytearray()
    base = 0
    for number, ids in enumerate([(b"old",), (b"a", b"b"), (b"c",)]):
        claim = first.claim(batch_of(*ids), MAX, 1, 100 + base, number, 0)
        batch = written(kernel, claim, 1, 100 + base, 10_000 + number * 1_000)
        batch[:8] = number.to_bytes(8, "big")
        data += batch
        base += len(ids)
    other = records.build([(12_000, b"another topic...", b"\0" * 33, []), (12_000, KEY, b"\7unknown", [])])
    other[:8] = (3).to_bytes(8, "big")
    data += other
    again = kernel.Table(KEY)
    assert again.replay(bytes(data) + b"cut", 0, KEY, 13_000, 500, 2_000, 99) == 5
    assert len(again) == 3
    # The calendar's 11,000 is this clock's -1,500.
    assert duplicates(again.claim(batch_of(b"a", b"b"), MAX, 0, 9, 500, -1_500)) == [(0, 1, 101), (1, 1, 102)]
    assert not duplicates(again.claim(batch_of(b"a"), MAX, 0, 9, 501, -1_499))
    assert not duplicates(again.claim(batch_of(b"old"), MAX, 0, 9, 501, -1_499))
    # In steps: whole batches, until it is enough.
    third = kernel.Table(KEY)
    assert third.replay(bytes(data), 0, KEY, 13_000, 500, 2_000, 1) == 2
    assert len(third) == 2
    assert third.replay(bytes(data), 2, KEY, 13_000, 500, 2_000, 1) == 3
    assert len(third) == 3


def crowd(count: int) -> list[bytes]:
    """Ids whose hashes lead to one of the 256 tables: enough of them to stand in each other's way."""
    found = []
    number = 0
    while len(found) < count:
        id = b"%d" % number
        if blake2b(id, digest_size=16, key=KEY).digest()[7] == 0:
            found.append(id)
        number += 1
    return found


CROWD = crowd(120)


class Machine(RuleBasedStateMachine):
    """Ids come, grow old, are forgotten and pushed out; a dict knows what must be found."""

    kernel: Any = installed
    ids = Bundle("ids")

    @initialize()
    def begin(self) -> None:
        self.table = self.kernel.Table(KEY)
        self.now = 0
        self.offset = 0
        self.known: dict[bytes, tuple[int, int]] = {}
        """By id: time and offset."""
        self.order: list[tuple[bytes, int]] = []
        """Entries in the order in which they came: id and offset."""
        self.claims: list[tuple[Any, dict[bytes, tuple[int, int]]]] = []

    @rule(target=ids, number=st.integers(0, 100))
    def an_id(self, number: int) -> bytes:
        return b"%d" % number

    @rule(target=ids, id=st.sampled_from(CROWD))
    def a_crowded_id(self, id: bytes) -> bytes:
        return id

    @rule(first=st.integers(0, 100), count=st.integers(1, 60))
    def a_crowd(self, first: int, count: int) -> None:
        self.claim(CROWD[first : first + count], 0, 30)

    @rule(said=st.lists(ids, min_size=1, max_size=30), passed=st.integers(0, 5), span=st.integers(0, 30))
    def some(self, said: list[bytes], passed: int, span: int) -> None:
        self.claim(said, passed, span)

    def claim(self, said: list[bytes], passed: int, span: int) -> None:
        self.now += passed
        since = self.now - span
        keep, added = [], {}
        for index, each in enumerate(said):
            found = self.known.get(each)
            if found is not None and found[0] >= since:
                keep.append(0)
                continue
            keep.append(1)
            self.known[each] = added[each] = (self.now, self.offset + index)
            self.order.append((each, self.offset + index))
        claim = self.table.claim(batch_of(*said), MAX, 0, self.offset, self.now, since)
        assert list(claim.keep) == keep
        assert [(index, offset) for index, _, offset in duplicates(claim)] == [
            (index, self.known[each][1]) for index, each in enumerate(said) if not keep[index]
        ]
        self.offset += len(said)
        self.claims.append((claim, added))

    @rule(which=st.integers(0, 1_000))
    def forget(self, which: int) -> None:
        if self.claims:
            claim, added = self.claims.pop(which % len(self.claims))
            self.table.forget(claim.first, claim.last)
            for each, found in added.items():
                if self.known.get(each) == found:
                    del self.known[each]

    @rule(span=st.integers(0, 30))
    def expire(self, span: int) -> None:
        assert self.table.expire(self.now - span, 1 << 30)
        for each, (time, _) in list(self.known.items()):
            if time < self.now - span:
                del self.known[each]

    @rule(count=st.integers(0, 60))
    def evict(self, count: int) -> None:
        live = [each for each, offset in self.order if self.known.get(each, (0, -1))[1] == offset]
        assert self.table.evict(count) == min(count, len(live))
        for each in live[:count]:
            del self.known[each]

    @invariant()
    def as_many(self) -> None:
        if hasattr(self, "table"):
            assert len(self.table) == len(self.known)


TestInstalled = Machine.TestCase
TestInstalled.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class InterpretedMachine(Machine):
    kernel = interpreted_together(
        "format.records", "broker.timer.heap", "broker.timer.wheel", "broker.deduplication.ids"
    )["broker.deduplication.ids"]


TestInterpreted = InterpretedMachine.TestCase
TestInterpreted.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_garbage_in_the_log_of_ids(value: bytes, seed: int):
    """Whatever a record's value is, nothing is read outside of it."""
    rng = random.Random(seed)
    table = installed.Table(KEY)
    batch = records.build([(0, KEY, b"\0" * rng.choice([0, 1, 13]) + value, []), (0, KEY, None, [])])
    assert table.replay(bytes(batch), 0, KEY, 0, 0, 0, 99) == 2


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6), st.integers(1, 5))
def test_garbage_in_a_batch(changes: list[tuple[int, int]], count: int):
    """Records that make no sense behind a checksum that fits: refused, and nothing of them is remembered."""
    batch = batch_of(*(b"%d" % each for each in range(count)))
    for at, byte in changes:
        batch[61 + at % (len(batch) - 61)] = byte
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    table = installed.Table(KEY)
    try:
        table.claim(batch, MAX, 0, 0, 0, 0)
    except InvalidRecords:
        assert len(table) == 0
