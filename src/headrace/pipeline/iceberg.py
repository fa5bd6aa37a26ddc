"""An Iceberg table, by pyiceberg: no JVM, no Spark.

What the table has (`tables.State`) are properties of the table, which one Iceberg commit sets and adds the files with;
the snapshot's summary has them, too. The catalogue is one of pyiceberg's configuration, by its name, or lies beside the
table in SQLite.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table import Table as Iceberg
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

from headrace.pipeline.manifest import sync
from headrace.pipeline.parquet import TIME, Layout
from headrace.pipeline.tables import OWN, Conflict, DataFile, State, TableInvalid
from headrace.pipeline.target import Target

NAME = "headrace.archive"
CATALOG = "headrace"
# Tried again only after a look at who was faster: another driver of this query has added the same batch.
PROPERTIES = {"commit.retry.num-retries": "0", "write.metadata.delete-after-commit.enabled": "true"}


class IcebergTarget:
    """The Iceberg table at a place, in a catalogue of pyiceberg's configuration or in its own."""

    def __init__(self, target: Target, catalog: str = "", name: str = "") -> None:
        if target.local is None and not catalog:
            raise TableInvalid(
                f"an Iceberg table at {target.url} needs a catalogue. Give the name of one of pyiceberg's "
                "configuration (--catalog)."
            )
        self._target = target
        self._given_name = name
        self._name = name or NAME
        self._catalog_name = catalog
        self._opened: Catalog | None = None
        self._loaded: Iceberg | None = None

    def prepare(self, layout: Layout) -> None:
        catalog = self._catalog()
        if catalog.table_exists(self._name):
            self._check(layout)
            return
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with (
            catalog.create_table_transaction(
                self._name, layout.in_table, location=self._target.location, properties=PROPERTIES
            ) as making,
            making.update_spec() as spec,
        ):
            for name, column, transform in _partitions(layout):
                spec.add_field(column, transform, name)

    def _check(self, layout: Layout) -> None:
        """Raises TableInvalid where the table in the catalogue lies elsewhere, or is partitioned otherwise."""
        table = self.load()
        if table.location().rstrip("/") != self._target.location:
            raise TableInvalid(
                f"the catalogue has {self._name} at {table.location()}, not at {self._target.location}. Give another "
                "name, or the place that the catalogue has."
            )
        columns = table.schema()
        found = [(each.name, columns.find_column_name(each.source_id), each.transform) for each in table.spec().fields]
        if found != list(_partitions(layout)):
            names = ", ".join(f"{transform}({column})" for _, column, transform in found)
            raise TableInvalid(
                f"{self._target.url} is partitioned by {names or 'nothing'}, not by "
                f"{', '.join(layout.partition_by) or 'nothing'}. Give partitionBy as the table has it."
            )

    def columns(self) -> pa.Schema:
        try:
            return pa.schema([_plain(each) for each in self.load().schema().as_arrow()])
        except NoSuchTableError:
            return pa.schema([])

    def grow(self, schema: pa.Schema) -> None:
        with self.load().update_schema() as update:
            update.union_by_name(schema)

    def state(self) -> State:
        try:
            table = self.load()
        except NoSuchTableError:
            return State()
        if "headrace.offsets" in table.properties:
            return State.of(table.properties)
        # Older versions had the offsets in the snapshots alone.
        for snapshot in reversed(table.snapshots()):
            if snapshot.summary is not None and "headrace.offsets" in snapshot.summary.additional_properties:
                return State.of(snapshot.summary.additional_properties)
        return State()

    def add(self, files: Sequence[DataFile], state: State) -> None:
        table = self._loaded or self.load()
        paths = [f"{self._target.location}/{file.path}" for file in files]
        try:
            with table.transaction() as change:
                change.add_files(paths, snapshot_properties=state.properties(), check_duplicate_files=False)
                change.set_properties(state.properties())
        except CommitFailedException:
            raise Conflict from None

    def staging(self, query: str, batch: int) -> str:
        return ""

    def discard(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        self._target.delete(file.path for file in files)

    def files(self, topic: str) -> list[str]:
        return self.paths(EqualTo("topic", topic))

    def paths(self, wanted: BooleanExpression = ALWAYS_TRUE) -> list[str]:
        _, root = self._target.open()
        found = []
        for task in self.load().scan(row_filter=wanted).plan_files():
            if task.delete_files:
                raise TableInvalid(
                    f"rows were deleted from {self._target.url}: read it as the Iceberg table that it is"
                )
            found.append(root + task.file.file_path.removeprefix(self._target.location))
        return found

    def load(self) -> Iceberg:
        self._loaded = self._catalog().load_table(self._name)
        return self._loaded

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = self._open_catalog()
        return self._opened

    def _open_catalog(self) -> Catalog:
        root = self._target.local
        if self._catalog_name or root is None:
            try:
                return load_catalog(self._catalog_name, **self._target.catalog_properties)
            except ValueError as error:
                raise TableInvalid(
                    f"the Iceberg catalogue {self._catalog_name!r} cannot be opened ({error}). Define it in "
                    "~/.pyiceberg.yaml, or by PYICEBERG_CATALOG__NAME__... in the environment."
                ) from error
        place = root / OWN
        place.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(
            CATALOG,
            uri=f"sqlite:///{place / 'catalog.db'}",
            warehouse=self._target.location,
            **{"py-io-impl": f"{__name__}.{DurableFiles.__name__}"},
        )
        # A folder has one table: that of `archive`, or that of a topic, by its name.
        found = catalog.list_tables(CATALOG) if catalog.namespace_exists(CATALOG) else []
        if found and not self._given_name:
            self._name = ".".join(found[0])
        return catalog


def _partitions(layout: Layout) -> Iterator[tuple[str, str, Any]]:
    """What a layout's partitions are in Iceberg: name, column and transform."""
    for each in layout.partition_by:
        if each in layout.schema.names:
            yield each, each, IdentityTransform()
        elif each == "hour":
            yield each, TIME, HourTransform()
        elif "hour" not in layout.partition_by:
            # Hours are counted from 1970, so they are dates, too; Iceberg wants one of the two.
            yield each, TIME, DayTransform()


def _plain(field: pa.Field) -> pa.Field:
    """A field as it was before pyiceberg gave it an id, and types of large values."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_plain(each) for each in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_plain(kind.value_field).with_name("element"))
    elif pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field).type, _plain(kind.item_field).type)
    elif pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    return pa.field(field.name, kind)


class DurableFiles(PyArrowFileIO):
    """Files of the table's own that are on disk before the catalogue names them."""

    def new_output(self, location: str) -> OutputFile:
        return _DurableFile(location)


class _DurableFile(OutputFile):
    def __len__(self) -> int:
        return _path(self.location).stat().st_size

    def exists(self) -> bool:
        return _path(self.location).exists()

    def to_input_file(self) -> InputFile:
        return PyArrowFileIO().new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        path = _path(self.location)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _Synced(path, "wb" if overwrite else "xb")


class _Synced(io.FileIO):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._folder = path.parent

    def write(self, data: Any) -> int:
        # Whole, which a file without a buffer does not promise.
        view = memoryview(data)
        written = 0
        while written < len(view):
            written += super().write(view[written:]) or 0
        return written

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync(self._folder)


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))
