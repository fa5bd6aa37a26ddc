"""One batch of records into the table of their topic: what `foreachBatch` calls in the driver.

The table decides what is new: tasks pass over the offsets that it has, so a batch that Spark runs again, or plans anew
because its checkpoint is gone, adds nothing twice. Tasks write Parquet files that no reader sees yet; where they meet
fields that are no columns, they stop and report them, the table grows, and the batch runs again. Then the driver adds
the files in one commit, which records the offsets.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lake import group_of
from headrace.pipeline import tables
from headrace.pipeline.json_decoder import JsonDecoder
from headrace.pipeline.lake_columns import (
    SAMPLE_ROWS,
    check_declared,
    infer_kind,
    kind_in,
    merge_types,
    shape_rows,
    table_schema,
)
from headrace.pipeline.manifest import STAGED
from headrace.pipeline.parquet import Layout, PartitionedFiles
from headrace.pipeline.table_sink import unite_spans, widen_spans
from headrace.pipeline.tables import DataFile, Spans, State, Table, TableInvalid, table_of
from headrace.pipeline.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES = 128 << 20
# How often the table grows for one batch: what comes after that stays in `_value` until the next.
GROWTHS = 4
REPORT = "report BINARY"
READ = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, " + (
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass(frozen=True)
class LakeTable:
    """The table of a topic, and how it is written."""

    topic: str
    topic_id: str
    """Another one once the topic was deleted and created again."""
    kind: str
    target: Target
    catalog: str = ""
    declared: pa.DataType | None = None
    """The fields of values; None where they are inferred."""
    file_bytes: int = FILE_BYTES

    @property
    def query(self) -> str:
        """Who writes the table, as its commits record it."""
        return f"{group_of(self.topic)}-{self.topic_id}"

    def open(self) -> Table:
        # Dots would divide a name into namespaces.
        name = f"headrace.{self.topic.replace('.', '_')}" if self.kind == tables.ICEBERG else ""
        return table_of(self.kind, self.target, self.catalog, name)

    def prepare(self) -> State:
        """Create the table unless it is there, with the columns that are declared; what it has. Raises TableInvalid
        where it is another's."""
        table = self.open()
        declared = self.declared if self.declared is not None else pa.struct([])
        state = table.state()
        if state.query != self.query and (state.query or state.offsets):
            raise TableInvalid(
                f"{self.target.url} is a table of {state.query or 'another job'}, not of the topic {self.topic} as it "
                "is now (it may have been created again). Set lake to another place, or remove the table."
            )
        check_declared(declared, pa.struct([]))
        table.prepare(Layout(table_schema(declared), (), keeps_all=True))
        found = kind_in(table.columns())
        check_declared(declared, found)
        if merge_types(found, declared) != found:
            table.grow(table_schema(merge_types(found, declared)))
        return table.state()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Add a batch of records."""
        table = self.open()
        state = table.state()
        kind = merge_types(kind_in(table.columns()), self.declared or pa.struct([]))
        ends = {index: end for (_, index), end in state.ends.items()}
        task = LakeTask(self, kind, ends, table.staging(self.query, state.batch + 1), self.declared is None)
        for growth in range(GROWTHS + 1):
            if growth == GROWTHS:
                task = replace(task, grows=False)
            reports: list[Report] = [
                pickle.loads(bytes(row["report"])) for row in frame.mapInArrow(task.write, REPORT).collect()
            ]
            for report in reports:
                kind = merge_types(kind, report.kind)
            if kind == task.kind:
                break
            self._discard(table, reports, state)
            table.grow(table_schema(kind))
            task = replace(task, kind=kind)
        files = [file for report in reports for file in report.files]
        if files:
            spans = unite_spans([report.spans for report in reports])
            tables.commit(table, self.query, state.batch + 1, files, spans)

    def _discard(self, table: Table, reports: Sequence[Report], state: State) -> None:
        files = [file for report in reports for file in report.files]
        if files:
            table.discard(files, self.query, state.batch + 1)


@dataclass(frozen=True)
class Report:
    """What a task has written, or which fields it has met that are no columns yet."""

    kind: pa.DataType
    files: tuple[DataFile, ...] = ()
    spans: Spans = field(default_factory=dict)


@dataclass(frozen=True)
class LakeTask:
    """Writes some records of a batch to files of the table."""

    table: LakeTable
    kind: pa.DataType
    """The fields of values that the table has."""
    ends: Mapping[int, int]
    """By partition, up to which offset the table has the records."""
    staging: str
    grows: bool
    """Fields that the table does not have are reported; otherwise such values stay as they are."""

    def write(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"report": pa.array([pickle.dumps(self._write(blocks))], pa.binary())})

    def _write(self, blocks: Iterator[pa.RecordBatch]) -> Report:
        filesystem, root = self.table.target.open()
        root, suffix = (f"{root}/{self.staging}", f".parquet{STAGED}") if self.staging else (root, ".parquet")
        layout = Layout(table_schema(self.kind), (), keeps_all=True)
        files = PartitionedFiles(filesystem, root, layout, self.table.file_bytes, suffix)
        decoder = JsonDecoder(self.kind, strict=self.table.declared is None)
        spans: Spans = {}
        misfits = 0
        for block in map(self._new, blocks):
            rows, bad = shape_rows(block, decoder)
            if bad and self.grows:
                kind = infer_kind(_values(block, islice(bad, SAMPLE_ROWS)), self.kind)
                if kind != self.kind:
                    files.drop()
                    return Report(kind)
            misfits += len(bad)
            widen_spans(spans, block)
            files.add(rows)
        done = files.finish()
        if done and misfits:
            # Of all files of this task.
            done[0] = replace(done[0], misfits=misfits)
        return Report(self.kind, tuple(done), spans)

    def _new(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The records that the table does not have."""
        if not self.ends or not block.num_rows:
            return block
        partition, offset = block.column("partition"), block.column("offset")
        known = pa.array(list(self.ends), partition.type)
        places = pc.index_in(partition, known)
        ends = pc.fill_null(pc.take(pa.array(list(self.ends.values()), pa.int64()), places), 0)
        return block.filter(pc.greater_equal(offset, ends))


def _values(block: pa.RecordBatch, rows: Iterator[int]) -> Iterator[Any]:
    column = block.column("value")
    return (column[row].as_py() for row in rows)
