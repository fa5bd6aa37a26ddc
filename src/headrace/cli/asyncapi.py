"""`headrace asyncapi MODULE:APP`: what an application reads and sends, as an AsyncAPI 3 document."""

from __future__ import annotations

import importlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.paths import path_of
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sdk import App


class Format(StrEnum):
    """How the document is written."""

    JSON = "json"
    YAML = "yaml"


def asyncapi(
    name: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the application is, such as shop.app:app.")],
    output: Annotated[Path | None, typer.Option(parser=path_of, metavar="FILE", help="Write it there.")] = None,
    form: Annotated[Format | None, typer.Option("--format", help="By default by the file's name, else JSON.")] = None,
    folder: Annotated[
        Path, typer.Option("--dir", parser=path_of, metavar="DIR", help="Where modules are looked for.")
    ] = Path(),
    version: Annotated[str, typer.Option("--app-version", help="The application's own version.")] = "",
) -> None:
    """Print the AsyncAPI 3 document of an application; nothing is connected to."""
    document = _load(name, folder).asyncapi(version=version)
    if form is None:
        named = output is not None and output.suffix in (".yaml", ".yml")
        form = Format.YAML if named else Format.JSON
    text = _written(document, form)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from None


def _load(name: str, folder: Path) -> App:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{name!r} does not say where the application is: write MODULE:APP, such as shop.app:app")
    # As `python -m` does; a project that keeps its packages under src is found too.
    for each in (folder / "src", folder):
        sys.path.insert(0, str(each.resolve()))
    try:
        from headrace.sdk import App

        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = "pip install 'headrace[sdk]'" if error.name == "msgspec" else f"it was looked for from {folder} on"
        raise ConfigError(f"there is no module {error.name!r}: {hint}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module} has no {attribute}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigError(f"{name} is a {type(found).__name__}, not an App")
    return found


def _written(document: dict[str, Any], form: Format) -> str:
    if form is Format.YAML:
        try:
            import yaml
        except ModuleNotFoundError:
            typer.echo("PyYAML is not installed: this is JSON, which YAML's readers take too", err=True)
        else:
            return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
