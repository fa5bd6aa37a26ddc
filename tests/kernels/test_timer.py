"""The timer's kernels, compiled and interpreted: a heap, a wheel, and messages on their way through buckets."""

from __future__ import annotations

import importlib
import struct
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted
from tests.longer import examples

from headrace.errors import CorruptBatch, InvalidDelay, InvalidRecords
from headrace.format import records
from headrace.format.delay import MAX_DELAY_MS

NAMES = ["format.records", *(f"broker.timer.{name}" for name in ("heap", "wheel", "scan", "stage"))]
MAX = 1 << 24
NOW = 1_800_000_000_000
MINUTE = 60_000
TOPIC = bytes(range(16))


@dataclass(frozen=True)
class Build:
    """One build of the kernels that work together."""

    heap: ModuleType
    timer: ModuleType
    scan: ModuleType
    stage: ModuleType


def _compiled() -> Build:
    return Build(*(importlib.import_module(f"headrace.{name}") for name in NAMES[1:]))


def _interpreted() -> Build:
    """From the sources, which must find each other and not the compiled ones."""
    before = {name: importlib.import_module(f"headrace.{name}") for name in NAMES}
    try:
        for name in NAMES:
            sys.modules[f"headrace.{name}"] = interpreted(name)
        return Build(*(sys.modules[f"headrace.{name}"] for name in NAMES[1:]))
    finally:
        sys.modules.update({f"headrace.{name}": module for name, module in before.items()})


BUILDS = {"compiled": _compiled(), "interpreted": _interpreted()}


@pytest.fixture(params=list(BUILDS))
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


builds = st.sampled_from(list(BUILDS.values()))

Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
small = st.one_of(st.none(), st.binary(max_size=40))
messages = st.tuples(small, small, st.lists(st.tuples(st.text(max_size=5), small), max_size=3))


