"""Batches into columns: the same records, whichever build, and nothing but those that were asked for."""

from __future__ import annotations

from itertools import pairwise
from struct import iter_unpack, pack_into
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together

from headrace.format import records
from headrace.pipeline import arrow

PLAIN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ALL = (*PLAIN, "headers")
EVERYTHING = (0, 1 << 62, -(1 << 62), 1 << 62, 1 << 20)
SOURCE = interpreted_together("format.records", "pipeline.arrow")["pipeline.arrow"]
BUILDS = pytest.mark.parametrize("build", [arrow, SOURCE], ids=["installed", "interpreted"])

small_bytes = st.none() | st.binary(max_size=20)
record = st.tuples(
    st.integers(0, 10**12),
    small_bytes,
    small_bytes,
    st.lists(st.tuples(st.text(max_size=5), small_bytes), max_size=3),
)


def placed(batch: bytearray, base: int) -> bytes:
    pack_into(">q", batch, 0, base)
    return bytes(batch)


def numbers(column: bytes | memoryview, kind: str) -> list[int]:
    return [number for (number,) in iter_unpack(f"<{kind}", column)]


def strings(column: arrow.Binary, rows: int) -> list[bytes | None]:
    edges = numbers(column.offsets, "i")
    assert len(edges) == rows + 1
    present = [not column.nulls or column.validity[row >> 3] >> (row & 7) & 1 for row in range(rows)]
    assert column.nulls == rows - sum(map(bool, present))
    return [bytes(column.data[edges[row] : edges[row + 1]]) if present[row] else None for row in range(rows)]


def rows_of(taken: arrow.ColumnBuffers) -> list[tuple[object, ...]]:
    keys, values = strings(taken.key, taken.rows), strings(taken.value, taken.rows)
    offsets = numbers(taken.offset, "q")
    times = [micros // 1000 for micros in numbers(taken.timestamp, "q")]
    edges = numbers(taken.header_lists, "i")
    names = strings(taken.header_keys, edges[-1])
    contents = strings(taken.header_values, edges[-1])
    headers = [[(names[at].decode(), contents[at]) for at in range(first, last)] for first, last in pairwise(edges)]
    return list(zip(offsets, times, keys, values, headers, strict=True))


@BUILDS
@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(record, min_size=1, max_size=12), min_size=1, max_size=4), codec=st.sampled_from([0, 3])
)
def test_columns_hold_what_the_records_do(build: ModuleType, batches: list[list], codec: int) -> None:
    columns = build.Columns(ALL)
    expected: list[tuple[object, ...]] = []
    base = 5
    for each in batches:
        batch = placed(records.build(each, compression=codec), base)
        base += len(each) + 2
        columns.add(batch, *EVERYTHING)
        expected += records.parse(batch, 1 << 20)
    assert columns.count == len(expected)
    assert rows_of(columns.take()) == expected
    # It begins anew.
    assert columns.count == 0
    assert rows_of(columns.take()) == []


@BUILDS
def test_only_the_offsets_and_times_that_were_asked_for(build: ModuleType) -> None:
    batch = placed(records.build([(1000 + step, None, b"%d" % step, []) for step in range(10)]), 100)
    columns = build.Columns(PLAIN)
    columns.add(batch, 103, 108, 1004, 1007, 1 << 20)
    taken = columns.take()
    assert numbers(taken.offset, "q") == [104, 105, 106]
    assert numbers(taken.timestamp_type, "i") == [0, 0, 0]
    assert strings(taken.value, 3) == [b"4", b"5", b"6"]


@BUILDS
@pytest.mark.parametrize("name", ["key", "value", "offset", "timestamp", "timestampType", "headers", "topic"])
def test_only_the_columns_that_were_asked_for(build: ModuleType, name: str) -> None:
    batch = placed(records.build([(1000 + step, b"k%d" % step, b"v", [("h", b"x")]) for step in range(10)]), 100)
    columns = build.Columns((name,))
    columns.add(batch, 103, 108, 1004, 1 << 62, 1 << 20)
    assert columns.count == 4
    assert columns.size == {"key": 8, "value": 4}.get(name, 0)
    taken = columns.take()
    found = {
        "key": len(taken.key.offsets) // 4 - 1,
        "value": len(taken.value.offsets) // 4 - 1,
        "offset": len(taken.offset) // 8,
        "timestamp": len(taken.timestamp) // 8,
        "timestampType": len(taken.timestamp_type) // 4,
        "headers": len(taken.header_lists) // 4 - 1,
    }
    assert taken.rows == 4
    assert {column: rows for column, rows in found.items() if rows} == ({name: 4} if name in found else {})


@BUILDS
def test_columns_grow_past_any_block(build: ModuleType) -> None:
    batch = placed(records.build([(0, b"k" * 700, b"v" * 9_000, []) for _ in range(40)]), 0)
    columns = build.Columns(PLAIN)
    columns.add(batch, *EVERYTHING[:4], 1 << 24)
    assert columns.size == 40 * 9_700
    taken = columns.take()
    assert set(strings(taken.key, 40)) == {b"k" * 700}
    assert set(strings(taken.value, 40)) == {b"v" * 9_000}


@BUILDS
def test_a_time_that_no_clock_shows_is_the_latest_that_there_is(build: ModuleType) -> None:
    """Nanoseconds that were taken for milliseconds must not end a query."""
    batch = placed(records.build([((1 << 62) - 1, None, b"", []), (1_700_000_000_000_000_000, None, b"", [])]), 0)
    columns = build.Columns(PLAIN)
    columns.add(batch, 0, 1 << 62, 0, (1 << 63) - 1, 1 << 20)
    taken = columns.take()
    assert taken.rows == 2
    assert list(memoryview(taken.timestamp).cast("B").cast("q")) == [9_223_372_036_854_775_000] * 2


@BUILDS
def test_memory_is_used_again_once_nobody_looks_at_it(build: ModuleType) -> None:
    columns = build.Columns(("value",))
    wholes = [bytes([number]) * 100_000 for number in range(8)]

    def take(number: int) -> memoryview:
        columns.add(placed(records.build([(0, None, wholes[number], [])]), number), *EVERYTHING)
        return columns.take().value.data

    held = [take(number) for number in range(5)]
    # Nothing that is looked at changes, however many come later, and whoever looks: a piece counts, too.
    piece = held[1][5:10]
    places = {id(each.obj) for each in held}
    assert len(places) == 5
    del held[1]
    assert [bytes(each[:1]) for each in held] == [b"\0", b"\2", b"\3", b"\4"]
    assert bytes(piece) == b"\1" * 5
    del held[-1]
    later = [take(number) for number in (5, 6, 7)]
    assert {id(each.obj) for each in later} & places
    assert [bytes(each) for each in (*held, *later)] == [wholes[number] for number in (0, 2, 3, 5, 6, 7)]
