"""What one task of a round does: it reads a partition's lines in order, counts them, and keeps aside what it cannot.

Whether a line is late depends on its own partition alone: its window had ended, by more than the lateness that is
allowed, at the time of a line before it there. So it is the same however rounds are cut, however often a task is tried,
and whatever other partitions do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.pipeline.jobs.logs.lines import LineFormat
from headrace.pipeline.jobs.logs.windows import Tally, added, are_errors, tallied
from headrace.pipeline.jobs.staging import staged
from headrace.pipeline.manifest import StagedFile
from headrace.pipeline.options import Partition, SourceOptions
from headrace.pipeline.origin import Range
from headrace.pipeline.range_reader import read_in_order

NEVER = -(1 << 62)
# So many blocks are counted before their counts are added up.
BLOCKS = 16

ASIDE = "aside"
ASIDE_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


@dataclass(frozen=True)
class Windows:
    """How lines are put into windows, in microseconds."""

    size: int
    lateness: int

    def begin(self, times: Any) -> Any:
        """The window that each time is in."""
        return times // self.size * self.size

    def are_late(self, times: Any, seen: int, closed: int) -> tuple[Any, int]:
        """Which of a partition's lines are late, and the newest time by now; `seen` is the newest before them."""
        newest = np.maximum.accumulate(np.concatenate([[seen], times]))
        ends = self.begin(times) + self.size
        return (ends + self.lateness <= newest[:-1]) | (ends <= closed), int(newest[-1])


@dataclass(frozen=True)
class Counted:
    """What a task found."""

    partition: Partition
    rows: int
    parsed: int
    broken: int
    late: int
    errors: int
    seen: int
    """The newest time of the partition."""
    tally: Tally
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class Counting:
    """A task's work, so that it can be sent to another process."""

    source: SourceOptions
    format: LineFormat
    windows: Windows
    closed: int
    """Windows that end by then have been given out."""
    seen: Mapping[Partition, int]
    root: str
    staging: str

    def __call__(self, wanted: Range) -> Counted:
        partition = (wanted.topic, wanted.partition)
        lines = self.format.reader()
        seen = self.seen.get(partition, NEVER)
        tallies: list[Tally] = []
        aside = Aside(Path(self.root), Path(self.staging))
        rows = broken = late = errors = 0
        for block in read_in_order(self.source, wanted):
            fields = lines.read(block)
            good = pc.is_null(fields.reason).to_numpy(zero_copy_only=False)
            times = fields.time.cast(pa.int64()).to_numpy()
            behind: Any = np.zeros(len(good), bool)
            behind[good], seen = self.windows.are_late(times[good], seen, self.closed)
            tallies.append(tallied(fields, good & ~behind, behind, self.windows.begin(times)))
            if len(tallies) == BLOCKS:
                tallies = [added(tallies)]
            errors += int(np.count_nonzero(good & ~behind & are_errors(fields)))
            rows += block.num_rows
            broken += int(np.count_nonzero(~good))
            late += int(np.count_nonzero(behind))
            aside.add(block, fields.reason, behind)
        files = aside.finish()
        tally = added(tallies) if tallies else Tally()
        return Counted(partition, rows, rows - broken - late, broken, late, errors, seen, tally, files)


class Aside:
    """The lines that are in no window, as they came, with the reason."""

    def __init__(self, root: Path, staging: Path) -> None:
        self._root = root
        self._staging = staging
        self._path = staging / f"{uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, block: pa.RecordBatch, reasons: Any, late: Any) -> None:
        why = pc.if_else(pa.array(late), "late", reasons)
        if why.null_count == len(why):
            return
        kept = pa.Table.from_batches([block.select(ASIDE_COLUMNS)]).append_column("reason", why)
        kept = kept.filter(pc.is_valid(why))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, kept.schema, compression="zstd")
        self._writer.write_table(kept)
        self._rows += kept.num_rows

    def finish(self) -> tuple[StagedFile, ...]:
        if self._writer is None:
            return ()
        self._writer.close()
        return (staged(self._root, self._path, ASIDE, self._rows),)
