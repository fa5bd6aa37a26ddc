"""A round of a replay on Spark: tasks that read, call the user's function, and deliver.

Where the function is a plan of Spark's (a frame), Spark reads and the last step of its plan delivers. Otherwise a task
does all of it in one process, and no record passes through a JVM.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.replay import functions
from headrace.pipeline.jobs.replay.delivery import Answer, Blocks, Deliver
from headrace.pipeline.jobs.replay.pacer import Pace, Pacer
from headrace.pipeline.offsets import assign
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.origin import Range, is_archive
from headrace.pipeline.range_reader import read_in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Counted:
    """Blocks that are counted as they pass."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for block in self._blocks:
            self.rows += block.num_rows
            yield block


@dataclass(frozen=True)
class Task:
    """What a task does with a range, so that it can be sent to another process."""

    source: SourceOptions
    transform: Callable[[Blocks], Blocks]
    deliver: Deliver

    def __call__(self, wanted: Range) -> Answer:
        blocks = _Counted(read_in_order(self.source, wanted))
        answer = self.deliver(self.transform(iter(blocks)))
        return replace(answer, read=blocks.rows)


@dataclass(frozen=True)
class PacedTask:
    """What a task does with ranges whose records have their time."""

    source: SourceOptions
    transform: Callable[[Blocks], Blocks]
    deliver: Deliver
    pace: Pace

    def __call__(self, wanted: Sequence[Range]) -> Answer:
        pacer = Pacer([read_in_order(self.source, each) for each in wanted], self.pace)
        blocks = _Counted(pacer.blocks())
        answer = self.deliver(self.transform(iter(blocks)))
        return replace(answer, read=blocks.rows, behind=pacer.behind)


class Runner:
    """Runs rounds."""

    def __init__(
        self,
        spark: SparkSession,
        source: SourceOptions,
        options: dict[str, str],
        function: Callable[..., Any] | None,
        per: str,
        *,
        table: bool = False,
    ) -> None:
        self._spark = spark
        self._source = source
        self._options = options
        self._function = function
        self._per = per
        self._table = table

    def run(self, ranges: Sequence[Range], deliver: Deliver) -> list[Answer]:
        """One task for each range, or whatever a frame's plan makes of them."""
        if not ranges:
            return []
        if functions.is_plan(self._function, self._per):
            return self._run_frame(ranges, deliver)
        transform = functions.in_task(self._function, self._per, table=self._table)
        return rounds.on_spark(self._spark, Task(self._source, transform, deliver), list(ranges))

    def run_paced(self, ranges: Sequence[Range], deliver: Deliver, pace: Pace) -> list[Answer]:
        """As many tasks as can run at once: one that has to wait for another is behind from the start."""
        slots = max(1, min(len(ranges), self._slots()))
        shares = [list(ranges[number::slots]) for number in range(slots)]
        transform = functions.in_task(self._function, self._per)
        return rounds.on_spark(self._spark, PacedTask(self._source, transform, deliver, pace), shares)

    def warm(self, deliver: Deliver) -> None:
        """Let every slot run a task that does nothing."""
        work = PacedTask(self._source, functions.in_task(None, self._per), deliver, Pace(0, 0.0, 1.0))
        rounds.on_spark(self._spark, work, [[] for _ in range(self._slots())])

    def _slots(self) -> int:
        # A Connect server does not say how many tasks it runs at once.
        if type(self._spark).__module__.startswith("pyspark.sql.connect"):
            return int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        return int(self._spark.sparkContext.defaultParallelism)

    def _run_frame(self, ranges: Sequence[Range], deliver: Deliver) -> list[Answer]:
        assert self._function is not None
        frame: DataFrame = self._function(self._frame(ranges))

        def deliver_blocks(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            answer = deliver(blocks)
            yield pa.record_batch({"answer": pa.array([pickle.dumps(answer)], pa.binary())})

        answers = frame.mapInArrow(deliver_blocks, "answer BINARY").collect()
        found: list[Answer] = [pickle.loads(bytes(row["answer"])) for row in answers]
        # What Spark has read is not reported; offsets tell how much that was at most.
        offsets = sum(each.end - each.start for each in ranges)
        return [*found, Answer(read=offsets)]

    def _frame(self, ranges: Sequence[Range]) -> DataFrame:
        chosen = assign({(each.topic, each.partition): (each.start, each.end) for each in ranges})
        frame = self._spark.read.format("headrace").options(**self._options, **chosen).load()
        if not is_archive(self._source):
            return frame
        if "offset" not in frame.columns:
            raise InvalidOption("an archive's records are put in order by their offsets: name offset in columns, too")
        return frame.sortWithinPartitions("offset")