class Bucket:
    """A bucket's log: batches one behind the other."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def append(self, batch: bytearray) -> int:
        struct.pack_into(">q", batch, 0, self.end)
        base = self.end
        self.end += struct.unpack_from(">i", batch, 23)[0] + 1
        self.data += bytes(batch)
        return base


# --- the heap ---------------------------------------------------------------------------------------------------------

pairs = st.tuples(st.integers(0, 50), st.integers(0, 1_000_000))


def drain(build: Build, heap: Any) -> list[tuple[int, int]]:
    found = []
    while len(heap):
        # Key and value change places, so the only pair of the other heap tells what was first here.
        out = build.heap.Heap()
        heap.move(build.heap.NEVER, 1, out)
        value = out.top
        back = build.heap.Heap()
        out.move(build.heap.NEVER, 1, back)
        found.append((back.top, value))
    return found


@settings(max_examples=examples(150), deadline=None)
@given(builds, st.lists(pairs, max_size=80, unique_by=lambda pair: pair[1]), st.data())
def test_heap_gives_pairs_in_order(build: Build, given: list[tuple[int, int]], data: st.DataObject) -> None:
    heap = build.heap.Heap()
    unordered = data.draw(st.integers(0, len(given)), "in any order")
    heap.unsettle()
    for pair in given[:unordered]:
        heap.add(*pair)
    heap.settle()
    for pair in given[unordered:]:
        # While it is being brought into order, more come in.
        heap.add(*pair)
        heap.order(data.draw(st.integers(0, 3)))
    while not heap.order(7):
        pass
    removed = data.draw(st.lists(st.sampled_from(given), max_size=5, unique=True)) if given else []
    for _, value in removed:
        assert heap.remove(value)
        assert not heap.remove(value)
    left = sorted(set(given) - set(removed))
    assert len(heap) == len(left)
    assert heap.top == (left[0][0] if left else build.heap.NEVER)
    assert drain(build, heap) == left


def test_heap_moves_only_what_is_asked_for(build: Build) -> None:
    heap, into = build.heap.Heap(), build.heap.Heap()
    for value in range(100, 103):
        heap.add(5, value)
    heap.add_keys(importlib.import_module("array").array("q", [1, 9]), 200)
    heap.move(5, 2, into)
    assert (len(heap), len(into)) == (3, 2)
    assert drain(build, into) == [(100, 5), (200, 1)]
    heap.move(5, 100, into)
    assert drain(build, into) == [(101, 5), (102, 5)]
    assert drain(build, heap) == [(9, 201)]


# --- the wheel --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None)
@given(builds, st.integers(0, 1 << 45), st.integers(-(1 << 40), 1 << 41))
def test_a_place_is_the_lowest_level_that_reaches(build: Build, now: int, delay: int) -> None:
    kernel = build.timer
    due = max(now + delay, 0)
    bucket = kernel.place(due, now)
    fits = [
        level
        for level in range(kernel.LEVELS)
        if max(due, now) // (MINUTE * 60**level) - now // (MINUTE * 60**level) <= kernel.REACH
    ]
    if not fits:
        assert bucket == -1
        assert delay > MAX_DELAY_MS
        return
    width = MINUTE * 60 ** fits[0]
    assert bucket == fits[0] * 64 + max(due, now) // width % 64
    if bucket >= 64:
        # Its time to move down is still ahead, and then everything in its window fits the level below.
        start = due // width * width
        moves_at = start - 3 * width // 60
        assert moves_at > now
        assert kernel.place(start + width - 1, moves_at) < bucket // 64 * 64


def test_two_turns_of_the_wheel_do_not_meet(build: Build) -> None:
    """Messages of one bucket that are scheduled within a minute of each other are of one window."""
    for level in range(4):
        width = MINUTE * 60**level
        seen: dict[int, int] = {}
        for back in (0, MINUTE):
            for step in range(70):
                due = NOW // width * width + step * width + width // 2
                bucket = build.timer.place(due, NOW - back)
                if bucket // 64 == level:
                    assert seen.setdefault(bucket, due // width) == due // width


# --- into a bucket and out --------------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(
    builds,
    st.lists(
        st.tuples(st.lists(messages, min_size=1, max_size=5), st.integers(0, 3_000), st.integers(0, 2)), max_size=6
    ),
    st.integers(0, 4),
    st.data(),
)
def test_messages_come_out_as_they_went_in(
    build: Build, batches: list[tuple[list[Message], int, int]], codec: int, data: st.DataObject
) -> None:
    kernel, bucket, model = build.timer, Bucket(), []
    number = 7
    for content, delay, target in batches:
        due = NOW + delay
        batch = records.build([(NOW - 5, *message) for message in content], compression=codec)
        entering = kernel.enter(batch, MAX, due, number, kernel.route_of(TOPIC, target, NOW))
        assert list(entering.dues) == [due] * len(content)
        base = bucket.append(entering.batch())
        model += [(due, base + at, target, message, number + at) for at, message in enumerate(content)]
        number += len(content)
    gone = data.draw(st.lists(st.sampled_from(model), unique_by=lambda each: each[1])) if model else []
    if gone:
        bucket.append(kernel.mark([each[1] for each in gone], NOW))
    waiting = [each for each in model if each not in gone]

    scan = build.scan.Scan(0, bucket.end)
    while not scan.done:
        scan.read(bucket.data)
    while not scan.finish(3):
        pass
    while not scan.index.order(3):
        pass
    assert len(scan.index) == len(waiting)
    for each in model:
        assert scan.has_left(each[1]) == (each in gone)
        seek = build.scan.Seek(each[0], each[4])
        assert seek.read(bucket.data, 0) == bucket.end
        assert seek.offset == (-1 if each in gone else each[1])

    _, listed = build.scan.page(bucket.data, 0, scan, (-1, -1), (build.heap.NEVER, 0), TOPIC)
    assert sorted(listed) == sorted(
        [
            (due, n, TOPIC, target, NOW, message[0], -1 if message[1] is None else len(message[1]))
            for due, _, target, message, n in waiting
        ],
        key=lambda each: each[:2],
    )
    assert build.scan.page(bucket.data, 0, scan, (-1, -1), (build.heap.NEVER, 0), bytes(16))[1] == []

    stage, wanted = build.stage.Stage(), build.heap.Heap()
    scan.index.move(build.heap.NEVER, len(waiting), wanted)
    while len(wanted):
        stage.read(bucket.data, wanted, 1 << 20)
    fired: list[tuple[int, int, Message]] = []
    at = NOW
    while len(stage):
        slice_ = stage.fire(at, data.draw(st.integers(1, 4)), 200, set())
        if not len(slice_):
            assert stage.top > at
            at = stage.top
            continue
        if data.draw(st.booleans()):
            stage.put_back(slice_)
            continue
        offsets = list(slice_.offsets)
        assert slice_.late_ms == sum(at - each[0] for each in waiting if each[1] in offsets)
        for target_number, batch in slice_.batches.items():
            topic, target = stage.targets[target_number]
            assert topic == TOPIC
            for offset, timestamp, key, value, headers in records.parse(batch, MAX):
                assert timestamp == at
                assert offset < len(offsets)
                fired.append((target, at, (key, value, headers)))
    for target in range(3):
        assert [each[2] for each in fired if each[0] == target] == [
            each[3] for each in sorted(waiting, key=lambda each: each[:2]) if each[2] == target
        ]


@settings(max_examples=100, deadline=None)
@given(builds, st.lists(st.tuples(messages, st.integers(0, 1 << 38)), min_size=1, max_size=12), st.data())
def test_messages_move_from_bucket_to_bucket(
    build: Build, content: list[tuple[Message, int]], data: st.DataObject
) -> None:
    kernel, bucket = build.timer, Bucket()
    model = {}
    for number, (message, delay) in enumerate(content):
        batch = records.build([(NOW, *message)])
        model[number] = (NOW + delay, message)
        entering = kernel.enter(batch, MAX, NOW + delay, number, kernel.route_of(TOPIC, 3, NOW))
        bucket.append(entering.batch())
    later = NOW + data.draw(st.integers(0, 1 << 38))
    own = data.draw(st.sampled_from([kernel.place(due, later) for due, _ in model.values()]))
    scan = build.scan.Scan(0, bucket.end)
    scan.read(bucket.data)
    assert scan.finish(1_000)
    cascade = build.scan.Cascade(scan.index, own)
    buckets, moved = cascade.read(bucket.data, later)
    assert cascade.next == -1
    stays = {number for number, (due, _) in model.items() if kernel.place(due, later) == own}
    assert set(moved) == set(model) - stays
    assert cascade.stays == min((model[number][0] for number in stays), default=build.heap.NEVER)
    found = {}
    for where, entering in buckets.items():
        copy = Bucket()
        dues = list(entering.dues)
        copy.append(entering.batch())
        scan = build.scan.Scan(0, copy.end)
        scan.read(copy.data)
        _, listed = build.scan.page(copy.data, 0, scan, (-1, -1), (build.heap.NEVER, 0), b"")
        assert [each[0] for each in listed] == dues
        for due, number, topic, partition, scheduled, key, size in listed:
            assert kernel.place(due, later) == where
            assert (topic, partition, scheduled) == (TOPIC, 3, NOW)
            found[number] = (due, key, size)
    assert found == {
        number: (due, message[0], -1 if message[1] is None else len(message[1]))
        for number, (due, message) in model.items()
        if number not in stays
    }


# --- what producers send ----------------------------------------------------------------------------------------------


delays = st.sampled_from([None, -5, 0, 1, 90_000, 1 << 33])


def at(due: int) -> bytes:
    return b"%d" % due


@settings(max_examples=examples(150), deadline=None)
@given(builds, st.lists(st.tuples(messages, delays), min_size=1, max_size=10), st.integers(0, 4), st.booleans())
def test_a_batch_is_split(build: Build, content: list[tuple[Message, int | None]], codec: int, text: bool) -> None:
    given = []
    for (key, value, headers), delay in content:
        asked = (
            []
            if delay is None
            else [("headrace-deliver-at", at(NOW + delay) if text else (NOW + delay).to_bytes(8, "big"))]
        )
        given.append((NOW, key, value, [*headers, *asked, ("headrace-deliver-at", b"junk")] if asked else headers))
    batch = records.build(given, compression=codec)
    buckets: dict[int, Any] = {}
    found = build.timer.split(batch, MAX, NOW, 100, build.timer.route_of(TOPIC, 0, NOW), MAX, buckets)
    later = [index for index, (_, delay) in enumerate(content) if delay is not None and delay > 0]
    if not later:
        assert found is None
        return
    marks, count = found
    assert count == len(later)
    assert [index for index, mark in enumerate(marks) if not mark] == later
    listed = []
    for where, entering in buckets.items():
        bucket = Bucket()
        bucket.append(entering.batch())
        scan = build.scan.Scan(0, bucket.end)
        scan.read(bucket.data)
        _, entries = build.scan.page(bucket.data, 0, scan, (-1, -1), (build.heap.NEVER, 0), b"")
        assert {build.timer.place(each[0], NOW) for each in entries} == {where}
        listed += entries
    listed.sort(key=lambda each: each[1])
    assert [each[1] for each in listed] == list(range(100, 100 + len(later)))
    assert [(each[0], each[5]) for each in listed] == [(NOW + (content[i][1] or 0), content[i][0][0]) for i in later]


@pytest.mark.parametrize(
    "value", [None, b"", b"soon", b"-1", b"1.5", b" 12", b"1" * 19, b"\xff" * 8, b"\0" * 7, b"\0" * 9]
)
def test_what_is_no_time_is_refused(build: Build, value: bytes | None) -> None:
    batch = records.build([(NOW, None, b"", [("headrace-deliver-at", value)])])
    with pytest.raises(InvalidRecords):
        build.timer.split(batch, MAX, NOW, 0, build.timer.route_of(TOPIC, 0, NOW), MAX, {})


def test_too_far_and_too_large_are_refused(build: Build) -> None:
    def split(delay: int, room: int) -> object:
        batch = records.build([(NOW, None, b"x" * 1_000, [("headrace-deliver-at", at(NOW + delay))])])
        return build.timer.split(batch, MAX, NOW, 0, build.timer.route_of(TOPIC, 0, NOW), room, {})

    assert split(MAX_DELAY_MS, MAX)
    with pytest.raises(InvalidDelay):
        split(MAX_DELAY_MS * 2, MAX)
    with pytest.raises(InvalidRecords, match=r"max\.message\.bytes"):
        split(1_000, 500)


def test_a_batch_that_is_not_whole_is_refused(build: Build) -> None:
    batch = records.build([(NOW, None, b"a", []), (NOW, None, b"b", [])])
    sparse = records.retain(batch, b"\1\0", MAX, None)
    assert sparse is not None
    with pytest.raises(InvalidRecords):
        build.timer.split(sparse, MAX, NOW, 0, build.timer.route_of(TOPIC, 0, NOW), MAX, {})
    with pytest.raises(InvalidRecords):
        build.timer.enter(records.empty(batch), MAX, NOW, 0, build.timer.route_of(TOPIC, 0, NOW))


# --- damage -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(builds, st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_damage_is_found(build: Build, place: int, byte: int, cut: int) -> None:
    kernel, bucket = build.timer, Bucket()
    for number in range(3):
        batch = records.build([(NOW, b"k", b"v" * 20, [("h", b"w")])] * 3)
        bucket.append(kernel.enter(batch, MAX, NOW + number, number, kernel.route_of(TOPIC, 0, NOW)).batch())
    bucket.append(kernel.mark([1, 2], NOW))
    data = bytearray(bucket.data)
    data[place % len(data)] = byte
    damaged = bytes(data[: cut % (len(data) + 1)]) if cut % 3 == 0 else bytes(data)

    def look() -> None:
        scan = build.scan.Scan(0, bucket.end)
        scan.read(damaged)
        scan.finish(1_000)
        build.scan.Seek(NOW, 0).read(damaged, 0)
        wanted = build.heap.Heap()
        wanted.add(0, 0)
        build.stage.Stage().read(damaged, wanted, 1_000)

    try:
        look()
    except (CorruptBatch, InvalidRecords):
        pass


def test_the_stage_lets_one_go(build: Build) -> None:
    kernel, bucket = build.timer, Bucket()
    batch = records.build([(NOW, b"%d" % index, None, []) for index in range(5)])
    bucket.append(kernel.enter(batch, MAX, NOW, 0, kernel.route_of(TOPIC, 0, NOW)).batch())
    stage, wanted = build.stage.Stage(), build.heap.Heap()
    for offset in range(5):
        wanted.add(offset, NOW)
    stage.read(bucket.data, wanted, 1_000)
    assert stage.remove(2)
    assert not stage.remove(2)
    slice_ = stage.fire(NOW, 100, 10_000, set())
    assert [key for _, _, key, _, _ in records.parse(slice_.batches[0], MAX)] == [b"0", b"1", b"3", b"4"]
    assert stage.held_bytes == 0


def test_what_is_for_a_deleted_topic_is_left_out(build: Build) -> None:
    kernel, bucket = build.timer, Bucket()
    for target in range(2):
        batch = records.build([(NOW, b"%d" % target, None, [])] * 3)
        bucket.append(kernel.enter(batch, MAX, NOW, target * 3, kernel.route_of(TOPIC, target, NOW)).batch())
    stage, wanted = build.stage.Stage(), build.heap.Heap()
    for offset in range(6):
        wanted.add(offset, NOW)
    stage.read(bucket.data, wanted, 1_000)
    slice_ = stage.fire(NOW + 7, 100, 10_000, {0})
    assert slice_.dropped == 3
    assert list(slice_.batches) == [1]
    assert list(slice_.offsets) == list(range(6))
    counts = [0] * 4
    slice_.count_late(NOW + 7, importlib.import_module("array").array("q", [0, 5, 10]), counts)
    assert counts == [0, 0, 6, 0]
