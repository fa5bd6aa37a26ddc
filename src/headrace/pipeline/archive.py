"""Records of an archive that `headrace pipeline archive` has made, as the source's rows.

Which offsets and which files there are is what the table says (`tables.py`). Files are passed over by the offsets that
their row groups have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.log.interface import EARLIEST, LATEST
from headrace.pipeline.arrow_schema import ARCHIVED as SCHEMA
from headrace.pipeline.arrow_schema import HEADERS
from headrace.pipeline.manifest import newest
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import Partition
from headrace.pipeline.origin import Catalogue, Range
from headrace.pipeline.tables import Table, TableInvalid, kind_of, table_of
from headrace.pipeline.target import Target

ROWS = 100_000


class ArchiveCatalogue:
    """An archive's topics."""

    def __init__(self, folder: str) -> None:
        self.name = folder
        state = table_at(folder).state()
        if not state.offsets:
            raise TableInvalid(f"nothing is archived in {folder} yet")
        self._offsets = state.offsets

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: str) -> AsyncIterator[Catalogue]:
        yield cls(folder)

    async def topics(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for topic, index in self._offsets:
            found[topic] = max(found.get(topic, 0), index + 1)
        return found

    async def offsets(self, wanted: Mapping[Partition, int], *, committed: bool) -> dict[Partition, int]:
        found = {}
        for each, when in wanted.items():
            # A partition of which nothing was ever archived is empty.
            start, end = self._offsets.get(each, (0, 0))
            if when == EARLIEST:
                found[each] = start
            elif when == LATEST:
                found[each] = end
            else:
                found[each] = self._offset_at(each, when)
        return found

    def _offset_at(self, partition: Partition, time_ms: int) -> int:
        time = pa.scalar(time_ms * 1000, pa.timestamp("us", tz="UTC"))
        wanted = (pc.field("partition") == partition[1]) & (pc.field("timestamp") >= time)
        found = [
            pc.min(batch.column("offset")).as_py()
            for batch in _files(self.name, partition[0]).to_batches(columns=["offset"], filter=wanted)
            if batch.num_rows
        ]
        return min(found, default=-1)

    async def group(self, name: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        raise InvalidOption("startingGroup needs a running broker: an archive is read by offsets or times")

    async def follow(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise InvalidOption("kafka.group.id needs a running broker: nothing is written to an archive that is read")

    async def sizes(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """About: the bytes of a topic, the same for each of its partitions."""
        sizes = {topic: _size(self.name, topic) for topic, _ in partitions}
        count = await self.topics()
        return {each: sizes[each[0]] // count[each[0]] for each in partitions}

    async def compacted(self, topics: Sequence[str]) -> set[str]:
        """None: what an archive has it keeps, and how its topics were kept it does not know."""
        return set()


def table_at(folder: str) -> Table:
    """The table that an archive is. Raises TableInvalid where nothing is archived, or not all of it is in its place."""
    target = Target.of(folder, "the option path")
    kind = kind_of(target)
    if not kind:
        raise TableInvalid(f"nothing is archived in {target.url} yet")
    if target.local is not None:
        last = newest(target.local)
        if last is not None and not all(path.startswith("topic=") for _, path in last.files):
            # It has commits with offsets, too, and none of the records.
            raise TableInvalid(
                f"{folder} has the results of another job than `archive`: they are Parquet files to be read"
            )
    return table_of(kind, target)


def archived_blocks(folder: str, wanted: Range, since: int, until: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range, with times (ms) from `since` to before `until`, with these columns; by hour, not in the
    order of offsets."""
    row = (
        (pc.field("partition") == wanted.partition)
        & (pc.field("offset") >= wanted.start)
        & (pc.field("offset") < wanted.end)
    )
    for bound, above in ((since, True), (until, False)):
        # Bounds that no time can reach are those of a read without any.
        if abs(bound) < 1 << 52:
            time = pa.scalar(bound * 1000, pa.timestamp("us", tz="UTC"))
            row &= (pc.field("timestamp") >= time) if above else (pc.field("timestamp") < time)
    names = [name for name in schema.names if name != "topic"]
    files = _files(folder, wanted.topic)
    for batch in files.to_batches(columns=names, filter=row, batch_size=ROWS, use_threads=False):
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([_column(batch, field, wanted.topic) for field in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, topic: str) -> pa.Array:
    if field.name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows)
    column = batch.column(field.name)
    if field.name == HEADERS.name:
        # Archives that older versions have begun have empty lists.
        return pc.if_else(pc.equal(pc.list_value_length(column), 0), pa.scalar(None, HEADERS.type), column)
    # Bytes that are taken for text are not looked at.
    return column.view(field.type)


def _files(folder: str, topic: str) -> ds.Dataset:
    filesystem, _ = Target.of(folder, "the option path").open()
    return ds.dataset(table_at(folder).files(topic), schema=SCHEMA, format="parquet", filesystem=filesystem)


def _size(folder: str, topic: str) -> int:
    filesystem, _ = Target.of(folder, "the option path").open()
    return sum(each.size for each in filesystem.get_file_info(table_at(folder).files(topic)))
