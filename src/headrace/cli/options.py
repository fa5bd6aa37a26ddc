"""Options that several commands have, and the way to add options to a command."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import ConfigError, HeadraceError
from headrace.targets import local_path


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


def parse_path(text: str | os.PathLike[str]) -> Path:
    """A path of this machine, or a `file:` URL of one. Raises TargetInvalid for every other URL."""
    return Path(local_path(text, "the path"))


Http = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="HEADRACE_HTTP",
        metavar="HOST:PORT",
        help="The broker's HTTP door, with https:// before it for TLS; several nodes of a group with commas between.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done. Change nothing.")]

# Options by the names of their parameters, with their annotations and defaults.
Options = Mapping[str, tuple[Any, Any]]

FORMAT_OPTIONS: Options = {
    "output": (Annotated[Format, typer.Option("--format", help="A table for people, JSON for scripts.")], Format.TABLE),
    "output_json": (Annotated[bool, typer.Option("--json", help="Same as --format json.")], False),
}


def add_options(
    command: Callable[..., Any], run: Callable[..., Any], options: Options, filled: Sequence[str]
) -> Callable[..., Any]:
    """Give `run` the parameters of `command`, for typer to read: without those that `run` has `filled` in, and with its
    own `options`."""
    own = inspect.signature(command, eval_str=True)
    only = inspect.Parameter.KEYWORD_ONLY
    kept = [each.replace(kind=only) for each in own.parameters.values() if each.name not in filled]
    added = [
        inspect.Parameter(name, only, annotation=annotation, default=default)
        for name, (annotation, default) in options.items()
    ]
    made = wraps(command)(run)
    made.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    return made


def formats(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --format and --json. Its parameter `as_json` has the choice."""

    def run(*arguments: Any, output: Format, output_json: bool, **options: Any) -> Any:
        return command(*arguments, as_json=output_json or output is Format.JSON, **options)

    return add_options(command, run, FORMAT_OPTIONS, ["as_json"])


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports of what an extra of the package installs. Raises ConfigError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed. Run pip install 'headrace[{name}]'.") from None


def assignments(texts: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option that is given as NAME=VALUE and may be repeated."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise HeadraceError(f"{option} must be NAME=VALUE (got {text!r})")
        found[name] = value
    return found
