"""Rules for brokers that bring none: what is worth knowing of any broker from the first minute on."""

from __future__ import annotations

from headrace.console.client.models import Rule

MINUTE_MS = 60_000


def _rule(id: str, name: str, figure: str, threshold: float, minutes: float, severity: str = "warning") -> Rule:
    return Rule(
        id=id,
        name=name,
        figure=figure,
        threshold=threshold,
        for_ms=round(minutes * MINUTE_MS),
        severity=severity,
        built_in=True,
    )


DEFAULTS = (
    _rule("broker-away", "The broker does not answer", "broker_away_seconds", 30, 0, "critical"),
    _rule("offline-partitions", "Partitions are offline", "offline_partitions", 0, 0, "critical"),
    _rule("disk-full", "The disk is nearly full", "disk_used_percent", 90, 5, "critical"),
    _rule("disk-filling", "The disk fills up", "disk_used_percent", 80, 15),
    _rule("group-behind", "A group is far behind", "group_lag_seconds", 600, 5),
    _rule("group-falling-behind", "A group falls behind steadily", "group_lag_growth", 100, 15),
    _rule("queue-waits", "Messages of a queue wait for long", "queue_oldest_seconds", 900, 5),
    _rule("dead-letters", "Messages are given up", "dead_letters_rate", 0, 1),
    _rule("errors", "Many requests fail", "error_rate", 10, 5),
    _rule("throughput-drop", "Far less comes in than yesterday at this hour", "throughput_drop", 80, 15),
    _rule("connections-refused", "Clients are turned away", "connections_refused", 0, 1),
    _rule("transaction-hangs", "A transaction hangs", "transactions_hanging_seconds", 300, 0),
)
