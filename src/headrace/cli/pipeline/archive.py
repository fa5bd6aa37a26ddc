"""`headrace pipeline archive`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.cli.pipeline.job import Job, job
from headrace.cli.pipeline.settings import parse_size
from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Archived


@job
def archive(
    job: Job,
    to: Annotated[str, typer.Option(metavar="DIR", help="The archive's folder. Created if it is missing.")] = "",
    table: Annotated[
        str, typer.Option(metavar="KIND", help="parquet (only files), delta or iceberg; by default parquet.")
    ] = "",
    group: Annotated[str, typer.Option(help="The consumer group for its position; by default archive-FOLDER.")] = "",
    every: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Keep running, and add files at least this often: {DURATIONS}.")
    ] = "",
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="Close files at this size; by default 128m.")] = "",
) -> None:
    """Archives topics to Parquet files by date and hour, or to a Delta or Iceberg table, each record once."""
    if not to:
        raise HeadraceError("--to is missing. Give the folder of the archive.")
    interval = parse_duration(every) / 1000 if every else None
    size = parse_size(file_size or "128m")
    kind = table or "parquet"
    folder = local_path(to, "--to")

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.archive import check

        check(folder, kind, interval)
        return ()

    with job.start(check) as running:
        from headrace.pipeline.jobs import archive as run

        done = run(
            running.spark,
            **job.source,
            to=folder,
            table=kind,
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
