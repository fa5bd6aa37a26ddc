"""Reading one range: batches from the broker, through a kernel, into Arrow's record batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa

from headrace.client import EARLIEST, Client, Consumer
from headrace.client.errors import BrokerError
from headrace.errors import HeadraceError
from headrace.kernels.arrow import Binary, Columns, Taken
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import Range, client_of

BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 100_000
FETCH_BYTES = 8 << 20
UNPACKED_MAX = 256 << 20

OFFSET_OUT_OF_RANGE = 1

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


class DataLost(HeadraceError):
    """Records that were to be read are gone from the log."""


def record_batches(
    options: SourceOptions, wanted: Range, since: int = -(1 << 62), until: int = 1 << 62
) -> Iterator[pa.RecordBatch]:
    """The records of a range, with times (ms) from `since` to before `until`, in blocks of some megabytes."""
    loop = asyncio.new_event_loop()
    columns = Columns(options.headers)
    try:
        for batch in _batches(loop, options, wanted):
            columns.add(batch, wanted.start, wanted.end, since, until, UNPACKED_MAX)
            if columns.size >= BLOCK_BYTES or columns.count >= BLOCK_ROWS:
                yield as_arrow(columns.take(), wanted.topic, wanted.partition, options.headers)
        if columns.count:
            yield as_arrow(columns.take(), wanted.topic, wanted.partition, options.headers)
    finally:
        loop.close()


def _batches(loop: asyncio.AbstractEventLoop, options: SourceOptions, wanted: Range) -> Iterator[memoryview]:
    partition = (wanted.topic, wanted.partition)
    client = client_of(options)
    consumer = client.consumer(
        committed=options.committed,
        max_bytes=FETCH_BYTES,
        partition_bytes=FETCH_BYTES,
        out_of_range=None if options.fail_on_data_loss else EARLIEST,
    )
    try:
        loop.run_until_complete(consumer.assign({partition: wanted.start}))
        while consumer.positions[partition] < wanted.end:
            chunk = loop.run_until_complete(asyncio.wait_for(consumer.chunk(), options.timeout))
            yield from chunk.batches
    except BrokerError as error:
        if int(error.error) == OFFSET_OUT_OF_RANGE:
            raise DataLost(
                f"{wanted.topic}-{wanted.partition}: the records from {wanted.start} to {wanted.end} were to be read, "
                "and not all of them are in the log any more (retention, or a topic made anew); failOnDataLoss=false "
                "reads what is left"
            ) from None
        raise
    finally:
        loop.run_until_complete(_close(consumer, client))


async def _close(consumer: Consumer, client: Client) -> None:
    await consumer.close()
    await client.close()


def as_arrow(taken: Taken, topic: str, partition: int, headers: bool) -> pa.RecordBatch:
    """The columns of some records as Arrow has them, without a copy."""
    rows = taken.rows
    arrays = [
        _binary(taken.key, rows),
        _binary(taken.value, rows),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(taken.offset)]),
        pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, [None, pa.py_buffer(taken.timestamp)]),
        pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(taken.timestamp_type)]),
    ]
    fields = list(FIELDS)
    if headers:
        count = len(taken.header_keys.offsets) // 4 - 1
        entries = pa.StructArray.from_arrays(
            [_binary(taken.header_keys, count, pa.string()), _binary(taken.header_values, count)],
            fields=[HEADERS.type.value_type.field(0), HEADERS.type.value_type.field(1)],
        )
        lists = pa.Array.from_buffers(HEADERS.type, rows, [None, pa.py_buffer(taken.header_lists)], children=[entries])
        arrays.append(lists)
        fields.append(HEADERS)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _binary(column: Binary, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.nulls else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind or pa.binary(), rows, buffers, column.nulls)
