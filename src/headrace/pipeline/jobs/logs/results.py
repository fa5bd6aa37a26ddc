"""What comes out of closed windows: a row for each window and service, in Parquet and as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.jobs.logs.fields import ERRORS
from headrace.pipeline.jobs.logs.windows import Tally, quantile

TIME = pa.timestamp("us", tz="UTC")
TOP_ERRORS = 10
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

WINDOWS = pa.schema(
    [
        ("window", TIME),
        ("until", TIME),
        ("service", pa.string()),
        ("lines", pa.int64()),
        ("errors", pa.int64()),
        ("error_rate", pa.float64()),
        ("levels", pa.map_(pa.string(), pa.int64())),
        ("timed", pa.int64()),
        ("p50", pa.float64()),
        ("p95", pa.float64()),
        ("p99", pa.float64()),
        ("slowest", pa.float64()),
        (
            "top_errors",
            pa.list_(pa.struct([("message", pa.string()), ("lines", pa.int64()), ("example", pa.string())])),
        ),
    ]
)
LATE = pa.schema([("window", TIME), ("service", pa.string()), ("level", pa.string()), ("lines", pa.int64())])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[int, str]
"""A window and a service."""


def windows_of(tally: Tally, size: int) -> Any:
    """The rows of closed windows, by time and service."""
    counts = _by_place(tally.counts)
    buckets = _by_place(tally.buckets.sort_by("bucket"))
    slowest = _by_place(tally.slowest)
    messages = _by_place(tally.messages.sort_by([("lines", "descending"), ("message", "ascending")]))
    rows = []
    for place in sorted(counts):
        levels = {row["level"]: row["lines"] for row in counts[place]}
        lines = sum(levels.values())
        errors = sum(levels.get(level, 0) for level in ERRORS)
        numbers = [row["bucket"] for row in buckets[place]]
        timed = np.array([row["lines"] for row in buckets[place]], np.int64)
        most = slowest[place][0]["slowest"] if slowest[place] else None
        row = {
            "window": _time(place[0]),
            "until": _time(place[0] + size),
            "service": place[1],
            "lines": lines,
            "errors": errors,
            "error_rate": errors / lines,
            "levels": sorted(levels.items()),
            "timed": int(timed.sum()),
            **{name: _rounded(numbers, timed, share, most) for name, share in SHARES.items()},
            "slowest": most,
            "top_errors": [
                {name: message[name] for name in ("message", "lines", "example")}
                for message in messages[place][:TOP_ERRORS]
            ],
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, WINDOWS)


def late_of(tally: Tally) -> Any:
    """The rows of late lines, by window, service and level."""
    table = tally.late.sort_by([("window", "ascending"), ("service", "ascending"), ("level", "ascending")])
    return table.set_column(0, WINDOWS.field("window"), table.column("window").cast(TIME)).cast(LATE)


def by_day(table: Any) -> list[tuple[str, Any]]:
    """The rows of each day, and the day, in UTC."""
    days = pc.strftime(table.column("window"), format="%Y-%m-%d")
    return [(day, table.filter(pc.equal(days, day))) for day in sorted(pc.unique(days).to_pylist())]


def windows_as_json(table: Any) -> tuple[list[str], list[str]]:
    """Keys (the window's time and the service) and values."""
    keys, values = [], []
    for row in table.to_pylist():
        keys.append(f"{_text(row['window'])}/{row['service']}")
        said = {**row, "window": _text(row["window"]), "until": _text(row["until"]), "levels": dict(row["levels"])}
        values.append(json.dumps(said, ensure_ascii=False))
    return keys, values


def late_as_json(table: Any) -> tuple[list[str], list[str]]:
    """Keys and values of what was late: other keys than those of windows, which are not to be replaced by these."""
    found: dict[tuple[datetime, str], dict[str, int]] = defaultdict(dict)
    for row in table.to_pylist():
        found[row["window"], row["service"]][row["level"]] = row["lines"]
    keys = [f"{_text(window)}/{service}/late" for window, service in found]
    values = [
        json.dumps(
            {"window": _text(window), "service": service, "late": sum(levels.values()), "levels": levels},
            ensure_ascii=False,
        )
        for (window, service), levels in found.items()
    ]
    return keys, values


def _by_place(table: Any) -> defaultdict[Place, list[dict[str, Any]]]:
    found: defaultdict[Place, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        found[row["window"], row["service"]].append(row)
    return found


def _rounded(buckets: list[int], lines: Any, share: float, most: float | None) -> float | None:
    """A percentile to as many digits as it means; none is above the slowest."""
    if most is None:
        return None
    return min(float(f"{quantile(buckets, lines, share):.4g}"), most)


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds").replace("+00:00", "Z")
