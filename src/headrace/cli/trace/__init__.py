"""`headrace trace`: the life of a message, or of all messages of a trace, across topics, queues and services.

search.py          finds records
lives.py           finds what became of them
client_traces.py   reads what RocketMQ's clients record
report.py          prints it
"""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from headrace.cli.connect import Target, connects
from headrace.cli.durations import parse_duration
from headrace.cli.options import Http, formats
from headrace.cli.output import print_json, progress
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.cli.trace.client_traces import UNIQUE_ID
from headrace.cli.trace.lives import HttpDoor, SearchRange, Tracer
from headrace.cli.trace.report import print_lives, to_json
from headrace.cli.trace.search import place_of
from headrace.client import Client
from headrace.doors.http.settings import HttpSettings
from headrace.errors import HeadraceError

# A trace id, alone or as it stands in `traceparent`.
TRACE = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")


@connects
@formats
async def trace(
    client: Client,
    target: Target,
    as_json: bool,
    id: Annotated[
        str,
        typer.Argument(metavar="ID", help="A message as TOPIC/PARTITION/OFFSET or RocketMQ's id, or a trace id."),
    ],
    topic: Annotated[list[str], typer.Option(metavar="TOPIC", help="Search only this topic; may be repeated.")] = [],  # noqa: B006 - typer copies it
    since: Annotated[
        str, typer.Option(metavar="TIME", help=f"Search from then on: {TIME_HELP}. By default see --around.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Search up to then.")] = "",
    around: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Search so long before and after the message, or before now for a trace."
        ),
    ] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="The most messages of a trace.")] = 1_000,
    http: Http = HttpSettings.http,
) -> None:
    """Prints the life of a message and of all messages of its trace."""
    place, traced, unique = place_of(id), TRACE.fullmatch(id), UNIQUE_ID.fullmatch(id)
    if place is None and traced is None and unique is None:
        raise HeadraceError(
            f"{id!r} is neither a message (TOPIC/PARTITION/OFFSET, or RocketMQ's id: capital hex digits) nor a "
            "trace id (32 small ones)"
        )
    now, reach = time.time_ns() // 1_000_000, parse_duration(around)
    with progress() as begin:
        tracer = Tracer(client, HttpDoor(http, target.header, target.tls_ca), begin)
        topics = [each.name for each in await client.cluster.topics()]
        middle, wanted = now, traced[1] if traced is not None else ""
        if place is not None:
            if place.topic not in topics:
                raise HeadraceError(f"there is no topic {place.topic}")
            middle = await tracer.message(place)
            wanted = tracer.lives.trace
        first = parse_time(since, now) if since else middle - reach
        last = parse_time(until, now) if until else middle + reach
        chosen = topic or [each for each in topics if not each.startswith("__")]
        if unique is not None:
            await tracer.unique(id, chosen, first, last if last < now else None, limit)
            tracer.lives.searched = SearchRange(tuple(topic), first, min(last, now))
            wanted = wanted or tracer.lives.trace
        if wanted:
            await tracer.trace(wanted, chosen, first, last if last < now else None, limit)
            tracer.lives.searched = SearchRange(tuple(topic), first, min(last, now))
        await tracer.follow(topics, [place] if place is not None else [])
    if as_json:
        print_json(to_json(id, tracer.lives))
    else:
        print_lives(id, tracer.lives)
    if not tracer.lives.messages and not tracer.lives.steps:
        raise HeadraceError(f"nothing is known of {id}")
