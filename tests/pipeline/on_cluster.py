"""A driver on a cluster whose tasks are slow, or take their executor with them, when they are done with their work.

    python -m tests.pipeline.on_cluster MASTER BOOTSTRAP SOURCE SINK FOLDER

It pours a topic into another one, and archives it, while Spark runs a second attempt of what is slow beside the first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from headrace.pipeline.jobs import archive
from headrace.pipeline.session import session
from headrace.pipeline.source import HeadraceSource
from headrace.pipeline.table_sink import TableWriter, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
}
# Longer than anything that is waited for.
SLOW_SECONDS = 300
SLOW_TASK, DYING_TASK = 1, 0


def behind_the_work(seen: Path, name: str) -> None:
    """Leave word of this attempt. One task's first attempt sleeps then, and one takes its executor with it later on."""
    context = TaskContext.get()
    assert context is not None
    task = context.partitionId()
    (seen / f"{name}-{task}-{context.taskAttemptId()}").touch()
    if task == SLOW_TASK and is_first(seen / f"{name}-slow"):
        time.sleep(SLOW_SECONDS)
        (seen / f"{name}-woke").touch()
    second = len(list(seen.glob(f"{name}-{SLOW_TASK}-*"))) > 1
    if task == DYING_TASK and name == "sink" and second and is_first(seen / f"{name}-died"):
        os.kill(parent_of(os.getppid()), signal.SIGKILL)


def is_first(mark: Path) -> bool:
    if mark.exists():
        return False
    mark.touch()
    return True


def parent_of(process: int) -> int:
    """Workers are made by a process between them and the executor."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class SlowWriter(TableWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        done = super().write(iterator)
        behind_the_work(Path(self._options.path).parent, "archive")
        return done


class SlowTable(HeadraceSource):
    """The table sink, with tasks that are slow when they are done with their work."""

    @classmethod
    def name(cls) -> str:
        return "slow-table"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = SlowWriter
        return writer


def main() -> None:
    from tests.pipeline.dying_driver import archive_through
    from tests.pipeline.test_sink import pour
    from tests.pipeline.topics import Topics

    master, bootstrap, source, sink, to = sys.argv[1:]
    folder = Path(to)
    conf = {**CONF, **SPECULATION, "spark.executorEnv.PYTHONPATH": os.getcwd()}
    spark = session("on a cluster", master, conf)

    def work(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from blocks
        behind_the_work(folder, "sink")

    def shaped(frame: DataFrame) -> DataFrame:
        return frame.repartition(2, "key").mapInArrow(work, frame.schema)

    pour(spark, Topics(bootstrap), source, sink, folder / "checkpoint", shape=shaped)
    archive_through(SlowTable)
    archive(spark, to=folder / "archive", topics=[source], bootstrap=bootstrap, file_bytes=30_000)
    spark.stop()


if __name__ == "__main__":
    main()
