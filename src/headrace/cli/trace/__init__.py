"""`headrace trace`: the life of a message, or of all messages of a trace, across topics, queues and services.

search.py   finds records over Kafka's wire
report.py   prints what `headrace.broker.lives` makes of them
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.broker.lives.trace import Wanted
from headrace.broker.lives.trace import trace as tell
from headrace.cli.connect import Target, connects
from headrace.cli.durations import parse_duration
from headrace.cli.options import Http, formats
from headrace.cli.output import print_json, progress
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.cli.trace.report import print_lives, to_json
from headrace.cli.trace.search import HttpDoor, KafkaSource
from headrace.client import Client
from headrace.doors.http.settings import HttpSettings
from headrace.errors import HeadraceError


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
    now = time.time_ns() // 1_000_000
    wanted = Wanted(
        id,
        tuple(topic),
        parse_time(since, now) if since else None,
        parse_time(until, now) if until else None,
        parse_duration(around),
        limit,
    )
    with progress() as begin:
        source = KafkaSource(client, HttpDoor(http, target.header, target.tls_ca))
        lives = await tell(source, wanted, now, begin)
    if as_json:
        print_json(to_json(id, lives))
    else:
        print_lives(id, lives)
    if not lives.messages and not lives.steps:
        raise HeadraceError(f"nothing is known of {id}")
