"""Reading one range: batches from a broker or a folder, through a kernel, into Arrow's record batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.pipeline.arrow import Binary, ColumnBuffers, Columns
from headrace.pipeline.arrow_schema import HEADERS, clip_times, select_fields
from headrace.pipeline.options import ColumnSelection, SourceOptions
from headrace.pipeline.origin import Range, is_archive, open_origin

if TYPE_CHECKING:
    from headrace.pipeline.value_columns import ValueColumns

BLOCK_BYTES = 2 << 20
BLOCK_ROWS = 100_000
UNPACKED_MAX = 256 << 20
# Offsets of an archive that are sorted at once.
STRETCH = 200_000


def read_range(
    options: SourceOptions,
    wanted: Range,
    since: int = -(1 << 62),
    until: int = 1 << 62,
    values: ValueColumns | None = None,
    columns: ColumnSelection | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, with times (ms) from `since` to before `until`, in blocks of some megabytes; with those
    `columns` alone, or all, or those that values are decoded to (`values`). Times behind the year 9999 are its last,
    unless the options want them exact."""
    if values is not None:
        columns = values.reads
    schema = select_fields(columns or ColumnSelection.all(options.headers))
    if is_archive(options):
        from headrace.pipeline.archive import archived_blocks

        blocks = archived_blocks(options.folder, wanted, since, until, schema)
    else:
        blocks = _blocks(options, wanted, since, until, schema)
    if not options.exact_times:
        blocks = map(clip_times, blocks)
    if values is None:
        return blocks
    decoder = values.decoder()
    return (values.shape(block, decoder) for block in blocks)


def read_in_order(options: SourceOptions, wanted: Range) -> Generator[pa.RecordBatch, None, None]:
    """The records of a range in the order of their offsets. A broker and a data folder have them so. An archive has
    them by the hour of their times: there, a stretch of offsets at a time is read, from all files that have some of
    it, and sorted."""
    if not is_archive(options):
        yield from read_range(options, wanted)
        return
    for start in range(wanted.start, wanted.end, STRETCH):
        stretch = replace(wanted, start=start, end=min(start + STRETCH, wanted.end))
        blocks = list(read_range(options, stretch))
        if blocks:
            yield from pa.Table.from_batches(blocks).sort_by("offset").combine_chunks().to_batches()


def _blocks(
    options: SourceOptions, wanted: Range, since: int, until: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    columns = Columns(schema.names)
    builder = BlockBuilder(wanted.topic, wanted.partition, schema)
    with closing(_batches(options, wanted)) as batches:
        for batch in batches:
            columns.add(batch, wanted.start, wanted.end, since, until, UNPACKED_MAX)
            if columns.size >= BLOCK_BYTES or columns.count >= BLOCK_ROWS:
                yield builder.build(columns.take())
        if columns.count:
            yield builder.build(columns.take())


def _batches(options: SourceOptions, wanted: Range) -> Generator[memoryview, None, None]:
    """The batches of a range, for a thread without a loop."""

    async def some() -> AsyncGenerator[list[memoryview], None]:
        async with open_origin(options) as origin:
            found = origin.batches(wanted, committed=options.committed, skip_lost=not options.fail_on_data_loss)
            async with aclosing(found):
                async for batches in found:
                    yield batches

    with asyncio.Runner() as runner:
        # Not by the runner's own `run`, which takes the handler of Ctrl-C and gives it back, for each chunk.
        run = runner.get_loop().run_until_complete
        running = some()
        try:
            while (batches := run(_next(running))) is not None:
                yield from batches
        finally:
            run(running.aclose())


async def _next(running: AsyncGenerator[list[memoryview], None]) -> list[memoryview] | None:
    return await anext(running, None)


class BlockBuilder:
    """The columns of one partition's records as Arrow has them, without a copy.

    Those that are the same in all rows are made once, for the longest block so far, and shared: a shorter one takes a
    piece of them. They are made by hand, because Arrow's own way of making values looks for pandas and loads it, which
    takes longer than reading a million records.
    """

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self._name = topic.encode()
        self._number = partition
        self._schema = schema
        self._rows = 0
        self._topic: list[pa.Buffer | None] = []
        self._partition: list[pa.Buffer | None] = []

    def build(self, columns: ColumnBuffers) -> pa.RecordBatch:
        if columns.rows > self._rows:
            self._repeat(columns.rows + columns.rows // 8)
        return pa.RecordBatch.from_arrays([self._column(field, columns) for field in self._schema], schema=self._schema)

    def _column(self, field: pa.Field, columns: ColumnBuffers) -> pa.Array:
        match field.name:
            case "key":
                return _binary(columns.key, columns.rows, field.type)
            case "value":
                return _binary(columns.value, columns.rows, field.type)
            case "headers":
                return _headers(columns)
            case "topic":
                buffers = self._topic
            case "partition":
                buffers = self._partition
            case "offset":
                buffers = [None, pa.py_buffer(columns.offset)]
            case "timestamp":
                buffers = [None, pa.py_buffer(columns.timestamp)]
            case _:
                buffers = [None, pa.py_buffer(columns.timestamp_type)]
        return pa.Array.from_buffers(field.type, columns.rows, buffers, 0)

    def _repeat(self, rows: int) -> None:
        size = len(self._name)
        ends: npt.NDArray[np.int32] = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
        self._topic = [None, pa.py_buffer(ends), pa.py_buffer(self._name * rows)]
        self._partition = [None, pa.py_buffer(np.full(rows, self._number, dtype=np.int32))]
        self._rows = rows


def _headers(columns: ColumnBuffers) -> pa.Array:
    count = len(columns.header_keys.offsets) // 4 - 1
    entries = pa.StructArray.from_arrays(
        [_binary(columns.header_keys, count, pa.string()), _binary(columns.header_values, count, pa.binary())],
        fields=[HEADERS.type.value_type.field(0), HEADERS.type.value_type.field(1)],
    )
    # A record without headers has none, as in Spark's own source, and not an empty list of them.
    filled = np.diff(np.frombuffer(columns.header_lists, np.int32)) > 0
    missing = columns.rows - int(filled.sum())
    validity = pa.py_buffer(np.packbits(filled, bitorder="little")) if missing else None
    lists = [validity, pa.py_buffer(columns.header_lists)]
    return pa.Array.from_buffers(HEADERS.type, columns.rows, lists, missing, children=[entries])


def _binary(column: Binary, rows: int, kind: pa.DataType) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.nulls else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, column.nulls)
