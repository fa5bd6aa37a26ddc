"""`headrace pipeline archive`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.cli.options import assignments
from headrace.cli.pipeline.job import Job, job, split
from headrace.cli.pipeline.settings import parse_size
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Archived


TableName = Annotated[str, typer.Option(metavar="NAME", help="The name in the catalogue; by default headrace.archive.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the object store, such as AWS_ENDPOINT_URL=..."),
]


@job
def archive(
    job: Job,
    to: Annotated[str, typer.Option(metavar="URL", help="The table: a path, or s3://, gs://, abfss://, hdfs://.")] = "",
    table: Annotated[
        str, typer.Option(metavar="KIND", help="parquet (only files), delta or iceberg; by default parquet.")
    ] = "",
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="An Iceberg catalogue of pyiceberg's configuration; by default SQLite.")
    ] = "",
    table_name: TableName = "",
    partition_by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="What files are divided by; by default topic,date,hour.")
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Spark's checkpoint; by default in the folder. A URL needs one.")
    ] = "",
    storage: StorageOptions = None,
    group: Annotated[str, typer.Option(help="The consumer group for its position; by default archive-FOLDER.")] = "",
    every: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Keep running, and add files at least this often: {DURATIONS}.")
    ] = "",
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="Close files at this size; by default 128m.")] = "",
) -> None:
    """Archives topics to Parquet files by date and hour, or to a Delta or Iceberg table, each record once."""
    if not to:
        raise HeadraceError("--to is missing. Give the folder or the URL of the archive.")
    interval = parse_duration(every) / 1000 if every else None
    size = parse_size(file_size or "128m")
    kind, options = table or "parquet", assignments(storage or [], "--storage")

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.archive import PARTITION_BY, check, sink_options

        divided = split(partition_by) or PARTITION_BY
        check(sink_options(to, kind, divided, size, catalog, table_name, options), interval, checkpoint)
        return ()

    with job.start(check) as running:
        from headrace.pipeline.jobs import archive as run
        from headrace.pipeline.jobs.archive import PARTITION_BY

        done = run(
            running.spark,
            **job.source,
            to=to,
            table=kind,
            catalog=catalog,
            table_name=table_name,
            partition_by=split(partition_by) or PARTITION_BY,
            checkpoint=checkpoint,
            storage=options,
            group=group,
            every=interval,
            file_bytes=size,
            progress=lambda done: running.display.show(done.rows, _words(done)),
            stop=running.stop,
        )
    numbers = ("rows", "files", "bytes", "rounds", "lag")
    print(json.dumps({name: getattr(done, name) for name in numbers}))


def _words(done: Archived) -> str:
    return f"{done.rows:,} rows in {done.files:,} files, {done.bytes / 1e6:,.1f} MB, {done.lag:,} waiting"
