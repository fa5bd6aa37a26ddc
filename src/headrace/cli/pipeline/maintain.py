"""`headrace pipeline maintain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.cli.options import assignments
from headrace.cli.pipeline import preflight
from headrace.cli.pipeline.archive import StorageOptions, TableName
from headrace.cli.pipeline.settings import parse_size


def maintain(
    table: Annotated[str, typer.Argument(metavar="URL", help="The table: a path, or s3://, gs://, abfss://, hdfs://.")],
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="The Iceberg catalogue, of pyiceberg's configuration.")
    ] = "",
    table_name: TableName = "",
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="Compact to files of about this size.")] = "128m",
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Keep younger snapshots and files: {DURATIONS}.")
    ] = "7d",
    storage: StorageOptions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be done, and change nothing.")] = False,
) -> None:
    """Compacts small files of a Delta or Iceberg table, expires snapshots and removes orphans. Needs no Spark."""
    preflight.check_packages()
    from headrace.pipeline.maintenance import maintain as run
    from headrace.pipeline.target import Target

    done = run(
        Target.of(table, "URL", assignments(storage or [], "--storage")),
        catalog=catalog,
        name=table_name,
        file_bytes=parse_size(file_size),
        older_than=parse_duration(older_than) / 1000,
        dry_run=dry_run,
    )
    print(json.dumps(asdict(done)))
