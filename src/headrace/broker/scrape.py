"""What Prometheus reads of the broker.

Labels are bounded: Prometheus gets the first `TOPICS_MAX` topics, and the traffic of the others is added up under
`topic="other"`; the figures of single partitions and groups come only when asked for, the first `SERIES_MAX` of them.
However many topics there are, a scrape lets others have the loop every few hundred lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.broker.exposition import COUNTER, GAUGE, Exposition, labelled
from headrace.broker.metrics import LATENCY_BOUNDS, OTHER, TopicMetrics
from headrace.broker.queue_metrics import add_queues
from headrace.broker.steps import in_steps

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.log.interface import Partition

TOPICS_MAX = 1_000
SERIES_MAX = 10_000
BUCKETS = (*map(str, LATENCY_BOUNDS), "+Inf")

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


async def render(
    broker: Broker,
    *,
    partitions: bool = False,
    groups: bool = True,
    queue_ages: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> bytes:
    """Everything in Prometheus' text form; the figures of single partitions only where asked for. Of the ages of queues
    those that are given: to find them out takes reading (`queue_metrics.ages`)."""
    metrics, out = broker.metrics, Exposition()
    metrics.forget_all_but(broker.log.topics)
    await _add_log(out, broker)
    for kind, name, help, value in _singles(broker):
        await out.one(kind, name, help, value)
    await _add_rows(out, "door", list(metrics.doors.items()), DOOR)
    topics = await _bound(metrics.topics)
    await _add_rows(out, "topic", topics, TOPIC)
    for rows in (TOPIC_OVERFLOW, TOPIC_DUPLICATES):
        fields = [field for field, _, _, _ in rows]
        having = [each async for each in in_steps(topics) if any(getattr(each[1], field) for field in fields)]
        await _add_rows(out, "topic", having, rows)
    await _add_requests(out, broker)
    await _add_security(out, broker)
    await _add_quotas(out, broker)
    await add_queues(out, broker, queue_ages)
    await _add_tables(out, broker)
    if partitions:
        await _add_partitions(out, broker)
    if groups:
        lags = await group_lag(broker)
        help = "Records between a group's committed offsets and the ends."
        samples = ((labelled(group=group, topic=topic), records) for (group, topic), records in lags.items())
        await out.add(GAUGE, "headrace_group_lag", help, samples)
    for part in metrics.parts:
        out.add_text(part())
    return out.text


async def _bound(topics: Mapping[str, TopicMetrics]) -> list[tuple[str, TopicMetrics]]:
    """The first of the topics, and the others added up."""
    if len(topics) <= TOPICS_MAX:
        return list(topics.items())
    first = {name: each for name, each in islice(topics.items(), TOPICS_MAX) if name != OTHER}
    rest = TopicMetrics()
    async for name, each in in_steps(list(topics.items())):
        if name not in first:
            for field in TopicMetrics.__slots__:
                setattr(rest, field, getattr(rest, field) + getattr(each, field))
    return [*first.items(), (OTHER, rest)]


async def _add_log(out: Exposition, broker: Broker) -> None:
    """Topics, partitions, and the log's own figures."""
    topics = list(broker.log.topics.values())
    partitions = offline = 0
    async for topic in in_steps(topics):
        partitions += len(topic.partitions)
        for partition in topic.partitions:
            offline += partition.offline is not None
    await out.one(GAUGE, "headrace_topics", "Topics, internal ones too.", len(topics))
    await out.one(GAUGE, "headrace_partitions", "Partitions of all topics.", partitions)
    help = "Partitions that a damaged file or device keeps from serving."
    await out.one(GAUGE, "headrace_offline_partitions", help, offline)
    await out.one(GAUGE, "headrace_log_epoch", "Raised by every start after an unclean stop.", broker.log.epoch)
    for name, value in sorted(broker.log.sizes().items()):
        if name not in ("topics", "partitions"):
            kind = COUNTER if name in LOG_COUNTERS else GAUGE
            await out.one(kind, f"headrace_log_{name}", f"The log's own figure: {name.replace('_', ' ')}.", value)


def _singles(broker: Broker) -> Iterator[tuple[str, str, str, float]]:
    """What else there is one of: kind, name, help, value."""
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


async def _add_rows(out: Exposition, label: str, by_name: Sequence[tuple[str, object]], rows: Rows) -> None:
    for field, kind, name, help in rows:
        await out.add(kind, name, help, ((labelled(**{label: each}), getattr(of, field)) for each, of in by_name))


