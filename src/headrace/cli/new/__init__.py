"""`headrace new`: a small project to begin with, whose tests pass as it is written."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.paths import path_of
from headrace.errors import ConfigError

app = typer.Typer(help="A project to begin with, tested.", no_args_is_help=True)


class PayloadKind(StrEnum):
    """How the messages are declared."""

    DATACLASS = "dataclass"
    MSGSPEC = "msgspec"
    PYDANTIC = "pydantic"
    BYTES = "bytes"


Name = Annotated[str, typer.Option("--app", metavar="NAME", help="The application's name, such as shop.orders.mail.")]
Topic = Annotated[str, typer.Option(metavar="TOPIC", help="The topic.")]
ScenarioName = Annotated[str, typer.Option("--scenario", metavar="NAME", help="One of `headrace scenario list`.")]
Kind = Annotated[PayloadKind, typer.Option("--payload", help="How its messages are declared.")]
Key = Annotated[str, typer.Option(metavar="FIELD", help="The field of a message that is its key.")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", parser=path_of, metavar="DIR", help="Where to write; by default a folder of its name."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


@app.command()
def consumer(
    name: Name,
    topic: Topic,
    scenario: ScenarioName = "task",
    payload: Kind = PayloadKind.DATACLASS,
    key: Key = "id",
    folder: Folder = None,
    force: Force = False,
) -> None:
    """Write a project that reads a topic."""
    _write("consumer", name, topic, scenario, payload, key, folder, force)


@app.command()
def producer(
    name: Name,
    topic: Topic,
    scenario: ScenarioName = "task",
    payload: Kind = PayloadKind.DATACLASS,
    key: Key = "id",
    folder: Folder = None,
    force: Force = False,
) -> None:
    """Write a project that sends to a topic."""
    _write("producer", name, topic, scenario, payload, key, folder, force)


def _write(
    kind: str,
    name: str,
    topic: str,
    scenario: str,
    payload: PayloadKind,
    key: str,
    folder: Path | None,
    force: bool,
) -> None:
    try:
        from headrace.cli.new import project
        from headrace.sdk import scenario as scenarios
    except ModuleNotFoundError as error:
        raise ConfigError(f"the framework needs {error.name}: pip install 'headrace[sdk]'") from None
    try:
        chosen = scenarios.scenario(scenario)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    wanted = project.Wanted(name, topic, chosen, payload.value, key)
    target = folder or Path(wanted.project)
    files = project.consumer(wanted) if kind == "consumer" else project.producer(wanted)
    project.write(target, files, force=force)
    for each in files:
        typer.echo(target / each)
    typer.echo(f"\ncd {target} && python -m pytest", err=True)
