"""`audit`: what became of messages, by topic and minute: produced, stored, delivered, acknowledged.

Each number has a witness of its own, and they are laid side by side. What was produced the producers say themselves
(`headrace.sdk.auditing`, or whoever writes such reports); what is stored the log says; what was delivered and
acknowledged the queues say, by their events (`__deliveries`) and by how far they are settled, and consumer groups by
their offsets.

A message belongs to the minute of its time: that of the header `headrace-time`, or of the record. Only whole minutes
are looked at that ended a settling time ago, so that what is still on its way is not taken for lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from headrace.errors import HeadraceError
from headrace.logs import log_like_a_library
from headrace.pipeline import planning
from headrace.pipeline.jobs.audit_queues import WatchedQueue, asked_over_http, watched_here
from headrace.pipeline.jobs.audit_report import (
    JUDGED,
    Instance,
    Kept,
    Report,
    Sent,
    Threshold,
    Watched,
    by_queue,
    compared,
    doubts,
    judged,
    totals,
)
from headrace.pipeline.options import Partition, parse
from headrace.pipeline.origin import Catalogue, catalogue_of
from headrace.pipeline.session import beside

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger("headrace.pipeline.audit")

MINUTE_MS = 60_000
RANGE_MS = 60 * MINUTE_MS
SETTLE_SECONDS = 60.0
# The clocks of producers and of the broker may differ by so much.
SKEW_MS = 5 * MINUTE_MS

REPORTS = "headrace-audit"
ID_HEADER = "headrace-id"
TIME_HEADER = "headrace-time"
EVENTS = "__deliveries"

EVENT_SCHEMA = "t BIGINT, event STRING, topic STRING, queue STRING, partition INT, runs ARRAY<ARRAY<BIGINT>>"
REPORT_SCHEMA = (
    "instance STRING, sequence BIGINT, t BIGINT, within DOUBLE, ids BOOLEAN, last BOOLEAN, "
    "counts ARRAY<STRUCT<topic: STRING, minute: BIGINT, sent: BIGINT, failed: BIGINT>>"
)
QUANTILES = "array(0.5, 0.95, 0.99), 10000"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Looking:
    """Where an audit looks, and what there is."""

    options: Mapping[str, str]
    topics: tuple[str, ...]
    all_topics: frozenset[str]
    begins: Mapping[Partition, int]
    since: int
    until: int
    queues: Sequence[WatchedQueue] = field(default_factory=list)


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
    progress: Progress | None = None,
) -> Report:
    """Audit topics from `since` to `until`, in milliseconds; by default the hour that ended `settle` seconds ago.

    `http` is the broker's HTTP door, which knows the queues, how far they are settled, and what share of their messages
    they watch; without it, `shares` says so by queue. `groups` are consumer groups to judge by their offsets.
    Duplicates are told by the header `id_header`, or by the field `id_field` of values that are JSON objects. `judge`
    says what counts for the verdict, and the thresholds how much of it may be wrong (`25`, `0.1%`).
    """
    log_like_a_library()
    unknown_words = sorted(set(judge) - set(JUDGED))
    if unknown_words:
        raise HeadraceError(f"{unknown_words[0]!r} cannot be judged; what can is {', '.join(JUDGED)}")
    loss, twice = Threshold.parse(max_loss), Threshold.parse(max_duplicates)
    end = until if until is not None else round((time.time() - settle) * 1_000)
    end -= end % MINUTE_MS
    start = since if since is not None else end - RANGE_MS
    start -= start % MINUTE_MS
    if start >= end:
        raise HeadraceError(f"there is no whole minute from {start} to {end}, with {settle:g} s to settle")
    say = progress or (lambda _: None)
    spark = beside(spark)

    say("looking which topics and queues there are")
    given = {
        **(options or {}),
        **({"kafka.bootstrap.servers": bootstrap} if bootstrap else {}),
        **({"path": data} if data else {}),
    }
    looking, notes = _look(given, topics, pattern, groups, start, end, http, shares or {})
    say("reading what producers report")
    sent, instances = _reported(spark, looking)
    say("reading the log")
    stored = _stored(spark, looking, id_header, id_field).persist()
    try:
        kept = _kept(stored)
        say("reading what queues say")
        whole, by_minute = by_queue(_delivered(spark, looking, stored))
    finally:
        stored.unpersist()
    minutes = compared(kept, sent, looking.topics)
    topic_totals = totals(minutes, looking.topics)
    watched = [each.watched for each in looking.queues]
    wrong, unknown = judged(
        topic_totals,
        whole,
        watched,
        doubts(instances, end),
        judge=judge,
        max_loss=loss,
        max_duplicates=twice,
    )
    for (topic, partition), first in sorted(looking.begins.items()):
        if first and any(each.lost for each in topic_totals if each.topic == topic):
            notes.append(f"{topic}-{partition} begins at offset {first}: what retention has taken counts as lost")
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
    log.info("audited", topics=len(looking.topics), minutes=len(minutes), code=report.code)
    return report


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
) -> tuple[_Looking, list[str]]:
    chosen = {"subscribe": ",".join(topics)} if topics else {}
    chosen |= {"subscribePattern": pattern} if pattern else {}
    source = parse({**given, **chosen}, streaming=False)
    notes: list[str] = []

    async def ask() -> tuple[tuple[str, ...], frozenset[str], dict[Partition, int], list[WatchedQueue]]:
        async with catalogue_of(source) as origin:
            partitions = await planning.partitions_of(origin, source)
            names = tuple(dict.fromkeys(topic for topic, _ in partitions))
            if pattern:
                names = tuple(name for name in names if not name.startswith("__") and name != REPORTS)
            mine = [each for each in partitions if each[0] in names]
            begins, _ = await planning.bounds(origin, source, mine)
            found = [each for group in groups for each in await _group(origin, group, mine)]
            return names, frozenset(await origin.topics()), begins, found

    names, everything, begins, found = asyncio.run(ask())
    if not names:
        raise HeadraceError(f"no topic fits {pattern!r}")
    if http:
        found += asked_over_http(http, names)
    elif shares:
        found += watched_here(names, shares)
    elif EVENTS in everything:
        notes.append("queues are not looked at: give the broker's HTTP door, or the share of messages they watch")
    known = {(each.watched.topic, each.watched.queue): each for each in found}
    return _Looking(given, names, everything, begins, since, until, list(known.values())), notes


async def _group(origin: Catalogue, group: str, partitions: Sequence[Partition]) -> list[WatchedQueue]:
    """A consumer group, on the topics that it reads; on all of them, where it has read nothing yet."""
    offsets = await origin.group(group, partitions)
    names = dict.fromkeys(topic for topic, _ in offsets) or dict.fromkeys(topic for topic, _ in partitions)
    return [
        WatchedQueue(
            Watched(name, group, None),
            {index: offsets.get((topic, index), 0) for topic, index in partitions if topic == name},
        )
        for name in names
    ]


# --- what producers say -----------------------------------------------------------------------------------------------


def _reported(spark: SparkSession, looking: _Looking) -> tuple[list[Sent], list[Instance]]:
    """The producers' counts, and which of their reports there are: each once, however often it was written."""
    from pyspark.sql import functions as f

    if REPORTS not in looking.all_topics:
        return [], []
    frame = _read(
        spark,
        looking,
        REPORTS,
        valueFormat="json",
        schema=REPORT_SCHEMA,
        valueColumns="struct",
        badRows="drop",
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
        f.filter("counts", lambda each: each["topic"].isin(list(looking.topics))).alias("counts"),
    ).persist()
    try:
        return _counts(frame, looking), _instances(frame)
    finally:
        frame.unpersist()


