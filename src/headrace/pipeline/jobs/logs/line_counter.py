"""What a task does with a partition's lines in a batch: it counts them, and keeps aside what it cannot.

Whether a line is late depends on its own partition alone: its window had ended, by more than the lateness that is
allowed, at the time of a line before it there. So it is the same however batches are cut, however often a task is
tried, and whatever other partitions do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headrace.pipeline.jobs.logs.counts import NEVER, Windows, add, count_lines, dump
from headrace.pipeline.jobs.logs.lines import LineFormat
from headrace.pipeline.jobs.logs.results_folder import ResultsFolder
from headrace.pipeline.jobs.logs.times import UTC_US

# A row for the lines of a partition in a batch; or one with a signal and nothing else.
REPORT = "topic STRING, partition INT, seen BIGINT, broken BIGINT, counts BINARY, signal STRING"
# So many blocks are counted before their counts are added up.
BLOCKS = 16
# As Spark names it for the tasks of a stream.
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class LineCounter:
    """A task's work, so that it can be sent to another process."""

    format: LineFormat
    windows: Windows
    folder: ResultsFolder
    sort: bool
    """The source does not have lines in the order of their offsets."""

    def count(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        return self.count_batch(int(context.getLocalProperty(BATCH_ID)), blocks)

    def count_batch(self, batch: int, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One task has the lines of one partition."""
        filled = (block for block in blocks if block.num_rows)
        first = next(filled, None)
        if first is None:
            return
        topic, partition = (first.column(name)[0].as_py() for name in ("topic", "partition"))
        clock = self.folder.clock(batch - 1)
        seen = clock.seen.get((topic, partition), NEVER)
        lines = self.format.reader()
        tables: list[Any] = []
        broken = 0
        with self.folder.aside(batch, topic, partition) as aside:
            for block in self._in_order(first, filled):
                fields = lines.read(block)
                good = pc.is_null(fields.reason).to_numpy(zero_copy_only=False)
                times = fields.time.cast(pa.int64()).to_numpy()
                late: Any = np.zeros(len(good), bool)
                late[good], seen = self.windows.are_late(times[good], seen, clock.closed)
                tables.append(count_lines(fields, good & ~late, late, self.windows.begin(times)))
                if len(tables) == BLOCKS:
                    tables = [add(tables)]
                broken += int(np.count_nonzero(~good))
                aside.add(block, pc.if_else(pa.array(late), "late", fields.reason))
        report = {
            "topic": topic,
            "partition": partition,
            "seen": seen,
            "broken": broken,
            "counts": dump(add(tables)),
            "signal": None,
        }
        types = {"partition": pa.int32(), "signal": pa.string()}
        yield pa.record_batch({name: pa.array([value], types.get(name)) for name, value in report.items()})

    def _in_order(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = first.schema.get_field_index("timestamp")
        if not self.sort:
            blocks: Iterator[pa.RecordBatch] = (block for some in ([first], rest) for block in some)
        else:
            blocks = iter(pa.Table.from_batches([first, *rest]).sort_by("offset").combine_chunks().to_batches())
        for block in blocks:
            # Spark has times in the zone of its session.
            yield block.set_column(place, "timestamp", block.column(place).cast(UTC_US))
