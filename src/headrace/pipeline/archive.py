"""Records of an archive that `headrace pipeline archive` has made, as the source's rows.

Which offsets there are is what the last commit says; which files there are is what lies in the folder, by topic and
hour in their paths, or what the Delta or Iceberg table says that the archive is. Files are passed over by the offsets
that their row groups have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.log.interface import EARLIEST, LATEST
from headrace.pipeline.arrow_schema import ARCHIVED as SCHEMA
from headrace.pipeline.arrow_schema import HEADERS
from headrace.pipeline.manifest import ArchiveInvalid, Commit, newest
from headrace.pipeline.options import InvalidOption, Partition
from headrace.pipeline.origin import Catalogue, Range
from headrace.pipeline.tables import table_of

ROWS = 100_000


class ArchiveCatalogue:
    """An archive's topics."""

    def __init__(self, root: Path, last: Commit) -> None:
        self._root = root
        self._last = last
        self.name = str(root)

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: str) -> AsyncIterator[Catalogue]:
        root = Path(folder)
        yield cls(root, last_commit(root))

    async def topics(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for topic, index in self._last.ends:
            found[topic] = max(found.get(topic, 0), index + 1)
        return found

    async def offsets(self, wanted: Mapping[Partition, int], *, committed: bool) -> dict[Partition, int]:
        found = {}
        for each, when in wanted.items():
            # A partition of which nothing was ever archived is empty.
            start, end = self._last.starts.get(each, 0), self._last.ends.get(each, 0)
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
            for batch in _files(self._root, partition[0]).to_batches(columns=["offset"], filter=wanted)
            if batch.num_rows
        ]
        return min(found, default=-1)

    async def group(self, name: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        raise InvalidOption("startingGroup needs a running broker: an archive is read by offsets or times")

    async def follow(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise InvalidOption("kafka.group.id needs a running broker: nothing is written to an archive that is read")

    async def sizes(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """About: the bytes of a topic, the same for each of its partitions."""
        sizes = {topic: _size(self._root, topic) for topic, _ in partitions}
        count = await self.topics()
        return {each: sizes[each[0]] // count[each[0]] for each in partitions}

    async def compacted(self, topics: Sequence[str]) -> set[str]:
        """None: what an archive has it keeps, and how its topics were kept it does not know."""
        return set()


def last_commit(root: Path) -> Commit:
    """What an archive has. Raises ArchiveInvalid where that is not all in place."""
    last = newest(root)
    if last is None:
        raise ArchiveInvalid(f"nothing is archived in {root} yet")
    if not all(path.startswith("topic=") for _, path in last.files):
        # It has commits with offsets, too, and none of the records.
        raise ArchiveInvalid(f"{root} has the results of another job than `archive`: they are Parquet files to be read")
    table = table_of(last.table, root)
    if table is not None:
        finished = table.number() >= last.number
    else:
        finished = all((root / path).exists() or not (root / file.staged).exists() for file, path in last.files)
    if not finished:
        raise ArchiveInvalid(
            f"commit {last.number} of {root} is being finished, or was cut off: try again, or run the job again"
        )
    return last


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
    files = _files(Path(folder), wanted.topic)
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


def _paths(root: Path, topic: str) -> list[Path]:
    last = newest(root)
    table = table_of(last.table, root) if last is not None else None
    if table is not None:
        return sorted(table.files(topic))
    return sorted(root.glob(f"topic={topic}/date=*/hour=*/*.parquet"))


def _files(root: Path, topic: str) -> ds.Dataset:
    return ds.dataset([str(path) for path in _paths(root, topic)], schema=SCHEMA, format="parquet")


def _size(root: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in _paths(root, topic))
