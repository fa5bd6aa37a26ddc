"""How far a streaming query is behind, from the progress that Spark reports of it.

Spark's own Kafka source puts `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `minOffsetsBehindLatest` into the
metrics of its progress. A source that is written in Python cannot: Spark 4.3 asks no such source for metrics. But the
progress has where a query stands and where its topics end, and that gives the same numbers.
"""

from __future__ import annotations

import json
from typing import Any


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


def parse_offsets(offsets: Any) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition, from {topic: {partition: offset}}: parsed, as text, or none at all."""
    by_topic = json.loads(offsets) if isinstance(offsets, str) else offsets
    return {(topic, int(index)): offset for topic, each in (by_topic or {}).items() for index, offset in each.items()}


def _behind(source: Any) -> dict[tuple[str, int], int]:
    done, there = (parse_offsets(_field(source, name)) for name in ("endOffset", "latestOffset"))
    return {each: max(0, offset - done.get(each, 0)) for each, offset in there.items()}


def _field(source: Any, name: str) -> Any:
    return source[name] if isinstance(source, dict) else getattr(source, name)
