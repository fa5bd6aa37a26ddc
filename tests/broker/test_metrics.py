from __future__ import annotations

import pytest

from headrace.broker import metrics
from headrace.broker.metrics import LATENCY_BOUNDS, Histogram, Metrics


def test_a_histogram_counts_up_to_its_bounds() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.0001, 0.00011, 30.0, 31.0):
        histogram.observe(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert sum(histogram.counts) == 5
    assert list(LATENCY_BOUNDS) == sorted(LATENCY_BOUNDS)


def test_topics_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COUNTED_MAX", 2)
    counted = Metrics()
    for name in ("a", "b", "c", "d", "a"):
        counted.topic(name).bytes_in += 1
    assert {name: topic.bytes_in for name, topic in counted.topics.items()} == {"a": 2, "b": 1, "other": 2}
