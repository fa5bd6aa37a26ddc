"""`headrace console`: what people look at, and are alerted by."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import Options, add_options, extra
from headrace.console.settings import ConsoleSettings
from headrace.settings import TYPES, check

PREFIX = "HEADRACE_CONSOLE_"


def _option(each: Field[Any]) -> tuple[Any, Any]:
    variable = PREFIX + each.name.upper()
    metavar = each.metadata["metavar"] or "|".join(each.metadata["choices"]) or None
    kind, _ = TYPES[str(each.type)]
    return Annotated[kind, typer.Option(help=each.metadata["help"], metavar=metavar, envvar=variable)], each.default


OPTIONS: Options = {each.name: _option(each) for each in fields(ConsoleSettings)}


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the console's settings as options. Its first parameter is all of them."""

    def run(**given: Any) -> None:
        known = {each.name: each for each in fields(ConsoleSettings)}
        values = {
            name: check(known[name], given.pop(name), f"--{name.replace('_', '-')} (or {PREFIX}{name.upper()})")
            for name in known
        }
        command(ConsoleSettings(**values), **given)

    return add_options(command, run, OPTIONS, ["settings"])


@configured
def console(
    settings: ConsoleSettings,
    add_user: Annotated[
        str, typer.Option("--add-user", metavar="NAME", help="Add a local user, or change one, and do nothing else.")
    ] = "",
    role: Annotated[str, typer.Option(help="The role of that user: viewer, reader, operator or admin.")] = "viewer",
) -> None:
    """Serves the console: pages in a browser, alerts, and figures over time, for one broker or many."""
    if add_user:
        _add_user(settings, add_user, role)
        return
    serve(settings)


def serve(settings: ConsoleSettings) -> None:
    """Run the console until a signal."""
    with extra("console"):
        from headrace.console.server import run
    from headrace.logs import log_like_a_server

    log_like_a_server(settings.log_level, "auto")
    asyncio.run(run(settings))


def settings_table() -> str:
    """All settings as a Markdown table, for docs/console.md."""
    rows = ["| setting | default | what it means |", "| --- | --- | --- |"]
    for each in fields(ConsoleSettings):
        default = str(each.default).lower() if isinstance(each.default, bool) else str(each.default)
        rows.append(f"| `{each.name}` | {f'`{default}`' if default else ''} | {each.metadata['help']} |")
    return "\n".join(rows) + "\n"


def _add_user(settings: ConsoleSettings, name: str, role: str) -> None:
    from headrace.console.users_file import add_user

    path = Path(settings.users) if settings.users else Path(settings.data) / "users"
    password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    add_user(path, name, role, password)
    print(f"{name} has the role {role} in {path}")
