"""How Spark reads: a batch read, one that takes filters, and a stream.

Reads are planned in the driver (`read_plan`) and done by tasks (`range_reader`), each of which asks the broker for its
own range. A stream's offsets are JSON as in Spark's source, and the consumer group of the query (`kafka.group.id`)
follows them, so that every Kafka tool shows its lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import HeadraceError
from headrace.pipeline import read_plan
from headrace.pipeline.offsets import flatten, nest
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import EARLIEST, LATEST, ColumnSelection, Partition, Position, SourceOptions
from headrace.pipeline.origin import Catalogue, DataLost, Range, open_catalogue
from headrace.pipeline.read_plan import Offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.value_columns import ValueColumns

T = TypeVar("T")

NO_TIME = 1 << 62
# A group that could not be moved is tried again so much later.
REFUSED_SECONDS = 5.0


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range, since: int, until: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.since = since
        self.until = until


class Reader(DataSourceReader):
    """A batch read."""

    def __init__(
        self, options: SourceOptions, values: ValueColumns | None = None, columns: ColumnSelection | None = None
    ) -> None:
        self._options = options
        self._values = values
        self._columns = columns
        # What filters on offset and time leave over.
        self._first = 0
        self._last = 1 << 62
        self._since = -NO_TIME
        self._until = NO_TIME

    def partitions(self) -> Sequence[InputPartition]:
        return _run(self._options, self._plan)

    async def _plan(self, origin: Catalogue) -> Sequence[InputPartition]:
        options = self._options
        partitions = await read_plan.find_partitions(origin, options)
        read_plan.check_positions(options, partitions)
        by_time = {}
        if self._since > -NO_TIME:
            by_time = await read_plan.resolve_offsets(origin, options, Position(time=max(0, self._since)), partitions)
        start, end = await read_plan.resolve_range(origin, options, partitions, by_time)
        start = {each: max(offset, self._first) for each, offset in start.items()}
        end = {each: min(offset, self._last) for each, offset in end.items()}
        pieces = await read_plan.split_ranges(origin, options, start, end)
        return [RangePartition(each, self._since, self._until) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where nothing was planned, Spark runs one task all the same, with a partition of its own.
        if not isinstance(partition, RangePartition):
            return iter(())
        from headrace.pipeline.range_reader import read_range

        return read_range(
            self._options, partition.wanted, partition.since, partition.until, self._values, self._columns
        )


class FilteringReader(Reader):
    """A batch read that takes filters. Spark refuses one where its own switch for that is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Take the filters on offset and time; all are given back too, because times below a millisecond are Spark's
        to judge."""
        for each in filters:
            column = getattr(each, "attribute", None)
            value = getattr(each, "value", None)
            if column == ("offset",) and isinstance(value, int):
                low, high = _interval(each, value)
                self._first = max(self._first, low)
                self._last = min(self._last, high)
            elif column == ("timestamp",) and isinstance(value, datetime):
                low, high = _interval(each, int(value.timestamp() * 1000))
                self._since = max(self._since, low)
                # The filter's own millisecond may hold later microseconds than the record's.
                self._until = min(self._until, high + 1)
            yield each


class CatalogueConnection:
    """An origin that is asked again and again from Spark's thread. A broker's connections are kept meanwhile: a stream
    without news asks many times a second. A folder is opened for each question, so that others can have it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._runner: asyncio.Runner | None = None
        self._origin: tuple[AbstractAsyncContextManager[Catalogue], Catalogue] | None = None

    def __reduce__(self) -> tuple[type[CatalogueConnection], tuple[SourceOptions]]:
        # A task that gets the reader asks for itself.
        return CatalogueConnection, (self._options,)

    def __call__(self, ask: Callable[[Catalogue], Awaitable[T]]) -> T:
        if self._options.folder:
            return _run(self._options, ask)
        if self._runner is None:
            self._runner = asyncio.Runner()
        run = self._runner.get_loop().run_until_complete
        try:
            if self._origin is None:
                opening = open_catalogue(self._options)
                self._origin = opening, run(opening.__aenter__())
            return run(ask(self._origin[1]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        runner, origin = self._runner, self._origin
        self._runner = self._origin = None
        if runner is None:
            return
        with runner:
            if origin is not None:
                runner.get_loop().run_until_complete(origin[0].__aexit__(None, None, None))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Offsets are {topic: {partition: offset}}.

    Where a log ends before what was to be read next, its topic was made anew. Offsets that go back show it, to this
    query and to one that is started again: the log is read from its beginning.
    """

    def __init__(
        self, options: SourceOptions, values: ValueColumns | None = None, columns: ColumnSelection | None = None
    ) -> None:
        self._options = options
        self._catalogue = CatalogueConnection(options)
        self._values = values
        self._columns = columns
        self._until: Offsets | None = None
        """Where the log ended when a query began that takes what is available now."""
        self._bound: Offsets = {}
        """Where the options have such a query end before that."""
        self._followed: Offsets = {}
        """The last offsets that were committed for the query's group."""
        self._refused = -inf
        """When the group could not be moved, by the monotonic clock."""
        self._given = -inf
        """When something was last found to be read, by the monotonic clock."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        async def ask(origin: Catalogue) -> Offsets:
            partitions = await read_plan.find_partitions(origin, self._options)
            read_plan.check_positions(self._options, partitions)
            return await read_plan.resolve_offsets(origin, self._options, self._options.start, partitions)

        return nest(self._catalogue(ask))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        most = self._options.offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        self._until = ends = self._catalogue(self._ends)
        if self._has_end:
            options = self._options
            self._bound = self._catalogue(
                lambda origin: read_plan.resolve_offsets(origin, options, options.end, list(ends))
            )

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        return nest(self._catalogue(self._ends))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        begun = flatten(start)
        if self._has_end and self._until is None:
            raise InvalidOption(
                "endingOffsets and endingTimestamp are for batch reads and for trigger(availableNow=True): this stream "
                "has no end"
            )
        # A query that asks what comes after `start` has done what comes before. Spark calls `commit` itself for all
        # batches but the last of a query that ends by itself.
        self._follow(begun)

        async def ask(origin: Catalogue) -> Offsets:
            ends = self._until if self._until is not None else await self._ends(origin)
            ends = await self._after(origin, begun, ends)
            for each in self._bound:
                # A log that ends before what was read last was made anew, and is read whole.
                if begun.get(each, 0) <= ends[each]:
                    ends[each] = max(begun.get(each, 0), min(ends[each], self._bound[each]))
            since = {each: _next(begun.get(each, 0), end) for each, end in ends.items()}
            if not self._is_enough(sum(end - since[each] for each, end in ends.items())):
                return begun
            if isinstance(limit, ReadMaxRows):
                return read_plan.limit_ends(since, ends, limit.max_rows)
            return ends

        found = self._catalogue(ask)
        if found != begun:
            self._given = monotonic()
        return nest(found)

    async def _after(self, origin: Catalogue, begun: Offsets, ends: Offsets) -> Offsets:
        """Where the partitions end that are still there. Raises DataLost for those that are gone or were made anew,
        unless it does not matter."""
        missing = [each for each in begun if each not in ends]
        if missing and self._options.fail_on_data_loss:
            topics = await origin.topics()
            # Those that are there, and not asked for any more, are no loss.
            for each in missing:
                if each[1] >= topics.get(each[0], 0):
                    raise DataLost(_describe_gone(each, begun[each]))
        behind = [each for each, end in ends.items() if end < begun.get(each, 0)]
        # A group, or a query that read everything, may stand within a transaction that is open.
        written = await origin.offsets(dict.fromkeys(behind, LATEST), committed=False)
        for each, end in written.items():
            if end < begun[each] and self._options.fail_on_data_loss:
                raise DataLost(_describe_recreated(each, begun[each], end))
        return {**ends, **{each: begun[each] for each, end in written.items() if end >= begun[each]}}

    @property
    def _has_end(self) -> bool:
        return self._options.end != Position(LATEST)

    def _is_enough(self, waiting: int) -> bool:
        """Whether what waits is worth a batch, or has waited for long enough."""
        if self._until is not None or waiting >= self._options.least_per_trigger:
            return True
        return monotonic() - self._given >= self._options.trigger_delay

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ends = flatten(start), flatten(end)

        async def plan(origin: Catalogue) -> list[Range]:
            since = {each: _next(begun.get(each, 0), last) for each, last in ends.items()}
            wanted = {each: last for each, last in ends.items() if last > since[each]}
            topics = await origin.topics()
            asked = [each for each in wanted if each[1] < topics.get(each[0], 0)]
            first = await origin.offsets(dict.fromkeys(asked, EARLIEST), committed=False)
            last = await origin.offsets(dict.fromkeys(asked, LATEST), committed=False)
            for each in list(wanted):
                strict = self._options.fail_on_data_loss
                if last.get(each, -1) < wanted[each]:
                    if strict and each in last:
                        raise DataLost(_describe_recreated(each, wanted[each], last[each]))
                    if strict:
                        raise DataLost(_describe_gone(each, since[each]))
                    # What is there now is read next, from the beginning.
                    del wanted[each]
                elif since[each] < first[each]:
                    # A new partition may have lost its first records by retention, like any other.
                    if strict and since[each] == begun.get(each):
                        raise DataLost(read_plan.describe_lost(each, since[each], first[each]))
                    since[each] = min(first[each], wanted[each])
            return await read_plan.split_ranges(origin, self._options, since, wanted)

        return [RangePartition(each, -NO_TIME, NO_TIME) for each in self._catalogue(plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.pipeline.range_reader import read_range

        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.wanted, values=self._values, columns=self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._follow(flatten(end))

    def stop(self) -> None:
        self._catalogue.close()

    async def _ends(self, origin: Catalogue) -> Offsets:
        partitions = await read_plan.find_partitions(origin, self._options, only_there=True)
        return await origin.offsets(dict.fromkeys(partitions, LATEST), committed=self._options.committed)

    def _follow(self, offsets: Offsets) -> None:
        """Let the query's consumer group follow it. That it cannot is not the query's failure."""
        group = self._options.group
        # A query without news asks what comes next many times a second.
        if not group or offsets == self._followed or monotonic() - self._refused < REFUSED_SECONDS:
            return

        async def follow(origin: Catalogue) -> None:
            await origin.follow(group, offsets)

        try:
            self._catalogue(follow)
            self._followed = offsets
        except HeadraceError as error:
            import structlog

            self._refused = monotonic()
            log = structlog.get_logger("headrace.pipeline")
            log.warning("the query's group could not be moved", group=group, error=str(error))


def _next(begun: int, end: int) -> int:
    """What is read first of a log that ends there."""
    return begun if begun <= end else 0


def _run(options: SourceOptions, ask: Callable[[Catalogue], Awaitable[T]]) -> T:
    """Ask the origin something, from Spark's thread."""

    async def asking() -> T:
        async with open_catalogue(options) as origin:
            return await ask(origin)

    return asyncio.run(asking())


def _interval(each: Filter, value: int) -> tuple[int, int]:
    """The whole numbers that a comparison leaves, the upper end excluded."""
    if isinstance(each, EqualTo):
        return value, value + 1
    # An end that the comparison leaves out is read all the same: Spark drops it.
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return value, NO_TIME
    if isinstance(each, LessThan | LessThanOrEqual):
        return -NO_TIME, value + 1
    return -NO_TIME, NO_TIME


def _describe_gone(partition: Partition, wanted: int) -> str:
    return (
        f"{partition[0]}-{partition[1]}: {wanted} was to be read next, and there is no such partition any more (the "
        "topic was deleted, or made anew with fewer); failOnDataLoss=false goes on without it"
    )


def _describe_recreated(partition: Partition, wanted: int, end: int) -> str:
    return (
        f"{partition[0]}-{partition[1]}: the query has come to {wanted}, and the log ends at {end}: the topic was made "
        "anew, or startingOffsets is beyond its end; failOnDataLoss=false reads what there is from the beginning"
    )
