"""What alerts can be about, and the rules that there are from the first minute.

The console's process judges them: a broker cannot notify that it is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MINUTE = 60_000


class Figure(NamedTuple):
    """Something that a rule compares with a threshold."""

    name: str
    unit: str
    scopes: Sequence[str]
    """What a rule may narrow it down by."""
    doc: str


FIGURES = (
    Figure("group_lag", "messages", ("group", "topic", "owner"), "Messages that a group has not read of a topic."),
    Figure("group_lag_seconds", "seconds", ("group", "topic", "owner"), "How long the oldest of them has waited."),
    Figure("group_lag_growth", "messages/s", ("group", "topic", "owner"), "How fast the lag of a group grows."),
    Figure("queue_depth", "messages", ("queue", "topic", "owner"), "Messages of a queue that are ready."),
    Figure("queue_oldest_seconds", "seconds", ("queue", "topic", "owner"), "The age of the oldest of them."),
    Figure("dead_letters_rate", "messages/s", ("queue", "topic", "owner"), "Messages that die, over some minutes."),
    Figure("error_rate", "errors/s", (), "Requests that are answered with errors, at all doors."),
    Figure("throughput_drop", "percent", ("topic", "owner"), "Below the same hour of yesterday."),
    Figure("disk_used_percent", "percent", (), "Of the device with the data."),
    Figure("offline_partitions", "partitions", (), "Partitions that cannot be read."),
    Figure("broker_away_seconds", "seconds", (), "For how long the broker has not answered."),
    Figure("connections_refused", "connections/s", (), "Connections that were refused at the limit, at all doors."),
    Figure("transactions_hanging_seconds", "seconds", (), "The age of the oldest transaction that is overdue."),
)


def _rule(name: str, figure: str, threshold: float, for_ms: int, severity: str = "warning") -> dict[str, Any]:
    return {
        "name": name,
        "figure": figure,
        "scope": {},
        "compare": ">",
        "threshold": threshold,
        "for_ms": for_ms,
        "severity": severity,
        "channels": [],
        "enabled": True,
        "labels": {},
        "runbook": "",
    }


DEFAULT_RULES: Mapping[str, Mapping[str, Any]] = {
    "group-behind": _rule("A group is behind", "group_lag_seconds", 300, 5 * MINUTE),
    "group-falls-behind": _rule("A group falls further behind", "group_lag_growth", 100, 10 * MINUTE),
    "queue-old": _rule("A queue has old messages", "queue_oldest_seconds", 600, 5 * MINUTE),
    "dead-letters": _rule("Messages die", "dead_letters_rate", 0, MINUTE),
    "errors": _rule("Many requests fail", "error_rate", 5, 5 * MINUTE),
    "throughput-drop": _rule("A topic has far fewer messages than yesterday", "throughput_drop", 80, 30 * MINUTE),
    "disk": _rule("The disk fills up", "disk_used_percent", 85, 5 * MINUTE),
    "disk-full": _rule("The disk is nearly full", "disk_used_percent", 95, MINUTE, "critical"),
    "offline": _rule("Partitions are offline", "offline_partitions", 0, 0, "critical"),
    "away": _rule("The broker does not answer", "broker_away_seconds", 30, 0, "critical"),
    "refused": _rule("Connections are refused", "connections_refused", 0, MINUTE),
    "transactions": _rule("A transaction hangs", "transactions_hanging_seconds", 300, MINUTE, "critical"),
}
"""By their ids."""
