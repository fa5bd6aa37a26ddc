"""`audit`: what became of messages, by topic and minute: produced, stored, delivered, acknowledged.

Each number has a witness of its own, and they are laid side by side. Producers report what they produced
(`headrace.sdk.auditing`, or any program that writes such reports). The log has what is stored. Queues have what was
delivered and acknowledged, by their events (`__deliveries`) and by how far they are settled, and consumer groups by
their offsets.

A message belongs to the minute of its time: that of the header `headrace-time`, or of the record. Only whole minutes
are looked at that ended a settling time ago, so that what is still on its way is not taken for lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from headrace.errors import HeadraceError
from headrace.logs import log_like_a_library
from headrace.pipeline import read_plan
from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.audit_log import (
    CHOSEN_BY,
    ID_HEADER,
    MINUTE_MS,
    AuditScope,
    given_up,
    kept,
    moment,
    read,
    stored,
    told_since,
)
from headrace.pipeline.jobs.audit_queues import WatchedQueue, asked_over_http, watched_here
from headrace.pipeline.jobs.audit_report import (
    ACKNOWLEDGED,
    DELIVERED,
    JUDGED,
    GivenUp,
    Instance,
    Report,
    Sent,
    Threshold,
    Watched,
    by_queue,
    compared,
    doubts,
    judged,
    totals,
    without_deleted,
)
from headrace.pipeline.jobs.http_door import HttpDoor
from headrace.pipeline.options import Partition, parse
from headrace.pipeline.origin import Catalogue, open_catalogue
from headrace.pipeline.session import sibling_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger("headrace.pipeline.audit")

RANGE_MS = 60 * MINUTE_MS
SETTLE_SECONDS = 60.0

REPORTS = "headrace-audit"
EVENTS = "__deliveries"

EVENT_SCHEMA = "t BIGINT, event STRING, topic STRING, queue STRING, partition INT, runs ARRAY<ARRAY<BIGINT>>"
REPORT_SCHEMA = (
    "instance STRING, sequence BIGINT, t BIGINT, within DOUBLE, ids BOOLEAN, last BOOLEAN, "
    "counts ARRAY<STRUCT<topic: STRING, minute: BIGINT, sent: BIGINT, failed: BIGINT>>"
)
QUANTILES = "array(0.5, 0.95, 0.99), 10000"

# Options of the source that the audit sets itself.
CHOSEN = {*rounds.TOPICS, *rounds.RANGE, *rounds.SHAPING, "kafka.group.id", "includeheaders", "failondataloss"}

Progress = Callable[[str], None]


def audit(
    spark: SparkSession,
    *,
    topics: Sequence[str] = (),
    pattern: str = "",
    bootstrap: str = "",
    data: str = "",
    options: Mapping[str, str] | None = None,
    since: int | None = None,
    until: int | None = None,
    settle: float = SETTLE_SECONDS,
    http: str = "",
    groups: Sequence[str] = (),
    shares: Mapping[str, float] | None = None,
    id_header: str = ID_HEADER,
    id_field: str = "",
    judge: Sequence[str] = JUDGED,
    max_loss: str = "0",
    max_duplicates: str = "0",
    max_deleted: str = "0",
    progress: Progress | None = None,
) -> Report:
    """Audit topics from `since` to `until`, in milliseconds; by default the hour that ended `settle` seconds ago.

    `http` is the broker's HTTP door (HOST:PORT, with https:// before it for TLS; the login in `options` counts there,
    too), which knows the queues, how far they are settled, and what share of their messages
    they watch; without it, `shares` says so by queue. `groups` are consumer groups to judge by their offsets.
    Duplicates are told by the header `id_header`, or by the field `id_field` of values that are JSON objects. `judge`
    says what counts for the verdict, and the thresholds how much of it may be wrong (`25`, `0.1%`); `max_deleted` is
    what the log may have given up of what was sent, before that is a doubt.
    """
    log_like_a_library()
    check_words(judge, options)
    loss, twice, deleted = (Threshold.parse(each) for each in (max_loss, max_duplicates, max_deleted))
    start, end = span(since, until, settle)
    say = progress or (lambda _: None)
    spark = sibling_session(spark)

    say("looking which topics and queues there are")
    given = {**(options or {}), **rounds.place_of(bootstrap=bootstrap, data=data)}
    scope, notes = _look(given, topics, pattern, groups, start, end, http, shares or {})
    say("reading what producers report")
    sent, instances = _read_reports(spark, scope)
    say("reading the log")
    messages = stored(spark, scope, id_header, id_field).persist()
    try:
        minutes = compared(kept(messages), sent, scope.topics)
        say("reading what queues say")
        whole, by_minute = by_queue(_read_deliveries(spark, scope, messages))
    finally:
        messages.unpersist()
    say("looking what the log has given up")
    doubtful = {each.topic for each in minutes if each.lost} | {
        each.watched.topic for each in scope.queues if each.lost
    }
    gone = given_up(spark, scope, sorted(doubtful)) if doubtful else {}
    minutes = without_deleted(minutes, gone)
    topic_totals = totals(minutes, scope.topics)
    watched = [each.watched for each in scope.queues]
    told = told_since(spark, scope, EVENTS) if any(each.share for each in watched) else 0
    wrong, unknown = judged(
        topic_totals,
        whole,
        watched,
        doubts(instances, end),
        judge=judge,
        max_loss=loss,
        max_duplicates=twice,
        max_deleted=deleted,
        told_since=told,
    )
    notes += [words for each in topic_totals if each.deleted for words in gone[each.topic].words]
    for each in scope.queues:
        if each.lost and {DELIVERED, ACKNOWLEDGED} & set(judge):
            name = f"{each.watched.topic}/{each.watched.queue}"
            words = f"{name}: {each.lost} message(s) were deleted before it was done with them"
            (unknown if _in_range(gone.get(each.watched.topic), start) else notes).append(f"{words}, of whatever time")
    if told:
        notes.append(f"what queues have told before {moment(told)} is deleted: what they were done with was passed")
    report = Report(
        start,
        end,
        tuple(topic_totals),
        tuple(minutes),
        tuple(watched),
        tuple(whole),
        tuple(by_minute),
        tuple(wrong),
        tuple(unknown),
        tuple(notes),
    )
    log.info("audited", topics=len(scope.topics), minutes=len(minutes), code=report.code)
    return report


def check_words(judge: Sequence[str], options: Mapping[str, str] | None) -> None:
    """Raises HeadraceError where something is to be judged that cannot be, or options say what the audit says."""
    unknown = sorted(set(judge) - set(JUDGED))
    if unknown:
        raise HeadraceError(f"{unknown[0]!r} cannot be judged; what can is {', '.join(JUDGED)}")
    for name in options or {}:
        if name.lower() in CHOSEN:
            raise HeadraceError(f"the option {name} is chosen by the audit: topics, since and until say what is read")


def span(since: int | None, until: int | None, settle: float) -> tuple[int, int]:
    """Whole minutes, in milliseconds. Raises HeadraceError where there are none."""
    end = until if until is not None else round((time.time() - settle) * 1_000)
    end -= end % MINUTE_MS
    start = since if since is not None else end - RANGE_MS
    start -= start % MINUTE_MS
    if start >= end:
        raise HeadraceError(
            f"there is no whole minute from {moment(start)} to {moment(end)}, with {settle:g} s to settle"
        )
    return start, end


def _in_range(gone: GivenUp | None, since: int) -> bool:
    """Whether messages of the range may be among what has gone."""
    return gone is not None and (gone.until is None or gone.until > since)


# --- what there is ----------------------------------------------------------------------------------------------------


def _look(
    given: Mapping[str, str],
    topics: Sequence[str],
    pattern: str,
    groups: Sequence[str],
    since: int,
    until: int,
    http: str,
    shares: Mapping[str, float],
) -> tuple[AuditScope, list[str]]:
    source = parse({**given, **rounds.place_of(topics, pattern)}, streaming=False)
    notes: list[str] = []

    async def ask() -> tuple[tuple[str, ...], Mapping[str, int], list[Partition], list[WatchedQueue]]:
        async with open_catalogue(source) as origin:
            partitions = await read_plan.find_partitions(origin, source)
            names = tuple(dict.fromkeys(topic for topic, _ in partitions))
            if pattern:
                names = tuple(name for name in names if not name.startswith("__") and name != REPORTS)
            mine = [each for each in partitions if each[0] in names]
            begins, _ = await read_plan.log_bounds(origin, source, mine)
            found = [each for group in groups for each in await _group(origin, group, begins)]
            return names, await origin.topics(), mine, found

    names, everything, mine, found = asyncio.run(ask())
    if not names:
        raise HeadraceError(f"no topic fits {pattern!r}")
    if http:
        found += asked_over_http(HttpDoor(http, source), names)
    elif shares:
        found += watched_here(names, shares)
    elif EVENTS in everything:
        notes.append("queues are not looked at: give the broker's HTTP door, or the share of messages they watch")
    known = {(each.watched.topic, each.watched.queue): each for each in found}
    return AuditScope(given, source, names, everything, tuple(mine), since, until, list(known.values())), notes


async def _group(origin: Catalogue, group: str, begins: Mapping[Partition, int]) -> list[WatchedQueue]:
    """A consumer group, on the topics that it reads; on all of them, where it has read nothing yet."""
    offsets = await origin.group(group, list(begins))
    names = dict.fromkeys(topic for topic, _ in offsets) or dict.fromkeys(topic for topic, _ in begins)
    return [
        WatchedQueue(
            Watched(name, group, None),
            {index: offsets.get((topic, index), 0) for topic, index in begins if topic == name},
            sum(max(0, first - offsets[each]) for each, first in begins.items() if each[0] == name and each in offsets),
        )
        for name in names
    ]


# --- what producers say -----------------------------------------------------------------------------------------------


def _read_reports(spark: SparkSession, scope: AuditScope) -> tuple[list[Sent], list[Instance]]:
    """The producers' counts, and which of their reports there are: each once, however often it was written."""
    from pyspark.sql import functions as f

    if REPORTS not in scope.all_topics:
        return [], []
    frame = read(
        spark,
        scope,
        REPORTS,
        valueFormat="json",
        schema=REPORT_SCHEMA,
        valueColumns="struct",
        badRows="drop",
        columns="value",
    ).select("value.*")
    # The same number of the same instance is the same report.
    frame = frame.where("instance IS NOT NULL AND sequence IS NOT NULL").dropDuplicates(["instance", "sequence"])
    frame = frame.select(
        "instance",
        "sequence",
        "t",
        "within",
        f.coalesce("last", f.lit(False)).alias("last"),
        f.coalesce("ids", f.lit(False)).alias("ids"),
        f.filter("counts", lambda each: each["topic"].isin(list(scope.topics))).alias("counts"),
    ).persist()
    try:
        return _counts(frame, scope), _instances(frame)
    finally:
        frame.unpersist()


