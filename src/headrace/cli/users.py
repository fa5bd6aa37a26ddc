"""`headrace user`: who may come in with a password."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.credentials import ask_password
from headrace.cli.durations import HELP, parse_duration
from headrace.cli.offline import manages
from headrace.cli.options import Yes
from headrace.cli.output import Columns, confirm, local_time, print_json, show
from headrace.cli.over_http import Api
from headrace.errors import HeadraceError

app = typer.Typer(help="Manages users and their passwords.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]
PasswordFile = Annotated[
    str,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Has the new password in its first line; -: standard input. Otherwise it is asked for.",
    ),
]


@app.command()
@manages
def create(
    api: Api,
    name: Name,
    password_file: PasswordFile = "",
    no_password: Annotated[bool, typer.Option("--no-password", help="The user comes with API tokens alone.")] = False,
    role: Annotated[str, typer.Option(help="Give the user this role, too: admin, operator or viewer.")] = "",
) -> None:
    """Creates a user. With --data it works on a stopped broker: this is how the first administrator is made."""
    if no_password and password_file:
        raise HeadraceError("--no-password and --password-file contradict each other. Use one.")
    password = None if no_password else ask_password(password_file, f"New password of {name}", twice=True)
    api.print_answer(api.ask("POST", "/v1/users", {"name": name, "password": password}))
    if role:
        api.ask("POST", "/v1/roles", {"user": name, "role": role})


@app.command("list")
@manages
def list_users(api: Api, limit: Annotated[int, typer.Option(min=1, help="The most users to list.")] = 1_000) -> None:
    """Lists users."""
    columns: Columns = {
        "name": "name",
        "passwords": lambda each: ", ".join(sorted({one["mechanism"] for one in each["credentials"]})),
        "tokens": "tokens",
    }
    show(api.get_pages("/v1/users", "users", limit), api.as_json, columns)


@app.command("show")
@manages
def show_user(api: Api, name: Name) -> None:
    """Shows a user: its credentials, roles, rules and tokens."""
    found = [each for each in api.get_pages("/v1/users", "users", 1 << 31) if each["name"] == name]
    if not found:
        raise HeadraceError(f"there is no user '{name}'. See `headrace user list`.")
    roles = api.get_pages("/v1/roles", "roles", 1 << 31, user=name)
    rules = api.get_pages("/v1/acls", "rules", 1 << 31, user=name)
    tokens = api.get_pages("/v1/tokens", "tokens", 1 << 31, user=name)
    if api.as_json:
        print_json({**found[0], "roles": roles, "rules": rules, "tokens": tokens})
        return
    for each in found[0]["credentials"]:
        until = f" until {local_time(each['expires_ms'])}" if each["expires_ms"] else ""
        print(f"credential  {each['mechanism']}, {each['iterations']} iterations{until}")
    for each in roles:
        print(f"role        {describe_role(each)}")
    for each in rules:
        print(f"rule        {each['permission']} {each['operation']} {each['resource']} {each['name']}")
    for each in tokens:
        print(f"token       {each['id']}  {' '.join(each['scope'])}  {each['note']}".rstrip())


def describe_role(role: dict[str, Any]) -> str:
    """A role with what it is for."""
    of = f" of {role['name']}" if role["role"] in ("producer", "consumer") else ""
    return f"{role['role']}{of}" + (f" in {role['group']}" if role["group"] != "*" else "")


@app.command("set-password")
@manages
def set_password(
    api: Api,
    name: Name,
    password_file: PasswordFile = "",
    keep_old: Annotated[
        str, typer.Option(metavar="DURATION", help=f"How long the old password stays valid, too: {HELP}.")
    ] = "0",
) -> None:
    """Changes a user's password. With --keep-old the old one stays valid for a while, so that clients can change."""
    kept = parse_duration(keep_old)
    password = ask_password(password_file, f"New password of {name}", twice=True)
    body = {"password": password, "keep_old_ms": kept}
    api.print_answer(api.ask("PUT", f"/v1/users/{quote(name, safe='')}/password", body))


@app.command()
@manages
def delete(api: Api, name: Name, yes: Yes = False) -> None:
    """Deletes a user with its tokens and roles, and ends its sessions. Rules that name it stay."""
    if not yes:
        confirm(f"Delete the user {name} with its tokens and roles?")
    api.print_answer(api.ask("DELETE", f"/v1/users/{quote(name, safe='')}"))
