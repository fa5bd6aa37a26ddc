"""JSON into Arrow's columns: what Arrow reads at once and what is looked at row by row must be the same."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pj = pytest.importorskip("pyarrow.json")

from headrace.pipeline.json_decoder import FEW_ROWS, JsonDecoder, Misfit  # noqa: E402 -- needs pyarrow

TIME = pa.timestamp("us", tz="UTC")
KIND = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("at", TIME),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("where", pa.struct([pa.field("x", pa.float64()), pa.field("day", pa.date32())])),
        pa.field("ok", pa.bool_()),
    ]
)
GOOD = {
    "id": 5,
    "name": "nöt",
    "at": "2024-01-02T03:04:05.5Z",
    "tags": ["a", None],
    "where": {"x": 1, "day": "2024-02-29", "more": [1, {"y": "z"}]},
    "ok": True,
    "unknown": {"deep": [1, "2"]},
}
DECODED = {
    "id": 5,
    "name": "nöt",
    "at": datetime(2024, 1, 2, 3, 4, 5, 500_000, UTC),
    "tags": ["a", None],
    "where": {"x": 1.0, "day": date(2024, 2, 29)},
    "ok": True,
}
NOTHING = dict.fromkeys(DECODED)


def decode(values: list[bytes | None], kind: Any = KIND) -> tuple[list[Any], dict[int, str]]:
    found, bad = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    found.validate(full=True)
    assert found.type == kind
    return found.to_pylist(), bad


def test_a_good_block_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonDecoder, "decode_one", lambda *_: pytest.fail("row by row"))
    values = [json.dumps(GOOD).encode(), None, b"{}", b"null", json.dumps(GOOD, indent=4, ensure_ascii=False).encode()]
    assert decode(values * 20) == ([DECODED, None, NOTHING, None, DECODED] * 20, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id": 1}{"id": 2}', "not JSON: Extra data"),
        (b'{}}\n{"v":{}', "not JSON"),
        (b'{"name": "\xff"}', "not UTF-8"),
        (b'{"name": "\\ud800"}', "name: .* half a surrogate pair"),
        (b'{"name": "a\nb"}', "not JSON: Invalid control character"),
        (b"[1]", r"\[1\] is not an object"),
        (b'"text"', '"text" is not an object'),
        (b'{"id": "5"}', 'id: "5" is not a whole number of 64 bits'),
        (b'{"id": 9223372036854775808}', "id: .* is not a whole number of 64 bits"),
        (b'{"id": 1.5}', "id: 1.5 is not a whole number"),
        (b'{"id": true}', "id: true is not a whole number"),
        (b'{"ok": 1}', "ok: 1 is not true or false"),
        (b'{"at": "yesterday"}', "at: .* is not a time"),
        (b'{"tags": "a"}', 'tags: "a" is not an array'),
        (b'{"where": {"day": "2023-02-29"}}', "where.day: .* is not a date"),
        (b'{"where": {"x": "1"}}', r"where\.x: \"1\" is not a number"),
        (b'{"id": NaN}', "id: NaN is not a whole number"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_row_is_kept_aside_and_the_others_stay(value: bytes, reason: str) -> None:
    good = json.dumps(GOOD).encode()
    values = [good] * 500
    values[313] = value
    found, bad = decode(values)
    assert list(bad) == [313]
    assert re.search(reason, bad[313]), bad[313]
    assert found == [DECODED] * 313 + [None] + [DECODED] * 186


def test_what_arrow_does_not_take_and_spark_does_is_taken() -> None:
    kind = pa.struct([pa.field("s", pa.string()), pa.field("t", TIME), pa.field("d", pa.decimal128(6, 2))])
    values = [
        b'{"s": 5, "t": 1.5, "d": 1.005}',
        b'{"s": {"a": [1, "x"]}, "t": "2024-01-02 03:04:05", "d": "7"}',
        b'{"s": "x", "s": "y", "t": "2024-01-02T03:04:05+02:00"}',
    ]
    assert decode(values, kind) == (
        [
            {"s": "5", "t": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), "d": Decimal("1.01")},
            {"s": '{"a":[1,"x"]}', "t": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "d": Decimal("7.00")},
            {"s": "y", "t": datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC), "d": None},
        ],
        {},
    )
    assert list(decode([b'{"d": 12345.678}', b'{"d": true}'], kind)[1]) == [0, 1]


def test_maps_and_bytes() -> None:
    kind = pa.struct([pa.field("m", pa.map_(pa.string(), pa.int32())), pa.field("b", pa.binary())])
    found, bad = decode([b'{"m": {"a": 1}, "b": "aGk="}', b'{"b": "?"}', b'{"m": {"a": "x"}}'], kind)
    assert found[0] == {"m": [("a", 1)], "b": b"hi"}
    assert list(bad) == [1, 2]
    with pytest.raises(Misfit, match="cannot be decoded"):
        JsonDecoder(pa.struct([pa.field("i", pa.month_day_nano_interval())]))


@pytest.mark.parametrize(
    ("bad", "every", "calls"),
    [
        (b"", 0, 1),
        (b"{", 10_000, 12),
        (b'{"id": "x"}', 1_000, 60),
        (b'{"id": "x"}', 1, 10_000 // FEW_ROWS + 5),
        # Of these the parser does not say which row it was.
        (b'{"at": "x"}', 10_000, 60),
        (b'{"at": "x"}', 1, 10_000 // FEW_ROWS + 5),
    ],
)
def test_bad_rows_are_found_in_few_calls(bad: bytes, every: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    read = pj.read_json
    monkeypatch.setattr(pj, "read_json", lambda *given, **named: tried.append(1) or read(*given, **named))
    values = [bad if every and row % every == every // 2 else b'{"id": 1}' for row in range(10_000)]
    found, reasons = JsonDecoder(KIND).decode(pa.array(values, pa.binary()))
    assert len(reasons) == (10_000 // every if every else 0)
    assert found.null_count == len(reasons)
    assert len(tried) <= calls


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LOOSE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "x", "day"]), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from([b"", b" ", b"{}", b"{}{}", b'}{"v":{}', b'{}}{"v":{}', b'"', b"{", b"null", b"5,", b'{},"v":{}']),
    st.fixed_dictionaries({}, optional=dict.fromkeys(DECODED, LOOSE)).map(lambda row: json.dumps(row).encode()),
    st.just(json.dumps(GOOD).encode()),
)


@given(st.lists(ROWS, min_size=1, max_size=20))
@example([b'{"at": 9223372036855.0}'])
@example([b'{"at": 253402300800.0}', b'{"at": -62135596800.5}'])
def test_a_row_is_decoded_the_same_whatever_stands_beside_it(values: list[bytes | None]) -> None:
    # As often as it takes to be worth a call of the parser.
    found, bad = decode(values * (FEW_ROWS // len(values) + 2))
    for row, value in enumerate(values):
        try:
            slowly = JsonDecoder(KIND).decode_one(value)
        except Misfit:
            assert row in bad
            assert found[row] is None
        else:
            assert row not in bad
            assert pa.array([slowly], KIND).to_pylist() == [found[row]]
