"""Streaming queries of jobs: how they are started, watched and ended, and what their checkpoints say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from headrace.pipeline import read_plan
from headrace.pipeline.offsets import flatten
from headrace.pipeline.options import Partition, SourceOptions
from headrace.pipeline.origin import Catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming import StreamingQuery

# State that outlives a batch lies in RocksDB.
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOOK_SECONDS = 1.0


def register(spark: SparkSession, sink: type[DataSource]) -> None:
    """Let a session know a sink, unless it does."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(sink)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def start(writer: Any, every: float | None) -> StreamingQuery:
    """Start a query: every so often, or over what is there now."""
    if every is None:
        query: StreamingQuery = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{max(1, round(every * 1_000))} milliseconds").start()
    return query


def run(
    query: StreamingQuery, look: Callable[[StreamingQuery], None], stop: Event, every: float = LOOK_SECONDS
) -> None:
    """Look at a query every so often until it ends or is to stop; raises what it has failed of."""
    try:
        while query.isActive and not stop.is_set():
            look(query)
            query.awaitTermination(every)
    finally:
        end(query)
    look(query)


def end(*queries: StreamingQuery) -> None:
    """Stop queries; raises what one has failed of."""
    for query in queries:
        query.stop()
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


async def waiting_offsets(
    origin: Catalogue, options: SourceOptions, checkpoint: Path
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """By partition, how many offsets a query of this checkpoint has not read, and about how many bytes these are:
    before its first progress, Spark says nothing of that."""
    done = stands_at(checkpoint)
    partitions = await read_plan.find_partitions(origin, options)
    first, last = await read_plan.log_bounds(origin, options, partitions)
    fresh = [each for each in partitions if each not in done]
    begin = {**done, **await read_plan.resolve_offsets(origin, options, options.start, fresh)}
    ends = await read_plan.resolve_offsets(origin, options, options.end, partitions)
    last = {each: min(end, ends[each]) for each, end in last.items()}
    left = {each: max(0, last[each] - begin[each]) for each in partitions}
    sizes = await origin.sizes([each for each, count in left.items() if count])
    kept = {each: max(1, last[each] - first[each]) for each in partitions}
    return left, {each: sizes.get(each, 0) * count // kept[each] for each, count in left.items()}


def stands_at(checkpoint: Path) -> dict[Partition, int]:
    """Where the last batch that was committed to a query's checkpoint has ended; nowhere in a new one."""
    batch = _last(checkpoint / "commits")
    if batch < 0:
        return {}
    # A version, what Spark notes, and the offsets of each source on a line.
    return flatten((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def is_pending(checkpoint: Path) -> bool:
    """Whether a batch was begun and not committed: it runs again, over the same offsets."""
    return _last(checkpoint / "offsets") > _last(checkpoint / "commits")


def _last(folder: Path) -> int:
    return max((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), default=-1)


def read_metrics(metrics: Mapping[str, Any], name: str) -> dict[str, int]:
    """What a query has counted in a batch, by name. A Connect server has names and values apart."""
    if name not in metrics:
        return {}
    row = metrics[name].asDict()
    if "schema" in row:
        return {field["name"]: value for field, value in zip(row["schema"]["fields"], row["values"], strict=True)}
    return dict(row)
