"""What the broker counts, and how Prometheus reads it.

Counting is on the hot path, so a counter is a plain number on a slotted object and a histogram is a list of numbers;
the doors fetch the object once and add to it. Everything that can be known from the state itself (offsets, sizes,
lag) is not counted but looked at when Prometheus scrapes. prometheus_client only writes the text then, and is imported
no earlier.

Labels are bounded: Prometheus gets the first `TOPICS_MAX` topics, and the traffic of the others is added up under
`topic="other"`; the figures of single partitions and groups come only when asked for, the first `SERIES_MAX` of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.broker.queue_metrics import family, render_queues

if TYPE_CHECKING:
    from prometheus_client import Metric

    from headrace.broker.broker import Broker

TOPICS_MAX = 1_000
# Topics that are counted apart; those of further ones are counted together.
COUNTED_MAX = 20_000
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

COUNTER, GAUGE = "counter", "gauge"
# Of the metrics of a door and of a topic: the field, the kind of the metric, its name, its help.
Rows = Sequence[tuple[str, str, str, str]]
DOOR: Rows = (
    ("connections", GAUGE, "headrace_connections", "Open connections."),
    ("connections_accepted", COUNTER, "headrace_connections_accepted", "Connections accepted."),
    ("connections_refused", COUNTER, "headrace_connections_refused", "Connections closed at the limit."),
    ("connections_unread", COUNTER, "headrace_connections_unread", "Connections closed with too many unread replies."),
    ("handshakes_failed", COUNTER, "headrace_tls_handshakes_failed", "TLS handshakes failed."),
)
TOPIC: Rows = (
    ("bytes_in", COUNTER, "headrace_topic_bytes_in", "Bytes of batches appended."),
    ("bytes_out", COUNTER, "headrace_topic_bytes_out", "Bytes of batches sent to readers."),
    ("batches_in", COUNTER, "headrace_topic_batches_in", "Batches appended."),
)
# Only of the topics that have any of them: most never overflow, and most never have a deduplication id.
TOPIC_OVERFLOW: Rows = (
    ("blocked", GAUGE, "headrace_topic_blocked_requests", "Requests that wait for readers."),
    ("rejected", COUNTER, "headrace_topic_rejected_requests", "Requests refused as full."),
    ("dropped", COUNTER, "headrace_topic_dropped_records", "Records dropped as the oldest."),
    ("passed_by", COUNTER, "headrace_topic_passed_by_records", "Records dropped before a group had read them."),
)
TOPIC_DUPLICATES: Rows = (
    ("duplicates", COUNTER, "headrace_topic_duplicate_records", "Records not stored: their ids were there before."),
)
# Of the log's figures, those that only grow.
LOG_COUNTERS = frozenset(("journal_flushes", "journal_flushed_bytes", "compactions", "compaction_freed_bytes"))


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


def _bounded(topics: Mapping[str, TopicMetrics]) -> Mapping[str, TopicMetrics]:
    """The first of the topics, and the others added up."""
    if len(topics) <= TOPICS_MAX:
        return topics
    first = {name: each for name, each in islice(topics.items(), TOPICS_MAX) if name != OTHER}
    rest = [each for name, each in topics.items() if name not in first]
    names = TopicMetrics.__slots__
    return {**first, OTHER: TopicMetrics(*(sum(getattr(each, name) for each in rest) for name in names))}


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
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry

    metrics = broker.metrics
    metrics.forget_all_but(broker.log.topics)
    topics = _bounded(metrics.topics)

    class Scrape(Collector):
        def collect(self) -> Iterator[Metric]:
            for kind, name, help, value in _singles(broker):
                yield (CounterMetricFamily if kind == COUNTER else GaugeMetricFamily)(name, help, value)
            yield from _labelled("door", metrics.doors, DOOR)
            yield from _labelled("topic", topics, TOPIC)
            for rows in (TOPIC_OVERFLOW, TOPIC_DUPLICATES):
                having = {
                    name: topic
                    for name, topic in topics.items()
                    if any(getattr(topic, field) for field, _, _, _ in rows)
                }
                yield from _labelled("topic", having, rows)
            yield from _requests(broker)
            yield from _security(broker)
            yield from _quotas(broker)

    # `auto_describe` off: a registry would otherwise collect once just to learn the names.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape())
    text = generate_latest(registry)
    text += render_queues(broker, queue_ages).encode()
    text += _tables(broker).encode()
    if partitions:
        text += _partitions(broker).encode()
    if groups:
        text += _lag(broker).encode()
    return text + "".join(part() for part in metrics.parts).encode()


def _singles(broker: Broker) -> Iterator[tuple[str, str, str, float]]:
    """What there is one of: kind, name, help, value."""
    topics = broker.log.topics.values()
    offline = sum(partition.offline is not None for topic in topics for partition in topic.partitions)
    yield GAUGE, "headrace_topics", "Topics, internal ones too.", len(topics)
    yield GAUGE, "headrace_partitions", "Partitions of all topics.", sum(len(topic.partitions) for topic in topics)
    yield GAUGE, "headrace_offline_partitions", "Partitions that a damaged file or device keeps from serving.", offline
    yield GAUGE, "headrace_log_epoch", "Raised by every start after an unclean stop.", broker.log.epoch
    for name, value in sorted(broker.log.sizes().items()):
        if name not in ("topics", "partitions"):
            kind = COUNTER if name in LOG_COUNTERS else GAUGE
            yield kind, f"headrace_log_{name}", f"The log's own figure: {name.replace('_', ' ')}.", value

    timer, dispatcher = broker.timer, broker.timer.dispatcher
    yield COUNTER, "headrace_timer_scheduled", "Messages that were given a time.", timer.scheduled
    yield COUNTER, "headrace_timer_fired", "Messages whose time has come.", dispatcher.fired
    yield COUNTER, "headrace_timer_cancelled", "Messages cancelled before their time.", timer.waiting.cancelled
    yield COUNTER, "headrace_timer_dropped", "Messages that came due for a topic that is gone.", dispatcher.dropped
    yield (
        COUNTER,
        "headrace_timer_refused",
        "Times that a message was due and its topic refused it.",
        dispatcher.refused,
    )

    transactions = broker.transactions
    yield GAUGE, "headrace_transactions_open", "Kafka transactions that are open.", transactions.open
    yield COUNTER, "headrace_transactions_committed", "Kafka transactions committed.", transactions.committed
    yield COUNTER, "headrace_transactions_aborted", "Kafka transactions aborted.", transactions.aborted
    yield COUNTER, "headrace_transactions_timed_out", "Of these, those that took too long.", transactions.timed_out

    ids = broker.deduplication
    yield GAUGE, "headrace_deduplication_ids", "Deduplication ids that are remembered.", ids.count
    yield COUNTER, "headrace_deduplication_evicted_ids", "Ids evicted before their time, for want of room.", ids.evicted

    prepared = broker.prepared
    decided = prepared.resolver
    yield GAUGE, "headrace_half_pending", "Half messages that are undecided.", prepared.pending
    yield GAUGE, "headrace_half_parked", "Of these, those that were given up and are kept.", prepared.parked
    yield COUNTER, "headrace_half_prepared", "Half messages prepared.", prepared.accepted
    yield COUNTER, "headrace_half_committed", "Half messages committed.", decided.committed
    yield COUNTER, "headrace_half_rolled_back", "Half messages rolled back.", decided.rolled_back
    yield COUNTER, "headrace_half_checks", "Check-backs sent to producers of half messages.", prepared.check_back.asked
    yield COUNTER, "headrace_half_given_up", "Half messages decided or parked by the broker.", decided.given_up
    yield COUNTER, "headrace_half_moved", "Half messages moved to the end of the log.", prepared.trimmer.moved


def _labelled(label: str, by_name: Mapping[str, object], rows: Rows) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for field_name, kind, name, help in rows:
        family = (CounterMetricFamily if kind == COUNTER else GaugeMetricFamily)(name, help, labels=[label])
        for each, metrics in by_name.items():
            family.add_metric([each], getattr(metrics, field_name))
        yield family


def _requests(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily("headrace_requests", "Requests answered.", labels=["door", "api"])
    errors = CounterMetricFamily("headrace_request_errors", "Errors answered.", labels=["door", "api", "error"])
    latency = HistogramMetricFamily(
        "headrace_request_seconds", "From a request's last byte to its reply.", labels=["door", "api"]
    )
    for (door, name), api in broker.metrics.apis.items():
        requests.add_metric([door, name], api.requests)
        for error, count in api.errors.items():
            errors.add_metric([door, name, error], count)
        latency.add_metric([door, name], _cumulated(api.latency), api.latency.total)
    late = HistogramMetricFamily("headrace_timer_late_seconds", "How late messages were fired.")
    late.add_metric([], _cumulated(broker.timer.dispatcher.late), broker.timer.dispatcher.late.total)
    yield from (requests, errors, latency, late)


def _security(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    security, audit = broker.security, broker.audit
    for name, help, by_how in (
        ("headrace_authentications", "Clients that have shown who they are.", security.authenticator.succeeded),
        ("headrace_authentication_failures", "Clients that have not.", security.authenticator.failed),
    ):
        family = CounterMetricFamily(name, help, labels=["how"])
        for how, count in by_how.items():
            family.add_metric([how], count)
        yield family
    refused = CounterMetricFamily("headrace_refusals", "Rights that were missing.", labels=["operation", "resource"])
    for (operation, resource), count in security.refused.items():
        refused.add_metric([operation.name.lower(), resource.name.lower()], count)
    yield refused
    yield CounterMetricFamily("headrace_audit_records", "Records written to __audit.", audit.written)
    yield CounterMetricFamily("headrace_audit_dropped", "Entries that __audit lacks.", audit.dropped)


def _quotas(broker: Broker) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    quotas = broker.quotas
    for name, help, figure in (
        ("headrace_quota_throttled", "Times that a client was held back.", "throttled"),
        ("headrace_quota_throttled_seconds", "For how long in all.", "seconds"),
        ("headrace_quota_refused", "Requests and connections refused.", "refused"),
    ):
        counts = CounterMetricFamily(name, help, labels=["quota"])
        for kind, figures in quotas.figures.items():
            counts.add_metric([kind.value], getattr(figures, figure))
        yield counts
    yield GaugeMetricFamily("headrace_quota_entities", "Those that have quotas.", len(quotas.table.entities))
    yield GaugeMetricFamily("headrace_quota_clients", "Clients whose use is kept.", quotas.tracked)


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    """The buckets as Prometheus wants them: each with all below it."""
    cumulated = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), histogram.counts, strict=True):
        cumulated += count
        buckets.append((bound, cumulated))
    return buckets


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
    return "\n".join(
        (
            *family("headrace_partition_start_offset", "gauge", "The first offset that may be read.", starts),
            *family("headrace_partition_end_offset", "gauge", "The offset that readers stop before.", ends),
            *family("headrace_partition_bytes", "gauge", "Bytes kept.", sizes),
            "",
        )
    )


def _tables(broker: Broker) -> str:
    """How far the tables of topics with the setting `lake` are."""
    now = broker.runtime.clock.now_ms()
    found = [(topic.name, broker.archived.tables.get(topic.id)) for topic in broker.log.topics.values()]
    tables = [(f'{{topic="{name}"}}', progress) for name, progress in found if progress is not None]
    lags = [f"headrace_lake_lag{labels} {progress.lag}" for labels, progress in tables]
    ages = [f"headrace_lake_stale_seconds{labels} {(now - progress.fresh_ms) / 1000}" for labels, progress in tables]
    return "\n".join(
        (
            *family("headrace_lake_lag", "gauge", "Records that the table of a topic does not have.", lags),
            *family("headrace_lake_stale_seconds", "gauge", "The table has all that is older than this.", ages),
            "",
        )
    )


def _lag(broker: Broker) -> str:
    lines = [
        f'headrace_group_lag{{group="{_escape(group)}",topic="{topic}"}} {records}'
        for (group, topic), records in group_lag(broker).items()
    ]
    help = "Records between a group's committed offsets and the ends."
    return "\n".join((*family("headrace_group_lag", "gauge", help, lines), ""))


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