def _counts(frame: DataFrame, scope: AuditScope) -> list[Sent]:
    from pyspark.sql import functions as f

    counted = (
        frame.select("instance", "ids", f.inline("counts"))
        .withColumn("minute", f.expr(f"minute - minute % {MINUTE_MS}"))
        .where(f"minute >= {scope.since} AND minute < {scope.until}")
        .groupBy("topic", "minute", "instance", "ids")
        .agg(f.sum(f.coalesce("sent", f.lit(0))).alias("sent"), f.sum(f.coalesce("failed", f.lit(0))).alias("failed"))
    )
    return [Sent(**row.asDict()) for row in counted.collect()]


def _instances(frame: DataFrame) -> list[Instance]:
    """Those that have sent something to the topics at all."""
    from pyspark.sql import functions as f

    found = (
        frame.groupBy("instance")
        .agg(
            f.expr("min(sequence) AS first"),
            f.expr("max(sequence) AS last"),
            f.expr("count(*) AS reports"),
            f.expr("coalesce(max(t), 0) AS heard_ms"),
            f.expr("CAST(1000 * coalesce(max_by(within, sequence), 0) AS BIGINT) AS within_ms"),
            f.expr("bool_or(last) AS ended"),
            f.expr("sum(greatest(size(counts), 0)) AS told"),
        )
        .where("told > 0")
        .withColumnRenamed("instance", "name")
        .drop("told")
        .orderBy("name")
    )
    return [Instance(**row.asDict()) for row in found.collect()]


