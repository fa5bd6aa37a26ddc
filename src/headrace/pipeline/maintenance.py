"""Upkeep of a table: small files are made large ones, old snapshots expire, and files that no snapshot has are removed.

A query that writes the table may go on meanwhile: what is compacted is one commit like any other, and the query's next
commit finds it. Files and snapshots that are younger than `older_than` stay: a task may be writing the file, a reader
may be reading the snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from headrace.pipeline.manifest import sync_up
from headrace.pipeline.parquet import Layout, PartitionedFiles
from headrace.pipeline.tables import DELTA, ICEBERG, TableBusy, TableInvalid, kind_of, maker_of
from headrace.pipeline.target import Target

if TYPE_CHECKING:
    from headrace.pipeline.delta import DeltaTarget
    from headrace.pipeline.iceberg import IcebergTarget

FILE_BYTES = 128 << 20
OLDER_THAN = 7 * 86_400.0


@dataclass(frozen=True)
class Maintained:
    """What was done, or would be."""

    small: int
    """Files that were smaller than half of the wanted size, and not alone in their partition: they are compacted."""
    compacted: int
    """Files that took their place; in a dry run, none."""
    snapshots: int
    """Snapshots that expired. Delta keeps those itself (`delta.logRetentionDuration`)."""
    orphans: int
    """Files that no snapshot has, removed."""
    dry_run: bool


def maintain(
    target: Target,
    *,
    catalog: str = "",
    name: str = "",
    file_bytes: int = FILE_BYTES,
    older_than: float = OLDER_THAN,
    dry_run: bool = False,
) -> Maintained:
    """Compact a table to files of about `file_bytes`, expire snapshots and remove orphans that are `older_than` some
    seconds. A dry run changes nothing. Raises TableInvalid where there is no table, and
    TableMissing where its package is not installed."""
    kind = ICEBERG if catalog else kind_of(target)
    before = datetime.now(UTC) - timedelta(seconds=older_than)
    if kind:
        maker_of(kind)  # Refuses in words where the package is missing.
    if kind == DELTA:
        from headrace.pipeline.delta import DeltaTarget

        return _maintain_delta(DeltaTarget(target), target, file_bytes, older_than, dry_run)
    if kind == ICEBERG:
        from headrace.pipeline.iceberg import IcebergTarget

        return _maintain_iceberg(IcebergTarget(target, catalog, name), target, file_bytes, before, dry_run)
    raise TableInvalid(
        f"{target.url} is not a Delta or Iceberg table. A folder of Parquet files cannot be compacted: readers that "
        "list it would see records twice, or not at all, meanwhile."
    )


def _maintain_delta(
    table: DeltaTarget, target: Target, file_bytes: int, older_than: float, dry_run: bool
) -> Maintained:
    loaded = table.load()
    partitions = defaultdict(list)
    for action in _rows(loaded.get_add_actions(flatten=True)):
        place = tuple(value for column, value in sorted(action.items()) if column.startswith("partition."))
        partitions[place].append(int(action["size_bytes"]))
    small = sum(map(len, _small(partitions.values(), file_bytes)))
    compacted = 0
    if small and not dry_run:
        had = set(table.paths())
        compacted = int(loaded.optimize.compact(target_size=file_bytes)["numFilesAdded"])
        if target.local is not None:
            # Before what they were made of can go.
            for path in set(table.paths()) - had:
                sync_up(Path(path), target.local)
        table.make_durable(table.load().version())
    hours = int(older_than // 3_600)
    loaded = table.load()
    vacuum = {"retention_hours": hours, "enforce_retention_duration": False, "full": True}
    filesystem, root = target.open()
    # Delta-rs lists what its log has removed, also where the file is gone long ago.
    listed = [f"{root}/{unquote(each)}" for each in loaded.vacuum(dry_run=True, **vacuum)]
    orphans = [each for each in filesystem.get_file_info(listed) if each.is_file]
    if orphans and not dry_run:
        loaded.vacuum(dry_run=False, **vacuum)
    return Maintained(small, compacted, 0, len(orphans), dry_run)


def _maintain_iceberg(
    table: IcebergTarget, target: Target, file_bytes: int, before: datetime, dry_run: bool
) -> Maintained:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        loaded = table.load()
    except NoSuchTableError as error:
        raise TableInvalid(f"the catalogue has no such table ({error}). Give its name (--table-name).") from None
    partitions = defaultdict(list)
    for task in loaded.scan().plan_files():
        partitions[str(task.file.partition)].append(task.file)
    groups = list(_small(partitions.values(), file_bytes, lambda each: int(each.file_size_in_bytes)))
    compacted = 0
    if groups and not dry_run:
        compacted = _compact_iceberg(loaded, table.columns(), target, groups, file_bytes)
        loaded = table.load()
    current = loaded.current_snapshot()
    old = [
        each.snapshot_id
        for each in loaded.snapshots()
        if each.timestamp_ms < before.timestamp() * 1_000 and current is not None and each != current
    ]
    if old and not dry_run:
        loaded.maintenance.expire_snapshots().by_ids(old).commit()
        loaded = table.load()
    orphans = _orphans_of_iceberg(loaded, target, before)
    if not dry_run:
        filesystem, _ = target.open()
        for path in orphans:
            filesystem.delete_file(path)
    return Maintained(sum(map(len, groups)), compacted, len(old), len(orphans), dry_run)


def _compact_iceberg(loaded: Any, columns: pa.Schema, target: Target, groups: list[list[Any]], file_bytes: int) -> int:
    """Write the rows of each group anew, with all columns that the table has by now, and let the new files take the
    place of the old ones in one commit."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    filesystem, root = target.open()
    made: list[str] = []
    for group in groups:
        paths = [root + each.file_path.removeprefix(target.location) for each in group]
        rows = ds.dataset(paths, schema=columns, format="parquet", filesystem=filesystem)
        # All of one partition: they need not be divided again, and lie where the first of them does.
        folder = paths[0].rpartition("/")[0]
        files = PartitionedFiles(filesystem, folder, Layout(rows.schema, (), keeps_all=True), file_bytes)
        for batch in rows.to_batches():
            files.add(batch)
        made += [f"{target.location}{folder.removeprefix(root)}/{each.path}" for each in files.finish()]
    try:
        with loaded.transaction() as change, change.update_snapshot().overwrite() as files_of_table:
            for group in groups:
                for each in group:
                    files_of_table.delete_data_file(each)
            for data_file in parquet_files_to_data_files(loaded.io, change.table_metadata, iter(made)):
                files_of_table.append_data_file(data_file)
    except CommitFailedException:
        raise TableBusy(f"{target.url} was written to while it was compacted. Try again.") from None
    return len(made)


def _orphans_of_iceberg(loaded: Any, target: Target, before: datetime) -> list[str]:
    """Files below the table's folder that no snapshot refers to."""
    filesystem, root = target.open()
    known = set(loaded.inspect.all_files().column("file_path").to_pylist())
    known |= set(loaded.inspect.all_manifests().column("path").to_pylist())
    known |= {each.manifest_list for each in loaded.snapshots()}
    known |= {each.metadata_file for each in loaded.metadata.metadata_log} | {loaded.metadata_location}
    names = {root + each.removeprefix(target.location) for each in known}
    ends = (".parquet", ".avro", ".metadata.json")
    return [
        each.path
        for each in filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        if each.is_file and each.path.endswith(ends) and each.path not in names and each.mtime < before
    ]


def _small(partitions: Any, file_bytes: int, size_of: Any = int) -> Iterator[list[Any]]:
    """Of each partition, the files that are worth making one of."""
    for files in partitions:
        small = [each for each in files if size_of(each) < file_bytes // 2]
        if len(small) > 1:
            yield small


def _rows(actions: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(actions).to_pylist()
    return found
