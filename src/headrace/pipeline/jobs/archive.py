"""`archive`: topics into a Delta or Iceberg table, or a folder of Parquet files, by topic, date and hour, each record
once.

A streaming query from the source to the table sink (`table_sink.py`). Spark's checkpoint plans the batches, and each
commit of the table records the offsets that it has. So a job whose checkpoint is new, or lost, goes on behind what the
table has, and so does one over a folder that an older version has written.

The job's consumer group follows the batches. So every Kafka tool shows how far behind the archive is, and the broker's
retention can wait for it (`retention.archive.group`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from headrace.lake import PREFIX as LAKE
from headrace.logs import log_like_a_library
from headrace.pipeline import read_plan
from headrace.pipeline.arrow_schema import FIELDS, HEADERS
from headrace.pipeline.jobs import queries, rounds
from headrace.pipeline.jobs.folders import ARCHIVE, CHECKPOINT, check_folder
from headrace.pipeline.manifest import check_root, hold_lock, newest
from headrace.pipeline.offsets import nest
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import Partition, SourceOptions, parse, parse_table_sink
from headrace.pipeline.origin import Catalogue
from headrace.pipeline.progress import count_waiting
from headrace.pipeline.session import is_connect, sibling_session
from headrace.pipeline.table_sink import layout_of
from headrace.pipeline.tables import PARQUET, State, Table, TableInvalid, kind_of, maker_of, table_of
from headrace.pipeline.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = structlog.get_logger("headrace.pipeline.archive")

# Of source and sink.
FORMAT = "headrace"
FILE_BYTES = 128 << 20
PARTITION_BY = ("topic", "date", "hour")
FROM_THE_BEGINNING = {"startingOffsets": "earliest"}
RECORDS = pa.schema([*FIELDS, HEADERS])
# What one batch is at most, so that a long way is committed step by step.
BATCH_FILES = 16
# What a record takes where none is there to be measured.
RECORD_BYTES = 1 << 10
# How often a job that goes on looks whether there is enough for a batch, and how often its progress is looked at.
TRIGGER_SECONDS = 2.0
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Archived:
    """How far an archive has come."""

    rounds: int
    """Commits of this run; rows, bytes and files are this run's, too."""
    rows: int
    bytes: int
    files: int
    ends: Mapping[Partition, int]
    """Of each partition, the offset behind the last record that is archived."""
    lag: int
    """Offsets that were there and not archived when last looked at."""


Progress = Callable[[Archived], None]


