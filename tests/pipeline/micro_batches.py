"""What Spark's micro-batch engine does with the source and the table sink, in this process and without a JVM.

The order of its steps is Spark's: the end of a batch is written to the checkpoint, tasks run (each twice: the first
attempt is for nobody), another writer commits, the checkpoint records that. A query that is started again repeats the
batch that was planned last and not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.pipeline.options import parse, parse_table_sink
from headrace.pipeline.readers import StreamReader
from headrace.pipeline.table_sink import TableWriter, Written
from headrace.pipeline.tables import State, table_of
from headrace.pipeline.target import Target

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)
SOURCE = {"startingOffsets": "earliest", "includeHeaders": "true", "exactTimes": "true"}
SINK = {"partitionBy": "topic,date,hour"}


class Query:
    """A streaming query from topics to a table."""

    def __init__(
        self, source: Mapping[str, str], to: str | Path, table: str = "parquet", *, checkpoint: Path, **sink: str
    ) -> None:
        self._source = {**SOURCE, **source}
        self._sink = {**SINK, "path": str(to), "table": table, **sink}
        self._checkpoint = checkpoint
        self.target = Target.of(str(to), "to", parse_table_sink(self._sink).storage)
        self.tasks: list[Written] = []
        """What all attempts have written in this run."""

    def state(self) -> State:
        sink = parse_table_sink(self._sink)
        return table_of(sink.table, self.target, sink.catalog, sink.name).state()

    def writer(self) -> TableWriter:
        return TableWriter(parse_table_sink(self._sink), RECORD)

    def run(self) -> int:
        """Batch after batch, until what is there now is in the table; how many batches that took."""
        reader = StreamReader(parse(self._source, streaming=True))
        try:
            return self._run(reader)
        finally:
            reader.stop()

    def _run(self, reader: StreamReader) -> int:
        query = self._remember("id", uuid4().hex)
        reader.prepareForTriggerAvailableNow()
        batch, done = self._recorded("commits") + 1, 0
        start = self._read(f"offsets/{batch - 1}") if batch else reader.initialOffset()
        while True:
            end = self._read(f"offsets/{batch}") or reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return done
            self._remember(f"offsets/{batch}", end)
            pieces = reader.partitions(start, end)
            writer = self.writer()
            writer.prepare()
            attempts = [writer.write_task(reader.read(each), query, batch) for each in pieces for _ in range(2)]
            self.tasks += attempts
            self.writer().commit(attempts[1::2], batch)
            self._remember_commit(batch)
            start, batch, done = end, batch + 1, done + 1

    def _remember_commit(self, batch: int) -> None:
        self._remember(f"commits/{batch}", {})

    def _recorded(self, folder: str) -> int:
        return max((int(each.name) for each in (self._checkpoint / folder).glob("[0-9]*")), default=-1)

    def _read(self, name: str) -> Any:
        path = self._checkpoint / name
        return json.loads(path.read_text()) if path.exists() else None

    def _remember(self, name: str, value: Any) -> Any:
        """Write a file of the checkpoint unless it is there, at once; what it has."""
        path = self._checkpoint / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}")
            temporary.write_text(json.dumps(value))
            os.replace(temporary, path)
        return json.loads(path.read_text())


def commit_before(root: Path, kind: str, number: int, offsets: dict[str, Any]) -> None:
    """As versions did it before there were checkpoints."""
    commits = root / "_headrace" / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    whole = {"version": 1, "table": kind, "number": number, "at_ms": 1, "offsets": offsets, "files": []}
    (commits / f"{number:010d}.json").write_text(json.dumps(whole))
