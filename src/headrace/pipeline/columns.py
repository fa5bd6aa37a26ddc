"""Which columns a row has: the record as it is, or its value decoded beside where it came from; all, or some of them.

Spark asks for the columns first, as DDL or as a type, in a process where no JVM can parse DDL; so they are given as
text, and what Spark made of the text comes back with the call for a reader. Where a query gives its own columns with
`.schema(...)`, those come back instead. Spark takes all columns of a source that is written in Python, whatever the
query does with them, and takes each of them out of Arrow row by row; so what is not asked for is not made at all.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.sql.types import ArrayType, MapType, StructType

from headrace.lake import split_columns
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import HEADERS, RECORD_NAMES, ColumnSelection, ValueOptions

COORDINATE_NAMES = ("topic", "partition", "offset", "timestamp", "key")
REASON = "_corrupt_reason"

# What each column may be in a query's own schema, as Spark writes types; the first is what it is otherwise.
KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "timestampType": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}

# A column of a schema: its name, which may be quoted, and the rest.
NAMED = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))")


def build_ddl(options: ValueOptions, headers: bool) -> str:
    """The columns in DDL, as Spark asks for them. Raises InvalidOption."""
    if options.json and not options.schema:
        raise InvalidOption("valueFormat=json needs a schema: DDL like 'id BIGINT, name STRING', or Spark's JSON")
    names = COORDINATE_NAMES if options.json else RECORD_NAMES
    if options.columns:
        return ", ".join(_select(options, [*names, HEADERS], headers))
    first = [_own(name) for name in ((*names, HEADERS) if headers else names)]
    return ", ".join([*first, *_of_value(options)])


def select_columns(options: ValueOptions, headers: bool, schema: StructType) -> ColumnSelection:
    """The columns of plain records that Spark wants. Raises InvalidOption."""
    check_own(options, headers, schema, (*RECORD_NAMES, HEADERS))
    texts = frozenset(field.name for field in schema if _is_text(field) and "binary" in KINDS[field.name])
    return ColumnSelection(tuple(schema.fieldNames()), texts)


def check_own(options: ValueOptions, headers: bool, schema: StructType, own: tuple[str, ...]) -> None:
    """Whether columns that Spark wants, perhaps because a query has given its own, can be had of records. Columns that
    are not among `own` are those of values that are decoded. Raises InvalidOption."""
    names = schema.fieldNames()
    lower = [name.lower() for name in names]
    twice = sorted({name for name in names if lower.count(name.lower()) > 1})
    if twice:
        raise InvalidOption(
            f"the column {twice[0]!r} is there twice: the record's own columns are {', '.join(own)}; "
            "valueColumns=struct puts those of the schema into one column, value"
        )
    if options.columns and lower != [name.lower() for name in options.columns]:
        raise InvalidOption(
            f"columns is {', '.join(options.columns)}, and .schema(...) has {', '.join(names)}: give one of them"
        )
    if headers and HEADERS not in names:
        raise _without_headers(names)
    for field in schema:
        if field.name not in own:
            if options.json:
                continue
            raise _unknown(field.name, own)
        kind = field.dataType.simpleString()
        if kind not in KINDS[field.name]:
            raise InvalidOption(
                f"the column {field.name!r} cannot be {kind.upper()}: it is {' or '.join(KINDS[field.name]).upper()}"
            )


def _is_text(field: Any) -> bool:
    return bool(field.dataType.simpleString() == "string")


def _own(name: str) -> str:
    return f"{name} {KINDS[name][0]}"


def _of_value(options: ValueOptions) -> list[str]:
    """The columns that values are decoded to, in DDL."""
    if not options.json:
        return []
    schema = ", ".join(text for _, text in _fields(options.schema)) if _is_json(options.schema) else options.schema
    aside = [text for _, text in _aside(options)]
    return [f"value STRUCT<{schema}>" if options.nested else schema, *aside]


def _aside(options: ValueOptions) -> list[tuple[str, str]]:
    """The columns of bad rows."""
    if options.bad_rows != "column":
        return []
    return [(options.bad_column, f"{_quote(options.bad_column)} BINARY"), (REASON, f"{REASON} STRING")]


def _select(options: ValueOptions, own: list[str], headers: bool) -> list[str]:
    """The columns that the option `columns` names, in its order."""
    known = [(name, _own(name)) for name in own]
    if options.json:
        [first, *_] = _of_value(options)
        known += [("value", first)] if options.nested else _fields(options.schema)
        known += _aside(options)
    if headers and HEADERS not in [name.lower() for name in options.columns]:
        raise _without_headers(list(options.columns))
    found = []
    for wanted in options.columns:
        those = [text for name, text in known if name.lower() == wanted.lower()]
        if not those:
            raise _unknown(wanted, tuple(name for name, _ in known))
        if len(those) > 1:
            raise InvalidOption(
                f"the column {wanted!r} is there twice: the record's own columns are {', '.join(own)}; "
                "valueColumns=struct puts those of the schema into one column, value"
            )
        found += those
    return found


def _unknown(name: str, known: tuple[str, ...]) -> InvalidOption:
    return InvalidOption(f"there is no column {name!r}. Use {', '.join(known)}.")


def _without_headers(names: list[str]) -> InvalidOption:
    return InvalidOption(f"includeHeaders=true, and headers is not among the columns {', '.join(names)}: name it, too")


def _is_json(schema: str) -> bool:
    return schema.startswith("{")


def _fields(schema: str) -> list[tuple[str, str]]:
    """The columns of a value's schema: their names, and each in DDL."""
    if not _is_json(schema):
        return [(_name_in(text), text.strip()) for text in split_columns(schema)]
    try:
        parsed = StructType.fromJson(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption(f"the schema cannot be read as Spark's JSON: {error!r}; DDL is taken, too") from None
    return [(field.name, f"{_quote(field.name)} {_type_as_ddl(field.dataType)}") for field in parsed]


def _name_in(column: str) -> str:
    found = NAMED.match(column)
    if found is None:
        raise InvalidOption(f"the schema has a column without a name: {column!r}")
    return found[1].replace("``", "`") if found[1] else found[2]


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _type_as_ddl(kind: Any) -> str:
    # Spark's own text of a struct does not quote the names in it.
    if isinstance(kind, StructType):
        inner = (f"{_quote(field.name)}: {_type_as_ddl(field.dataType)}" for field in kind)
        return f"STRUCT<{', '.join(inner)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_as_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_as_ddl(kind.keyType)}, {_type_as_ddl(kind.valueType)}>"
    return str(kind.simpleString())
