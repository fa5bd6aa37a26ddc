"""`headrace quota`: how much users, client ids and addresses may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from headrace.cli.output import show
from headrace.cli.over_http import Api, over_http
from headrace.errors import HeadraceError

app = typer.Typer(help="Limits users, client ids and addresses.", no_args_is_help=True)

User = Annotated[str, typer.Option("--user", metavar="NAME", help="A user; <default>: all others, each.")]
ClientId = Annotated[str, typer.Option("--client-id", metavar="ID", help="A client id; <default>: all others, each.")]
Ip = Annotated[str, typer.Option("--ip", metavar="ADDRESS", help="An address; <default>: all others, each.")]
REMOVED = ("", "none")


@app.command("list")
@over_http
def list_quotas(
    api: Api,
    user: User = "",
    client_id: ClientId = "",
    ip: Ip = "",
    limit: Annotated[int, typer.Option(min=1, help="The most entries to list.")] = 1_000,
) -> None:
    """Lists the quotas that are set."""
    found = api.get_pages("/v1/quotas", "quotas", limit, user=user, client_id=client_id, ip=ip)
    columns: dict[str, str | Callable[[Any], object]] = {
        **{part.replace("_", " "): _part(part) for part in ("user", "client_id", "ip")},
        "quotas": lambda each: " ".join(f"{name}={value}" for name, value in each["quotas"].items()),
    }
    show(found, api.as_json, columns)


@app.command("set")
@over_http
def set_quotas(
    api: Api,
    quotas: Annotated[
        list[str], typer.Argument(metavar="QUOTA=VALUE...", help="As in producer_byte_rate=1000000; none removes it.")
    ],
    user: User = "",
    client_id: ClientId = "",
    ip: Ip = "",
) -> None:
    """Sets quotas of a user, a client id, both together, or an address. They take effect at once."""
    given = dict(_parse(each) for each in quotas)
    api.print_answer(api.ask("PUT", "/v1/quotas", {"entity": _entity(user, client_id, ip), "quotas": given}))


@app.command()
@over_http
def delete(api: Api, user: User = "", client_id: ClientId = "", ip: Ip = "") -> None:
    """Removes all quotas of a user, a client id, both together, or an address."""
    api.print_answer(api.ask("DELETE", "/v1/quotas", query=_entity(user, client_id, ip)))


def _part(name: str) -> Callable[[Any], object]:
    return lambda each: each["entity"].get(name, "")


def _entity(user: str, client_id: str, ip: str) -> dict[str, object]:
    entity: dict[str, object] = {
        name: given for name, given in (("user", user), ("client_id", client_id), ("ip", ip)) if given
    }
    if not entity:
        raise HeadraceError("no entity is specified. Use --user, --client-id or --ip.")
    return entity


def _parse(text: str) -> tuple[str, float | None]:
    name, is_there, value = text.partition("=")
    if is_there and value in REMOVED:
        return name, None
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise HeadraceError(f"a quota is given as QUOTA=VALUE with a number, or none (got {text!r})") from None
