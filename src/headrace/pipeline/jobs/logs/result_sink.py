"""Where a batch's results go: files of the folder, and then a topic, in the driver, under the batch's number.

Spark commits a batch when this has returned. A batch that runs again, because the driver died before that, replaces its
files by the same (`results_folder.py`), and what the topic has is recognised (`publisher.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.pipeline.jobs.logs import counts, results
from headrace.pipeline.jobs.logs.clock import Clock
from headrace.pipeline.jobs.logs.results_folder import LATE, WINDOWS, ResultsFolder
from headrace.pipeline.jobs.publisher import Publisher

FORMAT = "headrace-logs"
AS_JSON = {WINDOWS: results.windows_as_json, LATE: results.late_as_json}


class ResultSink(DataSource):
    """`format("headrace-logs")`, which the job registers: the option `path` names the folder, and `publish` is JSON:
    the arguments of a Publisher."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> ResultWriter:  # noqa: N802 -- Spark's name
        publish = json.loads(self.options["publish"])
        return ResultWriter(ResultsFolder(Path(self.options["path"])), self.options["id"], publish)


@dataclass(frozen=True)
class Output(WriterCommitMessage):
    """What a task has of a batch's results: all of it, or nothing."""

    rows: tuple[Mapping[str, Any], ...]


class ResultWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: ResultsFolder, id: str, publish: Mapping[str, Any] | None) -> None:
        """`id` is the folder's, since it was begun."""
        self._folder = folder
        self._id = id
        self._publish = publish

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Output:
        return Output(tuple(row for block in iterator for row in block.to_pylist()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        clock = None
        for row in (row for each in messages if isinstance(each, Output) for row in each.rows):
            for name in AS_JSON:
                self._folder.save(batchId, name, counts.load(row[name]))
            clock = Clock.load(row["clock"])
        if self._publish is not None:
            keys, values = [], []
            for name, as_json in AS_JSON.items():
                for table in self._folder.rows(batchId, name):
                    found = as_json(table)
                    keys += found[0]
                    values += found[1]
            Publisher(**self._publish).publish(self._id, batchId, keys, values)
        # A batch may have offsets and no records: then nothing has changed.
        self._folder.save_clock(batchId, clock or self._folder.clock(batchId - 1))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """The batch runs again, and has the same."""