def _counts(frame: DataFrame, looking: _Looking) -> list[Sent]:
    from pyspark.sql import functions as f

    counted = (
        frame.select("instance", "ids", f.inline("counts"))
        .withColumn("minute", f.expr(f"minute - minute % {MINUTE_MS}"))
        .where(f"minute >= {looking.since} AND minute < {looking.until}")
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


# --- what the log says ------------------------------------------------------------------------------------------------


def _stored(spark: SparkSession, looking: _Looking, id_header: str, id_field: str) -> DataFrame:
    """The messages of the range: topic, partition, offset, time and minute (ms), instance, id, and whether it is a
    further copy of one that has the same id."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    def header(name: str) -> str:
        text = name.replace("\\", "\\\\").replace("'", "\\'")
        return f"CAST(get(filter(headers, each -> each.key = '{text}'), 0).value AS STRING)"

    frame = _read(spark, looking, ",".join(looking.topics), includeHeaders="true")
    if id_field:
        named = f.get_json_object(f.col("value").cast("string"), f"$['{id_field}']")
    else:
        named = f.expr(header(id_header))
    frame = (
        frame.withColumn("time", f.expr(f"coalesce(try_cast({header(TIME_HEADER)} AS BIGINT), unix_millis(timestamp))"))
        .where(f"time >= {looking.since} AND time < {looking.until}")
        .select(
            "topic",
            "partition",
            "offset",
            "time",
            f.expr(f"time - time % {MINUTE_MS}").alias("minute"),
            f.expr(f"coalesce(regexp_extract({header(ID_HEADER)}, '^(.+)-[0-9]+$', 1), '')").alias("instance"),
            named.alias("id"),
        )
    )
    # Messages without an id are no copies of each other, and not one large group either.
    same = f.expr("coalesce(concat('=', id), concat_ws('/', partition, offset))")
    copies = Window.partitionBy("topic", same).orderBy("partition", "offset")
    return frame.withColumn("copy", f.row_number().over(copies) > 1)


def _kept(stored: DataFrame) -> list[Kept]:
    from pyspark.sql import functions as f

    counted = stored.groupBy("topic", "minute", "instance").agg(
        f.count("*").alias("stored"),
        f.count_if(~f.col("copy")).alias("distinct"),
        f.count("id").alias("identified"),
    )
    return [Kept(**row.asDict()) for row in counted.collect()]


# --- what queues say --------------------------------------------------------------------------------------------------


def _delivered(spark: SparkSession, looking: _Looking, stored: DataFrame) -> list[dict[str, Any]]:
    """Each queue's messages, counted by minute and over the range."""
    from pyspark.sql import functions as f

    if not looking.queues:
        return []
    positions = spark.createDataFrame(
        [
            (each.watched.topic, each.watched.queue, partition, settled, each.watched.share)
            for each in looking.queues
            for partition, settled in _positions(each, looking)
        ],
        "topic STRING, queue STRING, partition INT, settled BIGINT, share DOUBLE",
    )
    rows = stored.join(f.broadcast(positions), ["topic", "partition"])
    judged_shares = {each.watched.share for each in looking.queues}
    if any(share is not None and share < 1 for share in judged_shares):
        schema = (
            "topic STRING, partition INT, offset BIGINT, time BIGINT, minute BIGINT, queue STRING, settled BIGINT, "
        )
        rows = rows.select("topic", "partition", "offset", "time", "minute", "queue", "settled", "share").mapInArrow(
            _mark_watched, schema + "share DOUBLE, watched BOOLEAN"
        )
    else:
        rows = rows.withColumn("watched", f.lit(True))
    place = ["topic", "queue", "partition", "offset"]
    rows = rows.join(_events(spark, looking), place, "left") if EVENTS in looking.all_topics else _unseen(rows)
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


def _positions(queue: WatchedQueue, looking: _Looking) -> Iterator[tuple[int, int]]:
    for topic, partition in looking.begins:
        if topic == queue.watched.topic:
            yield partition, queue.settled.get(partition, 0)


def _events(spark: SparkSession, looking: _Looking) -> DataFrame:
    """What happened to each message in each queue."""
    from pyspark.sql import functions as f

    frame = _read(
        spark, looking, EVENTS, valueFormat="json", schema=EVENT_SCHEMA, valueColumns="struct", badRows="drop"
    )
    return (
        frame.select("value.*")
        .where(f.col("topic").isin(list(looking.topics)))
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


def _read(spark: SparkSession, looking: _Looking, topics: str, **more: str) -> DataFrame:
    begin = str(max(0, looking.since - SKEW_MS))
    chosen: dict[str, str] = {"subscribe": topics, "startingTimestamp": begin, **more}
    return spark.read.format("headrace").options(**looking.options, **chosen).load()
