from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker import metrics
from headrace.broker.broker import Broker
from headrace.broker.metrics import LATENCY_BOUNDS, Histogram, Metrics, group_lag, render
from headrace.format import records
from headrace.log.interface import Topic

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def scraped(broker: Broker, **options: Any) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(render(broker, **options).decode()):
        for sample in family.samples:
            samples[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return samples


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


async def test_prometheus_gets_so_many_topics_and_the_sum_of_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TOPICS_MAX", 2)
    for name in ("a", "b", "c", "d"):
        await broker.topics.create(name)
        broker.metrics.topic(name).bytes_in += 1
    samples = scraped(broker)
    found = {name: samples["headrace_topic_bytes_in_total", name] for name in ("a", "b", "other")}
    assert found == {"a": 1, "b": 1, "other": 2}
    assert ("headrace_topic_bytes_in_total", "c") not in samples


async def test_what_a_scrape_shows(broker: Broker) -> None:
    await broker.topics.create("orders", 3)
    counted = broker.metrics
    counted.topic("orders").bytes_in += 100
    counted.topic("orders").batches_in += 2
    counted.topic("orders").bytes_out += 50
    counted.topic("gone").bytes_in += 1
    counted.door("kafka").connections = 4
    api = counted.api("kafka", "produce")
    assert counted.api("kafka", "produce") is api
    api.requests += 2
    api.failed("message_too_large")
    api.latency.observe(0.0002)
    api.latency.observe(3.0)
    samples = scraped(broker)
    assert samples["headrace_topics",] == 1
    assert samples["headrace_partitions",] == 3
    assert samples["headrace_topic_bytes_in_total", "orders"] == 100
    assert samples["headrace_topic_batches_in_total", "orders"] == 2
    assert samples["headrace_topic_bytes_out_total", "orders"] == 50
    assert ("headrace_topic_bytes_in_total", "gone") not in samples
    assert samples["headrace_connections", "kafka"] == 4
    assert samples["headrace_requests_total", "produce", "kafka"] == 2
    assert samples["headrace_request_errors_total", "produce", "kafka", "message_too_large"] == 1
    assert samples["headrace_request_seconds_bucket", "produce", "kafka", "0.00025"] == 1
    assert samples["headrace_request_seconds_bucket", "produce", "kafka", "5.0"] == 2
    assert samples["headrace_request_seconds_bucket", "produce", "kafka", "+Inf"] == 2
    assert samples["headrace_request_seconds_count", "produce", "kafka"] == 2
    assert samples["headrace_request_seconds_sum", "produce", "kafka"] == pytest.approx(3.0002)
    assert "headrace_log_journal_flushes_total" in {name for name, *_ in samples}
    assert not any(name.startswith("headrace_partition_") for name, *_ in samples)


async def written(topic: Topic) -> None:
    """Batches of one turn are written together, at its end."""
    while any(partition.high_watermark < partition.end for partition in topic.partitions):
        await asyncio.sleep(0)


async def test_partitions_only_where_asked_for_and_only_so_many(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.topics.create("orders", 3)
    for partition in topic.partitions:
        await partition.load()
    batch = records.build([(broker.runtime.clock.now_ms(), b"k", b"v", [])])
    size = len(batch)
    topic.partitions[1].append(batch)
    await written(topic)
    samples = scraped(broker, partitions=True)
    assert samples["headrace_partition_end_offset", "1", "orders"] == 1
    assert samples["headrace_partition_start_offset", "1", "orders"] == 0
    assert samples["headrace_partition_bytes", "1", "orders"] == size
    monkeypatch.setattr(metrics, "SERIES_MAX", 2)
    samples = scraped(broker, partitions=True)
    assert sum(name == "headrace_partition_bytes" for name, *_ in samples) == 2


async def test_lag_is_what_is_left_to_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await broker.topics.create("orders", 2)
    for partition in topic.partitions:
        await partition.load()
        for _ in range(10):
            partition.append(records.build([(broker.runtime.clock.now_ms(), b"k", b"v", [])]))
    await written(topic)
    await topic.partitions[1].trim(5)
    odd = 'g"\\\n'
    committed = [
        (odd, "orders", 0, 10),
        ("g", "orders", 0, 4),
        ("g", "orders", 1, 2),
        ("g", "gone", 0, 1),
        ("g", "orders", 9, 0),
    ]
    monkeypatch.setattr(broker.groups, "committed_offsets", lambda: iter(committed), raising=False)
    # Of partition 1 retention took what the group had not read: that is loss, not lag.
    assert group_lag(broker) == {("g", "orders"): 6 + 5, (odd, "orders"): 0}
    assert scraped(broker)["headrace_group_lag", "g", "orders"] == 11
    assert scraped(broker)["headrace_group_lag", odd, "orders"] == 0


async def test_every_figure_is_documented(broker: Broker) -> None:
    documented = set(re.findall(r"`(headrace_\w+)`", DOCS.read_text()))
    await broker.topics.create("orders")
    families = {family.name for family in text_string_to_metric_families(render(broker, partitions=True).decode())}
    counters = {
        family.name
        for family in text_string_to_metric_families(render(broker, partitions=True).decode())
        if family.type == "counter"
    }
    assert {name + "_total" if name in counters else name for name in families} == documented
