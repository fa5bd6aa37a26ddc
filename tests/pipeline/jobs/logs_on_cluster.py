"""`logs` on a cluster whose tasks fail, are slow, or take their executor with them, when they are done with their work.

python -m tests.pipeline.jobs.logs_on_cluster MASTER BOOTSTRAP TOPIC INTO FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType
from tests.pipeline.on_cluster import CONF, SLOW_SECONDS, SPECULATION, is_first, parent_of

from headrace.pipeline.jobs import logs
from headrace.pipeline.jobs.logs import line_counter, result_sink
from headrace.pipeline.jobs.logs.line_counter import LineCounter
from headrace.pipeline.jobs.logs.result_sink import Output, ResultSink, ResultWriter
from headrace.pipeline.session import session


def take_executor() -> None:
    """Kill the executor that has this worker: there is a process of Spark's between the two."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)


class UnluckyCounter(LineCounter):
    """Counts, and then fails, sleeps until another attempt is done, or ends its executor: each once, in this order."""

    def count(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().count(blocks)
        context = TaskContext.get()
        assert context is not None
        seen, task = self.folder.root.parent, context.partitionId()
        (seen / f"attempt-{context.stageId()}-{task}-{context.taskAttemptId()}").touch()
        if task == 0 and is_first(seen / "failed"):
            raise RuntimeError("the first attempt of this task fails")
        if task == 1 and is_first(seen / "slow"):
            time.sleep(SLOW_SECONDS)
            (seen / "woke").touch()
        attempts: dict[str, int] = {}
        for path in seen.glob("attempt-*-1-*"):
            stage = path.name.split("-")[1]
            attempts[stage] = attempts.get(stage, 0) + 1
        if task == 0 and max(attempts.values(), default=0) > 1 and is_first(seen / "counting-died"):
            take_executor()


class UnluckyWriter(ResultWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Output:
        done = super().write(iterator)
        seen = self._folder.root.parent
        # The one that has the state of the windows.
        if done.rows and (seen / "counting-died").exists() and is_first(seen / "writing-died"):
            take_executor()
        return done


class UnluckySink(ResultSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> ResultWriter:  # noqa: N802 -- Spark's name
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = UnluckyWriter
        return writer


def main() -> None:
    master, bootstrap, topic, into, folder = sys.argv[1:]
    line_counter.LineCounter = UnluckyCounter  # type: ignore[misc]
    result_sink.ResultSink = UnluckySink  # type: ignore[misc]
    spark = session("logs on a cluster", master, {**CONF, **SPECULATION, "spark.executorEnv.PYTHONPATH": os.getcwd()})
    options = {"maxOffsetsPerTrigger": "300"}
    root = Path(folder, "results")
    done = logs(spark, to=root, topics=[topic], bootstrap=bootstrap, into=into, options=options)
    print(json.dumps({**asdict(done), "to": ""}))
    spark.stop()


if __name__ == "__main__":
    main()
