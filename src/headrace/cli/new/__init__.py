"""`headrace new`: a small project to start from, with tests that pass."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import extra, parse_path
from headrace.errors import ConfigError

app = typer.Typer(help="Writes a project to start from, with tests.", no_args_is_help=True)


class PayloadKind(StrEnum):
    """How the messages are declared."""

    DATACLASS = "dataclass"
    MSGSPEC = "msgspec"
    PYDANTIC = "pydantic"
    BYTES = "bytes"


Name = Annotated[str, typer.Option("--app", metavar="NAME", help="The application's name, such as shop.orders.mail.")]
Topic = Annotated[str, typer.Option(metavar="TOPIC", help="The topic to read or to send to.")]
ScenarioName = Annotated[str, typer.Option("--scenario", metavar="NAME", help="One of `headrace scenario list`.")]
Kind = Annotated[PayloadKind, typer.Option("--payload", help="How the messages are declared.")]
Key = Annotated[str, typer.Option(metavar="FIELD", help="The field of a message that is its key.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        parser=parse_path,
        metavar="DIR",
        help="Where to write; by default a folder named after the application.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files.")]


def _add_command(kind: str, help: str) -> None:
    @app.command(kind, help=help)
    def write(
        name: Name,
        topic: Topic,
        scenario: ScenarioName = "task",
        payload: Kind = PayloadKind.DATACLASS,
        key: Key = "id",
        folder: Folder = None,
        force: Force = False,
    ) -> None:
        with extra("sdk"):
            from headrace.cli.new import project
            from headrace.sdk import scenario as scenarios
        try:
            chosen = scenarios.scenario(scenario)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        wanted = project.ProjectPlan(name, topic, chosen, payload.value, key)
        target = folder or Path(wanted.project)
        files = project.consumer(wanted) if kind == "consumer" else project.producer(wanted)
        project.write(target, files, force=force)
        for each in files:
            typer.echo(target / each)
        typer.echo(f"\ncd {target} && python -m pytest", err=True)


_add_command("consumer", "Writes a project that reads a topic.")
_add_command("producer", "Writes a project that sends to a topic.")
