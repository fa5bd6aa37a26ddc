"""An archive as a Delta table, by delta-rs: no JVM, no Spark.

The number of a commit is the version of the table's application transaction `headrace-archive`, which Delta keeps with
the table's state, through checkpoints and whatever is done to its log. Its offsets stand in the commit's information,
for people.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from headrace.pipeline.arrow_schema import ARCHIVED
from headrace.pipeline.manifest import Commit, StagedFile, sync
from headrace.pipeline.tables import TRIES, TableBusy

APPLICATION = "headrace-archive"
PARTITIONED_BY = ["topic", "date", "hour"]
SCHEMA = pa.schema(
    [*ARCHIVED, pa.field("topic", pa.string()), pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
)
LOG = "_delta_log"
# Columns that are worth looking at before a file is opened.
LOOKED_AT = ("partition", "offset", "timestamp")


class DeltaArchive:
    """The Delta table of an archive."""

    def __init__(self, root: Path) -> None:
        self._root = root
        if not DeltaTable.is_deltatable(str(root)):
            DeltaTable.create(str(root), Schema.from_arrow(SCHEMA), partition_by=PARTITIONED_BY, name=root.name)
            self._make_durable(0)

    def number(self) -> int:
        return self._number(DeltaTable(str(self._root)))

    def take(self, commit: Commit) -> None:
        added = [_added(self._root, file, path) for file, path in commit.files]
        properties = CommitProperties(
            custom_metadata={"headrace.offsets": json.dumps(commit.offsets())},
            # Tried again only after a look at who was faster: another writer of this archive has taken the same files.
            max_commit_retries=0,
            app_transactions=[Transaction(APPLICATION, commit.number)],
        )
        for _ in range(TRIES):
            table = DeltaTable(str(self._root))
            if self._number(table) >= commit.number:
                return
            try:
                table.create_write_transaction(
                    added, "append", table.schema(), PARTITIONED_BY, commit_properties=properties
                )
            except CommitFailedError:
                continue
            self._make_durable(DeltaTable(str(self._root)).version())
            return
        raise TableBusy(f"commit {commit.number} found no gap in {TRIES} tries: others write to {self._root}")

    def files(self, topic: str) -> list[Path]:
        found = DeltaTable(str(self._root)).file_uris(file_pruning_predicate=f"topic = '{topic}'")
        return [Path(each.removeprefix("file://")) for each in found]

    @staticmethod
    def _number(table: DeltaTable) -> int:
        return table.transaction_version(APPLICATION) or 0

    def _make_durable(self, version: int) -> None:
        """Delta-rs leaves that to the system. The broker is told next, and may drop the records."""
        folder = self._root / LOG
        for path in (*folder.glob(f"{version:020d}*"), folder / "_last_checkpoint"):
            if path.exists():
                sync(path)
        sync(folder)
        sync(self._root)


def _added(root: Path, file: StagedFile, path: str) -> AddAction:
    values = dict(part.split("=", 1) for part in file.folder.split("/"))
    values["hour"] = str(int(values["hour"]))
    changed = os.stat(root / path).st_mtime_ns // 1_000_000
    return AddAction(path, file.size, values, changed, True, json.dumps(_statistics(root / path)))


def _statistics(path: Path) -> dict[str, Any]:
    """What the file's footer says of its rows."""
    footer = pq.read_metadata(path)
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    unknown: set[str] = set()
    for group in (footer.row_group(index) for index in range(footer.num_row_groups)):
        for column in (group.column(index) for index in range(group.num_columns)):
            name = column.path_in_schema
            if name in LOOKED_AT and column.is_stats_set and column.statistics.has_min_max:
                try:
                    least, most = column.statistics.min, column.statistics.max
                except OverflowError:
                    # A time that no date has.
                    unknown.add(name)
                    continue
                low[name] = min(low.get(name, least), least)
                high[name] = max(high.get(name, most), most)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _text(value) for name, value in low.items()},
        "maxValues": {name: _text(value) for name, value in high.items()},
        "nullCount": dict.fromkeys(low, 0),
    }


def _text(value: Any) -> Any:
    return value if isinstance(value, int) else f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