def archive(
    spark: SparkSession,
    *,
    to: str | Path,
    table: str = PARQUET,
    topics: Sequence[str] = (),
    pattern: str = "",
    bootstrap: str = "",
    data: str = "",
    group: str = "",
    every: float | None = None,
    file_bytes: int = FILE_BYTES,
    partition_by: Sequence[str] = PARTITION_BY,
    checkpoint: str | Path = "",
    catalog: str = "",
    table_name: str = "",
    storage: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Archived:
    """Archive topics of a broker (`bootstrap`) or of a folder without one (`data`) to a path or URL, as Parquet files
    or as a `table` of "delta" or "iceberg".

    Without `every` all that is there now is archived, and the call returns. With it, the call goes on until `stop` is
    set: a batch begins when a file's worth of records waits, or `every` seconds after the last one. `group` is
    `archive-` and the folder's name by default, and the `checkpoint` lies in the folder; a URL needs one of its own.
    `catalog` is the name of an Iceberg catalogue in pyiceberg's configuration, and `storage` are options of an object
    store, by the names that they have in the environment. `options` are further options of the source, such as
    `startingOffsets`, `failOnDataLoss`, `isolation`.
    """
    log_like_a_library()
    rounds.refuse_shape(options)
    sink = sink_options(to, table, partition_by, file_bytes, catalog, table_name, storage)
    target = check(sink, every, checkpoint)
    given = {
        **({} if any(name.lower().startswith("starting") for name in options or {}) else FROM_THE_BEGINNING),
        "kafka.group.id": group or f"archive-{target.name}",
        **(options or {}),
        "includeHeaders": "true",
        # As exact as the files can have it: what is archived may be deleted from the log.
        "exactTimes": "true",
        "bytesPerPartition": str(file_bytes),
        **rounds.place_of(topics, pattern, "" if data else bootstrap, data),
    }
    if data:
        del given["kafka.group.id"]
    sink |= {"path": target.url, "checkpointLocation": str(checkpoint) or f"{target.url}/{CHECKPOINT}"}
    job = _Job(sibling_session(spark), given, sink, target, every)
    stopping = stop or Event()
    # Two jobs with one checkpoint would stop each other sooner or later; on one machine, sooner and in words.
    with hold_lock(target.local):
        return rounds.through_outages(lambda: job.run(progress or (lambda _: None), stopping), every, stopping)


def sink_options(
    to: str | Path,
    table: str = PARQUET,
    partition_by: Sequence[str] = PARTITION_BY,
    file_bytes: int = FILE_BYTES,
    catalog: str = "",
    table_name: str = "",
    storage: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The table that a job writes to, as options of the sink."""
    given = {
        "path": str(to),
        "table": table,
        "partitionBy": ",".join(partition_by),
        "fileSize": str(file_bytes),
        "catalog": catalog,
        "tableName": table_name,
        **{f"storage.{name}": value for name, value in (storage or {}).items()},
    }
    return {name: value for name, value in given.items() if value}


def check(sink: Mapping[str, str], every: float | None, checkpoint: str | Path = "") -> Target:
    """Where the archive is. Raises where the job could not write there; changes nothing."""
    rounds.check_every(every)
    maker_of(sink["table"])
    into = parse_table_sink(sink)
    layout_of(RECORDS, into)
    target = Target.of(into.path, "to", into.storage)
    table = table_of(into.table, target, into.catalog, into.name)
    root = target.local
    if root is not None:
        check_root(root)
        check_folder(root, ARCHIVE)
    elif not str(checkpoint):
        raise InvalidOption(f"an archive at {target.url} needs a checkpoint of its own. Give a folder (--checkpoint).")
    found = kind_of(target)
    if found not in ("", into.table):
        raise TableInvalid(f"{target.url} is an archive as {found}, not {into.table}: one folder is one")
    if found and table.state().query.startswith(LAKE):
        raise TableInvalid(f"{target.url} is the table of a topic, which `lake` writes: give another place")
    if root is not None and found and into.table != PARQUET:
        _refuse_unfinished(root, table)
    return target


def _refuse_unfinished(root: Path, table: Table) -> None:
    """An older version's log of commits may be one ahead of its table."""
    last = newest(root)
    state = table.state()
    if last is not None and any(end > state.ends.get(each, 0) for each, end in last.ends.items()):
        raise TableInvalid(
            f"commit {last.number} of {root} is not in its table: an older version was killed there. Let that version "
            "archive once more, or archive to another folder."
        )


@dataclass(frozen=True)
class _Job:
    spark: SparkSession
    source: Mapping[str, str]
    sink: Mapping[str, str]
    target: Target
    every: float | None

    def run(self, progress: Progress, stop: Event) -> Archived:
        into = parse_table_sink(self.sink)
        table = table_of(into.table, self.target, into.catalog, into.name)
        table.prepare(layout_of(RECORDS, into))
        begun = table.state()
        followed = _Followed(table, begun, progress)
        queries.run(self._start(begun), followed.look, stop, LOOK_SECONDS)
        return followed.done

    def _start(self, begun: State) -> StreamingQuery:
        options = parse(self.source, streaming=True, bounded=self.every is None)
        a_file, starting = rounds.ask(options, lambda origin: self._plan(origin, options, begun))
        # What the table has decides: a time to begin at would win over the offsets behind it.
        kept = {
            name: each for name, each in self.source.items() if not (starting and name.lower().startswith("starting"))
        }
        source = {
            **kept,
            **starting,
            "maxOffsetsPerTrigger": self.source.get("maxOffsetsPerTrigger", str(a_file * BATCH_FILES)),
        }
        if self.every is not None:
            source |= {"minOffsetsPerTrigger": str(a_file), "maxTriggerDelay": f"{round(self.every * 1_000)}ms"}
        frame = self.spark.readStream.format(FORMAT).options(**source).load()
        if not is_connect(self.spark):
            # Small partitions share tasks, and so files.
            frame = frame.coalesce(self.spark.sparkContext.defaultParallelism)
        writer = (
            frame.writeStream.format(FORMAT)
            .queryName(f"archive {self.target.name}")
            .options(**self.sink)
            .outputMode("append")
        )
        return queries.start(writer, None if self.every is None else min(TRIGGER_SECONDS, self.every))

    async def _plan(self, origin: Catalogue, options: SourceOptions, begun: State) -> tuple[int, dict[str, str]]:
        """About how many offsets a file takes, and where a new checkpoint begins: behind what the table has."""
        partitions = await read_plan.find_partitions(origin, options)
        first, last = await read_plan.log_bounds(origin, options, partitions)
        held = sum(last[each] - first[each] for each in partitions)
        size = sum((await origin.sizes(partitions)).values()) if partitions else 0
        file_bytes = int(self.sink["fileSize"])
        a_file = file_bytes * held // size if size and held else file_bytes // RECORD_BYTES
        if not begun.offsets:
            return max(1, a_file), {}
        fresh = [each for each in partitions if each not in begun.ends]
        starts = {**begun.ends, **await read_plan.resolve_offsets(origin, options, options.start, fresh)}
        by_topic = nest({each: starts[each] for each in partitions})
        return max(1, a_file), {"startingOffsets": json.dumps(by_topic)} if by_topic else {}


class _Followed:
    """Adds up what a query has done."""

    def __init__(self, table: Table, begun: State, progress: Progress) -> None:
        self._table = table
        self._begun = begun
        self._progress = progress
        self._batches: set[tuple[str, int]] = set()
        self._state = begun
        self._lag = 0

    def look(self, query: StreamingQuery) -> None:
        fresh = False
        for each in query.recentProgress:
            found = count_waiting(each["sources"][0])
            self._lag = self._lag if found is None else found
            at = (str(each["timestamp"]), int(each["batchId"]))
            fresh |= at not in self._batches
            self._batches.add(at)
        if fresh or not query.isActive:
            self._state = self._table.state()
        self._progress(self.done)

    @property
    def done(self) -> Archived:
        begun, now = self._begun, self._state
        return Archived(
            now.commits - begun.commits,
            now.rows - begun.rows,
            now.bytes - begun.bytes,
            now.files - begun.files,
            now.ends,
            self._lag,
        )
