"""A Delta table, by delta-rs: no JVM, no Spark.

A commit has an application transaction: the query's id with the batch's number as its version, as Spark's own Delta
sink has it. What the table has (`tables.State`) stands in the commit's information.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from headrace.pipeline.manifest import sync
from headrace.pipeline.parquet import Layout
from headrace.pipeline.tables import Conflict, DataFile, State, TableInvalid
from headrace.pipeline.target import Target

LOG = "_delta_log"
# Commits that are looked at for the last by a query: others are those of who compacts the table.
RECENT = 1_000


class DeltaTarget:
    """The Delta table at a place."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._options = target.storage_options
        self._loaded: DeltaTable | None = None

    def prepare(self, layout: Layout) -> None:
        wanted = list(layout.partition_by)
        if not self._exists():
            schema = Schema.from_arrow(layout.in_table)
            DeltaTable.create(
                self._target.url, schema, partition_by=wanted, name=self._target.name, storage_options=self._options
            )
            self.make_durable(0)
            return
        found = self.load().metadata().partition_columns
        if found != wanted:
            raise TableInvalid(
                f"{self._target.url} is partitioned by {', '.join(found) or 'nothing'}, not by "
                f"{', '.join(wanted) or 'nothing'}. Give partitionBy as the table has it."
            )

    def columns(self) -> pa.Schema:
        return pa.schema(self.load().schema().to_arrow()) if self._exists() else pa.schema([])

    def grow(self, schema: pa.Schema) -> None:
        table = self.load()
        had = self.columns()
        fresh = pa.schema([each for each in schema if each.name not in had.names or had.field(each.name) != each])
        table.alter.add_columns(Schema.from_arrow(fresh).fields)
        self.make_durable(self.load().version())

    def state(self) -> State:
        if not self._exists():
            return State()
        for commit in self.load().history(RECENT):
            if "headrace.offsets" in commit:
                return State.of(commit)
        return State()

    def add(self, files: Sequence[DataFile], state: State) -> None:
        table = self._loaded or self.load()
        properties = CommitProperties(
            custom_metadata=state.properties(),
            # Tried again only after a look at who was faster: another driver of this query has added the same batch.
            max_commit_retries=0,
            app_transactions=[Transaction(state.query, state.batch)],
        )
        added = [_added(file) for file in files]
        try:
            table.create_write_transaction(
                added, "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
            )
        except CommitFailedError:
            raise Conflict from None
        self.make_durable(table.version() + 1)

    def staging(self, query: str, batch: int) -> str:
        return ""

    def discard(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        self._target.delete(file.path for file in files)

    def files(self, topic: str) -> list[str]:
        return self.paths(f"topic = '{topic}'")

    def paths(self, predicate: str | None = None) -> list[str]:
        _, root = self._target.open()
        location = f"{self._target.location}/"
        found = self.load().file_uris(file_pruning_predicate=predicate)
        return [each if each.startswith("/") else f"{root}/{each.removeprefix(location)}" for each in found]

    def load(self) -> DeltaTable:
        self._loaded = DeltaTable(self._target.url, storage_options=self._options)
        return self._loaded

    def _exists(self) -> bool:
        local = self._target.local
        # Delta-rs would create the folder that it looks into.
        if local is not None and not (local / LOG).exists():
            return False
        return DeltaTable.is_deltatable(self._target.url, self._options)

    def make_durable(self, version: int) -> None:
        """Delta-rs leaves that to the system. The broker is told next, and may drop the records."""
        root = self._target.local
        if root is None:
            return
        folder = root / LOG
        for path in (*folder.glob(f"{version:020d}*"), folder / "_last_checkpoint"):
            if path.exists():
                sync(path)
        sync(folder)
        sync(root)


def _added(file: DataFile) -> AddAction:
    values = dict(file.partition)
    if values.get("hour") is not None:
        # The folder has two digits.
        values["hour"] = str(int(values["hour"] or 0))
    stated = {
        "numRecords": file.rows,
        "minValues": {name: _text(value) for name, value in file.low.items()},
        "maxValues": {name: _text(value) for name, value in file.high.items()},
        "nullCount": dict.fromkeys(file.low, 0),
    }
    # Delta has paths as URLs.
    return AddAction(quote(file.path, safe="/="), file.size, values, int(time.time() * 1000), True, json.dumps(stated))


def _text(value: Any) -> Any:
    return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z" if isinstance(value, datetime) else value
