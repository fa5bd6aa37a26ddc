"""What Prometheus reads of queues, of `__deliveries` and of the timer.

Everything is looked at when Prometheus scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.exposition import COUNTER, GAUGE, Exposition
from headrace.broker.steps import in_steps

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.queues import Queue

QUEUES_MAX = 1_000
# An age is read from the log: no more than this many for a scrape.
AGES_MAX = 200
STEP_AGES = 8

GAUGES = {
    "depth": ("ready", "Messages that may be handed out."),
    "in_flight": ("in_flight", "Messages that a consumer has."),
    "deferred": ("deferred", "Messages that come back at a time."),
    "blocked": ("blocked", "Messages that wait for another one of their key."),
    "condemned": ("condemned", "Dead messages that are on their way to the dead-letter topic."),
    "stuck": ("stuck", "Dead messages that the dead-letter topic does not take; they hold retention."),
    "consumers": ("consumers", "Subscriptions."),
}
COUNTERS = {
    "delivered": ("delivered", "Deliveries."),
    "finished": ("finished", "Messages settled by consumers."),
    "requeued": ("requeued", "Messages given back by consumers."),
    "timed_out": ("timed_out", "Deliveries that were not settled in time."),
    "dead": ("dead", "Messages that went to the dead-letter topic."),
    "lost": ("lost", "Messages that were gone from the log before they were settled."),
    "poisoned": ("poisoned", "Messages passed over because their batch cannot be read."),
    "lookahead_hits": ("lookahead_hits", "Times that lookahead_max kept a queue from looking further."),
}


async def _known(broker: Broker) -> list[Queue]:
    """The queues whose figures are known: a scrape must not warm partitions that were not used since the start."""
    found: list[Queue] = []
    async for queue in in_steps(broker.queues.all()):
        if all(lane.partition.loaded for lane in queue.lanes.values()):
            found.append(queue)
            if len(found) == QUEUES_MAX:
                break
    return found


async def ages(broker: Broker) -> dict[tuple[str, str], int]:
    """The age of the oldest unsettled message in milliseconds, by topic and queue."""
    found: dict[tuple[str, str], int] = {}
    for queue in (await _known(broker))[:AGES_MAX]:
        found[queue.topic.name, queue.name] = await queue.age_ms()
        if len(found) % STEP_AGES == 0:
            # What is in memory is read without a turn of the loop.
            await asyncio.sleep(0)
    return found


async def add_queues(out: Exposition, broker: Broker, known_ages: Mapping[tuple[str, str], int]) -> None:
    """Add the metrics of all of it."""
    queues = [
        (queue, queue.figures(), f'{{queue="{queue.name}",topic="{queue.topic.name}"}}')
        async for queue in in_steps(await _known(broker))
    ]
    for field, (name, help) in GAUGES.items():
        samples = ((labels, getattr(figures, field)) for _, figures, labels in queues)
        await out.add(GAUGE, f"headrace_queue_{name}", help, samples)
    paused = ((labels, queue.paused) for queue, _, labels in queues)
    await out.add(GAUGE, "headrace_queue_paused", "1 while the queue is paused.", paused)
    aged = (
        (labels, age / 1000)
        for queue, _, labels in queues
        if (age := known_ages.get((queue.topic.name, queue.name))) is not None
    )
    await out.add(GAUGE, "headrace_queue_oldest_seconds", "The age of the oldest unsettled message.", aged)
    for field, (name, help) in COUNTERS.items():
        samples = ((labels, getattr(figures, field)) for _, figures, labels in queues)
        await out.add(COUNTER, f"headrace_queue_{name}", help, samples)
    deliveries = broker.deliveries
    for kind, name, help, value in (
        (COUNTER, "headrace_deliveries_records", "Records written to __deliveries.", deliveries.written),
        (COUNTER, "headrace_deliveries_dropped", "Messages whose event was dropped.", deliveries.dropped),
        (GAUGE, "headrace_timer_pending", "Messages that wait for their time.", broker.timer.pending),
    ):
        await out.one(kind, name, help, value)
