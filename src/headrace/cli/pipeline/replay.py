"""`headrace pipeline replay`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.pipeline.job import Job, job
from headrace.cli.positions import HELP as POSITIONS
from headrace.cli.positions import Kind, parse_position
from headrace.errors import HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Replayed


@job
def replay(
    job: Job,
    since: Annotated[
        str, typer.Option(metavar="POSITION", help=f"From here on: {POSITIONS}; by default earliest.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="POSITION", help="Up to here, likewise; by default latest.")] = "",
    into: Annotated[str, typer.Option(metavar="TOPIC", help="Where records go; made if it is missing.")] = "",
    to: Annotated[str, typer.Option(metavar="DIR", help="A folder of Parquet files instead.")] = "",
    into_bootstrap: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker of --into; by default --bootstrap.")
    ] = "",
    function: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="A function that records pass through, of the shape of --per.")
    ] = "",
    per: Annotated[
        str,
        typer.Option(metavar="SHAPE", help="frame (by default: DataFrame to DataFrame), batches, pandas or rows."),
    ] = "",
    speed: Annotated[
        str, typer.Option(metavar="MULTIPLE", help="Release records at a multiple of their timing; by default max.")
    ] = "",
    keep_timestamps: Annotated[
        bool, typer.Option("--keep-timestamps", help="Records keep their times, too; by default it is now.")
    ] = False,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Partitions by key; by default each record keeps its own.")
    ] = False,
    application: Annotated[
        str, typer.Option(metavar="NAME", help="Under which records are written once, and a restart goes on.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many records it would be; write none.")] = False,
) -> None:
    """Records once more, through a function, into another topic or a table."""
    places = {**_place("since", since), **_place("until", until)}
    multiple = parse_speed(speed)
    broker = into_bootstrap or (job.bootstrap if into else "")
    per = per or "frame"
    folder = local_path(to, "--to") if to else ""

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.replay.job import checked, refuse_group

        refuse_group(job.source["options"])
        checked(function or None, per, into, folder, multiple, dry_run=dry_run)
        return [into] if into else []

    with (
        job.running(check, writes=broker, shaped=bool(function) and per == "frame") as running,
        _going_on(bool(into) and not multiple and not dry_run) as begun,
    ):
        from headrace.pipeline.jobs import replay as run

        def progress(done: Replayed) -> None:
            begun.append(done)
            running.display.show(done.written, _words(done))

        done = run(
            running.spark,
            **job.source,
            since=places.get("since"),
            until=places.get("until"),
            since_offset=places.get("since_offset"),
            until_offset=places.get("until_offset"),
            into=into,
            to=folder,
            into_bootstrap=broker,
            function=function or None,
            per=per,
            speed=multiple,
            keep_timestamps=keep_timestamps,
            keep_partitions=not by_key,
            application=application,
            dry_run=dry_run,
            progress=progress,
            stop=running.stop,
        )
    print(json.dumps(asdict(done)))


@contextmanager
def _going_on(possible: bool) -> Iterator[list[Replayed]]:
    """Whoever's replay fails is told under which name it is gone on with: it may have been made up."""
    begun: list[Replayed] = []
    try:
        yield begun
    except Exception:
        if possible and begun:
            print(f"headrace: --application {begun[-1].application} goes on behind what is written", file=sys.stderr)
        raise


def _place(name: str, text: str) -> dict[str, int]:
    if not text:
        return {}
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position.kind in (Kind.EARLIEST, Kind.LATEST):
        if (position.kind is Kind.EARLIEST) != (name == "since"):
            raise HeadraceError(f"--{name} {text}: nothing would be read")
        return {}
    return {name if position.kind is Kind.TIME else f"{name}_offset": position.value}


def parse_speed(text: str) -> float:
    """A multiple, `2` or `0.5x`; 0 for as fast as possible: `max`, `0`."""
    if text in ("", "max"):
        return 0.0
    try:
        found = float(text.removesuffix("x"))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise HeadraceError(f"--speed {text!r} is no multiple: 1, 0.5, 10, or max")
    return found


def _words(done: Replayed) -> str:
    of = f" of {done.of:,}" if done.of else ""
    behind = f", {done.behind:.1f} s behind at worst" if done.behind else ""
    return f"{done.written:,} records in {done.rounds:,}{of} rounds, {done.left:,} waiting{behind}"
