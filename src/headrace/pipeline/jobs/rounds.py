"""Rounds over topics: what is there and not done yet, and tasks that are spread out by Spark.

A job that keeps its own account of the offsets that it has done asks here what comes next. Ranges are fixed before the
tasks of a round run, so one that is tried again does the same again.
"""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from headrace.client.errors import ConnectionLost
from headrace.pipeline import read_plan
from headrace.pipeline.options import InvalidOption, Partition, SourceOptions, parse
from headrace.pipeline.origin import Catalogue, DataLost, Range, open_catalogue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

log = structlog.get_logger("headrace.pipeline.rounds")

# A broker that is away is looked for so often.
AWAY_SECONDS = 5.0
# As Spark gives an error of one of its workers.
AWAY = re.compile(r"headrace\.client\.errors\.(?:ConnectionLost|RequestTimeout): (.+)")

# Options of the source that say what a row is.
SHAPING = ("columns", "valueFormat", "schema", "valueColumns", "badRows", "columnNameOfCorruptRecord")

# Options that say which topics are read, in lower case.
TOPICS = ("subscribe", "subscribepattern", "assign")
# As Kafka has them.
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Runs tasks somewhere: the same work, each with what is its own."""


def connection(options: Mapping[str, str] | None) -> dict[str, str]:
    """Of the source's options, those that say how to connect: whoever writes to the same broker needs them, too."""
    return {
        name: value
        for name, value in (options or {}).items()
        if name.lower().startswith("kafka.ssl.")
        or name.lower() in ("timeout", "kafka.client.id", "kafka.security.protocol")
    }


def refuse_shape(options: Mapping[str, str] | None) -> None:
    """Raises InvalidOption where options say what a row is: a job takes what it needs of each record, and would answer
    as if nothing had been said."""
    for name in options or {}:
        if name.lower() in {each.lower() for each in SHAPING}:
            raise InvalidOption(f"the option {name} is for queries: this job chooses itself what it reads of a record")


def check_every(every: float | None) -> None:
    """Raises InvalidOption where a job would ask without a pause."""
    if every is not None and every <= 0:
        raise InvalidOption(f"a job cannot look every {every:g} seconds: give a time, or none for what is there now")


def check_topic(name: str) -> None:
    """Raises InvalidOption where no topic that is written can have this name."""
    if not TOPIC.fullmatch(name) or name in (".", ".."):
        raise InvalidOption(
            f"a topic cannot be called {name!r}. Give 1 to 249 letters, digits, dots, underscores and hyphens."
        )


def source_of(
    topics: Sequence[str], pattern: str, bootstrap: str, data: str, options: Mapping[str, str] | None
) -> SourceOptions:
    """The topics that a job is told, as a batch read has them. Raises InvalidOption."""
    given = {
        **(options or {}),
        **({"kafka.bootstrap.servers": bootstrap} if bootstrap else {}),
        **({"path": data} if data else {}),
        **({"subscribe": ",".join(topics)} if topics else {}),
        **({"subscribePattern": pattern} if pattern else {}),
    }
    return parse(given, streaming=False)


def refuse_loop(source: SourceOptions, bootstrap: str, written: Sequence[str]) -> None:
    """Raises InvalidOption where topics that are written would be read."""
    if source.bootstrap != bootstrap:
        return
    for name in written:
        if name in source.topics or (source.pattern and re.fullmatch(source.pattern, name)):
            raise InvalidOption(
                f"{name} is written, and would be read, too: give other topics, or another name to write to"
            )


def through_outages(work: Callable[[], T], every: float | None, stop: Event) -> T:
    """Work that is to go on, every so often, until it is stopped: where a broker is away for longer than its client
    waits, it is begun again, as it would be after a restart."""
    while True:
        try:
            return work()
        except Exception as error:
            if every is None or stop.is_set() or not is_outage(error):
                raise
            log.warning("the broker is away: the job begins again", seconds=AWAY_SECONDS, error=_short(error))
            stop.wait(AWAY_SECONDS)


def is_outage(error: BaseException) -> bool:
    """Whether a broker could not be reached, by the driver or by one of Spark's tasks."""
    return isinstance(error, ConnectionLost) or AWAY.search(str(error)) is not None


def _short(error: BaseException) -> str:
    found = AWAY.search(str(error))
    return found[1].strip() if found else str(error)


def ask(source: SourceOptions, what: Callable[[Catalogue], Awaitable[T]]) -> T:
    """Ask the origin something, from a thread without a loop."""

    async def asking() -> T:
        async with open_catalogue(source) as origin:
            return await what(origin)

    return asyncio.run(asking())


async def ends(origin: Catalogue, source: SourceOptions) -> dict[Partition, int]:
    """Where a job ends that does what is there now."""
    partitions = await read_plan.find_partitions(origin, source)
    _, last = await read_plan.log_bounds(origin, source, partitions)
    end = await read_plan.resolve_offsets(origin, source, source.end, partitions)
    return {each: min(end[each], last[each]) for each in partitions}


async def pending(
    origin: Catalogue,
    source: SourceOptions,
    done: Mapping[Partition, int],
    until: Mapping[Partition, int] | None,
    *,
    deed: str = "read",
    advice: str = "",
) -> tuple[list[Range], int]:
    """What is there and not done, and about how many bytes that is. Raises DataLost, in the words of the job: what it
    does with records, and what helps against retention."""
    partitions = await read_plan.find_partitions(origin, source)
    first, last = await read_plan.log_bounds(origin, source, partitions)
    fresh = [each for each in partitions if each not in done]
    begin = {**done, **await read_plan.resolve_offsets(origin, source, source.start, fresh)}
    ranges = []
    for each in partitions:
        if each in done and last[each] < done[each]:
            raise DataLost(
                f"{each[0]}-{each[1]}: it is {deed} up to {done[each]}, and the log ends at {last[each]}: the topic "
                "was made anew; begin anew, too, in another folder"
            )
        start, end = begin[each], last[each] if until is None else min(last[each], until.get(each, 0))
        if end > start and start < first[each]:
            if source.fail_on_data_loss:
                raise DataLost(
                    f"{each[0]}-{each[1]}: {start} was to be {deed} next, and the log begins at {first[each]}: "
                    f"retention was faster{advice}; failOnDataLoss=false goes on"
                )
            start = min(first[each], end)
        if end > start:
            ranges.append(Range(*each, start, end))
    sizes = await origin.sizes([(each.topic, each.partition) for each in ranges]) if ranges else {}
    waiting = sum(
        sizes.get((each.topic, each.partition), 0)
        * (each.end - each.start)
        // max(1, last[each.topic, each.partition] - first[each.topic, each.partition])
        for each in ranges
    )
    return ranges, waiting


def taken(ranges: Sequence[Range], waiting: int, most: int) -> list[Range]:
    """What one round takes of the ranges: about so many bytes, shared out by what waits where."""
    start = {(each.topic, each.partition): each.start for each in ranges}
    end = {(each.topic, each.partition): each.end for each in ranges}
    total = sum(each.end - each.start for each in ranges)
    end = read_plan.limit_ends(start, end, max(1, total * most // waiting) if waiting > most else total)
    return [Range(*each, start[each], last) for each, last in sorted(end.items()) if last > start[each]]


def on_spark(spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run tasks as Spark's. Of one that was tried again or run twice, Spark gives one answer."""

    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield pa.record_batch({"answer": pa.array([pickle.dumps(work(tasks[index]))], pa.binary())})

    count = len(tasks)
    rows = spark.range(0, count, 1, count).mapInArrow(some, "answer BINARY").collect()
    return [pickle.loads(bytes(row["answer"])) for row in rows]
