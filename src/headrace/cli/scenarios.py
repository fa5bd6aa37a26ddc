"""`headrace scenario`: what the framework's scenarios mean, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import ModuleType
from typing import Annotated

import typer

from headrace.cli.options import Json, extra
from headrace.cli.output import show as show_rows
from headrace.errors import HeadraceError

app = typer.Typer(help="Explains the framework's scenarios.", no_args_is_help=True)


def _scenarios() -> ModuleType:
    with extra("sdk"):
        from headrace.sdk import scenario
    return scenario


@app.command("list")
def list_scenarios() -> None:
    """Lists the scenarios."""
    rows = [{"scenario": each.name, "wire": each.wire, "for": each.meaning} for each in _scenarios().SCENARIOS.values()]
    show_rows(rows, False, ("scenario", "wire", "for"))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The scenario's name.")],
    as_json: Json = False,
) -> None:
    """Shows the settings of a scenario. Those that differ from the default have a reason."""
    scenarios = _scenarios()
    try:
        chosen = scenarios.scenario(name)
    except ValueError as error:
        raise HeadraceError(str(error)) from None
    values = {"wire": chosen.wire, **asdict(chosen.tuning)}
    if as_json:
        typer.echo(json.dumps({"name": chosen.name, **values}))
        return
    print(f"{chosen.name}: {chosen.meaning}")
    default = {"wire": chosen.wire, **asdict(scenarios.Tuning())}
    rows = [
        {
            "setting": setting,
            "value": str(value),
            "default": "" if value == default[setting] else str(default[setting]),
            "why": chosen.reasons.get(setting, ""),
        }
        for setting, value in values.items()
    ]
    show_rows(rows, False, ("setting", "value", "default", "why"))
