"""`headrace token`: what programs show instead of a password."""

from __future__ import annotations

import time
from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.durations import HELP, parse_duration
from headrace.cli.offline import manages
from headrace.cli.output import Columns, local_time, print_json, show
from headrace.cli.over_http import Api

app = typer.Typer(help="Manages API tokens, which programs send instead of passwords.", no_args_is_help=True)


@app.command()
@manages
def create(
    api: Api,
    name: Annotated[str, typer.Argument(metavar="USER", help="Whose token it is.")],
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help=f"How long it lasts: {HELP}. Empty: until it is revoked.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE", help="What it may be used for at most, as in write:topic:orders*. May be repeated."
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for, shown in lists.")] = "",
    signing: Annotated[
        bool, typer.Option("--signing", help="It can sign requests, as RocketMQ's clients do. The broker keeps it.")
    ] = False,
) -> None:
    """Creates an API token and prints it, once. With --signing its access key and secret key, too."""
    until = int(time.time() * 1000) + parse_duration(expires) if expires else 0
    body = {"user": name, "expires_ms": until or None, "scope": scope or [], "note": note, "signing": signing}
    answer = api.ask("POST", "/v1/tokens", body)
    if api.as_json:
        print_json(answer)
        return
    print(answer["token"])
    if signing:
        print(f"access key  {answer['id']}")
        print(f"secret key  {answer['token'].rpartition('_')[2]}")


@app.command("list")
@manages
def list_tokens(
    api: Api,
    name: Annotated[str, typer.Argument(metavar="[USER]", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most tokens to list.")] = 1_000,
) -> None:
    """Lists API tokens, of a user or all, without their texts."""
    columns: Columns = {
        "id": "id",
        "user": "user",
        "created": lambda each: local_time(each["created_ms"]),
        "expires": lambda each: local_time(each["expires_ms"]),
        "scope": lambda each: " ".join(each["scope"]),
        "note": "note",
    }
    show(api.get_pages("/v1/tokens", "tokens", limit, user=name), api.as_json, columns)


@app.command()
@manages
def revoke(
    api: Api,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `token list` shows them.")],
) -> None:
    """Revokes API tokens, and ends the sessions that they began."""
    for each in ids:
        # The whole token is what people have at hand.
        token_id = each.removeprefix("hr_").partition("_")[0]
        api.print_answer(api.ask("DELETE", f"/v1/tokens/{quote(token_id, safe='')}"))
