"""`headrace scenario`: what the framework's scenarios mean, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sdk import scenario as scenarios

app = typer.Typer(help="What the framework's scenarios mean.", no_args_is_help=True)


def _scenarios() -> ModuleType:
    """The framework is an extra."""
    try:
        from headrace.sdk import scenario
    except ModuleNotFoundError as error:
        raise ConfigError(f"the framework needs {error.name}: pip install 'headrace[sdk]'") from None
    return scenario


@app.command("list")
def list_scenarios() -> None:
    """Name all scenarios."""
    from rich.console import Console
    from rich.table import Table

    table = Table("scenario", "wire", "for")
    for each in _scenarios().SCENARIOS.values():
        table.add_row(each.name, each.wire, each.meaning)
    Console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The scenario's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of a table.")] = False,
) -> None:
    """Show the values of a scenario, each with its reason where it has one of its own."""
    try:
        chosen = _scenarios().scenario(name)
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps({"name": chosen.name, "wire": chosen.wire, **asdict(chosen.tuning)}))
        return
    _print(chosen)


def _print(chosen: scenarios.Scenario) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{chosen.name}[/bold]: {chosen.meaning}")
    table = Table("setting", "value", "plain", "why")
    table.add_row("wire", chosen.wire, "", chosen.reasons.get("wire", ""))
    plain = asdict(_scenarios().Tuning())
    for key, value in asdict(chosen.tuning).items():
        usual = "" if value == plain[key] else str(plain[key])
        table.add_row(key, str(value), usual, chosen.reasons.get(key, ""))
    console.print(table)