# --- what queues say --------------------------------------------------------------------------------------------------


def _read_deliveries(spark: SparkSession, scope: AuditScope, messages: DataFrame) -> list[dict[str, Any]]:
    """Each queue's messages, counted by minute and over the range."""
    from pyspark.sql import functions as f

    if not scope.queues:
        return []
    positions = spark.createDataFrame(
        [
            (each.watched.topic, each.watched.queue, partition, settled, each.watched.share)
            for each in scope.queues
            for partition, settled in _positions(each, scope)
        ],
        "topic STRING, queue STRING, partition INT, settled BIGINT, share DOUBLE",
    )
    rows = messages.join(f.broadcast(positions), ["topic", "partition"])
    if scope.sampled:
        schema = (
            "topic STRING, partition INT, offset BIGINT, time BIGINT, minute BIGINT, queue STRING, settled BIGINT, "
        )
        rows = rows.select(
            "topic", "partition", "offset", "time", "minute", "queue", "settled", "share", "key",
            *(f.col(f"`{name}`") for name in CHOSEN_BY),
        ).mapInArrow(_mark_watched, schema + "share DOUBLE, watched BOOLEAN")  # fmt: skip
    else:
        rows = rows.withColumn("watched", f.lit(True))
    place = ["topic", "queue", "partition", "offset"]
    rows = rows.join(_events(spark, scope), place, "left") if EVENTS in scope.all_topics else _unseen(rows)
    # A queue without events is judged by its position: what lies below it is done.
    rows = rows.selectExpr(
        "topic",
        "queue",
        "minute",
        "watched",
        "share IS NULL AS blind",
        "offset < settled AS below",
        "coalesce(deliveries, 0) AS deliveries",
        "finished",
        "coalesce(died, false) AS died",
        "coalesce(emptied, false) AS emptied",
        "first - time AS delivery",
        "finished - time AS acknowledgement",
    ).selectExpr(
        "*",
        "watched AND if(blind, below, deliveries > 0) AS got",
        "watched AND if(blind, below, finished IS NOT NULL OR (deliveries > 0 AND below AND NOT died)) AS done",
        "watched AND NOT blind AND deliveries = 0 AND (below OR emptied) AS by",
    )
    counted = rows.groupingSets([["topic", "queue", "minute"], ["topic", "queue"]], "topic", "queue", "minute").agg(
        *(
            f.expr(f"{expression} AS {name}")
            for name, expression in {
                "stored": "count(*)",
                "watched": "count_if(watched)",
                "delivered": "count_if(got)",
                "redelivered": "sum(if(watched, greatest(deliveries - 1, 0), 0))",
                "acknowledged": "count_if(done)",
                "dead": "count_if(watched AND died AND NOT done)",
                "passed": "count_if(by)",
                "undelivered": "count_if(watched AND NOT got AND NOT by AND NOT died)",
                "unacknowledged": "count_if(got AND NOT done AND NOT died)",
                "delivery": f"percentile_approx(if(watched, delivery, NULL), {QUANTILES})",
                "acknowledgement": f"percentile_approx(if(watched, acknowledgement, NULL), {QUANTILES})",
            }.items()
        )
    )
    return [row.asDict() for row in counted.collect()]


