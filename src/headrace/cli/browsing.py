"""`headrace topic messages`, `tail` and `message`: messages looked at over HTTP, where fields may be masked."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.output import Columns, local_time, preview, print_json, show
from headrace.cli.over_http import Api, over_http

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Where = Annotated[str, typer.Option(metavar="EXPRESSION", help='As in: value.customer.id = 42 and key ~ "eu-".')]
Key = Annotated[str, typer.Option(help="Only messages with this key.")]
Unmask = Annotated[bool, typer.Option("--unmask", help="Show masked fields. Takes the right to alter the topic.")]
COLUMNS: Columns = {
    "partition": "partition",
    "offset": "offset",
    "time": lambda each: local_time(each["timestamp"], "milliseconds"),
    "key": lambda each: preview(each, "key"),
    "value": lambda each: preview(each, "value"),
}


@over_http
def messages(
    api: Api,
    topic: Topic,
    begin: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="earliest, an offset, end-100 or a time.")
    ] = "earliest",
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    partition: Annotated[str, typer.Option(metavar="NUMBERS", help="Only these, with commas between.")] = "",
    key: Key = "",
    where: Where = "",
    limit: Annotated[int, typer.Option(min=1, help="The most messages to show.")] = 50,
    unmask: Unmask = False,
) -> None:
    """Shows messages of a topic in the order of their times. Nothing is consumed."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    query = {"from": begin, "newest": str(newest).lower(), "unmask": str(unmask).lower()}
    while after is not None and len(found) < limit:
        page = api.get(
            f"{_path(topic)}/messages",
            **query, partition=partition, key=key, where=where, after=after, limit=min(500, limit - len(found)),
        )  # fmt: skip
        found += page["messages"]
        after = page["next"]
    show(found, api.as_json, COLUMNS)


@over_http
def tail(
    api: Api,
    topic: Topic,
    key: Key = "",
    where: Where = "",
    limit: Annotated[int, typer.Option(min=1, help="End after so many messages.")] = 1 << 30,
    unmask: Unmask = False,
) -> None:
    """Shows messages as they come, until Ctrl-C. Those that come too fast are skipped, and counted."""
    cursor, count = "", 0
    while count < limit:
        page = api.get(
            f"{_path(topic)}/tail",
            cursor=cursor, key=key, where=where, unmask=str(unmask).lower(), limit=min(500, limit - count),
        )  # fmt: skip
        cursor = page["next"]
        count += len(page["messages"])
        if page["skipped"]:
            typer.echo(f"headrace: {page['skipped']} messages were left out", err=True)
        for each in page["messages"]:
            if api.as_json:
                print_json(each)
            else:
                typer.echo("  ".join(str(cell(each) if callable(cell) else each[cell]) for cell in CELLS))


CELLS = list(COLUMNS.values()) if isinstance(COLUMNS, dict) else []


@over_http
def message(
    api: Api,
    topic: Topic,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    unmask: Unmask = False,
) -> None:
    """Prints one message, whole, as JSON."""
    path = f"{_path(topic)}/partitions/{partition}/messages/{offset}"
    print_json(api.get(path, unmask=str(unmask).lower()))


def _path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"
