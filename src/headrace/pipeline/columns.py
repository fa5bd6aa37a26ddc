"""Which columns a row has: the record as it is, or its value decoded beside where it came from.

Spark asks for the columns first, as DDL or as a type, in a process where no JVM can parse DDL; so they are given as
text, and what Spark made of the text comes back with the call for a reader.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import ArrayType, MapType, StructType

from headrace.pipeline.options import InvalidOption, ValueOptions

RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
COORDINATES = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY"
COORDINATE_NAMES = ("topic", "partition", "offset", "timestamp", "key")
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
REASON = "_corrupt_reason"


def columns_of(options: ValueOptions, headers: bool) -> str:
    """The columns, in DDL, as Spark wants to be told."""
    if not options.schema:
        return f"{RECORD}, {HEADERS}" if headers else RECORD
    first = f"{COORDINATES}, {HEADERS}" if headers else COORDINATES
    schema = _as_ddl(options.schema)
    wanted = f"value STRUCT<{schema}>" if options.nested else schema
    last = f", `{options.bad_column}` BINARY, {REASON} STRING" if options.bad_rows == "column" else ""
    return f"{first}, {wanted}{last}"


def _as_ddl(schema: str) -> str:
    """A schema as DDL, where it is Spark's JSON."""
    if not schema.startswith("{"):
        return schema
    try:
        parsed = StructType.fromJson(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption(f"the schema cannot be read as Spark's JSON: {error!r}; DDL is taken, too") from None
    return ", ".join(f"`{field.name.replace('`', '``')}` {_type_as_ddl(field.dataType)}" for field in parsed)


def _type_as_ddl(kind: Any) -> str:
    # Spark's own text of a struct does not quote the names in it.
    if isinstance(kind, StructType):
        inner = (f"`{field.name.replace('`', '``')}`: {_type_as_ddl(field.dataType)}" for field in kind)
        return f"STRUCT<{', '.join(inner)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_as_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_as_ddl(kind.keyType)}, {_type_as_ddl(kind.valueType)}>"
    return str(kind.simpleString())
