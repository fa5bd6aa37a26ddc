"""`archive`: topics into Parquet files by topic, date and hour, or a Delta or Iceberg table of them, each record once.

The job goes in rounds. A round fixes how far to read, lets Spark's tasks read their ranges and write files aside, and
commits files and offsets together in the archive's own log (`manifest.py`). That log is the only memory of the job:
there is no checkpoint beside it that could say something else. Tasks write what they read, in one process, and Spark
only spreads them out: no record passes through a JVM.

After each commit the job's consumer group is moved to what is archived. So every Kafka tool shows how far behind the
archive is, and the broker's retention can wait for it (`retention.archive.group`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import structlog

from headrace.errors import HeadraceError
from headrace.logs import log_like_a_library
from headrace.pipeline import read_plan
from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.folders import ARCHIVE, check_folder, target
from headrace.pipeline.manifest import Commit, Manifest, StagedFile
from headrace.pipeline.options import InvalidOption, Partition, SourceOptions
from headrace.pipeline.origin import Catalogue, Range
from headrace.pipeline.tables import PARQUET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("headrace.pipeline.archive")

FILE_BYTES = 128 << 20
# What a task should have to do, at most, and what one round is at most, so that a long way is committed step by step.
ROUND_FILES = 16
# How often a job that goes on looks whether there is enough for a round.
LOOK_SECONDS = 2.0


Write = Callable[[Sequence[Range]], list[StagedFile]]
"""What a task does with its ranges."""
Run = Callable[[Write, Sequence[Sequence[Range]]], list[StagedFile]]
"""Runs tasks somewhere, each with the ranges that are its own."""


@dataclass(frozen=True)
class Archived:
    """How far an archive has come."""

    rounds: int
    rows: int
    bytes: int
    files: int
    ends: Mapping[Partition, int]
    """Of each partition, the offset behind the last that is archived."""
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
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Archived:
    """Archive topics of a broker (`bootstrap`) or of a folder without one (`data`) under the folder `to`, as files
    alone or also as a `table` of "delta" or "iceberg".

    Without `every` all that is there now is archived, and the call returns. With it, the call goes on until `stop` is
    set: a round begins when a file's worth of records waits, or `every` seconds after the last one. `group` is
    `archive-` and the folder's name where nothing is said. `options` are further options of the source, such as
    `startingOffsets`, `failOnDataLoss`, `isolation`.
    """
    log_like_a_library()
    root = check(to, table, every)
    rounds.refuse_shape(options)
    source = rounds.source_of(topics, pattern, bootstrap, data, {**(options or {}), "includeHeaders": "true"})
    name = "" if source.folder else group or source.group or f"archive-{root.name}"
    job = Archiver(source, root, name, file_bytes, partial(on_spark, spark), table)
    told = stop or Event()

    def run() -> Archived:
        with job:
            return job.run(every, progress or (lambda _: None), told)

    return rounds.through_outages(run, every, told)


def check(to: str | Path, table: str, every: float | None) -> Path:
    """The archive's folder. Raises where the job could not write there; changes nothing."""
    rounds.check_every(every)
    return target(to, ARCHIVE, table)


