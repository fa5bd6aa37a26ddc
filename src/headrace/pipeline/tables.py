"""What a streaming query can be written to: a Delta or an Iceberg table, or a folder of Parquet files.

One idea: a batch is added in one commit of the table that also says which batch of which query it is and, where its
rows are records of topics, up to which offsets the table has them. So the table knows what it has, a batch that Spark
runs again is recognised, and a query with a new checkpoint goes on behind the table's offsets. Spark's checkpoint plans
the batches; where it disagrees with the table, the table is right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError
from headrace.pipeline.offsets import flatten, nest

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.options import Partition
    from headrace.pipeline.parquet import Layout
    from headrace.pipeline.target import Target

PARQUET, DELTA, ICEBERG = KINDS = ("parquet", "delta", "iceberg")
# A folder or an object prefix of Headrace's own, beside the data; Spark and others pass over names that begin so.
OWN = "_headrace"
# Others may write to a table, too: who compacts it, for one.
TRIES = 20
NO_BATCH = -1

Spans = dict["Partition", tuple[int, int]]
"""By partition of a topic, the first offset and the one behind the last."""


class TableMissing(HeadraceError):
    """The package for a kind of table is not installed, or there is no such kind."""


class TableInvalid(HeadraceError):
    """A table, or a folder, cannot be written by this query, or not be read."""


class TableBusy(HeadraceError):
    """Others write to the table all the time."""


class Conflict(Exception):
    """Another writer has committed since the table was loaded."""


@dataclass(frozen=True)
class DataFile:
    """A file that a task has written, durable; the table does not have it yet."""

    path: str
    """Relative to the table, or to where files are staged."""
    partition: Mapping[str, str | None]
    rows: int
    size: int
    low: Mapping[str, Any] = field(default_factory=dict)
    """The least value of each column of numbers and times."""
    high: Mapping[str, Any] = field(default_factory=dict)
    misfits: int = 0
    """Rows whose value does not fit the table's columns, and is kept as it is."""


@dataclass(frozen=True)
class State:
    """What a table has, as its last commit by a query says."""

    query: str = ""
    """The id of the query, which its checkpoint keeps; empty for what an older version has written."""
    batch: int = NO_BATCH
    offsets: Spans = field(default_factory=dict)
    commits: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    misfits: int = 0
    """Of all commits by queries."""

    @property
    def ends(self) -> dict[Partition, int]:
        return {each: end for each, (_, end) in self.offsets.items()}

    def after(self, query: str, batch: int, files: Sequence[DataFile], spans: Spans) -> State | None:
        """What the table has once it has a batch; None where it has it already. Raises TableInvalid where some records
        of the batch would be there twice, or would be missing."""
        behind = [each for each, (start, _) in spans.items() if start < self.ends.get(each, 0)]
        if self.query == query and batch <= self.batch:
            beyond = [each for each, (_, end) in spans.items() if end > self.ends.get(each, 0)]
            if not beyond:
                return None
            raise TableInvalid(
                f"the table has batch {batch} up to offset {self.ends.get(beyond[0], 0)} of {_named(beyond[0])}, and "
                f"the checkpoint plans it up to {spans[beyond[0]][1]}: the checkpoint is older than the table. Delete "
                "the checkpoint; the next run continues behind the table's offsets."
            )
        if behind or (not spans and self.query not in ("", query)):
            what = (
                f"has the records of {_named(behind[0])} up to offset {self.ends[behind[0]]}, and the batch begins at "
                f"{spans[behind[0]][0]}"
                if behind
                else f"was written by the query {self.query}"
            )
            raise TableInvalid(
                f"the table {what}: another query writes to it, or the topic was created again. Write to another table."
            )
        merged = {each: (self.offsets.get(each, (start, 0))[0], end) for each, (start, end) in spans.items()}
        return State(
            query,
            batch,
            {**self.offsets, **merged},
            self.commits + 1,
            self.rows + sum(each.rows for each in files),
            self.files + len(files),
            self.bytes + sum(each.size for each in files),
            self.misfits + sum(each.misfits for each in files),
        )

    def properties(self) -> dict[str, str]:
        """As the commit records it."""
        totals = {"commits": self.commits, "rows": self.rows, "files": self.files, "bytes": self.bytes}
        totals |= {"misfits": self.misfits} if self.misfits else {}
        return {
            "headrace.query": self.query,
            "headrace.batch": str(self.batch),
            "headrace.offsets": json.dumps(dump_spans(self.offsets)),
            "headrace.totals": json.dumps(totals),
        }

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> State:
        """From what a commit records; older versions recorded the offsets alone."""
        return cls(
            str(properties.get("headrace.query", "")),
            int(properties.get("headrace.batch", NO_BATCH)),
            load_spans(json.loads(properties.get("headrace.offsets", "{}"))),
            **json.loads(properties.get("headrace.totals", "{}")),
        )


