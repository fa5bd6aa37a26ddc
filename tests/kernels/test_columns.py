"""Columns into records: what is built is what the builder for single records builds."""

from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together

from headrace.errors import InvalidRecords
from headrace.format import records
from headrace.format.partitioning import partition_of
from headrace.pipeline import encode as columns
from headrace.pipeline.encode import Texts

SOURCE = interpreted_together("format.records", "format.partitioning", "pipeline.encode")["pipeline.encode"]
BUILDS = pytest.mark.parametrize("build", [columns, SOURCE], ids=["installed", "interpreted"])

texts = st.one_of(st.none(), st.binary(max_size=300))


def numbers(*given: int) -> bytes:
    return pack(f"<{len(given)}q", *given)


def column(rows: list[bytes | None]) -> Texts:
    data, starts, lengths = b"before", [], []
    for row in rows:
        starts.append(len(data))
        lengths.append(-1 if row is None else len(row))
        data += row or b""
    return Texts(data + b"behind", numbers(*starts), numbers(*lengths))


@BUILDS
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=200), st.data(), st.sampled_from([0, 1, 4]))
def test_a_batch_of_columns_is_a_batch_of_records(
    build: ModuleType, rows: list[tuple[bytes | None, bytes | None]], data: st.DataObject, codec: int
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=200))
    keys, values = column([key for key, _ in rows]), column([value for _, value in rows])
    built = build.build_rows(numbers(*chosen), 1_700_000_000_000, keys, values, codec)
    same = records.build([(1_700_000_000_000, *rows[row], ()) for row in chosen], compression=codec)
    assert built == same
    times = data.draw(st.lists(st.integers(0, 1 << 53), min_size=len(rows), max_size=len(rows)))
    built = build.build_rows(numbers(*chosen), 0, keys, values, codec, numbers(*times))
    assert built == records.build([(times[row], *rows[row], ()) for row in chosen], compression=codec)


@BUILDS
@given(st.lists(texts, max_size=100), st.integers(1, 70_000))
def test_partitions_of_a_column_are_those_of_its_keys(build: ModuleType, rows: list[bytes | None], count: int) -> None:
    wanted = [-1 if row is None else partition_of(row, count) for row in rows]
    assert build.partitions_of(column(rows), count) == numbers(*wanted)


@BUILDS
def test_what_lies_outside_a_column_is_not_read(build: ModuleType) -> None:
    fine = column([b"abc"])
    for wrong in (
        Texts(b"abc", numbers(1), numbers(3)),
        Texts(b"abc", numbers(-1), numbers(1)),
        Texts(b"abc", numbers(0), numbers(-2)),
        Texts(b"abc", numbers(1 << 62), numbers((1 << 63) - 1)),
        Texts(b"abc", numbers(0, 0), numbers(1)),
        Texts(b"abc", b"1234567", b"1234567"),
    ):
        with pytest.raises(InvalidRecords):
            build.build_rows(numbers(0), 0, fine, wrong, 0)
        with pytest.raises(InvalidRecords):
            build.build_rows(numbers(0), 0, wrong, fine, 0)
        with pytest.raises(InvalidRecords):
            build.partitions_of(wrong, 3)
    for row in (-1, 1, 1 << 62):
        with pytest.raises(InvalidRecords, match="no row"):
            build.build_rows(numbers(row), 0, fine, fine, 0)
    for times in (numbers(-1), numbers(1 << 54), numbers(0, 0), b"1234567"):
        with pytest.raises(InvalidRecords, match="time"):
            build.build_rows(numbers(0), 0, fine, fine, 0, times)
    with pytest.raises(InvalidRecords, match="at least one"):
        build.build_rows(b"", 0, fine, fine, 0)
