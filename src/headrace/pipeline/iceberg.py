"""An archive as an Iceberg table, by pyiceberg: no JVM, no Spark.

The number of a commit is a property of the table, which one Iceberg commit sets and adds the files with. The table lies
in the archive's folder, its catalogue beside it in SQLite: whoever has another catalogue registers the newest file
under `metadata/` there.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table as Iceberg
from pyiceberg.transforms import HourTransform, IdentityTransform

from headrace.pipeline.arrow_schema import FIELDS, HEADERS
from headrace.pipeline.manifest import OWN, ArchiveInvalid, Commit, sync
from headrace.pipeline.tables import TRIES, TableBusy

NAME = ("headrace", "archive")
NUMBER = "headrace.commit"
OFFSETS = "headrace.offsets"
# Tried again only after a look at who was faster: another writer of this archive has taken the same files.
PROPERTIES = {"commit.retry.num-retries": "0", "write.metadata.delete-after-commit.enabled": "true"}


class IcebergArchive:
    """The Iceberg table of an archive."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._catalog = SqlCatalog(
            NAME[0],
            uri=f"sqlite:///{root / OWN / 'catalog.db'}",
            warehouse=_location(root),
            **{"py-io-impl": f"{__name__}.{DurableFiles.__name__}"},
        )
        if not self._catalog.table_exists(NAME):
            self._catalog.create_namespace_if_not_exists(NAME[0])
            schema = pa.schema([*FIELDS, HEADERS])
            with (
                self._catalog.create_table_transaction(
                    NAME, schema, location=_location(root), properties=PROPERTIES
                ) as making,
                making.update_spec() as spec,
            ):
                spec.add_field("topic", IdentityTransform(), "topic")
                # Hours are counted from 1970, so they are dates, too; Iceberg wants one of the two.
                spec.add_field("timestamp", HourTransform(), "hour")

    def number(self) -> int:
        return self._number(self._table())

    def take(self, commit: Commit) -> None:
        paths = [_location(self._root / path) for _, path in commit.files]
        said = {NUMBER: str(commit.number), OFFSETS: json.dumps(commit.offsets())}
        for _ in range(TRIES):
            table = self._table()
            if self._number(table) >= commit.number:
                return
            try:
                with table.transaction() as change:
                    if paths:
                        change.add_files(paths, snapshot_properties=said, check_duplicate_files=False)
                    change.set_properties({NUMBER: str(commit.number)})
            except CommitFailedException:
                continue
            return
        raise TableBusy(f"commit {commit.number} found no gap in {TRIES} tries: others write to {self._root}")

    def files(self, topic: str) -> list[Path]:
        found = []
        for task in self._table().scan(row_filter=EqualTo("topic", topic)).plan_files():
            if task.delete_files:
                raise ArchiveInvalid(f"rows were deleted from {self._root}: read it as the Iceberg table that it is")
            found.append(_path(task.file.file_path))
        return found

    def _table(self) -> Iceberg:
        return self._catalog.load_table(NAME)

    @staticmethod
    def _number(table: Iceberg) -> int:
        return int(table.properties.get(NUMBER, "0"))


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


def _location(path: Path) -> str:
    # Not quoted, as `Path.as_uri` would have it: Iceberg takes locations as they are.
    return f"file://{path}"


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))
