"""`headrace pipeline sessions`."""

from __future__ import annotations

import json
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
    from headrace.pipeline.jobs import Sessions


@job
def sessions(
    job: Job,
    to: Annotated[
        str, typer.Option(metavar="NAME", help="Results go to NAME.events, .state, .changes, .counts, .late, .broken.")
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="The folder of the job's state for --to. Created if it is missing.")
    ] = "",
    idle: Annotated[
        str, typer.Option(metavar="DURATION", help=f"A question without an event for this long is idle: {DURATIONS}.")
    ] = "",
    lateness: Annotated[
        str, typer.Option(metavar="DURATION", help="How far out of order events may come; by default 10m.")
    ] = "",
    forget: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Delete the state of questions silent for this long, or never; by default 90d."
        ),
    ] = "",
    tombstones: Annotated[bool, typer.Option("--tombstones", help="Also delete that state from NAME.state.")] = False,
    unasked: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Events of a question that was never asked: follow (by default), or aside.",
        ),
    ] = "",
    every: Annotated[str, typer.Option(metavar="DURATION", help="Keep running, with a batch this often.")] = "",
    question_field: Annotated[
        str, typer.Option(metavar="NAME", help="The field with a question's id; by default question.")
    ] = "",
    event_field: Annotated[
        str, typer.Option(metavar="NAME", help="The field with the kind of event; by default event.")
    ] = "",
    time_field: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The field with its time; by default at. Without it, the record's time counts."
        ),
    ] = "",
    sequence_field: Annotated[
        str,
        typer.Option(metavar="NAME", help="The field with its number in the question, if any; by default sequence."),
    ] = "",
) -> None:
    """Orders the events of questions (asked, answered, accepted, closed), and keeps and counts their states."""
    for flag, value, what in (
        ("--to", to, "the name of the results' topics"),
        ("--checkpoint", checkpoint, "the folder of the job's state"),
    ):
        if not value:
            raise HeadraceError(f"{flag} is missing. Give {what}.")
    folder = local_path(checkpoint, "--checkpoint")
    resting = parse_duration(idle) / 1_000 if idle else None
    if unasked not in ("", "follow", "aside"):
        raise HeadraceError(f"--unasked must be follow or aside (got {unasked!r})")
    interval = parse_duration(every) / 1_000 if every else None
    late = parse_duration(lateness or "10m") / 1_000
    silent = None if forget == "never" else parse_duration(forget or "90d") / 1_000

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.rounds import check_stream
        from headrace.pipeline.jobs.sessions import check_places, check_times, names_of

        check_stream(job.source["options"], interval)
        check_places(to, folder)
        check_times(lateness=late, idle=resting, forget=silent, every=interval)
        return list(names_of(to).values())

    with job.start(check, writes=job.bootstrap) as running:
        from headrace.pipeline.jobs import sessions as run
        from headrace.pipeline.jobs.sessions_state import Fields

        plain = Fields()
        done = run(
            running.spark,
            **{**job.source, "bootstrap": job.bootstrap},
            to=to,
            checkpoint=folder,
            idle=resting,
            lateness=late,
            forget=silent,
            tombstones=tombstones,
            unasked=unasked != "aside",
            every=interval,
            fields=Fields(
                question_field or plain.question,
                event_field or plain.event,
                time_field or plain.time,
                sequence_field or plain.sequence,
            ),
            progress=lambda done: running.display.show(done.events, _words(done)),
            stop=running.stop,
        )
    print(json.dumps(asdict(done)))


def _words(done: Sessions) -> str:
    return (
        f"{done.events:,} events in {done.batches:,} batches, {done.late:,} late, {done.broken:,} broken, "
        f"{done.forgotten:,} questions forgotten, {done.lag:,} waiting"
    )
