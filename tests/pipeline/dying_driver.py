"""A driver with a query into the sink, and with `archive` and `logs` beside it, that is killed where it hurts.

    python -m tests.pipeline.dying_driver BOOTSTRAP SOURCE SINK FOLDER WHERE [LINES INTO]

Starting a Spark costs more than all it does here, so all die with one: whichever is at its place first waits for the
others. Tasks fail once each, behind some of their work; the query's give their rows in another order and to other tasks
each time. `logs` counts the LINES, and publishes INTO a topic.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from headrace.pipeline import sink_commit
from headrace.pipeline.jobs import archive, logs
from headrace.pipeline.jobs.logs import line_counter, result_sink
from headrace.pipeline.jobs.logs.line_counter import LineCounter
from headrace.pipeline.jobs.logs.result_sink import ResultSink, ResultWriter
from headrace.pipeline.manifest import ParquetFolder
from headrace.pipeline.session import session, sibling_session
from headrace.pipeline.sink_commit import CommitCoordinator, Note, OpenTransaction
from headrace.pipeline.source import SINK_WORKER, HeadraceSource, _in_worker
from headrace.pipeline.table_sink import TableWriter, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGS = "logs"
BEFORE, AMID, BEHIND = "before the decision", "amid the commits", "behind the commits"


class DyingSink(HeadraceSource):
    """The sink, in a Spark that is killed while it commits."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        pids = [int(pid) for pid in self.options.pop("pids").split(",")]
        where, beside = self.options.pop("where"), self.options.pop("beside")
        # Commits happen in a worker of their own.
        if _in_worker(SINK_WORKER):
            patch(where, pids, [Path(each) for each in beside.split(",")])
        return super().streamWriter(schema, overwrite)


def patch(where: str, pids: Sequence[int], beside: Sequence[Path]) -> None:
    def die() -> None:
        while where != AMID and not all(each.exists() for each in beside):
            time.sleep(0.05)
        for pid in (*pids, os.getpid()):
            os.kill(pid, signal.SIGKILL)

    write, commit = CommitCoordinator._write, sink_commit.commit

    async def committing_one(client: Any, transactions: Sequence[OpenTransaction]) -> Any:
        await commit(client, transactions[:1])
        die()

    if where == AMID:
        sink_commit.commit = committing_one  # type: ignore[assignment]
        return

    async def writing(self: CommitCoordinator, driver: Any, note: Note) -> None:
        if note.done == (where == BEHIND) and not self._application.startswith(LOGS):
            die()
        await write(self, driver, note)

    CommitCoordinator._write = writing  # type: ignore[method-assign]


def wait_for_death(beside: Path) -> None:
    """Report that this worker is at its place, and wait until its Spark is gone."""
    parent = os.getppid()
    beside.touch()
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(1)


def failing_once(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    for block in blocks:
        order = list(range(block.num_rows))
        random.shuffle(order)
        yield block.take(pa.array(order))
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")


def shaped(frame: DataFrame) -> DataFrame:
    return frame.repartition(2, "key").mapInArrow(failing_once, frame.schema)


def archive_through(source: type[HeadraceSource]) -> None:
    """Let `archive` read and write by another class."""

    def register(spark: SparkSession) -> SparkSession:
        own = sibling_session(spark)
        # Spark looks for a sink in the active session of the thread, which is not the query's.
        for each in (own, spark):
            each.dataSource.register(source)
        return own

    job: Any = sys.modules["headrace.pipeline.jobs.archive"]
    job.sibling_session, job.FORMAT = register, source.name()


class FailingOnce(TableWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        done = super().write(iterator)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")
        return done


class DyingTable(HeadraceSource):
    """The table sink, which stops before its commit, or behind it, until its Spark is killed."""

    where = ""
    beside = ""

    @classmethod
    def name(cls) -> str:
        return "dying-table"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        beside = Path(self.beside)

        def stop(*_: object) -> None:
            wait_for_death(beside)

        if _in_worker(SINK_WORKER):
            if self.where == BEFORE:
                ParquetFolder.add = stop  # type: ignore[assignment, method-assign]
            else:
                ParquetFolder._finish = stop  # type: ignore[assignment, method-assign]
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = FailingOnce
        return writer


class DyingLogs(ResultSink):
    """The sink of `logs`, which stops while it publishes, until its Spark is killed."""

    where = ""
    beside = ""

    def streamWriter(self, schema: StructType, overwrite: bool) -> ResultWriter:  # noqa: N802 -- Spark's name
        if _in_worker(SINK_WORKER):
            write, behind, beside = CommitCoordinator._write, self.where == BEHIND, Path(self.beside)

            async def writing(self: CommitCoordinator, driver: Any, note: Note) -> None:
                if note.done == behind and self._application.startswith(LOGS):
                    wait_for_death(beside)
                await write(self, driver, note)

            CommitCoordinator._write = writing  # type: ignore[method-assign]
        return super().streamWriter(schema, overwrite)


class FailingCounter(LineCounter):
    def count(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().count(blocks)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")


def counting(
    spark: SparkSession, bootstrap: str, topic: str, into: str, folder: Path, where: str, beside: Path
) -> None:
    """A `logs` that stops while it publishes, until it is killed."""
    DyingLogs.where, DyingLogs.beside = where, str(beside)
    result_sink.ResultSink = DyingLogs  # type: ignore[misc]
    line_counter.LineCounter = FailingCounter  # type: ignore[misc]
    try:
        logs(spark, to=folder / f"{LOGS}-{topic}", topics=[topic], bootstrap=bootstrap, into=into, keep_open=True)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def archiving(spark: SparkSession, bootstrap: str, topic: str, folder: Path, where: str, beside: Path) -> None:
    """An archive that stops before its commit, or behind it, until it is killed."""
    DyingTable.where, DyingTable.beside = where, str(beside)
    archive_through(DyingTable)
    try:
        archive(spark, to=folder / "archive", topics=[topic], bootstrap=bootstrap, file_bytes=80_000)
    except BaseException:
        traceback.print_exc()
    # It was to be stopped.
    os._exit(1)


def main() -> None:
    from tests.pipeline.conftest import SETTINGS
    from tests.pipeline.test_sink import pour
    from tests.pipeline.topics import Topics

    bootstrap, source, sink, to, where, *lines = sys.argv[1:]
    folder = Path(to)
    beside = [folder / f"{job} is {where}" for job in ("archive", LOGS)]
    spark = session("dying", "local[2,3]", SETTINGS)
    assert spark._jvm is not None
    pids = f"{spark._jvm.java.lang.ProcessHandle.current().pid()},{os.getpid()}"
    spark.dataSource.register(DyingSink)
    if where != AMID:
        Thread(target=archiving, args=(spark, bootstrap, source, folder, where, beside[0]), daemon=True).start()
        Thread(target=counting, args=(spark, bootstrap, *lines, folder, where, beside[1]), daemon=True).start()
    options = {"where": where, "beside": ",".join(map(str, beside)), "pids": pids}
    pour(spark, Topics(bootstrap), source, sink, folder / "checkpoint", shape=shaped, name="dying", **options)


if __name__ == "__main__":
    main()
