"""Columns of a topic's table: inferred, grown, declared; and what fits none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from headrace.pipeline import lake_columns  # noqa: E402 -- the package above may be missing
from headrace.pipeline.json_decoder import JsonDecoder  # noqa: E402
from headrace.pipeline.lake_columns import (  # noqa: E402
    RECORD,
    check_declared,
    declared_kind,
    infer_kind,
    kind_in,
    merge_types,
    shape_rows,
    table_schema,
)
from headrace.pipeline.options import InvalidOption  # noqa: E402
from headrace.pipeline.tables import TableInvalid  # noqa: E402

NONE = pa.struct([])


def inferred(*values: Any, known: Any = NONE) -> dict[str, str]:
    kind = infer_kind([each if isinstance(each, bytes) else json.dumps(each).encode() for each in values], known)
    return {each.name: str(each.type) for each in kind}


def test_types_are_those_of_json() -> None:
    found = inferred({"i": 1, "f": 1.5, "b": True, "s": "2020-01-01T00:00:00Z", "n": None, "e": [], "o": {}})
    assert found == {"i": "int64", "f": "double", "b": "bool", "s": "string"}
    nested = inferred({"o": {"a": 1, "l": [{"b": 1}, {"c": "x"}]}, "l": [1, 2.5, None]})
    assert nested == {
        "o": "struct<a: int64, l: list<element: struct<b: int64, c: string>>>",
        "l": "list<element: double>",
    }


def test_whole_numbers_become_numbers_before_the_table_has_them_and_not_after() -> None:
    assert inferred({"a": 1}, {"a": 1.5}, {"a": 2}) == {"a": "double"}
    assert inferred({"a": 1.5}, known=pa.struct([("a", pa.int64())])) == {"a": "int64"}
    assert inferred({"a": "x"}, {"b": 1}, known=pa.struct([("a", pa.int64())])) == {"a": "int64", "b": "int64"}


def test_what_can_be_no_column_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (
        {"a b": 1, "": 1, "x.y": 1, "_offset": 1, "_KEY": 1, "id": 1},
        {"ID": 2},
        b"[1]",
        b"no",
        b"\xff",
        b"[" * 10**5,
    )
    assert inferred(*values, {"big": 1 << 70}) == {"id": "int64"}
    monkeypatch.setattr(lake_columns, "COLUMNS_MAX", 2)
    assert list(inferred({"a": 1, "b": 1, "c": 1})) == ["a", "b"]


def test_merging_keeps_what_is_known() -> None:
    known = pa.struct([("a", pa.int64()), ("o", pa.struct([("x", pa.string())]))])
    other = pa.struct([("o", pa.struct([("x", pa.int64()), ("y", pa.bool_())])), ("b", pa.string())])
    assert merge_types(known, other) == pa.struct(
        [("a", pa.int64()), ("o", pa.struct([("x", pa.string()), ("y", pa.bool_())])), ("b", pa.string())]
    )
    assert merge_types(known, pa.struct([])) == known


def block(values: list[bytes | None]) -> Any:
    count = len(values)
    return pa.record_batch(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            "headers": pa.array([None] * count, lake_columns.HEADERS.type),
        }
    )


@pytest.mark.parametrize("rows", [1, 500])
def test_a_value_that_fits_no_columns_stays_as_it_is(rows: int) -> None:
    kind = pa.struct([("a", pa.int64()), ("o", pa.struct([("x", pa.int64())]))])
    good = [b'{"a": 1, "o": {"x": 2}}', b"{}", None, b'{"a": null, "later": null}'] * rows
    bad = [b'{"a": "x"}', b'{"b": 1}', b'{"o": {"x": 1, "y": 2}}', b"text", b"\xff\xfe", b"7", b'{"A": 1}']
    rows_of, why = shape_rows(block(good + bad), JsonDecoder(kind, strict=True))
    assert rows_of.schema == table_schema(kind)
    found = rows_of.to_pylist()
    assert sorted(why) == list(range(len(good), len(good) + len(bad)))
    assert [row["_value"] for row in found] == [None] * len(good) + bad
    assert [row["_error"] is None for row in found] == [True] * len(good) + [False] * len(bad)
    assert (found[0]["a"], found[0]["o"], found[0]["_key"], found[3]["_offset"]) == (1, {"x": 2}, b"k", 3)
    assert all(row["a"] is None and row["o"] is None for row in found[len(good) :])
    assert found[len(good) + 1]["_error"] == "b: there is no such column"
    assert found[len(good) + 2]["_error"] == "o.y: there is no such column"


def test_a_declared_schema_leaves_other_fields_out() -> None:
    kind = pa.struct([("a", pa.int64())])
    rows, why = shape_rows(block([b'{"a": 1, "b": 2}', b'{"a": "x"}']), JsonDecoder(kind))
    assert [(row["a"], row["_value"]) for row in rows.to_pylist()] == [(1, None), (None, b'{"a": "x"}')]
    assert list(why) == [1]


def test_a_json_schema_declares_columns() -> None:
    pytest.importorskip("pyspark")
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["null", "number"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "buyer": {"properties": {"name": {"type": "string"}, "adult": {"type": "boolean"}}},
            "any": {},
        },
    }
    assert str(declared_kind(json.dumps(schema))) == (
        "struct<id: int64, price: double, at: timestamp[us, tz=UTC], day: date32[day], tags: list<element: string>, "
        "buyer: struct<name: string, adult: bool>, any: string>"
    )
    sparks = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": False, "metadata": {}}]}
    assert declared_kind(json.dumps(sparks)) == pa.struct([("id", pa.int64())])
    with pytest.raises(InvalidOption, match=r"lake\.schema cannot be read"):
        declared_kind('{"fields": [1]}')


def test_a_table_that_is_otherwise_is_refused() -> None:
    found = pa.struct([("id", pa.int64())])
    check_declared(pa.struct([("id", pa.int64()), ("more", pa.string())]), found)
    with pytest.raises(TableInvalid, match=r"the column id as int64, and lake\.schema as string"):
        check_declared(pa.struct([("id", pa.string())]), found)
    with pytest.raises(TableInvalid, match="has the column _Key, which is the record's own"):
        check_declared(pa.struct([("_Key", pa.string())]), found)
    assert kind_in(table_schema(found)) == found
    assert kind_in(pa.schema([])) == NONE
    with pytest.raises(TableInvalid, match="no column _partition: it is not the table of a topic"):
        kind_in(pa.schema([RECORD.field("_offset")]))