async def _add_requests(out: Exposition, broker: Broker) -> None:
    apis = [(labelled(door=door, api=name), api) for (door, name), api in broker.metrics.apis.items()]
    await out.add(COUNTER, "headrace_requests", "Requests answered.", ((own, api.requests) for own, api in apis))
    errors = [
        (labelled(door=door, api=name, error=error), count)
        for (door, name), api in broker.metrics.apis.items()
        for error, count in api.errors.items()
    ]
    await out.add(COUNTER, "headrace_request_errors", "Errors answered.", errors)
    histograms = [
        ({"door": door, "api": name}, api.latency.counts, api.latency.total)
        for (door, name), api in broker.metrics.apis.items()
    ]
    help = "From a request's last byte to its reply."
    await out.add_histograms("headrace_request_seconds", help, BUCKETS, histograms)
    late = broker.timer.dispatcher.late
    help = "How late messages were fired."
    await out.add_histograms("headrace_timer_late_seconds", help, BUCKETS, [({}, late.counts, late.total)])


async def _add_security(out: Exposition, broker: Broker) -> None:
    security, audit = broker.security, broker.audit
    for name, help, by_how in (
        ("headrace_authentications", "Clients that have shown who they are.", security.authenticator.succeeded),
        ("headrace_authentication_failures", "Clients that have not.", security.authenticator.failed),
    ):
        await out.add(COUNTER, name, help, [(labelled(how=how), count) for how, count in by_how.items()])
    refused = [
        (labelled(operation=operation.name.lower(), resource=resource.name.lower()), count)
        for (operation, resource), count in security.refused.items()
    ]
    await out.add(COUNTER, "headrace_refusals", "Rights that were missing.", refused)
    await out.one(COUNTER, "headrace_audit_records", "Records written to __audit.", audit.written)
    await out.one(COUNTER, "headrace_audit_dropped", "Entries that __audit lacks.", audit.dropped)


async def _add_quotas(out: Exposition, broker: Broker) -> None:
    quotas = broker.quotas
    for name, help, figure in (
        ("headrace_quota_throttled", "Times that a client was held back.", "throttled"),
        ("headrace_quota_throttled_seconds", "For how long in all.", "seconds"),
        ("headrace_quota_refused", "Requests and connections refused.", "refused"),
    ):
        counts = [(labelled(quota=kind.value), getattr(each, figure)) for kind, each in quotas.figures.items()]
        await out.add(COUNTER, name, help, counts)
    await out.one(GAUGE, "headrace_quota_entities", "Those that have quotas.", len(quotas.table.entities))
    await out.one(GAUGE, "headrace_quota_clients", "Clients whose use is kept.", quotas.tracked)


async def _add_partitions(out: Exposition, broker: Broker) -> None:
    """The figures of single partitions. A cold one has none yet, and a scrape must not warm ten thousand of them."""
    shown: list[tuple[str, Partition]] = []
    async for topic in in_steps(list(broker.log.topics.values())):
        room = SERIES_MAX - len(shown)
        shown += [(topic.name, partition) for partition in topic.partitions if partition.loaded][:room]
        if len(shown) >= SERIES_MAX:
            break
    labels = [f'{{partition="{partition.index}",topic="{name}"}}' for name, partition in shown]
    of = [partition for _, partition in shown]
    local = broker.log.local
    for name, help, values in (
        ("start_offset", "The first offset that may be read.", (each.start for each in of)),
        ("end_offset", "The offset that readers stop before.", (each.high_watermark for each in of)),
        ("bytes", "Bytes kept.", (local(each).size() for each in of)),
    ):
        await out.add(GAUGE, f"headrace_partition_{name}", help, zip(labels, values, strict=True))


async def _add_tables(out: Exposition, broker: Broker) -> None:
    """How far the tables of topics with the setting `lake` are."""
    now, known = broker.runtime.clock.now_ms(), broker.archived.tables
    topics = list(broker.log.topics.values()) if known else []
    tables = [
        (labelled(topic=topic.name), progress)
        async for topic in in_steps(topics)
        if (progress := known.get(topic.id)) is not None
    ]
    help = "Records that the table of a topic does not have."
    await out.add(GAUGE, "headrace_lake_lag", help, [(labels, progress.lag) for labels, progress in tables])
    ages = [(labels, (now - progress.fresh_ms) / 1000) for labels, progress in tables]
    await out.add(GAUGE, "headrace_lake_stale_seconds", "The table has all that is older than this.", ages)


async def group_lag(broker: Broker) -> dict[tuple[str, str], int]:
    """Lag by group and topic, over the partitions that are warm and have a committed offset; at most `SERIES_MAX`."""
    lags: dict[tuple[str, str], int] = {}
    async for group, name, index, committed in in_steps(list(broker.groups.committed_offsets())):
        topic = broker.log.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if partition.loaded and ((group, name) in lags or len(lags) < SERIES_MAX):
            # Retention may have passed the group by: what is gone is not lag.
            behind = partition.high_watermark - max(committed, partition.start)
            lags[group, name] = lags.get((group, name), 0) + max(behind, 0)
    return lags
