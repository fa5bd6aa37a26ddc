"""`logs`: what services log, counted by window, service and level, each line once.

A streaming query. Tasks read the lines of a partition and count them (`line_counter.py`); Spark's state has the counts
of windows that have not ended (`window_state.py`); the rows of those that have go to files and to a topic, batch by
batch (`result_sink.py`). Offsets and state are in Spark's checkpoint, which lies in the folder of the results.

Spark's own windows drop late rows silently. Here every line that is read is in a window, late or broken, and the sums
are part of the state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from headrace.logs import log_like_a_library
from headrace.pipeline.jobs import queries, rounds
from headrace.pipeline.jobs.folders import LOGS, refuse_logs_before, target
from headrace.pipeline.jobs.logs.clock import Signal
from headrace.pipeline.jobs.logs.counts import Windows
from headrace.pipeline.jobs.logs.fields import UNITS_MS, Names
from headrace.pipeline.jobs.logs.lines import AUTO, LineFormat
from headrace.pipeline.jobs.logs.results_folder import ResultsFolder
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import parse
from headrace.pipeline.origin import Catalogue, is_archive
from headrace.pipeline.progress import count_waiting
from headrace.pipeline.session import active_session, sibling_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = structlog.get_logger("headrace.pipeline.logs")

# About so much of the log is read in a batch, where `maxOffsetsPerTrigger` does not say otherwise.
BATCH_BYTES = 512 << 20
READ = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
# One task has the lines of one partition, in order.
SPLITS = ("minpartitions", "maxrecordsperpartition", "bytesperpartition")
# Counts of a batch, in Spark's progress.
METRICS = "logs"


@dataclass(frozen=True)
class Logs:
    """How far a job has come, since its folder was begun. `parsed + broken + late == rows`."""

    rounds: int
    """Batches of this run."""
    rows: int
    """Lines that were read."""
    parsed: int
    """Lines that are in a window, or will be when it has ended."""
    broken: int
    late: int
    errors: int
    """Lines of `parsed` that are errors."""
    windows: int
    """Rows that were given out, one for each window and service."""
    open: int
    """Lines in windows that have not ended."""
    lag: int
    """Offsets that were there and not read when last looked at."""
    to: Path


Progress = Callable[[Logs], None]


def logs(
    spark: SparkSession,
    *,
    to: str | Path,
    topics: Sequence[str] = (),
    pattern: str = "",
    bootstrap: str = "",
    data: str = "",
    into: str = "",
    into_bootstrap: str = "",
    window: float = 60.0,
    lateness: float = 60.0,
    every: float | None = None,
    keep_open: bool = False,
    idle: float = 60.0,
    format: str = AUTO,
    regex: str = "",
    fields: Mapping[str, str] | None = None,
    duration_unit: str = "ms",
    ahead: float = 3600.0,
    group: str = "",
    application: str = "",
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Logs:
    """Count the log lines in topics of a broker (`bootstrap`), or of a data folder or an archive (`data`).

    Results are Parquet under the folder `to`: `windows`, `late`, and `aside` for the lines that are in no window; and
    records of the topic `into`, on `bootstrap` or `into_bootstrap`. Times are in seconds. Without `every` all that is
    there now is read, every window is given out (unless `keep_open`), and the call returns; with it, a batch begins so
    often until `stop` is set. `fields` names the fields of lines, by time, service, level, message, duration.
    """
    log_like_a_library()
    lines = line_format(format, regex, fields or {}, duration_unit, ahead)
    root, windows = check(to, window, lateness, every, into, options)
    given = {name: value for name, value in (options or {}).items() if name.lower() not in SPLITS}
    if group:
        given["kafka.group.id"] = group
    source = rounds.stream_options(topics, pattern, bootstrap, data, given, f"logs-{root.name}")
    publish = None
    if into:
        broker = into_bootstrap or bootstrap
        if not broker:
            raise InvalidOption(f"results are to go to the topic {into}, and no broker is named: give into_bootstrap")
        # What is read must not be what is written.
        rounds.refuse_loop(parse(source, streaming=True, bounded=every is None), broker, [into])
        publish = {
            "bootstrap": broker,
            "topic": into,
            "application": application or f"logs-{root.name}",
            "connection": rounds.connection_of_writer(options, bootstrap, broker),
        }
    job = LogJob(spark, source, ResultsFolder(root), lines, windows, publish, keep_open, idle)
    stopping = stop or Event()
    return rounds.through_outages(lambda: job.run(every, progress or (lambda _: None), stopping), every, stopping)


def check(
    to: str | Path,
    window: float,
    lateness: float,
    every: float | None,
    into: str,
    options: Mapping[str, str] | None = None,
) -> tuple[Path, Windows]:
    """The folder of the results, and their windows. Raises where the job could not write there; changes nothing."""
    rounds.check_every(every)
    rounds.check_stream(options, every)
    if into:
        rounds.check_topic(into)
    windows = windows_of(window, lateness)
    root = target(to, LOGS)
    refuse_logs_before(root)
    begun = ResultsFolder(root).settings().get("windows")
    if begun is not None and begun != asdict(windows):
        raise InvalidOption(
            f"{root} was begun with windows of {begun['size'] / 1e6:g} s and lines late by "
            f"{begun['lateness'] / 1e6:g} s: go on with these, or give another folder"
        )
    return root, windows


def windows_of(window: float, lateness: float) -> Windows:
    """Windows of so many seconds. Raises InvalidOption."""
    if window < 0.001 or lateness < 0:
        raise InvalidOption(f"windows of {window} s and lateness of {lateness} s cannot be: give a millisecond or more")
    return Windows(round(window * 1e6), round(lateness * 1e6))


def line_format(format: str, regex: str, fields: Mapping[str, str], duration_unit: str, ahead: float) -> LineFormat:
    """How lines are read. Raises InvalidOption."""
    if duration_unit not in UNITS_MS:
        raise InvalidOption(f"the unit of durations cannot be {duration_unit!r}: it is one of {', '.join(UNITS_MS)}")
    return LineFormat(format, regex, Names.given(fields, duration_unit), round(ahead * 1000))


class LogJob:
    """One folder of results being written."""

    def __init__(
        self,
        spark: SparkSession,
        source: Mapping[str, str],
        folder: ResultsFolder,
        format: LineFormat,
        windows: Windows,
        publish: Mapping[str, Any] | None,
        keep_open: bool,
        idle: float,
    ) -> None:
        self._spark = spark
        self._source = source
        self._options = parse(source, streaming=True, bounded=True)
        self._folder = folder
        self._format = format
        self._windows = windows
        self._publish = publish
        self._keep_open = keep_open
        self._idle_ms = round(idle * 1_000)
        self._lag = 0
        self._batches: set[int] = set()
        self._signalled = -1
        """The batch behind which partitions were found to be idle."""

    def run(self, every: float | None, progress: Progress, stop: Event) -> Logs:
        """Batch after batch; without `every`, until what is there now is done."""
        with self._folder.lock():
            id = self._begin()
            waiting = rounds.ask(self._options, self._waiting)
            self._lag = sum(waiting.values())
            progress(self.done)
            _, clock = self._folder.last_clock()
            idle_ms = None if every is None else self._idle_ms
            holding = tuple(each for each, count in waiting.items() if count)
            if holding or idle_ms != clock.idle_ms:
                alone = every is None and not self._keep_open
                self._folder.send(Signal(idle_ms, holding, alone))

            def look(query: StreamingQuery) -> None:
                self._look(query)
                progress(self.done)

            if every is not None:
                queries.run(self._start(id, every), look, stop, min(queries.LOOK_SECONDS, every))
                return self.done
            queries.run(self._start(id, None), look, stop)
            if not self._keep_open and not stop.is_set() and self.done.open:
                self._folder.send(Signal(close=True))
                queries.run(self._start(id, None), look, stop)
            return self.done

    def _begin(self) -> str:
        """The folder's id. What it was begun with is fixed, and how lines are read while a batch is to run again."""
        settings = self._folder.settings()
        if self._folder.last_clock()[0] >= 0 and not self._folder.checkpoint.exists():
            # Batches would be counted anew, and take the names of files that are there.
            raise InvalidOption(f"{self._folder.root} has results and no checkpoint any more. Give another folder.")
        format = json.loads(json.dumps(asdict(self._format)))
        if settings.get("format", format) != format and queries.is_pending(self._folder.checkpoint):
            raise InvalidOption(
                f"a batch of {self._folder.root} was not finished, and its lines were read otherwise "
                f"(--format {settings['format']['name']} ...). Run it once with the flags of the last run."
            )
        settings = {"id": uuid4().hex, **settings, "windows": asdict(self._windows), "format": format}
        self._folder.save_settings(settings)
        return str(settings["id"])

    async def _waiting(self, origin: Catalogue) -> dict[Any, int]:
        """Offsets that are not read, by partition."""
        waiting, sizes = await queries.waiting_offsets(origin, self._options, self._folder.checkpoint)
        if not self._options.offsets_per_trigger and sum(sizes.values()) > BATCH_BYTES:
            offsets = max(1, sum(waiting.values()) * BATCH_BYTES // sum(sizes.values()))
            self._source = {**self._source, "maxOffsetsPerTrigger": str(offsets)}
        return waiting

    @property
    def done(self) -> Logs:
        _, clock = self._folder.last_clock()
        return Logs(len(self._batches), **asdict(clock.totals), lag=self._lag, to=self._folder.root)

    def _start(self, id: str, every: float | None) -> StreamingQuery:
        from pyspark.sql import functions as f

        from headrace.pipeline.jobs.logs.line_counter import REPORT, LineCounter
        from headrace.pipeline.jobs.logs.result_sink import FORMAT, ResultSink
        from headrace.pipeline.jobs.logs.window_state import OUTPUT, SUMS, WindowState

        # All that is open is one value: one task has it. A checkpoint keeps this number.
        spark = sibling_session(self._spark, {queries.STATE_STORE: queries.ROCKSDB}, partitions=1)
        counter = LineCounter(self._format, self._windows, self._folder, is_archive(self._options))
        records = spark.readStream.format("headrace").options(**self._source).schema(READ).load()
        signals = spark.readStream.schema("signal STRING").json(f"file://{self._folder.signals}")
        results = (
            records.mapInArrow(counter.count, REPORT)
            .unionByName(signals, allowMissingColumns=True)
            # The time of the batch, which is the same when it runs again.
            .withColumn("now", f.expr("unix_millis(current_timestamp())"))
            .withColumn("job", f.lit(METRICS))
            .groupBy("job")
            .transformWithState(WindowState(self._windows), OUTPUT, "Append", "None")
            .observe(METRICS, *(f.sum(f"{each}_count").alias(each) for each in SUMS))
        )
        writer = (
            results.writeStream.format(FORMAT)
            .queryName(f"logs-{self._folder.root.name}")
            .option("path", str(self._folder.root))
            .option("id", id)
            .option("publish", json.dumps(self._publish))
            .option("checkpointLocation", f"file://{self._folder.checkpoint}")
            .outputMode("append")
        )
        # Spark looks for a sink in the active session of this thread, and once more in that of the query.
        with active_session(spark):
            queries.register(spark, ResultSink)
            return queries.start(writer, every)

    def _look(self, query: StreamingQuery) -> None:
        for each in query.recentProgress:
            records = each["sources"][0]
            if int(records["numInputRows"]):
                self._batches.add(int(each["batchId"]))
            behind = count_waiting(records)
            self._lag = self._lag if behind is None else behind
        self._close_idle()

    def _close_idle(self) -> None:
        """Let a batch without lines close what partitions that have become idle have held."""
        batch, clock = self._folder.last_clock()
        if clock.idle_ms is None or not clock.totals.open or batch == self._signalled:
            return
        if clock.close(self._windows.lateness, round(time.time() * 1_000)).closed > clock.closed:
            self._folder.send(Signal(clock.idle_ms))
            self._signalled = batch
