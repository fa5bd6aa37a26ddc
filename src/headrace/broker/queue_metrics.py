"""What Prometheus reads of queues, of `__deliveries` and of the timer.

Everything is looked at when Prometheus scrapes. There may be a thousand queues with fifteen figures each, so the lines
are written here: prometheus_client takes ten times as long, and this runs on the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.queues import Queue

QUEUES_MAX = 1_000
# An age is read from the log: no more than this many for a scrape.
AGES_MAX = 200

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


def _known(broker: Broker) -> list[Queue]:
    """The queues whose figures are known: a scrape must not warm partitions that were not used since the start."""
    queues = broker.queues.all()
    return [queue for queue in queues if all(lane.partition.loaded for lane in queue.lanes.values())][:QUEUES_MAX]


async def ages(broker: Broker) -> dict[tuple[str, str], int]:
    """The age of the oldest unsettled message in milliseconds, by topic and queue."""
    return {(queue.topic.name, queue.name): await queue.age_ms() for queue in _known(broker)[:AGES_MAX]}


def render_queues(broker: Broker, known_ages: Mapping[tuple[str, str], int]) -> str:
    """The text form of all of it."""
    queues = [
        (queue, queue.figures(), f'{{queue="{queue.name}",topic="{queue.topic.name}"}}') for queue in _known(broker)
    ]
    text = []
    for field, (name, help) in GAUGES.items():
        lines = [f"headrace_queue_{name}{labels} {getattr(figures, field)}" for _, figures, labels in queues]
        text += family(f"headrace_queue_{name}", "gauge", help, lines)
    lines = [f"headrace_queue_paused{labels} {int(queue.paused)}" for queue, _, labels in queues]
    text += family("headrace_queue_paused", "gauge", "1 while the queue is paused.", lines)
    lines = [
        f"headrace_queue_oldest_seconds{labels} {age / 1000}"
        for queue, _, labels in queues
        if (age := known_ages.get((queue.topic.name, queue.name))) is not None
    ]
    text += family("headrace_queue_oldest_seconds", "gauge", "The age of the oldest unsettled message.", lines)
    for field, (name, help) in COUNTERS.items():
        lines = [f"headrace_queue_{name}_total{labels} {getattr(figures, field)}" for _, figures, labels in queues]
        text += family(f"headrace_queue_{name}_total", "counter", help, lines)
    deliveries = broker.deliveries
    for name, kind, help, value in (
        ("headrace_deliveries_records_total", "counter", "Records written to __deliveries.", deliveries.written),
        ("headrace_deliveries_dropped_total", "counter", "Messages whose event was dropped.", deliveries.dropped),
        ("headrace_timer_pending", "gauge", "Messages that wait for their time.", broker.timer.pending),
    ):
        text += family(name, kind, help, [f"{name} {value}"])
    return "\n".join([*text, ""])


def family(name: str, kind: str, help: str, lines: list[str]) -> list[str]:
    """The lines of one metric."""
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", *lines]
