"""A query into the sink whose driver is killed where it hurts.

    python -m tests.pipeline.dying_sink BOOTSTRAP SOURCE SINK CHECKPOINT WHERE

Its tasks fail once each, behind some of their work, and give their rows in another order and to other tasks each time.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from headrace.pipeline import committing
from headrace.pipeline.committing import Decisions, Note, Open
from headrace.pipeline.session import session
from headrace.pipeline.source import SINK_WORKER, HeadraceSource, _in_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEFORE, AMID, BEHIND = "before the decision", "amid the commits", "behind the commits"


class DyingSink(HeadraceSource):
    """The sink, in a Spark that is killed while it commits."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        pids = [int(pid) for pid in self.options.pop("pids").split(",")]
        where = self.options.pop("where")
        # Commits happen in a worker of their own.
        if _in_worker(SINK_WORKER):
            patch(where, pids)
        return super().streamWriter(schema, overwrite)


def patch(where: str, pids: Sequence[int]) -> None:
    def die() -> None:
        for pid in (*pids, os.getpid()):
            os.kill(pid, signal.SIGKILL)

    write, commit = Decisions._write, committing.commit

    async def committing_one(client: Any, transactions: Sequence[Open]) -> Any:
        await commit(client, transactions[:1])
        die()

    if where == AMID:
        committing.commit = committing_one  # type: ignore[assignment]
        return

    async def writing(self: Decisions, driver: Any, note: Note) -> None:
        if note.done == (where == BEHIND):
            die()
        await write(self, driver, note)

    Decisions._write = writing  # type: ignore[method-assign]


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


def main() -> None:
    from tests.pipeline.conftest import SETTINGS
    from tests.pipeline.test_sink import pour
    from tests.pipeline.topics import Topics

    bootstrap, source, sink, checkpoint, where = sys.argv[1:]
    spark = session("dying", "local[2,3]", SETTINGS)
    assert spark._jvm is not None
    pids = f"{spark._jvm.java.lang.ProcessHandle.current().pid()},{os.getpid()}"
    spark.dataSource.register(DyingSink)
    pour(spark, Topics(bootstrap), source, sink, checkpoint, shape=shaped, name="dying", where=where, pids=pids)


if __name__ == "__main__":
    main()
