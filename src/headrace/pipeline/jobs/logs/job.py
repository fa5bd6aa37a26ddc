"""`logs`: what services log, counted by window, service and level, each line once.

The job goes in rounds. A round fixes how far to read; Spark's tasks, one for each partition, read and count their lines
(`counting.py`); the driver adds up what they found, gives out the windows that have ended, and commits files, what is
still open, and offsets together (`manifest.py`). Then the same rows go to a topic, under the commit's number. No line
passes through a JVM, and there is no checkpoint beside the results.

Spark's own windows drop late rows silently. Here every line that is read is in a window, late or broken, and the sums
are part of every commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import structlog

from headrace.errors import HeadraceError
from headrace.logs import log_like_a_library
from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.folders import LOGS, STATE, check_folder, target
from headrace.pipeline.jobs.logs import results
from headrace.pipeline.jobs.logs.counting import NEVER, Counted, Counting, Windows
from headrace.pipeline.jobs.logs.fields import UNITS_MS, Names
from headrace.pipeline.jobs.logs.lines import AUTO, LineFormat
from headrace.pipeline.jobs.logs.state import State
from headrace.pipeline.jobs.logs.windows import added
from headrace.pipeline.jobs.publishing import Publisher
from headrace.pipeline.jobs.staging import stage
from headrace.pipeline.manifest import Commit, Manifest, StagedFile, newest
from headrace.pipeline.options import InvalidOption, Partition, SourceOptions
from headrace.pipeline.origin import Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("headrace.pipeline.logs")

ROUND_BYTES = 512 << 20
WINDOWS, LATE = "windows", "late"


@dataclass(frozen=True)
class Logs:
    """How far a job has come, since its folder was begun. `parsed + broken + late == rows`."""

    rounds: int
    """Of this run."""
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
    round_bytes: int = ROUND_BYTES,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Logs:
    """Count the log lines in topics of a broker (`bootstrap`), or of a data folder or an archive (`data`).

    Results are Parquet under the folder `to`: `windows`, `late`, and `aside` for the lines that are in no window; and
    records of the topic `into`, on `bootstrap` or `into_bootstrap`. Times are in seconds. Without `every` all that is
    there now is read, every window is given out (unless `keep_open`), and the call returns; with it, a round begins so
    often until `stop` is set. `fields` names the fields of lines, by time, service, level, message, duration.
    """
    log_like_a_library()
    lines = line_format(format, regex, fields or {}, duration_unit, ahead)
    root, counted = check(to, window, lateness, every, into)
    rounds.refuse_shape(options)
    source = rounds.source_of(topics, pattern, bootstrap, data, options)
    publisher = None
    if into:
        broker = into_bootstrap or bootstrap
        if not broker:
            raise InvalidOption(f"results are to go to the topic {into}, and no broker is named: give into_bootstrap")
        # What is read must not be what is written.
        rounds.refuse_loop(source, broker, [into])
        same = rounds.connection(options) if broker == bootstrap else {}
        publisher = Publisher(broker, into, application or f"logs-{root.name}", same)
    job = LogJob(
        source,
        root,
        lines,
        counted,
        partial(rounds.on_spark, spark),
        publisher=publisher,
        group="" if source.folder else group or source.group or f"logs-{root.name}",
        round_bytes=round_bytes,
        idle=idle,
    )
    told = stop or Event()

    def run() -> Logs:
        with job:
            return job.run(every, progress or (lambda _: None), told, keep_open=keep_open)

    return rounds.through_outages(run, every, told)


def check(to: str | Path, window: float, lateness: float, every: float | None, into: str) -> tuple[Path, Windows]:
    """The folder of the results, and their windows. Raises where the job could not write there; changes nothing."""
    rounds.check_every(every)
    if into:
        rounds.check_topic(into)
    windows = windows_of(window, lateness)
    root = target(to, LOGS)
    last = newest(root)
    # One that was cut off in the midst of a commit is looked at when that is finished.
    if last is not None and (state := root / _place(last, STATE)).exists():
        _check_settings(root, State.load(state), windows)
    return root, windows


def _check_settings(root: Path, state: State, windows: Windows) -> None:
    if dict(state.settings) != asdict(windows):
        raise InvalidOption(
            f"{root} was begun with windows of {state.settings['size'] / 1e6:g} s and lines late by "
            f"{state.settings['lateness'] / 1e6:g} s: go on with these, or give another folder"
        )


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
    """One folder of results being written. Use it as a context manager, again where it was left by an error."""

    def __init__(
        self,
        source: SourceOptions,
        root: Path,
        format: LineFormat,
        windows: Windows,
        run: rounds.Run,
        *,
        publisher: Publisher | None = None,
        group: str = "",
        round_bytes: int = ROUND_BYTES,
        idle: float = 60.0,
    ) -> None:
        self._source = source
        self._format = format
        self._windows = windows
        self._run_tasks = run
        self._publisher = publisher
        self._group = group
        self._round_bytes = round_bytes
        self._idle = idle
        self._manifest = Manifest(root)
        self._state = State(settings=asdict(windows))
        self._rounds = self._lag = 0
        # When each partition was last seen to have something, by the clock of this run.
        self._fresh: dict[Partition, float] = {}

    def __enter__(self) -> LogJob:
        try:
            self._manifest.open()
            check_folder(self._manifest.root, LOGS)
            last = self._manifest.last
            if last is not None:
                self._state = State.load(self._manifest.root / _place(last, STATE))
                _check_settings(self._manifest.root, self._state, self._windows)
                self._sweep(last)
                self._tell(last)
        except BaseException:
            self._manifest.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._manifest.close()

    def run(self, every: float | None, progress: Progress, stop: Event, *, keep_open: bool = False) -> Logs:
        """Round after round; without `every`, until what is there now is done."""
        until = rounds.ask(self._source, lambda origin: rounds.ends(origin, self._source)) if every is None else None
        progress(self.done)
        while not stop.is_set():
            ranges, waiting = self._pending(until)
            self._lag = sum(each.end - each.start for each in ranges)
            if ranges:
                self.round(ranges, waiting, keep_open or every is not None)
                progress(self.done)
            elif every is None:
                break
            if every is not None and not self._lag:
                self._close_idle()
                progress(self.done)
                stop.wait(every)
        if until is not None and not keep_open and not stop.is_set() and self._state.open.counts.num_rows:
            last = max(self._state.open.counts.column("window").to_pylist())
            self._commit(self._manifest.stage(), [], [], last + self._windows.size)
        return self.done

    def _pending(self, until: Mapping[Partition, int] | None) -> tuple[list[Range], int]:
        done = self._manifest.ends
        return rounds.ask(self._source, lambda origin: rounds.pending(origin, self._source, done, until))

    @property
    def done(self) -> Logs:
        totals = asdict(self._state.totals)
        still = self._state.open.counts.column("lines")
        return Logs(self._rounds, **totals, open=sum(still.to_pylist()), lag=self._lag, to=self._manifest.root)

    def round(self, ranges: Sequence[Range], waiting: int, may_come: bool) -> Commit:
        """Do some ranges, or as much of them as one round takes. `may_come`: partitions that are done up to their
        ends now may have more later."""
        taken = rounds.taken(ranges, waiting, self._round_bytes)
        state, root = self._state, self._manifest.root
        staging = self._manifest.stage()
        work = Counting(self._source, self._format, self._windows, state.closed, state.seen, str(root), str(staging))
        counted: list[Counted] = self._run_tasks(work, taken)
        now = time.monotonic()
        self._fresh.update(dict.fromkeys((each.partition for each in counted), now))
        self._lag -= sum(each.end - each.start for each in taken)
        seen = {**state.seen, **{each.partition: each.seen for each in counted}}
        reached = {(each.topic, each.partition): each.end for each in taken}
        wanted = {(each.topic, each.partition): each.end for each in ranges}
        left = {each for each, end in wanted.items() if reached.get(each, 0) < end}
        return self._commit(staging, counted, taken, self._low(seen, left, may_come))

    def _low(self, seen: Mapping[Partition, int], left: set[Partition], may_come: bool) -> int:
        """Up to which time every partition has come that may still have something to say; all of them, where none
        has. A partition that is silent for long does not keep the others waiting."""
        if left - set(seen):
            return NEVER
        since = time.monotonic() - self._idle
        active = [
            newest
            for each, newest in seen.items()
            if each in left or (may_come and self._fresh.setdefault(each, time.monotonic()) >= since)
        ]
        newest = min(active) if active else max(seen.values(), default=NEVER)
        return max(NEVER, newest - self._windows.lateness)

    def _close_idle(self) -> None:
        low = self._low(self._state.seen, set(), True)
        windows = self._state.open.counts.column("window").to_pylist()
        if windows and min(windows) + self._windows.size <= low:
            self._commit(self._manifest.stage(), [], [], low)

    def _commit(self, staging: Path, counted: Sequence[Counted], taken: Sequence[Range], low: int) -> Commit:
        """Add what was counted, give out the windows that end by `low`, and make all of it durable at once."""
        state, root = self._state, self._manifest.root
        whole = added([state.open, *(each.tally for each in counted)])
        closed = max(state.closed, low)
        finished, still = whole.split(closed - self._windows.size + 1)
        windows, late = results.windows_of(finished, self._windows.size), results.late_of(finished)
        totals = state.totals.plus(
            rows=sum(each.rows for each in counted),
            parsed=sum(each.parsed for each in counted),
            broken=sum(each.broken for each in counted),
            late=sum(each.late for each in counted),
            errors=sum(each.errors for each in counted),
            windows=windows.num_rows,
        )
        seen = {**state.seen, **{each.partition: each.seen for each in counted}}
        after = replace(state, closed=closed, seen=seen, totals=totals, open=still)
        files: list[StagedFile] = [file for each in counted for file in each.files]
        for name, table in ((WINDOWS, windows), (LATE, late)):
            files += [stage(root, staging, f"{name}/date={day}", part) for day, part in results.by_day(table)]
        files.append(stage(root, staging, STATE, after.table()))
        commit = self._manifest.commit(
            files,
            {(each.topic, each.partition): each.start for each in taken},
            {(each.topic, each.partition): each.end for each in taken},
            time.time_ns() // 1_000_000,
        )
        self._state = after
        self._rounds += 1 if taken else 0
        log.info("counted", commit=commit.number, rows=totals.rows, windows=windows.num_rows)
        self._sweep(commit)
        self._tell(commit)
        return commit

    def _sweep(self, commit: Commit) -> None:
        """Let go what was open before a commit."""
        for path in (self._manifest.root / STATE).glob("*.parquet"):
            if path != self._manifest.root / _place(commit, STATE):
                path.unlink()

    def _tell(self, commit: Commit) -> None:
        """Publish a commit's rows, if that was not done, and move the group to it."""
        if self._publisher is not None:
            keys, values = [], []
            for name, as_json in ((WINDOWS, results.windows_as_json), (LATE, results.late_as_json)):
                for path in _places(commit, name):
                    found = as_json(pq.ParquetFile(self._manifest.root / path).read())
                    keys += found[0]
                    values += found[1]
            self._publisher.publish(self._state.id, commit.number, keys, values)
        if self._group and commit.ends:
            try:
                rounds.ask(self._source, lambda origin: origin.follow(self._group, commit.ends))
            except HeadraceError as error:
                log.warning("the job's group could not be moved", group=self._group, error=str(error))


def _places(commit: Commit, folder: str) -> list[str]:
    """The files of a commit that stand in a folder."""
    return [path for file, path in commit.files if file.folder == folder or file.folder.startswith(f"{folder}/")]


def _place(commit: Commit, folder: str) -> str:
    found = _places(commit, folder)
    if not found:
        raise InvalidOption(f"the folder was not made by this job: commit {commit.number} has no {folder}")
    return found[0]
