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
    until: Annotated[str, typer.Option(metavar="POSITION", help="Up to here, as --since; by default latest.")] = "",
    into: Annotated[str, typer.Option(metavar="TOPIC", help="The topic to write to. Created if it is missing.")] = "",
    to: Annotated[str, typer.Option(metavar="DIR", help="Write Parquet files to this folder instead.")] = "",
    into_bootstrap: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker of --into; by default --bootstrap.")
    ] = "",
    function: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="Pass records through this function, of the shape of --per.")
    ] = "",
    per: Annotated[
        str,
        typer.Option(metavar="SHAPE", help="frame (by default: DataFrame to DataFrame), batches, pandas or rows."),
    ] = "",
    speed: Annotated[
        str, typer.Option(metavar="MULTIPLE", help="Write at a multiple of the original rate; by default max.")
    ] = "",
    keep_timestamps: Annotated[
        bool, typer.Option("--keep-timestamps", help="Records keep their timestamps; by default they get new ones.")
    ] = False,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Choose partitions by key; by default records keep theirs.")
    ] = False,
    application: Annotated[
        str, typer.Option(metavar="NAME", help="The name for exactly-once writes; a restart continues under it.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many records would be written. Write none.")
    ] = False,
) -> None:
    """Writes records again, through a function, to another topic or a table."""
    places = {**_place("since", since), **_place("until", until)}
    multiple = parse_speed(speed)
    broker = into_bootstrap or (job.bootstrap if into else "")
    per = per or "frame"
    folder = local_path(to, "--to") if to else ""

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.replay.job import check_replay, refuse_group

        refuse_group(job.source["options"])
        check_replay(function or None, per, into, folder, multiple, dry_run=dry_run)
        return [into] if into else []

    with (
        job.start(check, writes=broker, shaped=bool(function) and per == "frame") as running,
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
    """On a failure, print the name under which the replay continues: it may be a generated one."""
    begun: list[Replayed] = []
    try:
        yield begun
    except Exception:
        if possible and begun:
            print(
                f"headrace: --application {begun[-1].application} continues after the last written record",
                file=sys.stderr,
            )
        raise


def _place(name: str, text: str) -> dict[str, int]:
    if not text:
        return {}
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position.kind in (Kind.EARLIEST, Kind.LATEST):
        if (position.kind is Kind.EARLIEST) != (name == "since"):
            raise HeadraceError(f"--{name} {text}: no record would be read")
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
        raise HeadraceError(f"--speed must be a multiple, such as 0.5 or 10, or max (got {text!r})")
    return found


def _words(done: Replayed) -> str:
    of = f" of {done.of:,}" if done.of else ""
    behind = f", {done.behind:.1f} s behind at worst" if done.behind else ""
    return f"{done.written:,} records in {done.rounds:,}{of} rounds, {done.left:,} waiting{behind}"
