"""`headrace half`: messages that are prepared and not yet committed or rolled back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.connect import show
from headrace.cli.durations import HELP as DURATION
from headrace.cli.durations import about, parse_duration
from headrace.cli.over_http import Api, over_http, print_json, shown_bytes

app = typer.Typer(help="Half messages: prepared, and seen by readers only once committed.", no_args_is_help=True)

PAGE = 1_000

Id = Annotated[str, typer.Argument(metavar="ID", help="As `half list` shows it.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="As `half list` shows them.")]


@app.command("list")
@over_http
def list_half(
    api: Api,
    topic: Annotated[str, typer.Option(help="Only those for this topic.")] = "",
    group: Annotated[str, typer.Option(help="Only those of this producer group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
) -> None:
    """List messages that are undecided, the oldest first."""
    found: list[dict[str, Any]] = []
    after = ""
    while len(found) < limit:
        page = api.get("/v1/half", topic=topic, group=group, limit=min(PAGE, limit - len(found)), after=after)
        found += page["half"]
        after = page["next"]
        if not after:
            break
    if api.as_json:
        print_json(found)
        return
    rows = [{**each, "age": _age(each), "next": _moment(each["next_check_ms"])} for each in found]
    columns = {
        "id": "id",
        "state": "state",
        "topic": "topic",
        "partition": "partition",
        "group": "group",
        "age": "age",
        "checks": "checks",
        "next": "next check",
    }
    show(rows, False, columns)


@app.command("show")
@over_http
def show_half(api: Api, id: Id) -> None:
    """Show one message: how it stands, and what is in it."""
    half = api.get(_path(id))
    if api.as_json:
        print_json(half)
        return
    print(f"{half['id']} is {_words(half)}")
    if "group" not in half:
        return
    target = half["topic"] if half["partition"] is None else f"{half['topic']}/{half['partition']}"
    print(f"for {target}, prepared by {half['group']} {_age(half)} ago; checks: {half['checks']}")
    print(f"next check: {_moment(half['next_check_ms']) or 'none'}")
    print(f"key: {shown_bytes(half, 'key') or '-'}")
    print(f"value: {shown_bytes(half, 'value') or '-'}")
    for header in half.get("headers", ()):
        print(f"header {header['name']}: {shown_bytes(header, 'value') or '-'}")


@app.command()
@over_http
def commit(api: Api, ids: Ids) -> None:
    """Commit messages: readers see them from now on."""
    _decide(api, ids, "commit")


@app.command()
@over_http
def rollback(api: Api, ids: Ids) -> None:
    """Roll messages back: nobody will ever see them."""
    _decide(api, ids, "rollback")


@app.command()
@over_http
def checks(
    api: Api,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The producer group to answer for.")],
    wait: Annotated[str, typer.Option(metavar="DURATION", help=f"How long to wait for one: {DURATION}.")] = "10s",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 10,
) -> None:
    """Take over the questions of a producer group: which of these messages shall be committed?"""
    asked = api.get("/v1/half/checks", group=group, wait_ms=parse_duration(wait), limit=limit)["checks"]
    if api.as_json:
        print_json(asked)
        return
    rows = [
        {**each, "age": _age(each), "key": shown_bytes(each, "key"), "value": shown_bytes(each, "value")}
        for each in asked
    ]
    columns = {"id": "id", "topic": "topic", "age": "age", "checks": "checks", "key": "key", "value": "value"}
    show(rows, False, columns)


def _decide(api: Api, ids: list[str], how: str) -> None:
    for id in ids:
        answer = api.ask("POST", f"{_path(id)}/{how}")
        if api.as_json:
            print_json(answer)
        else:
            print(f"{id} is {_words(answer)}")


def _path(id: str) -> str:
    return f"/v1/half/{quote(id, safe='')}"


def _words(half: Mapping[str, Any]) -> str:
    words = str(half["state"]).replace("-", " ")
    if half["state"] == "committed":
        words += f" to {half['topic']}/{half['partition']} at offset {half['offset']}"
    return words + (", by the broker, which had asked in vain" if half.get("given_up") else "")


def _age(half: Mapping[str, Any]) -> str:
    return about(max(0, time.time_ns() // 1_000_000 - int(half["prepared_ms"])))


def _moment(at_ms: int | None) -> str:
    return "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000).isoformat(" ", "seconds")
