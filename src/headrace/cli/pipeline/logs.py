"""`headrace pipeline logs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.durations import HELP as DURATIONS
from headrace.cli.durations import parse_duration
from headrace.cli.pipeline.job import Job, job
from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Logs


@job
def logs(
    job: Job,
    to: Annotated[str, typer.Option(metavar="DIR", help="The folder of the results. Created if it is missing.")] = "",
    into: Annotated[str, typer.Option(metavar="TOPIC", help="Also write the results to this topic.")] = "",
    window: Annotated[str, typer.Option(metavar="DURATION", help="The length of a window; by default 1m.")] = "",
    lateness: Annotated[
        str, typer.Option(metavar="DURATION", help="How far out of order lines may come; by default 1m.")
    ] = "",
    every: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Keep running, with a round this often: {DURATIONS}.")
    ] = "",
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Without --every: keep windows open that have not ended.")
    ] = False,
    idle: Annotated[
        str, typer.Option(metavar="DURATION", help="Do not wait for a partition silent for this long; by default 1m.")
    ] = "",
    format: Annotated[
        str, typer.Option(help="auto (by default), json, logfmt, syslog, access, text, or regex with --regex.")
    ] = "",
    regex: Annotated[
        str, typer.Option(help="With groups (?P<NAME>...): time, service, level, message, duration; RE2's syntax.")
    ] = "",
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FIELD", help="The field that holds time, service, level, message or duration."),
    ] = None,
    duration_unit: Annotated[
        str, typer.Option(metavar="UNIT", help="The unit of durations without one; by default ms.")
    ] = "",
    ahead: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="A line whose time is further ahead of its record is broken; by default 1h."
        ),
    ] = "",
    group: Annotated[str, typer.Option(help="The consumer group for its position; by default logs-FOLDER.")] = "",
    application: Annotated[
        str, typer.Option(metavar="NAME", help="The name for exactly-once writes of results; by default logs-FOLDER.")
    ] = "",
    plot: Annotated[str, typer.Option(metavar="FILE", help="Plot the results to this file when the job ends.")] = "",
) -> None:
    """Counts log lines by window, service and level: error rates, slow calls, top errors."""
    if not to:
        raise HeadraceError("--to is missing. Give the folder of the results.")
    folder, drawing = local_path(to, "--to"), local_path(plot, "--plot") if plot else ""
    # Lines are counted since the folder was begun; those of this run say how fast it is.
    began: dict[str, int] = {}
    size, late, silent, early = (
        parse_duration(each) / 1_000 for each in (window or "1m", lateness or "1m", idle or "1m", ahead or "1h")
    )
    interval = parse_duration(every) / 1_000 if every else None
    format, duration_unit = format or "auto", duration_unit or "ms"

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.logs.job import check, line_format
        from headrace.pipeline.jobs.logs.plot import check_plot

        if drawing:
            check_plot(drawing)
        line_format(format, regex, field_names(field or []), duration_unit, early)
        check(folder, size, late, interval, into, job.source["options"])
        return [into] if into else []

    with job.start(check, writes=job.bootstrap if into else "") as running:
        from headrace.pipeline.jobs import logs as run

        done = run(
            running.spark,
            **job.source,
            to=folder,
            window=size,
            lateness=late,
            idle=silent,
            ahead=early,
            into=into,
            into_bootstrap=job.bootstrap if into else "",
            every=interval,
            keep_open=keep_open,
            format=format,
            regex=regex,
            fields=field_names(field or []),
            duration_unit=duration_unit,
            group=group,
            application=application,
            progress=lambda done: running.display.show(done.rows - began.setdefault("rows", done.rows), _words(done)),
            stop=running.stop,
        )
    print(json.dumps({**asdict(done), "to": str(done.to)}))
    if drawing:
        _draw(done, drawing)


def _draw(done: Logs, path: str) -> None:
    from headrace.pipeline.jobs.logs.plot import NothingToDraw, plot

    try:
        plot(done, path)
    except NothingToDraw as error:
        # What was there is counted all the same.
        print(f"headrace: {error}", file=sys.stderr)


def field_names(texts: list[str]) -> dict[str, str]:
    """NAME=FIELD, as often as it was given."""
    from headrace.cli.options import assignments
    from headrace.pipeline.jobs.logs.fields import ROLES

    named = assignments(texts, "--field")
    for name in named:
        if name not in ROLES:
            raise HeadraceError(f"--field {name}={named[name]}: {name!r} is not one of {', '.join(ROLES)}")
    return named


def _words(done: Logs) -> str:
    return (
        f"{done.rows:,} lines in {done.windows:,} windows, {done.errors:,} errors, {done.broken:,} broken, "
        f"{done.late:,} late, {done.lag:,} waiting"
    )
