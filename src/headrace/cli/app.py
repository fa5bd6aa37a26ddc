"""All commands but `serve`, put together.

A process runs one command, so only that one's module is imported and only its part of the tree is built; the whole
tree is for `headrace --help`, and for a name that no command has.

Errors that Headrace raises on purpose become one line on standard error and exit code 1. A closed pipe and Ctrl-C end a
command quietly: both are how people stop a stream that they have seen enough of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from headrace import __version__
from headrace.errors import HeadraceError

# Where each command is, in the order of the help: MODULE:FUNCTION, or MODULE:app for a group of commands.
COMMANDS = {
    "topic": "topics:app",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "group": "groups:app",
    "transaction": "transactions:app",
    "queue": "queues:app",
    "redrive": "redrive:redrive",
    "timer": "timers:app",
    "half": "half:app",
    "outbox": "outbox:app",
    "subscribe": "subscribe:subscribe",
    "scenario": "scenarios:app",
    "app": "apps:app",
    "new": "new:app",
    "asyncapi": "asyncapi:asyncapi",
    "trace": "trace:trace",
    "log": "log:app",
    "pipeline": "pipeline:app",
    "demo": "demo:command",
}


def tree(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(help="A message queue: one durable log with several front doors.")(options)
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        found = getattr(import_module(f"headrace.cli.{module}"), attribute)
        if attribute == "app":
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    # `headrace serve` never comes here (see `headrace.cli.main`): this is its line in the list of commands.
    app.command("serve", add_help_option=False)(serve)
    app.command("version")(version)
    return app


def print_version(wanted: bool) -> None:
    """What `--version` does, before a command is missed."""
    if wanted:
        version()
        raise typer.Exit


def options(
    show_version: Annotated[
        bool, typer.Option("--version", help="The version of this program.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """The options of the program itself."""


def serve() -> None:
    """Start a broker and serve until it is told to stop; `headrace serve --help` lists the settings."""


def version() -> None:
    """The version of this program."""
    print(f"headrace {__version__}")


def run() -> int:
    """Run the command that the process was started with; its exit code."""
    asked = sys.argv[1:2]
    alone = asked in (["version"], ["--version"])
    try:
        try:
            tree([name for name in asked if name in COMMANDS] or (() if alone else COMMANDS))()
        finally:
            # Now, and not as the interpreter ends, when nobody could catch what goes wrong.
            sys.stdout.flush()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
    except UnicodeEncodeError as error:
        print(f"headrace: {os.fsencode(error.object)!r} is not UTF-8", file=sys.stderr)
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"headrace: {error.strerror or error}{where}", file=sys.stderr)
        _forget_output()
    return 1


def _forget_output() -> None:
    """What could not be written is not tried again as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
