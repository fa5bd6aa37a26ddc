"""How far a streaming query is behind, from the progress that Spark reports of it.

Spark's own Kafka source puts `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `minOffsetsBehindLatest` into the
metrics of its progress. A source that is written in Python cannot: Spark 4.3 asks no such source for metrics. But the
progress has where a query stands and where its topics end, and that gives the same numbers.
"""

from __future__ import annotations

from typing import Any

from headrace.pipeline.offsets import flatten


def metrics(source: Any) -> dict[str, str]:
    """The three metrics by the names and in the form of Spark's own source; empty before the first batch. `source` is
    one of the `sources` of a progress: of `query.lastProgress`, or of the event that a StreamingQueryListener gets."""
    behind = list(_behind(source).values())
    if not behind:
        return {}
    return {
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "minOffsetsBehindLatest": str(min(behind)),
    }


def count_waiting(source: Any) -> int | None:
    """How many offsets wait, over all partitions; None where the progress does not have them."""
    behind = _behind(source)
    return sum(behind.values()) if behind else None


def _behind(source: Any) -> dict[tuple[str, int], int]:
    done, there = (flatten(_field(source, name)) for name in ("endOffset", "latestOffset"))
    return {each: max(0, offset - done.get(each, 0)) for each, offset in there.items()}


def _field(source: Any, name: str) -> Any:
    return source[name] if isinstance(source, dict) else getattr(source, name)
