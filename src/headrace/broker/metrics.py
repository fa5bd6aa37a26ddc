"""What the broker counts.

Counting is on the hot path, so a counter is a plain number on a slotted object and a histogram is a list of numbers;
the doors fetch the object once and add to it. Everything that can be known from the state itself (offsets, sizes,
lag) is not counted but looked at when Prometheus scrapes (`scrape.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

# Topics that are counted apart; those of further ones are counted together.
COUNTED_MAX = 20_000
# Upper bounds in seconds. A request that waits for an fsync takes about 0.3 ms, a long poll half a second.
LATENCY_BOUNDS: Sequence[float] = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
OTHER = "other"


@dataclass(slots=True, eq=False)
class Histogram:
    """Counts in fixed buckets."""

    # One more than the bounds: what lies above the last.
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one event that took so long."""
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True, eq=False)
class ApiMetrics:
    """The requests of one API of one door."""

    name: str
    requests: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)

    def failed(self, error: str) -> None:
        """Count an error that was answered, by its name in the door's protocol."""
        self.errors[error] = self.errors.get(error, 0) + 1


@dataclass(slots=True, eq=False)
class TopicMetrics:
    """The traffic of one topic through all doors."""

    batches_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    # Of `overflow`: requests that wait now, requests refused, records dropped.
    blocked: int = 0
    rejected: int = 0
    dropped: int = 0
    # Records that went before a group had read them.
    passed_by: int = 0
    # Records that were not stored, because their deduplication ids were there before.
    duplicates: int = 0


@dataclass(slots=True, eq=False)
class DoorMetrics:
    """The connections of one door."""

    name: str
    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_unread: int = 0
    """Cut off because too much waited to be read, when a reply of this door was added to it."""
    handshakes_failed: int = 0


@dataclass(slots=True, eq=False)
class Metrics:
    """The broker's counters."""

    apis: dict[tuple[str, str], ApiMetrics] = field(default_factory=dict)
    doors: dict[str, DoorMetrics] = field(default_factory=dict)
    topics: dict[str, TopicMetrics] = field(default_factory=dict)
    parts: list[Callable[[], str]] = field(default_factory=list)
    """What others than the broker show, in Prometheus' text form."""

    def api(self, door: str, name: str) -> ApiMetrics:
        """The counters of an API. There are as many as the door has APIs: never pass a client's own words."""
        return self.apis.get((door, name)) or self.apis.setdefault((door, name), ApiMetrics(name))

    def door(self, name: str) -> DoorMetrics:
        """The counters of a door."""
        return self.doors.get(name) or self.doors.setdefault(name, DoorMetrics(name))

    def topic(self, name: str) -> TopicMetrics:
        """The counters of a topic, or those that all topics beyond the bound share. Only for topics that exist."""
        found = self.topics.get(name)
        if found is None:
            if len(self.topics) >= COUNTED_MAX:
                name = OTHER
            found = self.topics.setdefault(name, TopicMetrics())
        return found

    def forget_all_but(self, topics: Container[str]) -> None:
        """Forget the topics that are gone: their names would fill the table."""
        for name in [name for name in self.topics if name not in topics and name != OTHER]:
            del self.topics[name]
