"""`headrace timer`: delayed messages, which wait for their time."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.output import Columns, local_time, preview, show
from headrace.cli.over_http import Api, over_http

app = typer.Typer(help="Lists and cancels delayed messages.", no_args_is_help=True)


@app.command("list")
@over_http
def list_timers(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most messages to list.")] = 100,
) -> None:
    """Lists the delayed messages, the next ones first."""
    columns: Columns = {
        "id": "id",
        "topic": "topic",
        "partition": "partition",
        "due": lambda each: local_time(each["due_ms"], "milliseconds"),
        "key": lambda each: preview(each, "key"),
        "bytes": "value_bytes",
    }
    show(api.get_pages("/v1/timers", "timers", limit, topic=topic), api.as_json, columns)


@app.command()
@over_http
def cancel(
    api: Api,
    timers: Annotated[list[str], typer.Argument(metavar="ID...", help="As `timer list` shows them.")],
) -> None:
    """Cancels delayed messages. They will never be delivered."""
    for timer in timers:
        api.print_answer(api.ask("DELETE", f"/v1/timers/{quote(timer, safe='')}"))
