"""The sink `headrace` with a `path`: the rows of a streaming query into a table, each once.

Tasks write Parquet files, which no reader of the table sees yet, and give their names, sizes and statistics to the
driver; the driver adds them to the table in one commit (`tables`). Where rows have `topic`, `partition` and `offset`,
the commit records how far the table has each partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.pipeline import tables
from headrace.pipeline.arrow_schema import HEADERS, clip_times
from headrace.pipeline.manifest import STAGED
from headrace.pipeline.options import TableOptions
from headrace.pipeline.parquet import Layout, PartitionedFiles
from headrace.pipeline.tables import ICEBERG, DataFile, Spans, Table, table_of
from headrace.pipeline.target import Target

# Spark sets them for the tasks of a stream; the id stays the same as long as the checkpoint does.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
HEADERS_OF_SPARK = "array<struct<key:string,value:binary>>"
# Columns that say which record a row is.
RECORD = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, for the driver to add to the table."""

    files: tuple[DataFile, ...]
    spans: Spans
    query: str


class TableWriter(DataSourceStreamArrowWriter):
    """`df.writeStream` with a `path`."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._target = Target.of(options.path, "the option path", options.storage)
        self._layout = layout_of(arrow_schema(schema), options)

    @property
    def _table(self) -> Table:
        # One for each use: the writer is sent to tasks, and what delta-rs has loaded cannot be.
        return table_of(self._options.table, self._target, self._options.catalog, self._options.name)

    def prepare(self) -> None:
        """Before the tasks of a batch, in the driver."""
        self._table.prepare(self._layout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID) or "", int(context.getLocalProperty(BATCH_ID) or 0)
        return self.write_task(iterator, query, batch)

    def write_task(self, blocks: Iterator[pa.RecordBatch], query: str, batch: int) -> Written:
        """Write a task's rows to files."""
        staging = self._table.staging(query, batch)
        filesystem, root = self._target.open()
        root, suffix = (f"{root}/{staging}", f".parquet{STAGED}") if staging else (root, ".parquet")
        files = PartitionedFiles(filesystem, root, self._layout, self._options.file_bytes, suffix)
        spans: Spans = {}
        for block in blocks:
            widen_spans(spans, block)
            # Iceberg has times of the years up to 9999; the others keep them as they are.
            files.add(clip_times(block) if self._options.table == ICEBERG else block)
        return Written(tuple(files.finish()), spans, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        written = [each for each in messages if isinstance(each, Written)]
        files = [file for each in written for file in each.files]
        if files:
            tables.commit(self._table, written[0].query, batchId, files, unite_spans([each.spans for each in written]))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        for each in messages:
            if isinstance(each, Written):
                self._table.discard(each.files, each.query, batchId)


def layout_of(schema: pa.Schema, options: TableOptions) -> Layout:
    """How a table of these columns is laid out. Iceberg looks for its partitions' columns in the files."""
    return Layout(schema, options.partition_by, keeps_all=options.table == ICEBERG)


def arrow_schema(schema: StructType) -> pa.Schema:
    """A frame's columns as Arrow has them, and a record's headers as they are in the source. Every column may be null:
    a table does not refuse what a frame happens never to have."""
    found = to_arrow_schema(schema, timezone="UTC")
    kinds = {each.name: each.dataType.simpleString() for each in schema.fields}
    return pa.schema(
        [
            HEADERS.with_name(each.name) if kinds[each.name] == HEADERS_OF_SPARK else each.with_nullable(True)
            for each in found
        ]
    )


def widen_spans(spans: Spans, block: pa.RecordBatch) -> None:
    """Add the offsets of a block's records."""
    if not all(name in block.schema.names for name in RECORD):
        return
    table = pa.Table.from_batches([block.select(RECORD)])
    found = table.group_by(["topic", "partition"], use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
    for row in found.to_pylist():
        each = (row["topic"], row["partition"])
        low, high = spans.get(each, (row["offset_min"], 0))
        spans[each] = (min(low, row["offset_min"]), max(high, row["offset_max"] + 1))


def unite_spans(all_spans: Sequence[Spans]) -> Spans:
    whole: Spans = {}
    for spans in all_spans:
        for each, (start, end) in spans.items():
            low, high = whole.get(each, (start, end))
            whole[each] = (min(low, start), max(high, end))
    return whole