def _positions(queue: WatchedQueue, scope: AuditScope) -> Iterator[tuple[int, int]]:
    for topic, partition in scope.partitions:
        if topic == queue.watched.topic:
            yield partition, queue.settled.get(partition, 0)


def _events(spark: SparkSession, scope: AuditScope) -> DataFrame:
    """What happened to each message in each queue."""
    from pyspark.sql import functions as f

    frame = read(
        spark,
        scope,
        EVENTS,
        valueFormat="json",
        schema=EVENT_SCHEMA,
        valueColumns="struct",
        badRows="drop",
        columns="value",
    )
    return (
        frame.select("value.*")
        .where(f.col("topic").isin(list(scope.topics)))
        .where("event IN ('delivered', 'finished', 'dead', 'emptied')")
        .withColumn("run", f.explode("runs"))
        .withColumn("offset", f.expr("explode(sequence(run[0], run[1]))"))
        .groupBy("topic", "queue", "partition", "offset")
        .agg(
            f.expr("min(if(event = 'delivered', t, NULL)) AS first"),
            f.expr("count_if(event = 'delivered') AS deliveries"),
            f.expr("min(if(event = 'finished', t, NULL)) AS finished"),
            f.expr("bool_or(event = 'dead') AS died"),
            f.expr("bool_or(event = 'emptied') AS emptied"),
        )
    )


def _unseen(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "*",
        "CAST(NULL AS BIGINT) AS first",
        "0L AS deliveries",
        "CAST(NULL AS BIGINT) AS finished",
        "false AS died",
        "false AS emptied",
    )


def _mark_watched(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Which messages have events, where only a share has: by the broker's own choice."""
    from headrace.pipeline.jobs.audit_queues import mark_watched

    return map(mark_watched, blocks)
