"""`sessions`: the events of each question in order, what they make of it, and how many questions are in which state.

Two queries. The first keeps the story of each question (`sessions_story.py`) as Spark's state and tells, in one
transaction for a batch and task, the events in order, the question's state, and how that has changed. The second adds
up the changes. Both write through the sink, exactly once, and each has its own checkpoint; between them lies a topic,
so that a driver may be killed anywhere.

Time is that of the events: a watermark follows the latest of them at a distance. Spark would drop what comes behind it;
here that reaches the stories, which put it in place or say that it is late. A question of which nothing was heard for
long is forgotten, so that there is state of the questions that live, and no other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import structlog

from headrace.client import EARLIEST, LATEST
from headrace.errors import HeadraceError
from headrace.logs import log_like_a_library
from headrace.pipeline.arrow_schema import MOST_TIME
from headrace.pipeline.broker import make_client
from headrace.pipeline.jobs import queries, rounds
from headrace.pipeline.jobs.folders import CheckpointInvalid, check_checkpoint, take_checkpoint
from headrace.pipeline.jobs.sessions_story import BROKEN, CHANGE, EVENT, EVENTS, FORGOTTEN, LATE, STATE, Rules
from headrace.pipeline.options import SourceOptions, parse
from headrace.pipeline.progress import count_waiting
from headrace.pipeline.session import sibling_session
from headrace.targets import local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.jobs.sessions_state import Fields

log = structlog.get_logger("headrace.pipeline.sessions")

LATENESS_SECONDS = 600.0
FORGET_SECONDS = 90 * 86_400.0
# An event cannot be younger than its record by more: one with a time of next year would make all others late.
AHEAD = "INTERVAL 5 MINUTES"
# Milliseconds, up to the year 9999, or ISO 8601.
MOMENT = (
    "coalesce(CASE WHEN try_cast(said AS BIGINT) BETWEEN 0 AND 253402300799999 "
    "THEN timestamp_millis(try_cast(said AS BIGINT)) END, try_to_timestamp(said))"
)
JOB = "sessions"
QUESTIONS, COUNTS = "questions", "counts"
# Spark takes every column of a source in Python row by row, whatever is done with it.
READ = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, value STRING"
# What is written, counted by kind, in Spark's progress.
METRICS = "sessions"
COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class Sessions:
    """How far the job has come."""

    batches: int
    events: int
    late: int
    """Events that came too late to be put in order, or for a question that is not known any more."""
    broken: int
    """Records that are no events, or came twice."""
    forgotten: int
    """Questions of which nothing was heard for long."""
    states: Mapping[str, int]
    """Questions by state, when all is done."""
    lag: int = 0
    """Offsets that were there and not read when last looked at."""


Progress = Callable[[Sessions], None]


def names_of(to: str) -> dict[str, str]:
    """The topics that a job writes, by what they carry."""
    return {
        EVENT: f"{to}.events",
        STATE: f"{to}.state",
        CHANGE: f"{to}.changes",
        BROKEN: f"{to}.broken",
        LATE: f"{to}.late",
        COUNTS: f"{to}.counts",
    }


def sessions(
    spark: SparkSession,
    *,
    to: str,
    checkpoint: str | Path,
    bootstrap: str,
    topics: Sequence[str] = (),
    pattern: str = "",
    data: str = "",
    options: Mapping[str, str] | None = None,
    idle: float | None = None,
    lateness: float = LATENESS_SECONDS,
    forget: float | None = FORGET_SECONDS,
    tombstones: bool = False,
    unasked: bool = True,
    every: float | None = None,
    fields: Fields | None = None,
    progress: Progress | None = None,
    stop: Flag | None = None,
) -> Sessions:
    """Follow the questions in topics of events, and write what becomes of them to topics called `to`.something.

    Without `every` all that is there now is worked off, and the call returns. With it, a batch begins each `every`
    seconds until `stop` is set. Events may come `lateness` seconds out of order; a question that hears nothing for
    `idle` seconds of the events' time becomes idle, and one that hears nothing for `forget` seconds is forgotten (None:
    none is). Its record in the compacted topic stays, or goes with `tombstones`. Events of a question that is not asked
    first, because it is forgotten or was never known, begin a story all the same, or are put aside unless `unasked`.
    The folder `checkpoint` and `to` belong together.
    """
    log_like_a_library()
    from headrace.pipeline.jobs import sessions_state

    rounds.check_stream(options, every)
    check_times(lateness=lateness, idle=idle, forget=forget, every=every)
    folder = check_places(to, checkpoint)
    source = rounds.stream_options(topics, pattern, bootstrap, data, options, f"sessions-{to}")
    out = names_of(to)
    # What is read must not be what is written.
    options_of_source = parse(source, streaming=True, bounded=every is None)
    rounds.refuse_loop(options_of_source, bootstrap, list(out.values()))
    place = {"kafka.bootstrap.servers": bootstrap, **rounds.connection(options)}
    broker = parse({**place, "subscribe": out[COUNTS]}, streaming=False)
    take_checkpoint(folder, JOB, to, (QUESTIONS, COUNTS))
    asyncio.run(_make_topics(broker, out))
    if not (folder / QUESTIONS / "offsets").exists() and asyncio.run(_is_written(broker, out[STATE])):
        # The sink would refuse it, in its own words.
        raise CheckpointInvalid(
            f"{out[STATE]} was written from another checkpoint than {folder}, which is new: give that one, or write to "
            f"another name than {to}"
        )
    job = _Job(
        # A checkpoint keeps the number of the partitions of its state.
        sibling_session(spark, {queries.STATE_STORE: queries.ROCKSDB}),
        source,
        place,
        out,
        f"sessions-{to}",
        folder,
        fields or sessions_state.Fields(),
        round(lateness * 1_000),
        Rules(_ms(idle), _ms(forget), tombstones, unasked),
    )
    left, _ = rounds.ask(
        options_of_source, lambda origin: queries.waiting_offsets(origin, options_of_source, folder / QUESTIONS)
    )
    followed, stopping = _Followed(progress or (lambda _: None), sum(left.values())), stop or Flag()
    done = rounds.through_outages(lambda: job.run(every, followed, stopping), every, stopping)
    states = asyncio.run(_states(broker, out[COUNTS]))
    log.info("followed", events=done.events, late=done.late, broken=done.broken, states=states)
    return replace(done, states=states)


def check_places(to: str, checkpoint: str | Path) -> Path:
    """The checkpoint's folder. Raises where no topics can be called `to`, or the folder is another's; changes
    nothing."""
    if not to:
        raise HeadraceError("the topics that are written need a name to begin with")
    for name in names_of(to).values():
        rounds.check_topic(name)
    folder = Path(local_path(checkpoint, "checkpoint")).absolute()
    check_checkpoint(folder, JOB, to, (QUESTIONS, COUNTS))
    return folder


def check_times(*, lateness: float, idle: float | None, forget: float | None, every: float | None) -> None:
    """Raises HeadraceError where they make no sense."""
    rounds.check_every(every)
    for name, value in (("lateness", lateness), ("idle", idle), ("forget", forget)):
        if value is not None and value < 0:
            raise HeadraceError(f"{name} cannot be {value:g} seconds")
    if forget is not None and forget < (idle or 0.0):
        raise HeadraceError(f"a question would be forgotten ({forget:g} s) before it is idle ({idle:g} s)")


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


@dataclass(frozen=True)
class _Job:
    spark: SparkSession
    source: Mapping[str, str]
    place: Mapping[str, str]
    """The broker that gets the results, and how to connect to it."""
    out: Mapping[str, str]
    application: str
    checkpoint: Path
    fields: Fields
    lateness: int
    rules: Rules

    def run(self, every: float | None, followed: _Followed, stop: Flag) -> Sessions:
        if every is None:
            for start in (self._questions, self._counts):
                queries.run(start(None), followed.look, stop)
            return followed.sessions
        running = [self._questions(every)]
        try:
            while all(query.isActive for query in running) and not stop.wait(min(queries.LOOK_SECONDS, every)):
                followed.look(running[0])
                # One after the other: each starts Python workers, which have little time to answer.
                if len(running) == 1 and running[0].lastProgress is not None:
                    running.append(self._counts(every))
        finally:
            queries.end(*running)
        followed.look(running[0])
        return followed.sessions

    def _questions(self, every: float | None) -> StreamingQuery:
        from pyspark.sql import functions as f

        from headrace.pipeline.jobs.sessions_state import OUTPUT, Questions

        outputs = (
            self._events()
            .withWatermark("at", f"{self.lateness} milliseconds")
            # Spark drops rows behind the watermark where it sees the column that has it.
            .drop("at")
            .groupBy("question")
            .transformWithState(Questions(self.fields, self.rules), OUTPUT, "Append", "EventTime")
            .observe(
                METRICS,
                f.expr(f"count_if(kind = '{LATE}') AS late"),
                f.expr(f"count_if(kind = '{BROKEN}') AS broken"),
                f.expr(f"count_if(kind = '{CHANGE}' AND get_json_object(value, '$.to') = '{FORGOTTEN}') AS forgotten"),
            )
        )
        topic = f.create_map(*(f.lit(each) for kind in self.out.items() for each in kind))
        return self._write(outputs.select(topic[f.col("kind")].alias("topic"), "key", "value"), QUESTIONS, every)

    def _events(self) -> DataFrame:
        """Records as events: those that are none have a reason, and no question and no time."""
        from pyspark.sql import functions as f

        names = self.fields

        def text(name: str) -> Column:
            return f.get_json_object("value", f"$['{name}']")

        frame = self.spark.readStream.format("headrace").options(**self.source).schema(READ).load()
        # A worker in Python gets what follows, and ends where it is no text.
        frame = frame.withColumn("text", f.is_valid_utf8("value")).withColumn("value", f.make_valid_utf8("value"))
        said = frame.select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "value",
            "text",
            text(names.question).alias("question"),
            text(names.event).alias("event"),
            text(names.time).alias("said"),
            text(names.sequence).alias("number"),
        ).withColumn("moment", f.expr(MOMENT))
        reason = (
            f.when(~f.col("text"), f.lit("it is not UTF-8"))
            .when(f.coalesce("question", f.lit("")) == "", f.lit(f"there is no {names.question!r} in it"))
            .when(f.col("event").isNull(), f.lit(f"there is no {names.event!r} in it"))
            .when(f.expr("said IS NOT NULL AND moment IS NULL"), f.lit(f"{names.time!r} is no time"))
            # Without a time of its own an event would have that of its record, and all others would be late.
            .when(
                f.expr(f"moment IS NULL AND unix_micros(timestamp) >= {MOST_TIME}"),
                f.lit("its record's time is behind the year 9999"),
            )
            .when(
                f.expr("number IS NOT NULL AND try_cast(number AS BIGINT) IS NULL"),
                f.lit(f"{names.sequence!r} is no number"),
            )
        )
        at = f.expr(f"least(coalesce(moment, timestamp), timestamp + {AHEAD})")
        return (
            said.withColumn("reason", reason)
            # What is no event moves no watermark.
            .withColumn("at", f.when(f.col("reason").isNull() & f.col("event").isin(*EVENTS), at))
            .select(
                f.when(f.col("reason").isNull(), f.col("question")).otherwise(f.lit("")).alias("question"),
                "event",
                "at",
                f.unix_millis("at").alias("at_ms"),
                f.expr("try_cast(number AS BIGINT)").alias("sequence"),
                "topic",
                "partition",
                "offset",
                "value",
                "reason",
            )
        )

    def _counts(self, every: float | None) -> StreamingQuery:
        from headrace.pipeline.jobs.sessions_state import Counts

        source = {
            **self.place,
            "subscribe": self.out[CHANGE],
            "startingOffsets": "earliest",
            "kafka.group.id": f"{self.application}-counts",
            "valueFormat": "json",
            "schema": "from STRING, to STRING, at BIGINT",
            "valueColumns": "struct",
            "badRows": "fail",
            "columns": "value",
        }
        changes = self.spark.readStream.format("headrace").options(**source).load()
        counted = (
            changes.selectExpr(
                "value.at AS at",
                "inline(array(struct(value.to AS state, 1 AS by), struct(value.from AS state, -1 AS by)))",
            )
            .where("state IS NOT NULL")
            .groupBy("state")
            .transformWithState(Counts(), "key STRING, value STRING", "Append", "None")
        )
        return self._write(counted.selectExpr(f"'{self.out[COUNTS]}' AS topic", "key", "value"), COUNTS, every)

    def _write(self, frame: DataFrame, name: str, every: float | None) -> StreamingQuery:
        writer = (
            frame.writeStream.format("headrace")
            .queryName(f"{self.application}-{name}")
            .options(**self.place)
            .option("applicationId", f"{self.application}-{name}")
            .option("checkpointLocation", str(self.checkpoint / name))
            .outputMode("append")
        )
        return queries.start(writer, every)


class _Followed:
    """Adds up what a query says of its batches."""

    def __init__(self, progress: Progress, lag: int) -> None:
        """`lag` is what waits at the start."""
        self.sessions = Sessions(0, 0, 0, 0, 0, {}, lag)
        self._progress = progress
        self._seen: set[tuple[str, int, str]] = set()

    def look(self, query: StreamingQuery) -> None:
        done = self.sessions
        for each in query.recentProgress:
            at = (str(each["id"]), int(each["batchId"]), str(each["timestamp"]))
            if at in self._seen or str(each["name"]).endswith("-counts"):
                continue
            self._seen.add(at)
            # A Connect server does not say it of the whole query.
            rows = sum(int(source["numInputRows"]) for source in each["sources"])
            counted = queries.read_metrics(each["observedMetrics"], METRICS)
            (behind,) = map(count_waiting, each["sources"])
            done = Sessions(
                done.batches + bool(rows),
                done.events + rows,
                done.late + counted.get("late", 0),
                done.broken + counted.get("broken", 0),
                done.forgotten + counted.get("forgotten", 0),
                {},
                done.lag if behind is None else behind,
            )
        self.sessions = done
        self._progress(done)


async def _make_topics(broker: SourceOptions, out: Mapping[str, str]) -> None:
    async with make_client(broker) as client:
        for kind, name in out.items():
            await client.admin.ensure_topic(name, config=COMPACTED if kind in (STATE, COUNTS) else {})


async def _is_written(broker: SourceOptions, topic: str) -> bool:
    async with make_client(broker) as client:
        partitions = [(topic, each.index) for each in (await client.cluster.topic(topic)).partitions]
        ends = await client.admin.list_offsets(dict.fromkeys(partitions, LATEST))
        return any(each.offset > 0 for each in ends.values())


async def _states(broker: SourceOptions, topic: str) -> dict[str, int]:
    """The latest count of each state."""
    found: dict[str, int] = {}
    async with make_client(broker) as client, client.consumer(committed=True, max_wait=0.1) as consumer:
        partitions = (await client.cluster.topic(topic)).partitions
        await consumer.assign({(topic, each.index): EARLIEST for each in partitions})
        async for record in consumer.records(await consumer.end_offsets()):
            counted: Any = json.loads(record.value or b"{}")
            found[counted["state"]] = counted["questions"]
    return dict(sorted(found.items()))
