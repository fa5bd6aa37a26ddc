"""`headrace trace`: the life of a message, or of all messages of a trace, across topics, queues and services.

records.py   finds records
lives.py     finds what became of them
shown.py     prints it
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli.connect import connects
from headrace.cli.durations import parse_duration
from headrace.cli.over_http import Api, Format, FormatOption, Http, JsonOption, print_json
from headrace.cli.positions import HELP, Kind, parse_position
from headrace.cli.trace.lives import Gathering, Looked, every_topic
from headrace.cli.trace.records import place_of
from headrace.cli.trace.shown import as_json, print_lives
from headrace.client import Client
from headrace.config import Config
from headrace.errors import HeadraceError

TIME = HELP.removeprefix("earliest, latest, an offset, ")
# A trace id, alone or as it stands in `traceparent`.
TRACE = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
DROPPED = "headrace_deliveries_dropped_total"
METRICS_SECONDS = 10.0


class Door:
    """The broker's HTTP door, which need not be there."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str) -> Any:
        return Api(self._address, as_json=True).get(path)

    def dropped(self) -> int:
        try:
            with urlopen(f"http://{self._address}/metrics", timeout=METRICS_SECONDS) as answer:
                lines = answer.read().decode().splitlines()
        except (URLError, OSError, ValueError) as error:
            raise HeadraceError(f"no figures from {self._address}: {error}") from None
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(DROPPED))


@connects
async def trace(
    client: Client,
    id: Annotated[str, typer.Argument(metavar="ID", help="A message as TOPIC/PARTITION/OFFSET, or a trace id.")],
    topic: Annotated[
        list[str], typer.Option(metavar="TOPIC", help="Look for the trace only here; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    since: Annotated[
        str, typer.Option(metavar="TIME", help=f"Look for the trace from then on: {TIME}. By default see --around.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="And up to then.")] = "",
    around: Annotated[
        str, typer.Option(metavar="DURATION", help="So long before and behind the message, or before now for a trace.")
    ] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="The most messages of a trace.")] = 1_000,
    http: Http = Config.http,
    output: FormatOption = Format.TABLE,
    output_json: JsonOption = False,
) -> None:
    """Print the life of a message, and of all that belong to its trace, from what the broker keeps."""
    place, traced = place_of(id), TRACE.fullmatch(id)
    if place is None and traced is None:
        raise HeadraceError(f"{id!r} is neither a message (TOPIC/PARTITION/OFFSET) nor a trace id (32 hex digits)")
    now, reach = time.time_ns() // 1_000_000, parse_duration(around)
    with _progress() as progress:

        def begun(name: str, total: int) -> Callable[[int], None]:
            bar = progress.add_task(name, total=total)
            return lambda count: progress.advance(bar, count)

        gathering = Gathering(client, Door(http), begun)
        topics = await every_topic(client)
        middle, wanted = now, traced[1] if traced is not None else ""
        if place is not None:
            if place.topic not in topics:
                raise HeadraceError(f"there is no topic {place.topic}")
            middle = await gathering.message(place)
            wanted = gathering.lives.trace
        begin = _moment(since, now) if since else middle - reach
        end = _moment(until, now) if until else middle + reach
        if wanted:
            chosen = topic or [each for each in topics if not each.startswith("__")]
            await gathering.trace(wanted, chosen, begin, end if end < now else None, limit)
            gathering.lives.looked = Looked(tuple(topic), begin, min(end, now))
        await gathering.follow(topics, [place] if place is not None else [])
    if output_json or output is Format.JSON:
        print_json(as_json(id, gathering.lives))
    else:
        print_lives(id, gathering.lives)
    if not gathering.lives.messages and not gathering.lives.steps:
        raise HeadraceError(f"nothing is known of {id}")


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _moment(text: str, now: int) -> int:
    """Milliseconds since the epoch."""
    position = parse_position(text, now)
    if position.kind is not Kind.TIME:
        raise HeadraceError(f"{text!r} is no time; it can be {TIME}")
    return position.value
