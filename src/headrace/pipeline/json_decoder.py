"""Values that are JSON into columns of a schema, with bad rows kept aside.

Arrow's own parser reads a block of rows in one call, and gives up on the whole of it at the first row that does not
fit. Then all rows are sifted (`sieve.py`), quickly and not quite exactly: those that look bad are read one by one, in
Python, which also finds the reason, and the others at once. Where the sieve let a bad row through, the parser mostly
reports which it was: the rows before it are read again, in one call, and it and a few behind it one by one; where it
does not, pieces are tried that are smaller and smaller. A block without bad rows never sees any of that, and one of
bad rows alone costs little more than Python does.

Rows stay rows: each value is wrapped as `{"v":VALUE}` on a line of its own. Whatever VALUE is, no such line can end
inside the next one and still be JSON, so each gives one object or more; if as many objects come out as values went in,
each came from its own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headrace.pipeline.arrow_schema import EPOCH, LEAST_TIME, MICROSECOND, MOST_TIME
from headrace.pipeline.sieve import Sieve, make_sieve

# A call of the parser costs about as much as so many rows in Python.
FEW_ROWS = 48
# A piece is smaller by so much than one that failed, larger by so much than one that did not.
STEP = 8
# Larger texts are not given to the parser at once: its positions are of 32 bits.
TEXT_BYTES_MAX = 1 << 30

IN_ROW = re.compile(r" in row (\d+)")

EPOCH_DAY = date(1970, 1, 1)

Fit = Callable[[Any], Any]


class Misfit(ValueError):
    """A value that its column cannot hold, and where it stands."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class JsonDecoder:
    """Decodes blocks of values by one schema. Fields that it does not have are left out; where it is `strict`, a value
    with such a field, unless that is null, is a bad one."""

    def __init__(self, schema: pa.DataType, *, strict: bool = False) -> None:
        self.kind = schema
        self._fit = _make_fit(schema, strict)
        # Where no field is known, every one is unknown.
        wire = _parser_type(schema) if schema.num_fields or not strict else None
        self.parse_options = (
            arrow_json.ParseOptions(
                explicit_schema=pa.schema([pa.field("v", wire)]),
                unexpected_field_behavior="error" if strict else "ignore",
            )
            if wire is not None
            else None
        )
        self.sieve = make_sieve(schema, strict) if wire is not None else None
        # A decimal must not pass through a float.
        self._json = json.JSONDecoder(parse_float=Decimal if _has_decimals(schema) else None)

    def decode(self, values: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """The values of a block as structs, null where a value is null or bad; and why each bad one is, by its row."""
        if not len(values):
            return pa.array([], self.kind), {}
        block = _Block(self, values)
        return block.read(), block.bad

    def decode_one(self, value: bytes | None) -> Any:
        """One value in Python. Raises Misfit."""
        if value is None:
            return None
        try:
            parsed = self._json.decode(value.decode())
        except UnicodeDecodeError as error:
            raise Misfit(f"it is not UTF-8 (byte {error.start})") from None
        except RecursionError:
            raise Misfit("it is nested too deeply") from None
        except ValueError as error:
            raise Misfit(f"it is not JSON: {error}") from None
        return self._fit(parsed)


class _ParserStopped(Exception):
    """The parser gave up: at which row, if it place so, counted from the first that it was given."""

    def __init__(self, row: int | None) -> None:
        self.row = row


class _Block:
    """One block under way."""

    def __init__(self, decoder: JsonDecoder, values: pa.Array, *, sifted: bool = False) -> None:
        self.bad: dict[int, str] = {}
        self._sieve = None if sifted else decoder.sieve
        self._decoder = decoder
        self._values = values
        self._lines = pc.binary_join_element_wise(
            b'{"v":', values, b"}\n", b"", null_handling="replace", null_replacement=b"null"
        )
        self._offsets = memoryview(self._lines.buffers()[1]).cast("i")
        self._is_text = _is_text(self._lines)

    def read(self) -> pa.StructArray:
        """The whole block."""
        if self._sieve is not None and len(self._values) > FEW_ROWS * STEP:
            try:
                return self._parse(0, len(self._values))
            except _ParserStopped:
                return self._read_sifted(self._sieve)
        parts = list(self._read_parts())
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _read_sifted(self, sieve: Sieve) -> pa.StructArray:
        """What looks good at once, and what looks bad row by row."""
        rows = len(self._values)
        bad = sieve(self._values)
        if not len(bad):
            # It did not see what the parser did.
            return pa.concat_arrays(list(self._read_parts()))
        looks_bad: Any = np.zeros(rows, bool)
        looks_bad[bad] = True
        others = _Block(
            self._decoder, pc.if_else(pa.array(looks_bad), pa.scalar(None, pa.binary()), self._values), sifted=True
        )
        # Nulls for what looks bad keep each row in its place, until one by one has an answer for it.
        found = pa.concat_arrays([others.read(), self._decode_each(bad.tolist())])
        order = np.arange(rows)
        order[bad] = rows + np.arange(len(bad))
        self.bad |= others.bad
        return found.take(pa.array(order))

    def _read_parts(self) -> Iterator[pa.StructArray]:
        """The block, part after part."""
        at, total, bad_at = 0, len(self._values), -1
        step = total if self._decoder.parse_options is not None else 0
        while at < total:
            end = min(at + step, total)
            if end - at <= FEW_ROWS:
                end = min(at + FEW_ROWS, total) if step else total
                yield self._decode_each(range(at, end))
                # Where one row was bad the next may be; a try is worth as much again.
                at, step = end, step and FEW_ROWS * STEP
                continue
            try:
                yield self._parse(at, end)
                at, step = end, FEW_ROWS if end == bad_at else step * STEP
            except _ParserStopped as stopped:
                if stopped.row is None or stopped.row <= FEW_ROWS:
                    step = (end - at) // STEP if stopped.row is None else FEW_ROWS
                    continue
                step, bad_at = stopped.row, at + stopped.row

    def _parse(self, start: int, end: int) -> pa.StructArray:
        """Rows by Arrow's parser. Raises _ParserStopped where any of them does not fit."""
        first, last = self._offsets[start], self._offsets[end]
        if last - first > TEXT_BYTES_MAX or not (self._is_text or _is_text(self._lines.slice(start, end - start))):
            raise _ParserStopped(None)
        try:
            table = arrow_json.read_json(
                pa.BufferReader(self._lines.buffers()[2].slice(first, last - first)),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=last - first + 1),
                parse_options=self._decoder.parse_options,
            )
            if table.num_rows != end - start:
                raise _ParserStopped(None)
            return _cast(table.column("v").combine_chunks(), self._decoder.kind)
        except pa.ArrowException as error:
            place = IN_ROW.search(str(error))
            # Rows are counted by the objects that came out, so a line of several puts the count ahead, never back.
            raise _ParserStopped(min(int(place[1]), end - start - 1) if place else None) from None

    def _decode_each(self, rows: Sequence[int]) -> pa.StructArray:
        found = []
        for row, value in zip(rows, self._values.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
            try:
                found.append(self._decoder.decode_one(value))
            except Misfit as misfit:
                self.bad[row] = str(misfit)
                found.append(None)
        return pa.array(found, self._decoder.kind)


def _is_text(lines: pa.Array) -> bool:
    """Whether all of it is UTF-8; Arrow's parser takes any bytes."""
    try:
        lines.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


# --- Arrow's parser ---


def _parser_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that the parser reads a column as; None where it cannot."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_map(kind):
        # It knows no base64, and makes no maps of objects.
        return None
    if pa.types.is_struct(kind):
        inner = [_parser_type(field.type) for field in kind]
        return pa.struct(list(zip(kind.names, inner, strict=True))) if None not in inner else None
    if pa.types.is_list(kind):
        item = _parser_type(kind.value_type)
        return None if item is None else pa.list_(item)
    return kind


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What the parser read, as its columns are to be. Raises ArrowInvalid."""
    if pa.types.is_struct(kind):
        inner = [_cast(array.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _cast(array.values, kind.value_type), kind, mask=array.is_null())
    if pa.types.is_timestamp(kind):
        return _timestamps(array, kind)
    return array if array.type == kind else array.cast(kind)


def _timestamps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as times; one without a zone is in UTC."""
    if kind.tz is None:
        return array.cast(kind)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return array.cast(pa.timestamp(kind.unit)).cast(kind)


# --- row by row ---


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))


