"""A Spark with `logs` that is killed while it publishes: driver, JVM and the worker that commits.

    python -m tests.pipeline.jobs.dying_logs_on_spark BOOTSTRAP TOPIC INTO FOLDER WHERE

The first attempt of each task that reads lines fails, behind its work.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType
from tests.pipeline.jobs.dying_logs import BEHIND

from headrace.pipeline.jobs import logs
from headrace.pipeline.jobs.logs import line_counter, result_sink
from headrace.pipeline.jobs.logs.line_counter import LineCounter
from headrace.pipeline.jobs.logs.result_sink import ResultSink, ResultWriter
from headrace.pipeline.session import session
from headrace.pipeline.sink_commit import CommitCoordinator, Note
from headrace.pipeline.source import SINK_WORKER, _in_worker

# Workers have the environment of the driver.
WHERE, PIDS = "HEADRACE_TEST_WHERE", "HEADRACE_TEST_PIDS"


class DyingSink(ResultSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> ResultWriter:  # noqa: N802 -- Spark's name
        # Commits happen in a worker of their own.
        if _in_worker(SINK_WORKER):
            write = CommitCoordinator._write

            async def writing(self: CommitCoordinator, driver: Any, note: Note) -> None:
                if note.done == (os.environ[WHERE] == BEHIND):
                    for pid in (*Path(os.environ[PIDS]).read_text().split(), os.getpid()):
                        os.kill(int(pid), signal.SIGKILL)
                await write(self, driver, note)

            CommitCoordinator._write = writing  # type: ignore[method-assign]
        return super().streamWriter(schema, overwrite)


class FailingCounter(LineCounter):
    def count(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().count(blocks)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")


def main() -> None:
    from tests.pipeline.conftest import SETTINGS

    bootstrap, topic, into, root, where = sys.argv[1:]
    pids = Path(f"{root}.pids")
    os.environ |= {WHERE: where, PIDS: str(pids)}
    spark = session("dying", "local[2,3]", SETTINGS)
    assert spark._jvm is not None
    pids.write_text(f"{spark._jvm.java.lang.ProcessHandle.current().pid()} {os.getpid()}")
    result_sink.ResultSink = DyingSink  # type: ignore[misc]
    line_counter.LineCounter = FailingCounter  # type: ignore[misc]
    logs(spark, to=root, topics=[topic], bootstrap=bootstrap, into=into, keep_open=True)


if __name__ == "__main__":
    main()
