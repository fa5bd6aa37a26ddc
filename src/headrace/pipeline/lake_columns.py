"""The columns of a topic's table: those of its records, and those of its values, which are JSON.

The columns of values are declared (`lake.schema`) or inferred. Where they are inferred, a value with a field that is no
column yet makes the table grow. A value that fits no columns, because of its types or because it is no JSON at all,
stays in the column `_value` as it is, with the reason beside it; so nothing of it is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.arrow_schema import HEADERS
from headrace.pipeline.json_decoder import JsonDecoder, Misfit
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.tables import TableInvalid

# A record's own columns, by the names that they have in the table and in the source.
OWN = {
    "_partition": pa.field("partition", pa.int32()),
    "_offset": pa.field("offset", pa.int64()),
    "_timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "_key": pa.field("key", pa.binary()),
    "_headers": HEADERS,
}
VALUE, ERROR = pa.field("_value", pa.binary()), pa.field("_error", pa.string())
RECORD = pa.schema([*(each.with_name(name) for name, each in OWN.items()), VALUE, ERROR])
# Values that are looked at for new columns, of those of a block that do not fit.
SAMPLE_ROWS = 10_000
# What a table has at most: keys that are data must not become columns without end.
COLUMNS_MAX = 1_000
INT64_MAX = (1 << 63) - 1
# What Delta, Iceberg and SQL take as the name of a column without more ado.
NAME = re.compile(r"[^\s,;{}()=.`\"]{1,255}")


def shape_rows(block: pa.RecordBatch, decoder: JsonDecoder) -> tuple[pa.RecordBatch, dict[int, str]]:
    """A block of records as rows of the table; and why some of the values fit no columns, by row."""
    values = block.column("value")
    decoded, bad = decoder.decode(values)
    reasons: list[str | None] = [None] * len(values)
    for row, reason in bad.items():
        reasons[row] = reason
    why = pa.array(reasons, pa.string())
    own = [block.column(each.name).cast(each.type) for each in OWN.values()]
    kept = pc.if_else(why.is_valid(), values, pa.scalar(None, pa.binary()))
    schema = table_schema(decoder.kind)
    return pa.RecordBatch.from_arrays([*own, kept, why, *decoded.flatten()], schema=schema), bad


def table_schema(kind: pa.DataType) -> pa.Schema:
    """All columns of a table whose values have these fields."""
    return pa.schema([*RECORD, *kind])


def kind_in(schema: pa.Schema) -> pa.DataType:
    """The fields of values in a table with these columns. Raises TableInvalid where the table is no topic's."""
    other = [each.name for each in RECORD if len(schema) and each.name not in schema.names]
    if other:
        raise TableInvalid(f"the table has no column {other[0]}: it is not the table of a topic. Give another place.")
    return pa.struct([pa.field(each.name, each.type) for each in schema if each.name not in RECORD.names])


def declared_kind(schema: str) -> pa.DataType:
    """The fields of values that are declared, as Spark's DDL or JSON, or as a JSON Schema. Raises InvalidOption."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        if not schema.startswith("{"):
            parsed = StructType.fromDDL(schema)
        elif "fields" in json.loads(schema):
            parsed = StructType.fromJson(json.loads(schema))
        else:
            return _of_json_schema(json.loads(schema))
        kind = pa.struct([each.with_nullable(True) for each in to_arrow_schema(parsed, timezone="UTC")])
        JsonDecoder(kind)
    except Misfit as misfit:
        raise InvalidOption(f"lake.schema cannot be decoded from JSON: {misfit}") from None
    except Exception as error:
        # Spark's parser raises errors of Spark.
        raise InvalidOption(f"lake.schema cannot be read ({str(error).strip().splitlines()[0]})") from None
    return kind


def check_declared(kind: pa.DataType, found: pa.DataType) -> None:
    """Raises TableInvalid where the table has a column otherwise than it is declared."""
    lower = {each.name.lower() for each in RECORD}
    for each in kind:
        if each.name.lower() in lower:
            raise TableInvalid(f"lake.schema has the column {each.name}, which is the record's own. Leave it out.")
        index = found.get_field_index(each.name)
        if index >= 0 and merge_types(found.field(index).type, each.type) != each.type:
            raise TableInvalid(
                f"the table has the column {each.name} as {found.field(index).type}, and lake.schema as {each.type}. "
                "Declare it as it is there, or set lake to another place."
            )


def infer_kind(values: Iterable[bytes], known: pa.DataType) -> pa.DataType:
    """The known fields, and those that these values have beyond them."""
    found = pa.struct([])
    for value in values:
        try:
            kind = _type_of(json.loads(value))
        except (ValueError, RecursionError):
            continue
        if kind is not None and pa.types.is_struct(kind):
            found = merge_types(found, kind, widens=True)
    return merge_types(known, found, taken=[each.name.lower() for each in RECORD])


def merge_types(
    known: pa.DataType, other: pa.DataType, *, widens: bool = False, taken: Iterable[str] = ()
) -> pa.DataType:
    """A type that holds values of both, as far as the known one can become it: objects get more fields, and whole
    numbers any numbers where it `widens`. What is in conflict stays as it is known."""
    if pa.types.is_struct(known) and pa.types.is_struct(other):
        fields = {each.name: each for each in known}
        lower = {*taken, *(name.lower() for name in fields)}
        for each in other:
            if each.name in fields:
                merged = merge_types(fields[each.name].type, each.type, widens=widens)
                fields[each.name] = pa.field(each.name, merged)
            # Of two names that differ in case, readers would see one.
            elif each.name.lower() not in lower and len(fields) < COLUMNS_MAX:
                lower.add(each.name.lower())
                fields[each.name] = each
        return pa.struct(list(fields.values()))
    if pa.types.is_list(known) and pa.types.is_list(other):
        return _list_of(merge_types(known.value_type, other.value_type, widens=widens))
    return other if widens and (known, other) == (pa.int64(), pa.float64()) else known


def _type_of(value: Any) -> pa.DataType | None:
    """The type of a parsed value; None where it has none yet: null, and what is empty."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -INT64_MAX <= value <= INT64_MAX else None
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        kinds = [kind for kind in map(_type_of, value) if kind is not None]
        if not kinds:
            return None
        whole = kinds[0]
        for kind in kinds[1:]:
            whole = merge_types(whole, kind, widens=True)
        return _list_of(whole)
    if isinstance(value, dict):
        fields = {name: _type_of(each) for name, each in value.items() if NAME.fullmatch(name)}
        named = [pa.field(name, kind) for name, kind in fields.items() if kind is not None]
        return pa.struct(named) if named else None
    return None


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def _of_json_schema(schema: Any) -> pa.DataType:
    """An object of a JSON Schema. What it does not say more of is text."""
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((each for each in kinds if each != "null"), "string") if isinstance(kinds, list) else kinds
    if kind == "object" and schema.get("properties"):
        return pa.struct([pa.field(name, _of_json_schema(each)) for name, each in schema["properties"].items()])
    if kind == "array":
        return _list_of(_of_json_schema(schema.get("items", {})))
    if kind == "string" and schema.get("format") in ("date", "date-time"):
        return pa.date32() if schema["format"] == "date" else pa.timestamp("us", tz="UTC")
    return {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}.get(kind, pa.string())
