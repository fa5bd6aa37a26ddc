"""The columns of a record as Arrow has them: those that Spark is given, and those that an archive keeps."""

from __future__ import annotations

import pyarrow as pa

from headrace.pipeline.options import Chosen

FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
HEADERS = pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

# The topic stands in the path.
ARCHIVED = pa.schema([field for field in FIELDS if field.name != "topic"] + [HEADERS])


def schema_of(columns: Chosen) -> pa.Schema:
    """Columns that Spark wants, as it wants them."""
    fields = {field.name: field for field in (*FIELDS, HEADERS)}
    return pa.schema([pa.field(name, pa.string()) if name in columns.texts else fields[name] for name in columns.names])
