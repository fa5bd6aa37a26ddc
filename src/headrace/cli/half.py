"""`headrace half`: prepared messages, which are not yet committed or rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.durations import HELP as DURATION
from headrace.cli.durations import format_age, parse_duration
from headrace.cli.output import Columns, local_time, preview, print_json, show
from headrace.cli.over_http import Api, over_http

app = typer.Typer(help="Commits and rolls back prepared (half) messages.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="As `half list` shows it.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="As `half list` shows them.")]


@app.command("list")
@over_http
def list_prepared(
    api: Api,
    topic: Annotated[str, typer.Option(help="Only messages for this topic.")] = "",
    group: Annotated[str, typer.Option(help="Only messages of this producer group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most messages to list.")] = 100,
) -> None:
    """Lists the messages that are neither committed nor rolled back, the oldest first."""
    columns: Columns = {
        **{each: each for each in ("id", "state", "topic", "partition", "group")},
        "age": _age,
        "checks": "checks",
        "next check": lambda each: local_time(each["next_check_ms"]),
    }
    show(api.get_pages("/v1/half", "half", limit, topic=topic, group=group), api.as_json, columns)


@app.command("show")
@over_http
def show_prepared(api: Api, id: Id) -> None:
    """Shows the state and the content of one message."""
    half = api.get(_path(id))
    if api.as_json:
        print_json(half)
        return
    print(f"{half['id']} is {_describe(half)}")
    if "group" not in half:
        return
    target = half["topic"] if half["partition"] is None else f"{half['topic']}/{half['partition']}"
    print(f"for {target}, prepared by {half['group']} {_age(half)} ago; checks: {half['checks']}")
    print(f"next check: {local_time(half['next_check_ms']) or 'none'}")
    print(f"key: {preview(half, 'key') or '-'}")
    print(f"value: {preview(half, 'value') or '-'}")
    for header in half.get("headers", ()):
        print(f"header {header['name']}: {preview(header, 'value') or '-'}")


@app.command()
@over_http
def commit(api: Api, ids: Ids) -> None:
    """Commits messages. Consumers see them from now on."""
    _end(api, ids, "commit")


@app.command()
@over_http
def rollback(api: Api, ids: Ids) -> None:
    """Rolls messages back. No consumer will ever see them."""
    _end(api, ids, "rollback")


@app.command()
@over_http
def checks(
    api: Api,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The producer group to answer for.")],
    wait: Annotated[str, typer.Option(metavar="DURATION", help=f"How long to wait for a check: {DURATION}.")] = "10s",
    limit: Annotated[int, typer.Option(min=1, max=100, help="The most checks to take.")] = 10,
) -> None:
    """Takes over the checks of a producer group: messages that wait for a commit or a rollback."""
    columns: Columns = {
        "id": "id",
        "topic": "topic",
        "age": _age,
        "checks": "checks",
        "key": lambda each: preview(each, "key"),
        "value": lambda each: preview(each, "value"),
    }
    answer = api.get("/v1/half/checks", group=group, wait_ms=parse_duration(wait), limit=limit)
    show(answer["checks"], api.as_json, columns)


def _end(api: Api, ids: list[str], how: str) -> None:
    for id in ids:
        answer = api.ask("POST", f"{_path(id)}/{how}")
        if api.as_json:
            print_json(answer)
        else:
            print(f"{id} is {_describe(answer)}")


def _path(id: str) -> str:
    return f"/v1/half/{quote(id, safe='')}"


def _describe(half: Mapping[str, Any]) -> str:
    words = str(half["state"]).replace("-", " ")
    if half["state"] == "committed":
        words += f" to {half['topic']}/{half['partition']} at offset {half['offset']}"
    return words + (", by the broker, because no check was answered" if half.get("given_up") else "")


def _age(half: Mapping[str, Any]) -> str:
    return format_age(int(half["prepared_ms"]))
