"""Reading one range: batches from a broker or a folder, through a kernel, into Arrow's record batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.kernels.arrow import Binary, Columns, Taken
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.origin import Range, is_archive, origin_of
from headrace.pipeline.rows import FIELDS, HEADERS

if TYPE_CHECKING:
    from headrace.pipeline.columns import Decoded

BLOCK_BYTES = 2 << 20
BLOCK_ROWS = 100_000
UNPACKED_MAX = 256 << 20


def record_batches(
    options: SourceOptions,
    wanted: Range,
    since: int = -(1 << 62),
    until: int = 1 << 62,
    decoded: Decoded | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, with times (ms) from `since` to before `until`, in blocks of some megabytes."""
    if is_archive(options):
        from headrace.pipeline.archive import archived_blocks

        blocks = archived_blocks(options.folder, wanted, since, until, options.headers)
    else:
        blocks = _blocks(options, wanted, since, until)
    if decoded is None:
        return blocks
    decoder = decoded.decoder()
    return (decoded.shape(block, decoder) for block in blocks)


def _blocks(options: SourceOptions, wanted: Range, since: int, until: int) -> Iterator[pa.RecordBatch]:
    columns = Columns(options.headers)
    with closing(_batches(options, wanted)) as batches:
        for batch in batches:
            columns.add(batch, wanted.start, wanted.end, since, until, UNPACKED_MAX)
            if columns.size >= BLOCK_BYTES or columns.count >= BLOCK_ROWS:
                yield as_arrow(columns.take(), wanted.topic, wanted.partition, options.headers)
        if columns.count:
            yield as_arrow(columns.take(), wanted.topic, wanted.partition, options.headers)


def _batches(options: SourceOptions, wanted: Range) -> Generator[memoryview, None, None]:
    """The batches of a range, for a thread without a loop."""

    async def some() -> AsyncGenerator[list[memoryview], None]:
        async with origin_of(options) as origin:
            found = origin.batches(wanted, committed=options.committed, skip_lost=not options.fail_on_data_loss)
            async with aclosing(found):
                async for batches in found:
                    yield batches

    with asyncio.Runner() as runner:
        running = some()
        try:
            while (batches := runner.run(_next(running))) is not None:
                yield from batches
        finally:
            runner.run(running.aclose())


async def _next(running: AsyncGenerator[list[memoryview], None]) -> list[memoryview] | None:
    return await anext(running, None)


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
