"""What the log has of the messages of an audit, and what it has given up.

A message that is not in the log was lost, or the log had it and let it go: retention, `DeleteRecords`, compaction. The
two are told apart by where partitions begin. It is asked after the reading, so that what goes meanwhile counts as gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.format.sampling import REDRIVEN, TRACEPARENT
from headrace.pipeline import read_plan
from headrace.pipeline.jobs.audit_queues import WatchedQueue
from headrace.pipeline.jobs.audit_report import GivenUp, Kept
from headrace.pipeline.jobs.rounds import ask
from headrace.pipeline.offsets import assign
from headrace.pipeline.options import Partition, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE_MS = 60_000
# The clocks of producers and of the broker may differ by so much.
SKEW_MS = 5 * MINUTE_MS
# The first offsets of a partition may be those of markers, or of messages that were aborted.
FIRST_OFFSETS = 1_000

# What is needed of a message. Spark takes every column of a source in Python row by row, whatever is done with it.
PLACE = "topic,partition,offset,timestamp,headers"

ID_HEADER = "headrace-id"
TIME_HEADER = "headrace-time"
CHOSEN_BY = (TRACEPARENT, REDRIVEN)


@dataclass(frozen=True)
class AuditScope:
    """Where an audit looks, and what there is."""

    options: Mapping[str, str]
    source: SourceOptions
    topics: tuple[str, ...]
    all_topics: Mapping[str, int]
    """How many partitions each topic has, those included that are not looked at."""
    partitions: tuple[Partition, ...]
    since: int
    until: int
    queues: Sequence[WatchedQueue] = field(default_factory=list)

    @property
    def sampled(self) -> bool:
        """Whether a queue watches a share of its messages."""
        return any(each.watched.share is not None and each.watched.share < 1 for each in self.queues)


def read(spark: SparkSession, scope: AuditScope, topics: str, **more: str) -> DataFrame:
    """Topics from the beginning of the range on. What the log gives up meanwhile is no error here."""
    begin = str(max(0, scope.since - SKEW_MS))
    chosen = {"subscribe": topics, "startingTimestamp": begin, "failOnDataLoss": "false", **more}
    return spark.read.format("headrace").options(**{**scope.options, **chosen}).load()


def stored(spark: SparkSession, scope: AuditScope, id_header: str, id_field: str) -> DataFrame:
    """The messages of the range: topic, partition, offset, time and minute (ms), instance, id, and whether it is a
    further copy of one that has the same id."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = ",".join([PLACE, *(["key"] if scope.sampled else []), *(["value"] if id_field else [])])
    frame = read(spark, scope, ",".join(scope.topics), columns=columns)
    if id_field:
        named = f.get_json_object(f.col("value").cast("string"), f"$['{id_field}']")
    else:
        named = f.expr(_header(id_header))
    frame = (
        frame.withColumn("time", f.expr(_time()))
        .where(f"time >= {scope.since} AND time < {scope.until}")
        .select(
            "topic",
            "partition",
            "offset",
            "time",
            f.expr(f"time - time % {MINUTE_MS}").alias("minute"),
            f.expr(f"coalesce(regexp_extract({_header(ID_HEADER)}, '^(.+)-[0-9]+$', 1), '')").alias("instance"),
            named.alias("id"),
            # What the broker chooses by, where it watches a share of the messages.
            *([f.col("key"), *(f.expr(_last_header(name)).alias(name) for name in CHOSEN_BY)] if scope.sampled else []),
        )
    )
    # Messages without an id are no copies of each other, and not one large group either.
    same = f.expr("coalesce(concat('=', id), concat_ws('/', partition, offset))")
    copies = Window.partitionBy("topic", same).orderBy("partition", "offset")
    return frame.withColumn("copy", f.row_number().over(copies) > 1)


def kept(messages: DataFrame) -> list[Kept]:
    """Messages of the range, counted."""
    from pyspark.sql import functions as f

    counted = messages.groupBy("topic", "minute", "instance").agg(
        f.count("*").alias("stored"),
        f.count_if(~f.col("copy")).alias("distinct"),
        f.count("id").alias("identified"),
    )
    return [Kept(**row.asDict()) for row in counted.collect()]


