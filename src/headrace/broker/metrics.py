"""What the broker counts, and how Prometheus reads it.

Counting is on the hot path, so a counter is a plain number on a slotted object and a histogram is a list of numbers;
the doors fetch the object once and add to it. Everything that can be known from the state itself (offsets, sizes,
lag) is not counted but looked at when somebody scrapes. prometheus_client only writes the text then, and is imported
no earlier.

Labels are bounded: after `TOPICS_MAX` topics the traffic of further ones is added up under `topic="other"`, and the
figures of single partitions and groups come only when asked for, the first `SERIES_MAX` of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.broker.queue_metrics import render_queues

if TYPE_CHECKING:
    from prometheus_client import Metric

    from headrace.broker.broker import Broker

TOPICS_MAX = 1_000
SERIES_MAX = 10_000
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
# Of the log's figures, those that only grow.
LOG_COUNTERS = frozenset(("journal_flushes", "journal_flushed_bytes", "compactions", "compaction_freed_bytes"))


class Histogram:
    """Counts in fixed buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        # One more than the bounds: what lies above the last.
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one event that took so long."""
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds


class ApiMetrics:
    """The requests of one API of one door."""

    __slots__ = ("errors", "latency", "name", "requests")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.errors: dict[str, int] = {}
        self.latency = Histogram()

    def failed(self, error: str) -> None:
        """Count an error that was answered, by its name in the door's protocol."""
        self.errors[error] = self.errors.get(error, 0) + 1


class TopicMetrics:
    """The traffic of one topic through all doors."""

    __slots__ = ("batches_in", "blocked", "bytes_in", "bytes_out", "dropped", "duplicates", "passed_by", "rejected")

    def __init__(self) -> None:
        self.batches_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Of `overflow`: requests that wait now, requests refused, records dropped.
        self.blocked = 0
        self.rejected = 0
        self.dropped = 0
        # Records that went before a group had read them.
        self.passed_by = 0
        # Records that were not stored, because their deduplication ids were there before.
        self.duplicates = 0


