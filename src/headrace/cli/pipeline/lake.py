"""`headrace pipeline lake`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import assignments
from headrace.cli.pipeline.archive import StorageOptions
from headrace.cli.pipeline.job import Job, finding_job
from headrace.cli.pipeline.settings import parse_size
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.jobs import TableStatus


@finding_job
def lake(
    job: Job,
    checkpoints: Annotated[
        str,
        typer.Option(metavar="DIR", help="Spark's checkpoints; by default beside the tables. Tables at URLs need it."),
    ] = "",
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="The Iceberg catalogue of all tables; by default SQLite beside each.")
    ] = "",
    storage: StorageOptions = None,
    once: Annotated[bool, typer.Option("--once", help="End when the tables have what is there now.")] = False,
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="Close files at this size; by default 128m.")] = "",
) -> None:
    """Keeps the tables of topics with the setting `lake` up to date, each record once, until it is stopped."""
    settings = {
        "bootstrap": job.bootstrap,
        "checkpoints": checkpoints,
        "catalog": catalog,
        "storage": assignments(storage or [], "--storage"),
        "pattern": job.source["pattern"],
        "file_bytes": parse_size(file_size or "128m"),
        "options": job.source["options"],
    }

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.lake import LakeSettings, check

        check(LakeSettings(**settings))
        return ()

    with job.start(check) as running:
        from headrace.pipeline.jobs import lake as run

        done = run(
            running.spark,
            **settings,
            once=once,
            progress=lambda tables: running.display.show(0, _words(tables)),
            stop=running.stop,
        )
    print(json.dumps({"tables": {topic: asdict(status) for topic, status in done.items()}}))
    failed = [f"{topic}: {status.error}" for topic, status in done.items() if status.error]
    if once and failed:
        raise HeadraceError("; ".join(failed))


def _words(tables: Mapping[str, TableStatus]) -> str:
    if not tables:
        return "no topic has the setting lake (headrace topic config TOPIC --set lake=...)"
    all = list(tables.values())
    words = (
        f"{len(all):,} tables, {sum(each.rows for each in all):,} rows, {sum(each.lag for each in all):,} waiting, "
        f"the oldest is {max(each.stale_seconds for each in all):,.1f} s behind"
    )
    failed = [f"{topic}: {each.error}" for topic, each in tables.items() if each.error]
    return f"{words}; {len(failed)} cannot be written, such as {failed[0]}" if failed else words
