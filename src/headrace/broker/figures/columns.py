"""What a row of figures has, by kind: its names first, and then what is counted (since the broker started) or is so at
the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """The columns of a kind."""

    names: Sequence[str]
    """What the row is about."""
    values: Sequence[str]

    @property
    def columns(self) -> list[str]:
        return [*self.names, *self.values]


NODE, DOORS, APIS, TOPICS, QUEUES, GROUPS = "node", "doors", "apis", "topics", "queues", "groups"
QUEUE_FIGURES = (
    *("depth", "in_flight", "deferred", "blocked", "condemned", "stuck", "consumers"),
    *("delivered", "finished", "requeued", "timed_out", "dead", "lost", "poisoned"),
)
KINDS: Mapping[str, Kind] = {
    NODE: Kind(
        ("node",),
        (
            *("started_ms", "topics", "partitions", "offline", "in_sync", "bytes", "disk_bytes", "disk_free_bytes"),
            *("cpu_seconds", "memory_bytes", "messages_in", "bytes_in", "bytes_out", "connections", "requests"),
            *("errors", "timers", "half_pending", "half_parked", "transactions_open", "ready", "dead", "lag"),
        ),
    ),
    DOORS: Kind(
        ("door",),
        ("connections", "accepted", "refused", "unread", "handshakes_failed", "requests", "errors"),
    ),
    APIS: Kind(("door", "api"), ("requests", "errors", "seconds", "buckets")),
    TOPICS: Kind(
        ("topic",),
        (
            *("internal", "partitions", "offline", "messages", "messages_in", "bytes", "bytes_in", "bytes_out"),
            *("batches_in", "blocked", "rejected", "dropped", "passed_by", "duplicates"),
        ),
    ),
    QUEUES: Kind(("topic", "queue"), ("paused", *QUEUE_FIGURES, "oldest_ms")),
    GROUPS: Kind(("group", "topic"), ("kind", "state", "members", "committed", "lag", "oldest_ms")),
}


def place(kind: str, column: str) -> int:
    """Where a row of a kind has a value."""
    return KINDS[kind].values.index(column)
