"""Rows whose value is decoded: where they came from, beside the columns of the value's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType

from headrace.errors import HeadraceError
from headrace.pipeline.columns import COORDINATE_NAMES
from headrace.pipeline.decoding import JsonDecoder, Misfit
from headrace.pipeline.options import InvalidOption, ValueOptions

log = structlog.get_logger("headrace.pipeline")


class BadRow(HeadraceError):
    """A value does not fit the schema, and the query wants to end then."""


@dataclass(frozen=True)
class Decoded:
    """The columns of rows whose value is decoded."""

    schema: pa.Schema
    """Of all columns."""
    kind: pa.DataType
    """Of the value."""
    options: ValueOptions
    headers: bool

    @classmethod
    def by(cls, options: ValueOptions, headers: bool, schema: StructType) -> Decoded:
        """By the schema that Spark has made of `columns_of`. Raises InvalidOption."""
        names = [name.lower() for name in schema.fieldNames()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidOption(
                f"the column {twice[0]!r} is there twice: the record's own columns are {', '.join(COORDINATE_NAMES)}; "
                "valueColumns=struct puts those of the schema into one column, value"
            )
        required = _required(schema)
        if required:
            raise InvalidOption(f"{required} is NOT NULL in the schema, which no bad row can keep: leave that out")
        first = len(COORDINATE_NAMES) + (1 if headers else 0)
        last = len(schema) - (2 if options.bad_rows == "column" else 0)
        wanted: Any = schema.fields[first].dataType if options.nested else StructType(schema.fields[first:last])
        kind = pa.struct(list(to_arrow_schema(wanted, timezone="UTC")))
        try:
            JsonDecoder(kind)
        except Misfit as misfit:
            raise InvalidOption(f"the schema cannot be decoded from JSON: {misfit}") from None
        return cls(to_arrow_schema(schema, timezone="UTC"), kind, options, headers)

    def decoder(self) -> JsonDecoder:
        return JsonDecoder(self.kind)

    def shape(self, block: pa.RecordBatch, decoder: JsonDecoder) -> pa.RecordBatch:
        """A block of records as these columns. Raises BadRow."""
        values = block.column("value")
        decoded, bad = decoder.decode(values)
        if bad and self.options.bad_rows == "fail":
            row, reason = min(bad.items())
            raise BadRow(
                f"{_place(block, row)}: the value does not fit the schema: {reason}; badRows=column keeps such rows "
                "aside, and badRows=drop leaves them out"
            )
        arrays = [block.column(name) for name in COORDINATE_NAMES]
        if self.headers:
            arrays.append(block.column("headers"))
        arrays += [decoded] if self.options.nested else decoded.flatten()
        if self.options.bad_rows == "column":
            arrays += self._aside(values, bad)
        shaped = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if bad and self.options.bad_rows == "drop":
            row, reason = min(bad.items())
            log.warning("bad rows are left out", rows=len(bad), first=_place(block, row), reason=reason)
            kept = pa.array([row not in bad for row in range(len(values))])
            return shaped.filter(kept)
        return shaped

    def _aside(self, values: pa.Array, bad: dict[int, str]) -> list[pa.Array]:
        """The bad values and why they are."""
        if not bad:
            return [pa.nulls(len(values), pa.binary()), pa.nulls(len(values), pa.string())]
        reasons: list[str | None] = [None] * len(values)
        for row, reason in bad.items():
            reasons[row] = reason
        why = pa.array(reasons, pa.string())
        return [pc.if_else(why.is_valid(), values, pa.scalar(None, pa.binary())), why]


def _place(block: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (block.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} at offset {offset}"


def _required(kind: Any, path: str = "") -> str:
    """The first field that may not be null, if there is one."""
    if isinstance(kind, StructType):
        for field in kind:
            name = f"{path}.{field.name}" if path else field.name
            found = name if not field.nullable else _required(field.dataType, name)
            if found:
                return found
    elif isinstance(kind, ArrayType):
        return path if not kind.containsNull else _required(kind.elementType, path)
    elif isinstance(kind, MapType):
        return path if not kind.valueContainsNull else _required(kind.valueType, path)
    return ""
