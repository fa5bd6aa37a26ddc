"""What jobs share: the options of their sources, how they ask for offsets, tasks that Spark spreads out, and how they
outlive the absence of a broker."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from headrace.client.errors import ConnectionLost
from headrace.pipeline.connection_options import KNOWN
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import SourceOptions, parse
from headrace.pipeline.origin import Catalogue, open_catalogue

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

# The last line of a worker's traceback: the error's class with its module, and its text.
OURS = re.compile(r"^(?:.*\bException: |\s*)?headrace\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)

# Options of the source, in lower case: those that say what a row is, which topics are read, and from where to where.
SHAPING = ("columns", "valueformat", "schema", "valuecolumns", "badrows", "columnnameofcorruptrecord")
TOPICS = ("subscribe", "subscribepattern", "assign")
RANGE = (
    "startinggroup", "startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "endingoffsets",
    "endingtimestamp", "endingoffsetsbytimestamp",
)  # fmt: skip
CONNECTING = tuple(name.lower() for name in KNOWN if name != "kafka.bootstrap.servers")
# As Kafka has them.
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Runs tasks somewhere: the same work, each with what is its own."""


def connection(options: Mapping[str, str] | None) -> dict[str, str]:
    """Of the source's options, those that say how to connect: a writer to the same broker needs them, too."""
    return {name: value for name, value in (options or {}).items() if name.lower() in CONNECTING}


def connection_of_writer(options: Mapping[str, str] | None, source: str, broker: str) -> dict[str, str]:
    """As `connection`, for a writer to a `broker` which may be another one than that of the `source` (empty: a folder).
    Of another one the options say nothing, and a login least of all: there the environment counts."""
    return connection(options) if source in ("", broker) else {}


def refuse_shape(options: Mapping[str, str] | None) -> None:
    """Raises InvalidOption where options say what a row is: a job takes what it needs of each record, and would answer
    as if they were not there."""
    for name in options or {}:
        if name.lower() in SHAPING:
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


def place_of(topics: Sequence[str] = (), pattern: str = "", bootstrap: str = "", data: str = "") -> dict[str, str]:
    """The topics that a job is given, and where they are, as options of the source."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "path": data,
        "subscribe": ",".join(topics),
        "subscribePattern": pattern,
    }
    return {name: value for name, value in given.items() if value}


def source_of(
    topics: Sequence[str], pattern: str, bootstrap: str, data: str, options: Mapping[str, str] | None
) -> SourceOptions:
    """The topics that a job is given, as a batch read has them. Raises InvalidOption."""
    return parse({**(options or {}), **place_of(topics, pattern, bootstrap, data)}, streaming=False)


def stream_options(
    topics: Sequence[str],
    pattern: str,
    bootstrap: str,
    data: str,
    options: Mapping[str, str] | None,
    group: str,
) -> dict[str, str]:
    """Options of the source for a job that is a streaming query. `group` follows it, unless options name another; a
    folder has no groups."""
    return {
        "startingOffsets": "earliest",
        **({} if data else {"kafka.group.id": group}),
        **(options or {}),
        "includeHeaders": "false",
        **place_of(topics, pattern, "" if data else bootstrap, data),
    }


def check_stream(options: Mapping[str, str] | None, every: float | None) -> None:
    """Raises InvalidOption where options of the source are none that a job's streaming query can have. One that takes
    what is there now may have an end before that."""
    refuse_shape(options)
    others = {name: value for name, value in (options or {}).items() if name.lower() not in TOPICS}
    parse({**others, "subscribe": "-", "kafka.bootstrap.servers": "-"}, streaming=True, bounded=every is None)


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
            log.warning("the broker is away: the job begins again", seconds=AWAY_SECONDS, error=find_reason(error))
            stop.wait(AWAY_SECONDS)


def is_outage(error: BaseException) -> bool:
    """Whether a broker could not be reached, by the driver or by one of Spark's tasks."""
    return isinstance(error, ConnectionLost) or AWAY.search(str(error)) is not None


def find_reason(error: BaseException) -> str:
    """An error in one line: that of Headrace which Spark has brought back from one of its workers, or its first."""
    found = OURS.findall(str(error))
    return found[-1][1].strip() if found else next(iter(str(error).strip().splitlines()), type(error).__name__)


def ask(source: SourceOptions, what: Callable[[Catalogue], Awaitable[T]]) -> T:
    """Ask the origin something, from a thread without a loop."""

    async def asking() -> T:
        async with open_catalogue(source) as origin:
            return await what(origin)

    return asyncio.run(asking())


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
