"""`headrace redrive`: dead letters back to where they came from."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headrace.cli.options import DryRun
from headrace.cli.output import progress
from headrace.cli.over_http import Api, over_http
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.errors import HeadraceError

# Messages that a step reads and does not redrive, by their names in its answer.
PASSED_OVER = {
    "unselected": "not selected",
    "redriven_before": "redriven before",
    "unreadable": "in batches that cannot be read",
}


@over_http
def redrive(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic; `queue show` names it.")],
    queue: Annotated[str, typer.Option(help="Only messages that died on this queue.")] = "",
    origin: Annotated[str, typer.Option(metavar="TOPIC", help="Only messages from this topic.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Only messages that died since: {TIME_HELP}.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only messages that died before.")] = "",
    key: Annotated[str | None, typer.Option(help="Only messages with this key.")] = None,
    error: Annotated[str, typer.Option(metavar="TEXT", help="Only messages whose error contains this text.")] = "",
    error_pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only messages whose whole error matches; * and ? are wildcards.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    rate: Annotated[float, typer.Option(min=0, help="The most messages per second; 0: no limit.")] = 0,
    dry_run: DryRun = False,
    all_queues: Annotated[
        bool,
        typer.Option(
            "--all-queues",
            help="Deliver the messages to every queue of their topic again, not only to the one on which they died.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print a line per message.")] = False,
) -> None:
    """Sends dead letters back to the topics that they came from, each at most once."""
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
    for name, text in (("since_ms", since), ("until_ms", until)):
        if text:
            order[name] = parse_time(text, time.time_ns() // 1_000_000)
    counts: Counter[str] = Counter()
    for result in _results(api, order, limit, counts, lines=not quiet):
        counts[result["outcome"]] += 1
        if api.as_json:
            print(json.dumps(result, ensure_ascii=False))
        elif not quiet:
            print(_line(topic, result))
    if not api.as_json:
        _summarize(counts, dry_run)
    if counts["failed"]:
        raise HeadraceError(f"{counts['failed']} messages could not be sent back. They are still in {topic}.")


def _results(
    api: Api, order: dict[str, Any], limit: int | None, counts: Counter[str], *, lines: bool
) -> Iterator[dict[str, Any]]:
    """The result of each message, in steps. `lines`: the caller prints each."""
    seen, read, waiting, place = 0, 0, "", None
    # Lines on the same terminal show progress enough.
    with progress(shown=not (lines and sys.stdout.isatty())) as begin:
        advance = begin("redrive", None)
        while True:
            wanted = {} if limit is None else {"limit": limit - seen}
            step = api.ask("POST", "/v1/redrive", {**order, **wanted, "next": place})
            for name in PASSED_OVER:
                counts[name] += step[name]
            count = len(step["results"]) + sum(step[name] for name in PASSED_OVER)
            read += count
            advance(count, read + step["left"])
            if step["waiting"] and step["waiting"] != waiting:
                waiting = step["waiting"]
                print(f"waiting: {waiting}", file=sys.stderr)
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


def _summarize(counts: Counter[str], dry_run: bool) -> None:
    done = f"{counts['would-be-redriven']} would be redriven" if dry_run else f"{counts['redriven']} redriven"
    others = {"failed": "failed", "skipped": "skipped", **PASSED_OVER}
    print(
        ", ".join([done, *(f"{counts[name]} {text}" for name, text in others.items() if counts[name])]), file=sys.stderr
    )
