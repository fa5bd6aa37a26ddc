"""Records into Parquet files, by topic, date and hour: what one task of an archive does.

A task goes through its ranges in order, gathers what belongs to the same hour until there is enough for a row group,
and begins a new file where one is large enough. Files are whole and durable when the task is done; which of them count
is the manifest's to say, so a task may be tried again or run twice.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.pipeline.arrow_schema import ARCHIVED, FIELDS, HEADERS, LEAST_TIME, MOST_TIME, clip_times
from headrace.pipeline.manifest import StagedFile, sync
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.origin import Range
from headrace.pipeline.range_reader import read_range
from headrace.pipeline.tables import ICEBERG, PARQUET

# What is gathered, over all hours, before it is written as row groups.
GATHERED_BYTES = 64 << 20
# Hours whose files are open at once; records with times from everywhere do not open a file each for good.
OPEN_FILES = 32
HOUR_US = 3_600_000_000
# Those that dates have.
FIRST_HOUR, LAST_HOUR = LEAST_TIME // HOUR_US, MOST_TIME // HOUR_US

Place = tuple[str, int]
"""A topic and an hour since 1970."""


@dataclass(slots=True)
class _Open:
    writer: pq.ParquetWriter
    path: Path
    rows: int = 0


class HourlyFiles:
    """The files of one task."""

    def __init__(self, root: Path, staging: Path, file_bytes: int, schema: pa.Schema = ARCHIVED) -> None:
        self._root = root
        self._schema = schema
        self._staging = staging
        self._file_bytes = file_bytes
        self._gathered: dict[Place, list[pa.RecordBatch]] = defaultdict(list)
        self._gathered_bytes = 0
        self._open: dict[Place, _Open] = {}
        self._done: list[StagedFile] = []

    def add(self, topic: str, block: pa.RecordBatch) -> None:
        """Take a block of records of one topic."""
        for hour, part in by_hour(block):
            self._gathered[topic, hour].append(part)
            self._gathered_bytes += part.nbytes
        if self._gathered_bytes >= GATHERED_BYTES:
            self._write()

    def finish(self) -> list[StagedFile]:
        """All files, durable."""
        self._write()
        for place in list(self._open):
            self._close(place)
        if self._done:
            sync(self._staging)
        return self._done

    def _write(self) -> None:
        for place, blocks in self._gathered.items():
            table = pa.Table.from_batches(blocks).select(self._schema.names)
            file = self._open.pop(place, None) or self._begin()
            # Behind the others: the file that was written to longest ago is the first to be closed.
            self._open[place] = file
            file.writer.write_table(table, row_group_size=table.num_rows)
            file.rows += table.num_rows
            if file.path.stat().st_size >= self._file_bytes:
                self._close(place)
            elif len(self._open) > OPEN_FILES:
                self._close(next(iter(self._open)))
        self._gathered.clear()
        self._gathered_bytes = 0

    def _begin(self) -> _Open:
        path = self._staging / f"{uuid4().hex}.parquet"
        writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in ("topic", "partition", "timestampType") if name in self._schema.names],
            write_page_index=True,
        )
        return _Open(writer, path)

    def _close(self, place: Place) -> None:
        file = self._open.pop(place)
        file.writer.close()
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        topic, hour = place
        staged = str(file.path.relative_to(self._root))
        self._done.append(StagedFile(staged, folder_of(topic, hour), topic, file.rows, file.path.stat().st_size))


def folder_of(topic: str, hour: int) -> str:
    """Where the files of an hour stand. Records may have times that no date has, if microseconds were taken for
    milliseconds, say: they stand with the last hour that there is."""
    time = datetime.fromtimestamp(min(max(hour, FIRST_HOUR), LAST_HOUR) * 3600, UTC)
    return f"topic={topic}/date={time.date().isoformat()}/hour={time:%H}"


def by_hour(block: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The parts of a block by the hour of their time, in UTC."""
    micros = block.column("timestamp").cast(pa.int64())
    ends = pc.min_max(micros)
    first, last = ends["min"].as_py() // HOUR_US, ends["max"].as_py() // HOUR_US
    if first == last:
        yield first, block
        return
    hours = pc.floor_temporal(block.column("timestamp"), unit="hour").cast(pa.int64())
    for hour in sorted(pc.unique(hours).to_pylist()):
        yield hour // HOUR_US, block.filter(pc.equal(hours, hour))


def write_ranges(
    options: SourceOptions, ranges: Sequence[Range], root: str, staging: str, file_bytes: int, table: str = PARQUET
) -> list[StagedFile]:
    """Archive some ranges; what came of it."""
    # Iceberg looks for its partitions' columns in the files.
    schema = pa.schema([*FIELDS, HEADERS]) if table == ICEBERG else ARCHIVED
    files = HourlyFiles(Path(root), Path(staging), file_bytes, schema)
    for wanted in ranges:
        # As exact as the files can have it: what is archived may be deleted from the log.
        for block in read_range(options, wanted, dated=False):
            files.add(wanted.topic, clip_times(block) if table == ICEBERG else block)
    return files.finish()
