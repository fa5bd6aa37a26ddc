"""Readings of a broker for its rules: the figures that alerts can be about, by subject."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headrace.console.alerts.state import AWAY, Reading, Subject
from headrace.console.client.models import Transaction
from headrace.console.figures.table import FigureTable, number

GROWTH_SECONDS = 300.0
"""Lag grows by what it grew in so long."""


class Readings:
    """Makes readings; keeps the lag of the last five minutes."""

    def __init__(self) -> None:
        self._lags: dict[Subject, deque[tuple[float, float]]] = {}

    def take(
        self, table: FigureTable, now: float, drops: Mapping[Subject, float], hanging: list[Transaction]
    ) -> list[Reading]:
        """The readings of a sample. `drops` are percents below the same hour yesterday."""
        node = table.node
        found = [Reading(AWAY, (), 0.0)]

        def add(figure: str, subject: Subject, value: float | None) -> None:
            if value is not None:
                found.append(Reading(figure, subject, value))

        add("offline_partitions", (), number(node, "offline"))
        total, free = number(node, "disk_bytes"), number(node, "disk_free_bytes")
        if total > 0:
            add("disk_used_percent", (), 100 * (total - free) / total)
        add("error_rate", (), number(node, "errors_rate"))
        add("connections_refused", (), table.total("doors", "refused_rate"))
        for (topic, queue), row in table.rows("queues").items():
            subject: Subject = (("topic", topic), ("queue", queue))
            add("queue_depth", subject, number(row, "depth"))
            add("queue_oldest_seconds", subject, (table.age_ms(row) or 0.0) / 1000)
            add("dead_letters_rate", subject, number(row, "dead_rate"))
        lags: dict[Subject, deque[tuple[float, float]]] = {}
        for (group, topic), row in table.rows("groups").items():
            subject = (("group", group), ("topic", topic))
            lag = number(row, "lag")
            add("group_lag", subject, lag)
            add("group_lag_seconds", subject, (table.age_ms(row) or 0.0) / 1000)
            kept = lags[subject] = self._lags.get(subject) or deque()
            kept.append((now, lag))
            while now - kept[0][0] > GROWTH_SECONDS:
                kept.popleft()
            seconds = now - kept[0][0]
            add("group_lag_growth", subject, (lag - kept[0][1]) / seconds if seconds >= GROWTH_SECONDS / 5 else None)
        self._lags = lags
        for subject, percent in drops.items():
            add("throughput_drop", subject, percent)
        for each in hanging:
            add("transactions_hanging_seconds", (("transaction", each.transactional_id),), (each.age_ms or 0) / 1000)
        return found


def away(since: float, now: float) -> list[Reading]:
    """The one reading of a broker that does not answer."""
    return [Reading(AWAY, (), now - since)]


def drop_percent(now: float | None, yesterday: float | None) -> float | None:
    """How far a rate lies below what it was; None where there was none."""
    if now is None or not yesterday or yesterday <= 0:
        return None
    return max(0.0, 100 * (yesterday - now) / yesterday)