class DoorMetrics:
    """The connections of one door."""

    __slots__ = (
        "connections",
        "connections_accepted",
        "connections_refused",
        "connections_unread",
        "handshakes_failed",
        "name",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_unread = 0
        """Cut off because too much waited to be read, when a reply of this door was added to it."""
        self.handshakes_failed = 0


class Metrics:
    """The broker's counters."""

    __slots__ = ("apis", "doors", "topics")

    def __init__(self) -> None:
        self.apis: dict[tuple[str, str], ApiMetrics] = {}
        self.doors: dict[str, DoorMetrics] = {}
        self.topics: dict[str, TopicMetrics] = {}

    def api(self, door: str, name: str) -> ApiMetrics:
        """The counters of an API. There are as many as the door has APIs: never pass a client's own words."""
        found = self.apis.get((door, name))
        if found is None:
            found = self.apis[door, name] = ApiMetrics(name)
        return found

    def door(self, name: str) -> DoorMetrics:
        """The counters of a door."""
        found = self.doors.get(name)
        if found is None:
            found = self.doors[name] = DoorMetrics(name)
        return found

    def topic(self, name: str) -> TopicMetrics:
        """The counters of a topic, or those that all topics beyond the bound share. Only for topics that exist."""
        found = self.topics.get(name)
        if found is None:
            if len(self.topics) >= TOPICS_MAX:
                name = OTHER
                found = self.topics.get(name)
                if found is not None:
                    return found
            found = self.topics[name] = TopicMetrics()
        return found


def render(
    broker: Broker,
    *,
    partitions: bool = False,
    groups: bool = True,
    queue_ages: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> bytes:
    """Everything in Prometheus' text form; the figures of single partitions only where asked for. Of the ages of queues
    those that are given: to find them out takes reading (`queue_metrics.ages`)."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    class Scrape(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _totals(broker)
            yield from _traffic(broker)
            yield from _requests(broker.metrics)
            yield from _timer(broker)
            yield from _transactions(broker)
            yield from _deduplication(broker)
            yield from _half(broker)

    # `auto_describe` off: a registry would otherwise collect once just to learn the names.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape())
    text = generate_latest(registry)
    text += render_queues(broker, queue_ages).encode()
    if partitions:
        text += _partitions(broker).encode()
    if groups:
        text += _lag(broker).encode()
    return text


def _totals(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    topics = broker.log.topics.values()
    yield GaugeMetricFamily("headrace_topics", "Topics, internal ones too.", len(topics))
    yield GaugeMetricFamily(
        "headrace_partitions", "Partitions of all topics.", sum(len(topic.partitions) for topic in topics)
    )
    yield GaugeMetricFamily(
        "headrace_offline_partitions",
        "Partitions that serve nothing, since a file of theirs is damaged or missing or the device failed.",
        sum(partition.offline is not None for topic in topics for partition in topic.partitions),
    )
    yield GaugeMetricFamily("headrace_log_epoch", "Raised by every start after an unclean stop.", broker.log.epoch)
    for name, value in sorted(broker.log.sizes().items()):
        if name not in ("topics", "partitions"):
            family = CounterMetricFamily if name in LOG_COUNTERS else GaugeMetricFamily
            yield family(f"headrace_log_{name}", f"The log's own figure: {name.replace('_', ' ')}.", value)


def _traffic(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    metrics = broker.metrics
    # Names of topics that are gone would fill the table.
    for name in [name for name in metrics.topics if name not in broker.log.topics and name != OTHER]:
        del metrics.topics[name]

    connections = GaugeMetricFamily("headrace_connections", "Open connections.", labels=["door"])
    accepted = CounterMetricFamily("headrace_connections_accepted", "Connections accepted.", labels=["door"])
    refused = CounterMetricFamily("headrace_connections_refused", "Connections closed at the limit.", labels=["door"])
    unread = CounterMetricFamily(
        "headrace_connections_unread", "Connections closed because too many replies were unread.", labels=["door"]
    )
    handshakes = CounterMetricFamily("headrace_tls_handshakes_failed", "TLS handshakes failed.", labels=["door"])
    for name, door in metrics.doors.items():
        connections.add_metric([name], door.connections)
        accepted.add_metric([name], door.connections_accepted)
        refused.add_metric([name], door.connections_refused)
        unread.add_metric([name], door.connections_unread)
        handshakes.add_metric([name], door.handshakes_failed)
    yield from (connections, accepted, refused, unread, handshakes)

    bytes_in = CounterMetricFamily("headrace_topic_bytes_in", "Bytes of batches appended.", labels=["topic"])
    bytes_out = CounterMetricFamily("headrace_topic_bytes_out", "Bytes of batches sent to readers.", labels=["topic"])
    batches_in = CounterMetricFamily("headrace_topic_batches_in", "Batches appended.", labels=["topic"])
    for name, topic in metrics.topics.items():
        bytes_in.add_metric([name], topic.bytes_in)
        bytes_out.add_metric([name], topic.bytes_out)
        batches_in.add_metric([name], topic.batches_in)
    yield from (bytes_in, bytes_out, batches_in)
    yield from _overflow(metrics)


def _overflow(metrics: Metrics) -> Iterator[Metric]:
    """Only of the topics that have something to say: most never overflow."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    blocked = GaugeMetricFamily("headrace_topic_blocked_requests", "Requests that wait for readers.", labels=["topic"])
    rejected = CounterMetricFamily("headrace_topic_rejected_requests", "Requests refused as full.", labels=["topic"])
    dropped = CounterMetricFamily("headrace_topic_dropped_records", "Records dropped as the oldest.", labels=["topic"])
    passed = CounterMetricFamily(
        "headrace_topic_passed_by_records", "Records dropped before a group had read them.", labels=["topic"]
    )
    for name, topic in metrics.topics.items():
        if topic.blocked or topic.rejected or topic.dropped or topic.passed_by:
            blocked.add_metric([name], topic.blocked)
            rejected.add_metric([name], topic.rejected)
            dropped.add_metric([name], topic.dropped)
            passed.add_metric([name], topic.passed_by)
    yield from (blocked, rejected, dropped, passed)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily("headrace_requests", "Requests answered.", labels=["door", "api"])
    errors = CounterMetricFamily("headrace_request_errors", "Errors answered.", labels=["door", "api", "error"])
    latency = HistogramMetricFamily(
        "headrace_request_seconds", "From a request's last byte to its reply.", labels=["door", "api"]
    )
    for (door, name), api in metrics.apis.items():
        requests.add_metric([door, name], api.requests)
        for error, count in api.errors.items():
            errors.add_metric([door, name, error], count)
        latency.add_metric([door, name], _cumulated(api.latency), api.latency.total)
    yield from (requests, errors, latency)


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    """The buckets as Prometheus wants them: each with all below it."""
    cumulated = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), histogram.counts, strict=True):
        cumulated += count
        buckets.append((bound, cumulated))
    return buckets