class Archiver:
    """One archive being written. Use it as a context manager, again where it was left by an error."""

    def __init__(
        self, source: SourceOptions, root: Path, group: str, file_bytes: int, run: Run, table: str = PARQUET
    ) -> None:
        if file_bytes < 1:
            raise InvalidOption(f"files cannot be of {file_bytes} bytes")
        self._source = source
        self._manifest = Manifest(root, table)
        self._group = group
        self._file_bytes = file_bytes
        self._run_tasks = run
        self._rounds = self._rows = self._bytes = self._files = 0
        self._lag = 0

    def __enter__(self) -> Archiver:
        try:
            self._manifest.open()
            check_folder(self._manifest.root, ARCHIVE)
            # A job that died between its commit and this left the group behind.
            self._follow()
        except BaseException:
            self._manifest.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._manifest.close()

    def run(self, every: float | None, progress: Progress, stop: Event) -> Archived:
        """Round after round; without `every`, until what is there now is archived."""
        last = time.monotonic()
        until = rounds.ask(self._source, self._ends) if every is None else None
        while not stop.is_set():
            ranges, waiting = rounds.ask(self._source, partial(self._plan, until=until))
            self._lag = sum(each.end - each.start for each in ranges)
            due = every is None or waiting >= self._file_bytes or time.monotonic() - last >= every
            if ranges and due:
                self.round(ranges, waiting)
                last = time.monotonic()
            elif every is None:
                break
            else:
                stop.wait(min(LOOK_SECONDS, every))
            progress(self.archived)
        return self.archived

    @property
    def archived(self) -> Archived:
        return Archived(self._rounds, self._rows, self._bytes, self._files, self._manifest.ends, self._lag)

    def round(self, ranges: Sequence[Range], waiting: int) -> Commit:
        """Archive some ranges, or as much of them as one round takes."""
        taken, tasks = share_out(ranges, waiting, self._file_bytes)
        root, staging = str(self._manifest.root), str(self._manifest.stage())
        files = self._run_tasks(Writing(self._source, root, staging, self._file_bytes, self._manifest.kind), tasks)
        ends = {(each.topic, each.partition): each.end for each in taken}
        starts = {(each.topic, each.partition): each.start for each in taken}
        commit = self._manifest.commit(files, starts, ends, time.time_ns() // 1_000_000)
        self._rounds += 1
        self._rows += commit.rows
        self._bytes += commit.size
        self._files += len(commit.files)
        self._lag -= sum(each.end - each.start for each in taken)
        log.info("archived", commit=commit.number, rows=commit.rows, files=len(commit.files), bytes=commit.size)
        self._follow()
        return commit

    async def _ends(self, origin: Catalogue) -> dict[Partition, int]:
        partitions = await read_plan.find_partitions(origin, self._source)
        return await read_plan.resolve_offsets(origin, self._source, self._source.end, partitions)

    async def _plan(self, origin: Catalogue, until: Mapping[Partition, int] | None) -> tuple[list[Range], int]:
        """What is there and not archived, and about how many bytes that is."""
        advice = " (retention.archive.group makes it wait)"
        return await rounds.pending(origin, self._source, self._manifest.ends, until, deed="archived", advice=advice)

    def _follow(self) -> None:
        """Tell the broker how far it is archived. That it cannot be told now is not the archive's failure."""
        ends = self._manifest.ends
        if not self._group or not ends:
            return
        try:
            rounds.ask(self._source, lambda origin: origin.follow(self._group, ends))
        except HeadraceError as error:
            log.warning("the archive's group could not be moved", group=self._group, error=str(error))


@dataclass(frozen=True)
class Writing:
    """What a task does, so that it can be sent to another process."""

    source: SourceOptions
    root: str
    staging: str
    file_bytes: int
    table: str = PARQUET

    def __call__(self, ranges: Sequence[Range]) -> list[StagedFile]:
        from headrace.pipeline.jobs.parquet import write_ranges

        return write_ranges(self.source, ranges, self.root, self.staging, self.file_bytes, self.table)


def share_out(ranges: Sequence[Range], waiting: int, file_bytes: int) -> tuple[list[Range], list[list[Range]]]:
    """What one round takes of the ranges, and the same by task: about a file's worth for each, so that small partitions
    share a file and large ones do not wait for each other."""
    total = sum(each.end - each.start for each in ranges)
    a_file = max(1, total * file_bytes // max(1, waiting)) if waiting > file_bytes else total
    start = {(each.topic, each.partition): each.start for each in ranges}
    end = {(each.topic, each.partition): each.end for each in ranges}
    end = read_plan.limit_ends(start, end, a_file * ROUND_FILES)
    taken = [Range(*each, start[each], last) for each, last in sorted(end.items()) if last > start[each]]
    tasks: list[list[Range]] = []
    room = 0
    for each in taken:
        at = each.start
        while at < each.end:
            if room <= 0:
                tasks.append([])
                room = a_file
            upto = min(each.end, at + room)
            tasks[-1].append(Range(each.topic, each.partition, at, upto))
            room -= upto - at
            at = upto
    return taken, tasks


def on_spark(spark: SparkSession, write: Write, tasks: Sequence[Sequence[Range]]) -> list[StagedFile]:
    """Run tasks as Spark's. Of one that was tried again or run twice, Spark gives one answer."""
    return [file for files in rounds.on_spark(spark, write, tasks) for file in files]
