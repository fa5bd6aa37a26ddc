"""`headrace timer`: the messages that wait for their time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.connect import show
from headrace.cli.over_http import Api, over_http, print_json, shown_bytes

app = typer.Typer(help="Messages that wait for their time.", no_args_is_help=True)

PAGE = 1_000


@app.command("list")
@over_http
def list_timers(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
) -> None:
    """List messages that wait, the next ones first."""
    found: list[dict[str, Any]] = []
    after = ""
    while len(found) < limit:
        page = api.get("/v1/timers", topic=topic, limit=min(PAGE, limit - len(found)), after=after)
        found += page["timers"]
        after = page["next"]
        if not after:
            break
    if api.as_json:
        print_json(found)
        return
    rows = [
        {
            **each,
            "due": datetime.fromtimestamp(each["due_ms"] / 1000).isoformat(" ", "milliseconds"),
            "key": shown_bytes(each, "key"),
        }
        for each in found
    ]
    columns = {
        "id": "id",
        "topic": "topic",
        "partition": "partition",
        "due": "due",
        "key": "key",
        "value_bytes": "bytes",
    }
    show(rows, False, columns)


@app.command()
@over_http
def cancel(
    api: Api,
    timers: Annotated[list[str], typer.Argument(metavar="ID...", help="As `timer list` shows them.")],
) -> None:
    """Cancel messages that wait: they will never be delivered."""
    for timer in timers:
        answer = api.ask("DELETE", f"/v1/timers/{quote(timer, safe='')}")
        if api.as_json:
            print_json(answer)