def _timer(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    firing = broker.timer.firing
    for name, help, value in (
        ("scheduled", "Messages that were given a time.", broker.timer.scheduled),
        ("fired", "Messages whose time has come.", firing.fired),
        ("cancelled", "Messages that were taken out before their time.", broker.timer.looking.cancelled),
        ("dropped", "Messages that came due for a topic that is gone.", firing.dropped),
        ("refused", "Times that a message was due and its topic did not take it.", firing.refused),
    ):
        yield CounterMetricFamily(f"headrace_timer_{name}", help, value)
    late = HistogramMetricFamily("headrace_timer_late_seconds", "How late messages were fired.")
    late.add_metric([], _cumulated(firing.late), firing.late.total)
    yield late


def _transactions(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    transactions = broker.transactions
    yield GaugeMetricFamily("headrace_transactions_open", "Kafka transactions that are open.", transactions.open)
    for name, help, value in (
        ("committed", "Kafka transactions committed.", transactions.committed),
        ("aborted", "Kafka transactions aborted, for whatever reason.", transactions.aborted),
        ("timed_out", "Of these, those that took too long.", transactions.timed_out),
    ):
        yield CounterMetricFamily(f"headrace_transactions_{name}", help, value)


def _half(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    half = broker.half
    yield GaugeMetricFamily("headrace_half_pending", "Half messages that are undecided.", half.pending)
    yield GaugeMetricFamily("headrace_half_parked", "Of these, those that were given up and are kept.", half.parked)
    for name, help, value in (
        ("prepared", "Half messages prepared.", half.prepared),
        ("committed", "Half messages committed.", half.deciding.committed),
        ("rolled_back", "Half messages rolled back.", half.deciding.rolled_back),
        ("checks", "Times that a producer was asked about a half message.", half.checking.asked),
        ("given_up", "Half messages that the broker decided or parked, having asked in vain.", half.deciding.given_up),
        ("moved", "Half messages written again at the end of the log, to make way.", half.keeping.moved),
    ):
        yield CounterMetricFamily(f"headrace_half_{name}", help, value)


def _deduplication(broker: Broker) -> Iterator[Metric]:
    """Of topics only those that had a duplicate: most never have an id."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    duplicates = CounterMetricFamily(
        "headrace_topic_duplicate_records", "Records not stored: their ids were there before.", labels=["topic"]
    )
    for name, topic in broker.metrics.topics.items():
        if topic.duplicates:
            duplicates.add_metric([name], topic.duplicates)
    yield duplicates
    ids = broker.deduplication
    yield GaugeMetricFamily("headrace_deduplication_ids", "Deduplication ids that are remembered.", ids.count)
    yield CounterMetricFamily(
        "headrace_deduplication_evicted_ids", "Ids forgotten before their time, for want of room.", ids.evicted
    )


def _partitions(broker: Broker) -> str:
    """The figures of single partitions. There may be thousands, so their lines are written here: prometheus_client
    takes ten times as long, and this runs on the loop."""
    starts: list[str] = []
    ends: list[str] = []
    sizes: list[str] = []
    for name, topic in broker.log.topics.items():
        for partition in topic.partitions:
            # A cold partition has no figures yet, and a scrape must not warm ten thousand of them.
            if partition.loaded and len(ends) < SERIES_MAX:
                labels = f'{{partition="{partition.index}",topic="{name}"}}'
                starts.append(f"headrace_partition_start_offset{labels} {partition.start}")
                ends.append(f"headrace_partition_end_offset{labels} {partition.high_watermark}")
                sizes.append(f"headrace_partition_bytes{labels} {broker.log.local(partition).size()}")
    return (
        _gauge("headrace_partition_start_offset", "The first offset that may be read.", starts)
        + _gauge("headrace_partition_end_offset", "The offset that readers stop before.", ends)
        + _gauge("headrace_partition_bytes", "Bytes kept.", sizes)
    )


def _lag(broker: Broker) -> str:
    lines = [
        f'headrace_group_lag{{group="{_escape(group)}",topic="{topic}"}} {records}'
        for (group, topic), records in group_lag(broker).items()
    ]
    return _gauge("headrace_group_lag", "Records between a group's committed offsets and the ends.", lines)


def _gauge(name: str, help: str, lines: Sequence[str]) -> str:
    return "\n".join((f"# HELP {name} {help}", f"# TYPE {name} gauge", *lines, ""))


def _escape(value: str) -> str:
    """A group is named by its clients; names of topics need no escape."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def group_lag(broker: Broker) -> dict[tuple[str, str], int]:
    """Lag by group and topic, over the partitions that are warm and have a committed offset; at most `SERIES_MAX`."""
    lags: dict[tuple[str, str], int] = {}
    for group, name, index, committed in broker.groups.committed_offsets():
        topic = broker.log.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if partition.loaded and ((group, name) in lags or len(lags) < SERIES_MAX):
            # Retention may have passed the group by: what is gone is not lag.
            behind = partition.high_watermark - max(committed, partition.start)
            lags[group, name] = lags.get((group, name), 0) + max(behind, 0)
    return lags