def _make_fit(kind: pa.DataType, strict: bool) -> Fit:
    """What turns a parsed value into one of this type. It raises Misfit."""
    if pa.types.is_struct(kind):
        return _struct(kind, strict)
    if pa.types.is_list(kind):
        return _list(kind, strict)
    if pa.types.is_map(kind):
        return _map(kind, strict)
    if pa.types.is_boolean(kind):
        return _plain(lambda value: value if isinstance(value, bool) else _refuse(value, "true or false"))
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        what = f"a whole number of {kind.bit_width} bits"
        return _plain(
            lambda value: (
                value
                if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
                else _refuse(value, what)
            )
        )
    if pa.types.is_floating(kind):
        return _plain(
            lambda value: (
                float(value)
                if isinstance(value, int | float | Decimal) and not isinstance(value, bool)
                else _refuse(value, "a number")
            )
        )
    if pa.types.is_decimal(kind):
        return _plain(_decimal(kind))
    if pa.types.is_timestamp(kind):
        return _plain(_timestamp)
    if pa.types.is_date(kind):
        return _plain(_date)
    if pa.types.is_binary(kind):
        return _plain(_base64)
    if pa.types.is_string(kind):
        return _plain(_string)
    raise Misfit(f"a column of type {kind} cannot be decoded from JSON: read it as a STRING")


