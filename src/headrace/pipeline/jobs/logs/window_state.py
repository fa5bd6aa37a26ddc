"""Open windows as Spark's state: what `transformWithState` is given.

What tasks have counted is small, so one group has all of it: one value, which is read and written once in a batch, with
the clock and the counts of open windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from headrace.pipeline.jobs.logs import counts, results
from headrace.pipeline.jobs.logs.clock import Clock, Signal
from headrace.pipeline.jobs.logs.counts import LATE, LEVEL, Windows
from headrace.pipeline.jobs.logs.fields import ERRORS

# Of a batch, for Spark's progress.
SUMS = ("rows", "parsed", "broken", "late", "errors", "windows")
# What comes out of a batch: the rows of closed windows, those of late lines, and the clock; and the sums.
OUTPUT = ", ".join(["windows BINARY, late BINARY, clock STRING", *(f"{each}_count BIGINT" for each in SUMS)])

Kept = tuple[str, bytes]
"""The clock, and the counts of open windows."""


class WindowState(StatefulProcessor):
    """Reports of tasks, into the rows of windows that have ended."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("windows", "clock STRING, counts BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        kept, output = take_reports(self._windows, self._kept.get(), list(rows))
        self._kept.update(kept)
        yield Row(**output)

    def close(self) -> None:
        pass


def take_reports(how: Windows, kept: Kept | None, rows: Sequence[Any]) -> tuple[Kept, dict[str, Any]]:
    """What is kept behind a batch, and what comes out of it.

    All that it depends on is in the rows and in the state, the time of day too: a batch that runs again, after its rows
    were written and before Spark knew, must give out the same.
    """
    before = Clock() if kept is None else Clock.load(kept[0])
    now_ms = max(row["now"] for row in rows)
    signals = [Signal.load(row["signal"]) for row in rows if row["signal"] is not None]
    reports = [row for row in rows if row["signal"] is None]
    clock = before
    for each in signals:
        clock = clock.signal(each, now_ms)
    clock = clock.advance({(each["topic"], each["partition"]): each["seen"] for each in reports}, now_ms)
    clock = clock.close(how.lateness, now_ms)
    fresh = counts.add([counts.load(bytes(each["counts"])) for each in reports])
    late, fresh = counts.of_kind(fresh, LATE), counts.not_of_kind(fresh, LATE)
    whole = fresh if kept is None else counts.add([counts.load(bytes(kept[1])), fresh])
    if any(each.close for each in signals) and whole.num_rows:
        clock = replace(clock, closed=max(clock.closed, counts.last_window(whole) + how.size))
    finished, still = counts.split(whole, clock.closed - how.size + 1)
    windows = results.windows_of(finished, how.size)
    parsed, behind = counts.total(fresh, LEVEL), counts.total(late, LATE)
    broken = sum(each["broken"] for each in reports)
    sums = {
        "rows": parsed + broken + behind,
        "parsed": parsed,
        "broken": broken,
        "late": behind,
        "errors": counts.total(fresh, LEVEL, ERRORS),
        "windows": windows.num_rows,
    }
    clock = replace(clock, totals=before.totals.plus(counts.total(still, LEVEL), sums))
    output = {
        "windows": counts.dump(windows),
        "late": counts.dump(results.late_of(late)),
        "clock": clock.dump(),
        **{f"{name}_count": count for name, count in sums.items()},
    }
    return (clock.dump(), counts.dump(still)), output
