"""Rows whose value is decoded: where they came from, beside the columns of the value's schema.

Which columns those are is known from what Spark wants: all that are neither the record's own nor there for bad rows. So
a query that wants some of them decodes these alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, CharType, MapType, StringType, StructType, VarcharType, VariantType

from headrace.errors import HeadraceError
from headrace.pipeline.columns import COORDINATE_NAMES, REASON, check_own
from headrace.pipeline.json_decoder import JsonDecoder, Misfit
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import HEADERS, ColumnSelection, ValueOptions

PLACE = ("topic", "partition", "offset")

log = structlog.get_logger("headrace.pipeline")


class BadRow(HeadraceError):
    """A value does not fit the schema, and the query wants to end then."""


@dataclass(frozen=True)
class ValueColumns:
    """The columns of rows whose value is decoded."""

    schema: pa.Schema
    """Of all columns."""
    kind: pa.DataType
    """Of the value; without fields where none is wanted, and nothing is decoded."""
    reads: ColumnSelection
    """What is needed of the records."""
    options: ValueOptions

    @classmethod
    def from_schema(cls, options: ValueOptions, headers: bool, schema: StructType) -> ValueColumns:
        """By the columns that Spark wants, which it has made of `build_ddl` or was given. Raises InvalidOption."""
        # A schema may have headers of its own, unless the record's are asked for.
        with_headers = headers or HEADERS in [name.lower() for name in options.columns]
        own = (*COORDINATE_NAMES, HEADERS) if with_headers else COORDINATE_NAMES
        check_own(options, headers, schema, own)
        required = _required(schema)
        if required:
            raise InvalidOption(f"{required} is NOT NULL in the schema, which no bad row can keep: leave that out")
        aside = (options.bad_column, REASON) if options.bad_rows == "column" else ()
        fields = [field for field in schema if field.name not in own and field.name not in aside]
        if options.nested:
            other = [
                field.name for field in fields if field.name != "value" or not isinstance(field.dataType, StructType)
            ]
            if other:
                raise InvalidOption(f"valueColumns=struct has one column, value, and it is a STRUCT: not {other[0]!r}")
        judged = options.bad_rows != "column" or any(name in aside for name in schema.fieldNames())
        if judged and not fields:
            raise InvalidOption(
                f"badRows={options.bad_rows} needs a column of the value's schema to judge rows by: none of them is "
                f"among the columns {', '.join(schema.fieldNames())}"
            )
        wanted: Any = fields[0].dataType if options.nested and fields else StructType(fields)
        strange = _strange(wanted)
        if strange:
            raise InvalidOption(f"the schema cannot be decoded from JSON: {strange} is not supported. Use STRING.")
        kind = pa.struct(list(to_arrow_schema(wanted, timezone="UTC")))
        try:
            JsonDecoder(kind)
        except Misfit as misfit:
            raise InvalidOption(f"the schema cannot be decoded from JSON: {misfit}") from None
        return cls(to_arrow_schema(schema, timezone="UTC"), kind, _reads(options, own, schema, fields), options)

    def decoder(self) -> JsonDecoder:
        return JsonDecoder(self.kind)

    def shape(self, block: pa.RecordBatch, decoder: JsonDecoder) -> pa.RecordBatch:
        """A block of records as these columns. Raises BadRow."""
        columns = {name: block.column(name) for name in self.reads.names}
        bad: dict[int, str] = {}
        if self.kind.num_fields:
            values = columns.pop("value")
            decoded, bad = decoder.decode(values)
            if bad and self.options.bad_rows == "fail":
                row, reason = min(bad.items())
                raise BadRow(
                    f"{_place(block, row)}: the value does not fit the schema: {reason}; badRows=column keeps such "
                    "rows aside, and badRows=drop leaves them out"
                )
            fields = [decoded] if self.options.nested else decoded.flatten()
            names = ["value"] if self.options.nested else self.kind.names
            columns |= dict(zip(names, fields, strict=True))
            if self.options.bad_rows == "column":
                columns |= zip((self.options.bad_column, REASON), self._aside(values, bad), strict=True)
        shaped = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        if bad and self.options.bad_rows == "drop":
            row, reason = min(bad.items())
            log.warning("bad rows are left out", rows=len(bad), first=_place(block, row), reason=reason)
            kept = pa.array([row not in bad for row in range(block.num_rows)])
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


def _reads(options: ValueOptions, own: tuple[str, ...], schema: StructType, fields: list[Any]) -> ColumnSelection:
    """What is needed of the records: columns that are wanted, the value, and what names a bad row."""
    names = [name for name in schema.fieldNames() if name in own]
    if options.bad_rows != "column":
        names += [name for name in PLACE if name not in names]
    if fields:
        names.append("value")
    texts = frozenset(field.name for field in schema if field.name == "key" and field.dataType == StringType())
    return ColumnSelection(tuple(names), texts)


def _place(block: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (block.column(name)[row].as_py() for name in PLACE)
    return f"{topic}-{partition} at offset {offset}"


def _strange(kind: Any) -> str:
    """The first type that Arrow has no match for, or one that is no JSON's, if there is one."""
    if isinstance(kind, CharType | VarcharType | VariantType):
        return str(kind.simpleString()).upper()
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    else:
        inner = [kind.elementType] if isinstance(kind, ArrayType) else []
    return next(filter(None, map(_strange, inner)), "")


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