def _plain(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _refuse(value: Any, wanted: str) -> Any:
    text = json.dumps(value, default=str)
    raise Misfit(f"{text if len(text) <= 60 else text[:57] + '...'} is not {wanted}")


def _struct(kind: pa.DataType, strict: bool) -> Fit:
    fields = [(field.name, _make_fit(field.type, strict)) for field in kind]
    known = set(kind.names)

    def fit(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            _refuse(value, "an object")
        for name, each in value.items() if strict else ():
            if name not in known and each is not None:
                raise Misfit("there is no such column", name)
        found = {}
        for name, inner in fields:
            try:
                found[name] = inner(value.get(name))
            except Misfit as misfit:
                raise Misfit(misfit.problem, f"{name}.{misfit.path}" if misfit.path else name) from None
        return found

    return fit


def _list(kind: pa.DataType, strict: bool) -> Fit:
    inner = _make_fit(kind.value_type, strict)
    return _plain(
        lambda value: [inner(each) for each in value] if isinstance(value, list) else _refuse(value, "an array")
    )


def _map(kind: pa.DataType, strict: bool) -> Fit:
    if not pa.types.is_string(kind.key_type):
        raise Misfit(f"a map's keys are texts in JSON, not {kind.key_type}")
    inner = _make_fit(kind.item_type, strict)
    return _plain(
        lambda value: (
            [(name, inner(each)) for name, each in value.items()]
            if isinstance(value, dict)
            else _refuse(value, "an object")
        )
    )


def _string(value: Any) -> str:
    """A text; anything else as it would be written, which is what Spark does too."""
    text = (
        value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(value, "a text: it has half a surrogate pair")
    return text


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        return bytes(_refuse(value, "base64"))


def _decimal(kind: pa.DataType) -> Fit:
    step = Decimal(1).scaleb(-kind.scale)

    def fit(value: Any) -> Decimal:
        try:
            if isinstance(value, bool):
                raise InvalidOperation
            found = Decimal(value).quantize(step, ROUND_HALF_UP)
            if found.is_finite() and len(found.as_tuple().digits) <= kind.precision:
                return found
        except (InvalidOperation, TypeError, ValueError):
            pass
        return Decimal(_refuse(value, f"a decimal({kind.precision},{kind.scale})"))

    return fit


def _timestamp(value: Any) -> int:
    """Microseconds: a time in ISO 8601, in UTC where it has no zone, or seconds as a number."""
    try:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            found = round(value * 1_000_000)
            return found if LEAST_TIME <= found <= MOST_TIME else int(_refuse(value, "a time of the years 1 to 9999"))
        time = datetime.fromisoformat(value)
        return (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // MICROSECOND
    except (TypeError, ValueError, OverflowError):
        return int(_refuse(value, "a time in ISO 8601"))


def _date(value: Any) -> int:
    try:
        return (date.fromisoformat(value) - EPOCH_DAY).days
    except (TypeError, ValueError):
        return int(_refuse(value, "a date in ISO 8601"))
