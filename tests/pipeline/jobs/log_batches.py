"""A streaming query of `logs` that runs here instead of on Spark, in the same order of steps.

Spark writes down what a batch reads, runs tasks, keeps the state, calls the sink, and writes down that the batch is
done. So does this, with files instead of a state store; each task runs twice, as one that is tried again.
"""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.logs.job import LogJob, check
from headrace.pipeline.jobs.logs.line_counter import LineCounter
from headrace.pipeline.jobs.logs.lines import LineFormat
from headrace.pipeline.jobs.logs.result_sink import Output, ResultWriter
from headrace.pipeline.jobs.logs.results_folder import ResultsFolder
from headrace.pipeline.jobs.logs.window_state import take_reports
from headrace.pipeline.jobs.queries import _last
from headrace.pipeline.options import parse
from headrace.pipeline.origin import is_archive
from headrace.pipeline.readers import StreamReader


class HereJob(LogJob):
    def _start(self, id: str, every: float | None) -> Any:
        return Query(self, id, every)


class Query:
    def __init__(self, job: Any, id: str, every: float | None) -> None:
        options = parse(job._source, streaming=True, bounded=True)
        self._reader = StreamReader(options)
        self._limit = ReadMaxRows(options.offsets_per_trigger) if options.offsets_per_trigger else ReadAllAvailable()
        self._folder: ResultsFolder = job._folder
        self._windows = job._windows
        self._counter = LineCounter(job._format, job._windows, job._folder, is_archive(options))
        self._writer = ResultWriter(job._folder, id, job._publish)
        self._available_now = every is None
        if self._available_now:
            self._reader.prepareForTriggerAvailableNow()
        for name in ("offsets", "state", "commits"):
            (self._folder.checkpoint / name).mkdir(parents=True, exist_ok=True)
        self.isActive = True
        self.recentProgress: list[dict[str, Any]] = []

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802 -- Spark's name
        if not self._run_batch():
            self.isActive = not self._available_now
            time.sleep(seconds if self.isActive else 0)

    def stop(self) -> None:
        self._reader.stop()

    def exception(self) -> None:
        return None

    def _at(self, batch: int) -> tuple[dict[str, Any], int, int]:
        _, _, records, signals, now = self._path("offsets", batch).read_text().splitlines()
        return json.loads(records), int(signals), int(now)

    def _path(self, name: str, batch: int) -> Path:
        return self._folder.checkpoint / name / str(batch)

    def _run_batch(self) -> bool:
        batch = _last(self._folder.checkpoint / "commits") + 1
        start, heard, _ = self._at(batch - 1) if batch else (self._reader.initialOffset(), 0, 0)
        if not self._path("offsets", batch).exists():
            end = self._reader.latestOffset(start, self._limit)
            signals = sorted(self._folder.signals.iterdir())
            if end == start and len(signals) == heard:
                return False
            lines = ["v1", "{}", json.dumps(end), str(len(signals)), str(round(time.time() * 1_000))]
            self._path("offsets", batch).write_text("\n".join(lines))
        end, until, now = self._at(batch)
        rows: list[dict[str, Any]] = []
        for piece in self._reader.partitions(start, end):
            blocks = list(self._reader.read(piece))
            for _ in range(2):
                reports = [row for each in self._counter.count_batch(batch, iter(blocks)) for row in each.to_pylist()]
            rows += [{**row, "now": now} for row in reports]
        read = len(rows)
        for path in sorted(self._folder.signals.iterdir())[heard:until]:
            rows.append({"signal": json.loads(path.read_text())["signal"], "now": now})
        kept = pickle.loads(self._path("state", batch - 1).read_bytes()) if batch else None
        messages = []
        if rows:
            kept, output = take_reports(self._windows, kept, rows)
            messages.append(Output((output,)))
        self._path("state", batch).write_bytes(pickle.dumps(kept))
        self._writer.commit(messages, batch)
        self._path("commits", batch).touch()
        self._reader.commit(end)
        source = {"numInputRows": read, "endOffset": end, "latestOffset": self._reader.reportLatestOffset()}
        self.recentProgress.append({"batchId": batch, "sources": [source]})
        return True


def job_of(
    address: str,
    topic: str,
    root: Path,
    *,
    into: str = "",
    application: str = "",
    data: str = "",
    window: int = 60,
    group: str = "watcher",
    keep_open: bool = False,
    idle: float = 60.0,
    **options: str,
) -> HereJob:
    """A job whose query runs here."""
    _, windows = check(root, window, 60, None, into)
    source = rounds.stream_options([topic], "", address, data, options, group)
    publish = {"bootstrap": address, "topic": into, "application": application or f"logs-{into}"} if into else None
    return HereJob(None, source, ResultsFolder(root), LineFormat(), windows, publish, keep_open, idle)  # type: ignore[arg-type]
