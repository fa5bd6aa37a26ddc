"""A driver with a query into the sink, and with `archive` beside it, that is killed where it hurts.

    python -m tests.pipeline.dying_driver BOOTSTRAP SOURCE SINK FOLDER WHERE

Starting a Spark costs more than all it does here, so both die with one: whichever is at its place first waits for the
other. Tasks fail once each, behind some of their work; the query's give their rows in another order and to other tasks
each time.
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
from headrace.pipeline.jobs import archive
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.session import session, sibling_session
from headrace.pipeline.sink_commit import CommitCoordinator, Note, OpenTransaction
from headrace.pipeline.source import SINK_WORKER, HeadraceSource, _in_worker
from headrace.pipeline.table_sink import TableWriter, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
            patch(where, pids, Path(beside))
        return super().streamWriter(schema, overwrite)


def patch(where: str, pids: Sequence[int], beside: Path) -> None:
    def die() -> None:
        while where != AMID and not beside.exists():
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
        if note.done == (where == BEHIND):
            die()
        await write(self, driver, note)

    CommitCoordinator._write = writing  # type: ignore[method-assign]


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
        parent, beside = os.getppid(), Path(self.beside)

        def stop(*_: object) -> None:
            beside.touch()
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(1)

        if _in_worker(SINK_WORKER):
            if self.where == BEFORE:
                Manifest.commit = stop  # type: ignore[assignment, method-assign]
            else:
                Manifest._finish = stop  # type: ignore[assignment, method-assign]
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = FailingOnce
        return writer


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

    bootstrap, source, sink, to, where = sys.argv[1:]
    folder = Path(to)
    beside = folder / f"archive is {where}"
    spark = session("dying", "local[2,3]", SETTINGS)
    assert spark._jvm is not None
    pids = f"{spark._jvm.java.lang.ProcessHandle.current().pid()},{os.getpid()}"
    spark.dataSource.register(DyingSink)
    if where != AMID:
        Thread(target=archiving, args=(spark, bootstrap, source, folder, where, beside), daemon=True).start()
    options = {"where": where, "beside": str(beside), "pids": pids}
    pour(spark, Topics(bootstrap), source, sink, folder / "checkpoint", shape=shaped, name="dying", **options)


if __name__ == "__main__":
    main()
