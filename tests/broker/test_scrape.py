from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker import exposition, scrape, steps
from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.broker.scrape import group_lag, render
from headrace.format import records
from headrace.log.interface import Topic

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


async def scraped(broker: Broker, **options: Any) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families((await render(broker, **options)).decode()):
        for sample in family.samples:
            samples[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return samples


async def test_prometheus_gets_so_many_topics_and_the_sum_of_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TOPICS_MAX", 2)
    for name in ("a", "b", "c", "d"):
        await broker.topics.create(name)
        broker.metrics.topic(name).bytes_in += 1
    samples = await scraped(broker)
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
    samples = await scraped(broker)
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
    samples = await scraped(broker, partitions=True)
    assert samples["headrace_partition_end_offset", "1", "orders"] == 1
    assert samples["headrace_partition_start_offset", "1", "orders"] == 0
    assert samples["headrace_partition_bytes", "1", "orders"] == size
    monkeypatch.setattr(scrape, "SERIES_MAX", 2)
    samples = await scraped(broker, partitions=True)
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
    assert await group_lag(broker) == {("g", "orders"): 6 + 5, (odd, "orders"): 0}
    assert (await scraped(broker))["headrace_group_lag", "g", "orders"] == 11
    assert (await scraped(broker))["headrace_group_lag", odd, "orders"] == 0


async def test_every_figure_is_documented(broker: Broker) -> None:
    documented = set(re.findall(r"`(headrace_\w+)`", DOCS.read_text()))
    await broker.topics.create("orders")
    families = list(text_string_to_metric_families((await render(broker, partitions=True)).decode()))
    counters = {family.name for family in families if family.type == "counter"}
    assert {name + "_total" if name in counters else name for name in {each.name for each in families}} == documented


async def test_a_scrape_takes_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics, queues and groups there are: after so many lines, or so much that was looked at."""
    for number in range(300):
        topic = await broker.topics.create(f"t{number}", 1)
        broker.metrics.topic(f"t{number}").bytes_in += 1
        await broker.queues.ensure(topic, "q")
        await broker.groups.commit(f"g{number}", [Commit(topic.name, topic.id, 0, 0)])
    monkeypatch.setattr(scrape, "TOPICS_MAX", 100)
    longest = turns = 0
    made: list[int] = []
    sleep = asyncio.sleep
    join = exposition.Exposition._write

    async def counted(seconds: float) -> None:
        nonlocal turns
        turns += 1
        made.clear()
        await sleep(seconds)

    async def written(self: Any, lines: Any) -> None:
        def each() -> Any:
            nonlocal longest
            for line in lines:
                made.append(1)
                longest = max(longest, len(made))
                yield line

        await join(self, each())

    monkeypatch.setattr(exposition.Exposition, "_write", written)
    monkeypatch.setattr(exposition.asyncio, "sleep", counted)
    text = await render(broker, partitions=True)
    lines = text.count(b"\n")
    assert longest <= exposition.STEP_LINES
    assert turns >= lines // exposition.STEP_LINES + 300 // steps.STEP_ITEMS


async def test_topics_that_come_and_go_while_it_is_written_do_no_harm(broker: Broker) -> None:
    for number in range(600):
        await broker.topics.create(f"t{number}", 1)
        broker.metrics.topic(f"t{number}").bytes_in += 1
    scraping = asyncio.ensure_future(render(broker, partitions=True))
    for number in range(600, 620):
        await asyncio.sleep(0)
        broker.metrics.topic(f"t{number}").bytes_in += 1
        await broker.topics.delete(f"t{number - 600}")
        await broker.topics.create(f"t{number}", 1)
    assert b"headrace_topics" in await scraping
