"""`headrace audit`: who did what."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli.durations import HELP, parse_duration
from headrace.cli.offline import manages
from headrace.cli.output import Columns, local_time, show
from headrace.cli.over_http import Api


@manages
def audit(
    api: Api,
    by: Annotated[str, typer.Option(metavar="USER", help="Only what this user did.")] = "",
    action: Annotated[str, typer.Option(help="Only this: login, topic.delete, user.*, ...")] = "",
    name: Annotated[str, typer.Option(help="Only what was done to this topic, user, queue.")] = "",
    result: Annotated[str, typer.Option(help="Only ok, refused, 'would be refused' or failed.")] = "",
    since: Annotated[str, typer.Option(metavar="DURATION", help=f"Only of the last {HELP}.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most entries to list.")] = 100,
) -> None:
    """Lists who did what, from where, and whether it was allowed, the newest first."""
    since_ms = int(time.time() * 1000) - parse_duration(since) if since else None
    found = api.get_pages(
        "/v1/audit", "entries", limit, user=by, action=action, name=name, result=result, since_ms=since_ms
    )
    columns: Columns = {
        "time": lambda each: local_time(each["t"]),
        "user": "user",
        "from": lambda each: f"{each['host']} {each['door']}".strip(),
        "action": "action",
        "what": lambda each: f"{each['resource']} {each['name']}".strip(),
        "result": lambda each: each["result"] + (f" x{each['count']}" if "count" in each else ""),
        "detail": lambda each: each.get("detail", ""),
    }
    show(found, api.as_json, columns)
