from __future__ import annotations

import asyncio

import pytest
from tests.broker.test_scrape import scraped

from headrace.broker import queue_metrics
from headrace.broker.broker import Broker
from headrace.broker.queue_metrics import ages
from headrace.format import records


class Sink:
    def __init__(self) -> None:
        self.messages: list[tuple[int, int]] = []

    def deliver(self, claimed: object) -> None:
        self.messages += claimed.attempts()  # type: ignore[attr-defined]

    def gone(self, reason: str) -> None:
        pass


async def test_queues_are_looked_at_when_scraped(broker: Broker):
    topic = await broker.topics.create("orders", 1)
    await topic.partitions[0].load()
    long_ago = broker.runtime.clock.now_ms() - 60_000
    topic.partitions[0].append(records.build([(long_ago, b"k", b"v", [])] * 5))
    while topic.partitions[0].high_watermark < 5:
        await asyncio.sleep(0)
    queue = await broker.queues.ensure(topic, "mail")
    await broker.queues.ensure(topic, "late#ephemeral")
    sink = Sink()
    consumer = queue.subscribe(sink)
    consumer.ready(3)
    while len(sink.messages) < 3:
        await asyncio.sleep(0)
    consumer.ready(1)
    assert consumer.finish(0, *sink.messages[0])
    assert consumer.requeue(0, *sink.messages[1], 60_000)
    await broker.queues.pause(queue, True)
    samples = await scraped(broker)
    found = {name: value for (name, *labels), value in samples.items() if labels == ["mail", "orders"]}
    assert {name.removeprefix("headrace_queue_"): value for name, value in found.items()} == {
        "ready": 2,
        "in_flight": 1,
        "deferred": 1,
        "blocked": 0,
        "condemned": 0,
        "stuck": 0,
        "consumers": 1,
        "paused": 1,
        "delivered_total": 3,
        "finished_total": 1,
        "requeued_total": 1,
        "timed_out_total": 0,
        "dead_total": 0,
        "lost_total": 0,
        "poisoned_total": 0,
        "lookahead_hits_total": 0,
    }
    assert samples["headrace_queue_ready", "late#ephemeral", "orders"] == 0
    known = await ages(broker)
    assert known["orders", "late#ephemeral"] == 0
    aged = await scraped(broker, queue_ages=known)
    assert 60 <= aged["headrace_queue_oldest_seconds", "mail", "orders"] < 120
    assert samples["headrace_timer_pending",] == 0
    assert samples["headrace_deliveries_dropped_total",] == 0


async def test_only_so_many(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue_metrics, "QUEUES_MAX", 2)
    monkeypatch.setattr(queue_metrics, "AGES_MAX", 1)
    topic = await broker.topics.create("orders", 1)
    for name in ("a", "b", "c"):
        await broker.queues.ensure(topic, name)
    assert sum(name == "headrace_queue_ready" for name, *_ in await scraped(broker)) == 2
    assert list(await ages(broker)) == [("orders", "a")]
