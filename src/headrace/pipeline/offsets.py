"""Values by partition as JSON, in the form of Spark's Kafka source: {topic: {partition: value}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def nest(values: Mapping[tuple[str, int], T]) -> dict[str, dict[str, T]]:
    """By topic and partition, in order."""
    found: dict[str, dict[str, T]] = {}
    for (topic, index), value in sorted(values.items()):
        found.setdefault(topic, {})[str(index)] = value
    return found


def assign(ranges: Mapping[tuple[str, int], tuple[int, int]]) -> dict[str, str]:
    """The source's options for these offsets, the last ones excluded, of these partitions alone."""
    starts = nest({each: start for each, (start, _) in ranges.items()})
    ends = nest({each: end for each, (_, end) in ranges.items()})
    partitions = {topic: [int(index) for index in each] for topic, each in starts.items()}
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def flatten(values: Any) -> dict[tuple[str, int], Any]:
    """What was nested: parsed, as text, or nothing at all."""
    by_topic = json.loads(values) if isinstance(values, str) else values
    return {(topic, int(index)): value for topic, each in (by_topic or {}).items() for index, value in each.items()}
