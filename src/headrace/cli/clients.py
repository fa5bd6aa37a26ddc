"""`headrace client`: who is connected."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.durations import format_rough
from headrace.cli.output import show
from headrace.cli.over_http import PAGE, Api, over_http

app = typer.Typer(help="Lists and closes connections of clients.", no_args_is_help=True)


@app.command("list")
@over_http
def list_clients(
    api: Api,
    search: Annotated[str, typer.Argument(metavar="[TEXT]", help="A part of address, user or client id.")] = "",
    door: Annotated[str, typer.Option(help="Only those of this door: kafka, nsq, http, ...")] = "",
) -> None:
    """Lists connections, the oldest first."""
    found: list[dict[str, Any]] = []
    while True:
        page = api.get("/v1/clients", search=search, door=door, offset=len(found), limit=PAGE)
        found += page["clients"]
        if not page["clients"] or len(found) >= page["total"]:
            break
    show(
        found,
        api.as_json,
        {
            "id": "id",
            "door": "door",
            "address": "address",
            "user": "user",
            "client": "client_id",
            "tls": lambda each: "yes" if each["tls"] else "no",
            "age": lambda each: format_rough(each["age_ms"]),
        },
    )


@app.command()
@over_http
def kill(api: Api, id: Annotated[str, typer.Argument(metavar="ID", help="As `client list` shows it.")]) -> None:
    """Closes a connection at once. Most clients connect again by themselves."""
    api.print_answer(api.ask("DELETE", f"/v1/clients/{quote(id, safe='')}"))