class Table(Protocol):
    """A table that batches are added to."""

    def prepare(self, layout: Layout) -> None:
        """Create the table unless it is there. Raises TableInvalid where it is another's."""
        ...

    def columns(self) -> pa.Schema:
        """The table's columns; none where there is no table."""
        ...

    def grow(self, schema: pa.Schema) -> None:
        """Add the columns, and the fields of columns, that the table does not have, in a commit of its own."""
        ...

    def state(self) -> State:
        """Load the table; what it has."""
        ...

    def add(self, files: Sequence[DataFile], state: State) -> None:
        """Add files and a state to the table as it was loaded, in one commit, durable on return. Raises Conflict."""
        ...

    def staging(self, query: str, batch: int) -> str:
        """The folder, relative to the table, that the tasks of a batch write to; empty for the table's own."""
        ...

    def discard(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        """Remove files of a batch that the table does not take."""
        ...

    def files(self, topic: str) -> list[str]:
        """The files that a topic has in the table now, as paths of the target's file system."""
        ...


def commit(table: Table, query: str, batch: int, files: Sequence[DataFile], spans: Spans) -> State:
    """Add a batch to a table, unless the table has it; what the table has then."""
    for _ in range(TRIES):
        last = table.state()
        state = last.after(query, batch, files, spans)
        if state is None:
            table.discard(files, query, batch)
            return last
        try:
            table.add(files, state)
        except Conflict:
            continue
        return state
    raise TableBusy(f"batch {batch} found no gap in {TRIES} tries: others write to the table. Stop them, or try again.")


def table_of(kind: str, target: Target, catalog: str = "", name: str = "") -> Table:
    """A table at a place. Raises TableMissing."""
    return maker_of(kind)(target, catalog, name)


def kind_of(target: Target) -> str:
    """What lies at a place, by the files there: a kind of table, or nothing."""
    filesystem, root = target.open()
    marks = {"_delta_log": DELTA, f"{OWN}/catalog.db": ICEBERG, f"{OWN}/commits": PARQUET}
    found = filesystem.get_file_info([f"{root}/{mark}" for mark in marks])
    return next((kind for info, kind in zip(found, marks.values(), strict=True) if info.type.name != "NotFound"), "")


def maker_of(kind: str) -> Callable[[Target, str, str], Table]:
    """What makes such tables. Raises TableMissing where nothing does."""
    if kind not in KINDS:
        raise TableMissing(f"a table cannot be {kind!r}: it is one of {', '.join(KINDS)}")
    try:
        if kind == DELTA:
            from headrace.pipeline.delta import DeltaTarget

            return lambda target, *_: DeltaTarget(target)
        if kind == ICEBERG:
            from headrace.pipeline.iceberg import IcebergTarget

            return IcebergTarget
    except ImportError as error:
        raise TableMissing(f"a table as {kind} needs more: pip install 'headrace[{kind}]' ({error})") from None
    from headrace.pipeline.manifest import ParquetFolder

    return lambda target, *_: ParquetFolder(target)


def dump_spans(spans: Spans) -> dict[str, dict[str, list[int]]]:
    """As JSON: the first offset and the one behind the last, by topic and partition."""
    return nest({each: list(span) for each, span in spans.items()})


def load_spans(dumped: Mapping[str, Mapping[str, Sequence[int]]]) -> Spans:
    return {each: (start, end) for each, (start, end) in flatten(dumped).items()}


def _named(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"