def given_up(spark: SparkSession, scope: AuditScope, topics: Sequence[str]) -> dict[str, GivenUp]:
    """What the log may have had of the topics, and has no more."""
    compacted = _compacted(scope, topics)
    first, last = ask(scope.source, lambda origin: read_plan.log_bounds(origin, scope.source, _of(scope, topics)))
    cut = {each: offset for each, offset in first.items() if offset}
    oldest = oldest_times(spark, scope, {each: (offset, last[each]) for each, offset in cut.items()})
    found = {}
    for topic in topics:
        own = {each: offset for each, offset in sorted(cut.items()) if each[0] == topic}
        if topic in compacted:
            found[topic] = GivenUp(None, None, (f"{topic} is compacted: what has a newer record of its key goes",))
        elif own:
            times = [oldest.get(each) for each in own]
            known = [each for each in times if each is not None]
            until = max(known) + SKEW_MS if len(known) == len(times) else None
            words = tuple(_begins(each, offset, oldest.get(each)) for each, offset in own.items())
            found[topic] = GivenUp(sum(own.values()), until, words)
    return found


def told_since(spark: SparkSession, scope: AuditScope, topic: str) -> int:
    """From when on a topic of events has them all, where it has given up some of the range; 0 where it has not."""
    partitions = [(topic, index) for index in range(scope.all_topics.get(topic, 0))]
    first, last = ask(scope.source, lambda origin: read_plan.log_bounds(origin, scope.source, partitions))
    cut = {each: (offset, last[each]) for each, offset in first.items() if offset}
    times = oldest_times(spark, scope, cut)
    latest = max((times.get(each, scope.until) for each in cut), default=0)
    return latest if latest > scope.since else 0


def oldest_times(
    spark: SparkSession, scope: AuditScope, bounds: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    """The time of the first message that partitions still have; those that have none are left out."""
    from pyspark.sql import functions as f

    wanted = {each: (first, min(last, first + FIRST_OFFSETS)) for each, (first, last) in bounds.items() if first < last}
    if not wanted:
        return {}
    chosen = {**assign(wanted), "columns": PLACE, "failOnDataLoss": "false"}
    frame = spark.read.format("headrace").options(**{**scope.options, **chosen}).load()
    rows = frame.groupBy("topic", "partition").agg(f.expr(f"min_by({_time()}, offset) AS time")).collect()
    return {(row["topic"], row["partition"]): row["time"] for row in rows}


def _begins(partition: Partition, offset: int, oldest: int | None) -> str:
    topic, index = partition
    if oldest is None:
        return f"{topic}-{index} begins at offset {offset}, with no message yet"
    return f"{topic}-{index} begins at offset {offset}, with a message of {moment(oldest)}"


def moment(at: int) -> str:
    """A time, for people."""
    return datetime.fromtimestamp(at / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _of(scope: AuditScope, topics: Sequence[str]) -> list[Partition]:
    return [each for each in scope.partitions if each[0] in topics]


def _compacted(scope: AuditScope, topics: Sequence[str]) -> set[str]:
    """Of the topics, those that keep one record of each key."""
    try:
        return ask(scope.source, lambda origin: origin.compacted(topics))
    except HeadraceError:
        # A broker that does not tell is taken to delete by age and size, as most do.
        return set()


def _header(name: str) -> str:
    return f"CAST(get({_headers(name)}, 0).value AS STRING)"


def _last_header(name: str) -> str:
    """As the broker reads it: of several of one name, the last one holds."""
    return f"try_element_at({_headers(name)}, -1).value"


def _headers(name: str) -> str:
    text = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"filter(headers, each -> each.key = '{text}')"


def _time() -> str:
    """A message's time: that of its header, or of the record."""
    return f"coalesce(try_cast({_header(TIME_HEADER)} AS BIGINT), unix_millis(timestamp))"
