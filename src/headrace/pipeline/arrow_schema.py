"""The columns of a record as Arrow has them: those that Spark is given, and those that an archive keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline.options import ColumnSelection

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# In microseconds: the times that Python's dates have, the years 1 to 9999.
LEAST_TIME = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
MOST_TIME = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND

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


def select_fields(columns: ColumnSelection) -> pa.Schema:
    """Columns that Spark wants, as it wants them."""
    fields = {field.name: field for field in (*FIELDS, HEADERS)}
    return pa.schema([pa.field(name, pa.string()) if name in columns.texts else fields[name] for name in columns.names])


def clip_times(block: pa.RecordBatch) -> pa.RecordBatch:
    """The block with times that dates have, the last of them for those behind it: a record may have any number for its
    time, for example if nanoseconds were taken for milliseconds, and one must not end a query."""
    place = block.schema.get_field_index("timestamp")
    if place < 0 or not block.num_rows:
        return block
    times = block.column(place)
    micros: Any = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    if micros.min() >= LEAST_TIME and micros.max() <= MOST_TIME:
        return block
    clipped = pa.py_buffer(np.clip(micros, LEAST_TIME, MOST_TIME))
    column = pa.Array.from_buffers(times.type, len(times), [None, clipped], 0)
    return block.set_column(place, block.schema.field(place), column)
