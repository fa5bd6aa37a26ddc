"""What comes out of closed windows: a row for each window and service, in Parquet and as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.pipeline.jobs.logs.counts import DURATION, LEVEL, MESSAGE, quantile
from headrace.pipeline.jobs.logs.fields import ERRORS

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


def windows_of(counts: Any, size: int) -> Any:
    """The rows of closed windows, by time and service."""
    found: defaultdict[Place, defaultdict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in counts.to_pylist():
        found[row["window"], row["service"]][row["kind"]].append(row)
    return pa.Table.from_pylist([_window(place, found[place], size) for place in sorted(found)], WINDOWS)


def _window(place: Place, kinds: Mapping[str, list[dict[str, Any]]], size: int) -> dict[str, Any]:
    levels = {row["name"]: row["lines"] for row in kinds[LEVEL]}
    lines, errors = sum(levels.values()), sum(levels.get(level, 0) for level in ERRORS)
    durations = sorted((int(row["name"]), row["lines"]) for row in kinds[DURATION])
    slowest = max((row["slowest"] for row in kinds[DURATION]), default=None)
    messages = sorted(kinds[MESSAGE], key=lambda row: (-row["lines"], row["name"]))
    return {
        "window": _time(place[0]),
        "until": _time(place[0] + size),
        "service": place[1],
        "lines": lines,
        "errors": errors,
        "error_rate": errors / lines,
        "levels": sorted(levels.items()),
        "timed": sum(count for _, count in durations),
        **{name: _rounded(durations, share, slowest) for name, share in SHARES.items()},
        "slowest": slowest,
        "top_errors": [
            {"message": row["name"], "lines": row["lines"], "example": row["example"]} for row in messages[:TOP_ERRORS]
        ],
    }


def late_of(counts: Any) -> Any:
    """The rows of late lines, by window, service and level."""
    table = counts.sort_by([("window", "ascending"), ("service", "ascending"), ("name", "ascending")])
    columns = {"window": "window", "service": "service", "level": "name", "lines": "lines"}
    return pa.table({name: table.column(column) for name, column in columns.items()}).cast(LATE)


def windows_as_json(table: Any) -> tuple[list[str], list[str]]:
    """Keys (the window's time and the service) and values."""
    keys, values = [], []
    for row in table.to_pylist():
        keys.append(f"{_text(row['window'])}/{row['service']}")
        texts = {**row, "window": _text(row["window"]), "until": _text(row["until"]), "levels": dict(row["levels"])}
        values.append(json.dumps(texts, ensure_ascii=False))
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


def _rounded(durations: list[tuple[int, int]], share: float, most: float | None) -> float | None:
    """A percentile to as many digits as it means; none is above the slowest."""
    if most is None:
        return None
    buckets, lines = zip(*durations, strict=True)
    return min(float(f"{quantile(buckets, lines, share):.4g}"), most)


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds").replace("+00:00", "Z")
