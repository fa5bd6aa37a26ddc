"""`headrace asyncapi MODULE:APP`: what an application reads and sends, as an AsyncAPI 3 document."""

from __future__ import annotations

import importlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import parse_path
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sdk import App


class Format(StrEnum):
    """How the document is written."""

    JSON = "json"
    YAML = "yaml"


def asyncapi(
    name: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the application is, such as shop.app:app.")],
    output: Annotated[Path | None, typer.Option(parser=parse_path, metavar="FILE", help="Write to this file.")] = None,
    form: Annotated[Format | None, typer.Option("--format", help="By default by the name of FILE, else JSON.")] = None,
    folder: Annotated[
        Path, typer.Option("--dir", parser=parse_path, metavar="DIR", help="Where modules are searched.")
    ] = Path(),
    version: Annotated[str, typer.Option("--app-version", help="The application's own version.")] = "",
) -> None:
    """Prints the AsyncAPI 3 document of an application, without connecting to a broker."""
    document = _load(name, folder).asyncapi(version=version)
    if form is None:
        named = output is not None and output.suffix in (".yaml", ".yml")
        form = Format.YAML if named else Format.JSON
    text = _encode(document, form)
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
        raise ConfigError(f"{name!r} is not MODULE:APP, such as shop.app:app")
    # As `python -m` does; a project that keeps its packages under src is found too.
    for each in (folder / "src", folder):
        sys.path.insert(0, str(each.resolve()))
    try:
        from headrace.sdk import App

        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = "pip install 'headrace[sdk]'" if error.name == "msgspec" else f"searched in {folder}; see --dir"
        raise ConfigError(f"there is no module {error.name!r}: {hint}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module} has no {attribute}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigError(f"{name} is a {type(found).__name__}, not an App")
    return found


def _encode(document: dict[str, Any], form: Format) -> str:
    if form is Format.YAML:
        try:
            import yaml
        except ModuleNotFoundError:
            typer.echo("PyYAML is not installed: printing JSON, which is YAML too", err=True)
        else:
            return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
