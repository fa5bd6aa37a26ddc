"""`headrace redrive`: dead letters back to where they came from."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli.over_http import Api, over_http
from headrace.cli.positions import HELP, Kind, parse_position
from headrace.errors import HeadraceError

TIME = HELP.removeprefix("earliest, latest, an offset, ")


@over_http
def redrive(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic; `queue show` names it.")],
    queue: Annotated[str, typer.Option(help="Only what died on this queue.")] = "",
    origin: Annotated[str, typer.Option(metavar="TOPIC", help="Only what came from this topic.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Only what died since: {TIME}.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only what died before.")] = "",
    key: Annotated[str | None, typer.Option(help="Only messages with this key.")] = None,
    error: Annotated[str, typer.Option(metavar="TEXT", help="Only with this in the text of the error.")] = "",
    error_pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only if the whole text of the error fits; * and ? stand for others.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: as fast as it goes.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    all_queues: Annotated[
        bool,
        typer.Option(
            "--all-queues",
            help="Let every queue of the origin see the messages again, not only the one on which they died.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each message.")] = False,
) -> None:
    """Send dead letters back to the topics that they came from, each at most once."""
    order: dict[str, Any] = {
        "topic": topic,
        "queue": queue,
        "origin": origin,
        "error": error,
        "error_pattern": error_pattern,
        "rate": rate,
        "dry_run": dry_run,
        "all_queues": all_queues,
    }
    if key is not None:
        order["key"] = key
    if since:
        order["since_ms"] = _moment(since)
    if until:
        order["until_ms"] = _moment(until)
    counts: Counter[str] = Counter()
    for result in _results(api, order, limit, counts, lines=not quiet):
        counts[result["outcome"]] += 1
        if api.as_json:
            print(json.dumps(result, ensure_ascii=False))
        elif not quiet:
            print(_line(topic, result))
    if not api.as_json:
        _sum_up(counts, dry_run)
    if counts["failed"]:
        raise HeadraceError(f"{counts['failed']} messages could not be sent back; they are still in {topic}")


def _results(
    api: Api, order: dict[str, Any], limit: int | None, counts: Counter[str], *, lines: bool
) -> Iterator[dict[str, Any]]:
    """The result of every message, step by step. `lines`: each is printed."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Lines on the same terminal show progress enough.
    shown = console.is_terminal and not (lines and sys.stdout.isatty())
    seen, waiting = 0, ""
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        bar = progress.add_task("redrive", total=None)
        place = None
        while True:
            wanted = {} if limit is None else {"limit": limit - seen}
            step = api.ask("POST", "/v1/redrive", {**order, **wanted, "next": place})
            looked = len(step["results"]) + step["unselected"] + step["redriven_before"] + step["unreadable"]
            counts["unselected"] += step["unselected"]
            counts["before"] += step["redriven_before"]
            counts["unreadable"] += step["unreadable"]
            progress.update(bar, advance=looked, total=progress.tasks[0].completed + looked + step["left"])
            if step["waiting"] and step["waiting"] != waiting:
                waiting = step["waiting"]
                console.print(f"waiting: {waiting}", markup=False, highlight=False)
            seen += len(step["results"])
            yield from step["results"]
            place = step["next"]
            if place is None or (limit is not None and seen >= limit):
                return


def _line(topic: str, result: dict[str, Any]) -> str:
    origin = result["origin"]
    where = f"{topic}/{result['partition']}/{result['offset']}"
    came = f"{origin['topic']}/{origin['partition']}/{origin['offset']} on {origin['queue']}"
    words = f"{result['outcome']:<9} {where} from {came}"
    if "sent_to" in result:
        words += f", now {origin['topic']}/{origin['partition']}/{result['sent_to']}"
    why = result.get("reason") or result["error"]
    return words + (f": {why}" if why else "")


def _sum_up(counts: Counter[str], dry_run: bool) -> None:
    done = counts["would-be-redriven"] if dry_run else counts["redriven"]
    words = [f"{done} would be redriven" if dry_run else f"{done} redriven"]
    for name, text in (
        ("failed", "failed"),
        ("skipped", "skipped"),
        ("unselected", "not selected"),
        ("before", "redriven before"),
        ("unreadable", "in batches that cannot be read"),
    ):
        if counts[name]:
            words.append(f"{counts[name]} {text}")
    print(", ".join(words), file=sys.stderr)


def _moment(text: str) -> int:
    """Milliseconds since the epoch."""
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position.kind is not Kind.TIME:
        raise HeadraceError(f"{text!r} is no time; it can be {TIME}")
    return position.value
