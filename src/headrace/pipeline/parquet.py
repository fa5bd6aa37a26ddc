"""Rows into Parquet files, by the values of some columns: what one task of the table sink does.

A task gathers what belongs to the same partition of the table until there is enough for a row group, and begins a new
file where one is large enough. Files are whole and durable when the task is done; which of them count is the table's to
say, so a task may be tried again or run twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.pipeline.arrow_schema import LEAST_TIME, MOST_TIME
from headrace.pipeline.manifest import sync_up
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.tables import DataFile

# What is gathered, over all partitions, before it is written as row groups.
GATHERED_BYTES = 64 << 20
# Partitions whose files are open at once; records with times from everywhere do not open a file each for good.
OPEN_FILES = 32
# As Hive and Spark name the folder of rows without a value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# Columns that repeat few values.
FEW_VALUES = ("topic", "partition", "timestampType")
TIME = "timestamp"
# Partitions that are made of a row's `timestamp`, where it has no such columns: how long one is, in microseconds.
BY_TIME = {"date": 86_400_000_000, "hour": 3_600_000_000}

Place = tuple[Any, ...]
"""The values of a table's partition; of `date` and `hour`, days and hours since 1970."""


@dataclass(frozen=True)
class Layout:
    """Which rows share a file, and which columns a file has."""

    schema: pa.Schema
    """The columns of the rows."""
    partition_by: tuple[str, ...]
    """Columns, or `date` and `hour` of the rows' `timestamp`."""
    keeps_all: bool = False
    """Files have the columns that the table is partitioned by, too."""

    def __post_init__(self) -> None:
        for name in self.partition_by:
            if name not in self.schema.names and not (name in BY_TIME and TIME in self.schema.names):
                raise InvalidOption(f"partitionBy names the column {name!r}, and the rows have none of that name")

    @property
    def in_files(self) -> pa.Schema:
        keeps = self.keeps_all
        return pa.schema([each for each in self.schema if keeps or each.name not in self.partition_by])

    @property
    def in_table(self) -> pa.Schema:
        """The columns of files, and those that are made of their paths."""
        made = {"date": pa.field("date", pa.date32()), "hour": pa.field("hour", pa.int32())}
        paths = [name for name in self.partition_by if not self.keeps_all]
        return pa.schema(
            [*self.in_files, *(self.schema.field(n) if n in self.schema.names else made[n] for n in paths)]
        )

    def split(self, block: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """The parts of a block by the partitions that they belong to."""
        if not block.num_rows:
            return
        keys = [self._key(block, name) for name in self.partition_by]
        names = [str(index) for index in range(len(keys))]
        if not keys:
            yield (), block
            return
        places = pa.table(keys, names).group_by(names, use_threads=False).aggregate([]).to_pylist()
        for each in places:
            place = tuple(each[name] for name in names)
            if len(places) == 1:
                yield place, block
                return
            yield place, block.filter(_conjunction([_is_value(k, v) for k, v in zip(keys, place, strict=True)]))

    def _key(self, block: pa.RecordBatch, name: str) -> pa.Array:
        if name in self.schema.names:
            return block.column(name)
        # Records may have times that no date has, if microseconds were taken for milliseconds, say: they stand with the
        # last hour that there is.
        micros = block.column(TIME).cast(pa.int64())
        clipped: Any = np.clip(micros.to_numpy(zero_copy_only=False), LEAST_TIME, MOST_TIME)
        return pa.array(clipped // BY_TIME[name], pa.int64())

    def values(self, place: Place) -> dict[str, str | None]:
        """The values of a partition as text."""
        found: dict[str, str | None] = {}
        for name, value in zip(self.partition_by, place, strict=True):
            if name not in self.schema.names:
                time = datetime.fromtimestamp(value * BY_TIME[name] // 1_000_000, UTC)
                value = time.date() if name == "date" else f"{time:%H}"
            found[name] = None if value is None else value.isoformat() if isinstance(value, date) else str(value)
        return found


def folder_of(values: dict[str, str | None]) -> str:
    """Where the files of a partition stand, as Hive and Spark have it."""
    return "/".join(f"{name}={NO_VALUE if value is None else quote(value)}" for name, value in values.items())


@dataclass(slots=True)
class _Open:
    writer: pq.ParquetWriter
    output: Any
    path: str
    footers: list[pq.FileMetaData]
    rows: int = 0


@dataclass
class PartitionedFiles:
    """The files of one task, under a folder of a file system; their names end with `suffix`."""

    filesystem: fs.FileSystem
    root: str
    layout: Layout
    file_bytes: int
    suffix: str = ".parquet"
    _gathered: dict[Place, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    _gathered_bytes: int = 0
    _open: dict[Place, _Open] = field(default_factory=dict)
    _done: list[DataFile] = field(default_factory=list)

    def add(self, block: pa.RecordBatch) -> None:
        """Take some rows."""
        for place, part in self.layout.split(block):
            self._gathered[place].append(part)
            self._gathered_bytes += part.nbytes
        if self._gathered_bytes >= GATHERED_BYTES:
            self._write()

    def finish(self) -> list[DataFile]:
        """All files, durable."""
        self._write()
        for place in list(self._open):
            self._close(place)
        return self._done

    def drop(self) -> None:
        """Remove what was written: the task is done anew, with other columns."""
        self._gathered.clear()
        for each in self.finish():
            self.filesystem.delete_file(f"{self.root}/{each.path}")

    def _write(self) -> None:
        schema = self.layout.in_files
        for place, blocks in self._gathered.items():
            table = pa.Table.from_batches(blocks).select(schema.names).cast(schema)
            file = self._open.pop(place, None) or self._begin(place, schema)
            # Behind the others: the file that was written to longest ago is the first to be closed.
            self._open[place] = file
            file.writer.write_table(table, row_group_size=table.num_rows)
            file.rows += table.num_rows
            if file.output.tell() >= self.file_bytes:
                self._close(place)
            elif len(self._open) > OPEN_FILES:
                self._close(next(iter(self._open)))
        self._gathered.clear()
        self._gathered_bytes = 0

    def _begin(self, place: Place, schema: pa.Schema) -> _Open:
        path = f"{folder_of(self.layout.values(place))}/{uuid4().hex}{self.suffix}".lstrip("/")
        whole = f"{self.root}/{path}"
        self.filesystem.create_dir(whole.rpartition("/")[0], recursive=True)
        output = self.filesystem.open_output_stream(whole)
        footers: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            output,
            schema,
            compression="zstd",
            use_dictionary=[name for name in FEW_VALUES if name in schema.names],
            write_page_index=True,
            metadata_collector=footers,
        )
        return _Open(writer, output, path, footers)

    def _close(self, place: Place) -> None:
        file = self._open.pop(place)
        file.writer.close()
        size = file.output.tell()
        file.output.close()
        if isinstance(self.filesystem, fs.LocalFileSystem):
            sync_up(Path(self.root, file.path), Path(self.root))
        values = self.layout.values(place)
        low, high = statistics(file.footers[0])
        self._done.append(DataFile(file.path, values, file.rows, size, low, high))


def statistics(footer: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and the most of each column of numbers and times, as a file's footer has them."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unknown: set[str] = set()
    for group in (footer.row_group(index) for index in range(footer.num_row_groups)):
        for column in (group.column(index) for index in range(group.num_columns)):
            name = column.path_in_schema
            if "." in name:
                # Within another column.
                continue
            if not column.is_stats_set or not column.statistics.has_min_max:
                unknown.add(name)
                continue
            try:
                least, most = column.statistics.min, column.statistics.max
            except OverflowError:
                # A time that no date has.
                unknown.add(name)
                continue
            if not isinstance(least, int | datetime) or isinstance(least, bool) or column.statistics.null_count:
                unknown.add(name)
                continue
            low[name] = min(low.get(name, least), least)
            high[name] = max(high.get(name, most), most)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
    return low, high


def _is_value(column: pa.Array, value: Any) -> pa.Array:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)


def _conjunction(masks: Sequence[pa.Array]) -> pa.Array:
    whole = masks[0]
    for each in masks[1:]:
        whole = pc.and_(whole, each)
    return whole
