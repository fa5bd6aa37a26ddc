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
        str, typer.Option(metavar="DIR", help="The job's memory, made if it is missing; it belongs to --to.")
    ] = "",
    idle: Annotated[
        str, typer.Option(metavar="DURATION", help=f"A question that hears nothing for so long is idle: {DURATIONS}.")
    ] = "",
    lateness: Annotated[
        str, typer.Option(metavar="DURATION", help="How far out of order events may come; by default 10m.")
    ] = "",
    forget: Annotated[
        str,
        typer.Option(metavar="DURATION", help="A question silent for so long is forgotten; by default 90d, or never."),
    ] = "",
    tombstones: Annotated[
        bool, typer.Option("--tombstones", help="What is forgotten is deleted from NAME.state, too.")
    ] = False,
    unasked: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Events of a question of which the asking is not known: follow (by default), or aside.",
        ),
    ] = "",
    every: Annotated[str, typer.Option(metavar="DURATION", help="Go on, with a batch so often.")] = "",
    question_field: Annotated[
        str, typer.Option(metavar="NAME", help="The field of a question's id; by default question.")
    ] = "",
    event_field: Annotated[str, typer.Option(metavar="NAME", help="That of what happened; by default event.")] = "",
    time_field: Annotated[
        str,
        typer.Option(metavar="NAME", help="That of its time; by default at. Without one, the record's time counts."),
    ] = "",
    sequence_field: Annotated[
        str, typer.Option(metavar="NAME", help="That of its number in the question, if any; by default sequence.")
    ] = "",
) -> None:
    """Events of questions, asked, answered, accepted, closed: in order, as states, and counted by state."""
    for flag, value, what in (
        ("--to", to, "what the topics of the results are called"),
        ("--checkpoint", checkpoint, "the folder of the job's memory"),
    ):
        if not value:
            raise HeadraceError(f"{flag} is missing: {what}")
    folder = local_path(checkpoint, "--checkpoint")
    resting = parse_duration(idle) / 1_000 if idle else None
    if unasked not in ("", "follow", "aside"):
        raise HeadraceError(f"--unasked cannot be {unasked!r}: it is follow or aside")
    interval = parse_duration(every) / 1_000 if every else None
    late = parse_duration(lateness or "10m") / 1_000
    silent = None if forget == "never" else parse_duration(forget or "90d") / 1_000

    def check() -> Sequence[str]:
        from headrace.pipeline.jobs.sessions import check_options, check_places, check_times, names_of

        check_options(job.source["options"])
        check_places(to, folder)
        check_times(lateness=late, idle=resting, forget=silent, every=interval)
        return list(names_of(to).values())

    with job.running(check, writes=job.bootstrap) as running:
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
