"""All commands but `serve`, put together.

A process runs one command, so only that one's module is imported and only its part of the tree is built; the whole
tree is for `headrace --help`, and for a name that no command has.

Errors that Headrace raises on purpose become one line on standard error and exit code 1, and so do those that it did
not foresee: `HEADRACE_TRACEBACK=1` shows where they came from. A closed pipe and Ctrl-C end a command quietly: both are
how people stop a stream that they have seen enough of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from headrace import __version__
from headrace.errors import HeadraceError

# Where each command is, in the order of the help: MODULE:FUNCTION, or MODULE:GROUP for a group of commands.
COMMANDS = {
    "overview": "figures:overview",
    "figures": "figures:figures",
    "topic": "topics:app",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "group": "groups:app",
    "transaction": "transactions:app",
    "queue": "queues:app",
    "redrive": "redrive:redrive",
    "dead": "dead_letters:app",
    "search": "search:search",
    "timer": "timers:app",
    "alert": "alerts:app",
    "register": "registrations:app",
    "client": "clients:app",
    "half": "half:app",
    "user": "users:app",
    "token": "tokens:app",
    "acl": "acls:app",
    "role": "acls:roles",
    "audit": "audit:audit",
    "quota": "quotas:app",
    "cluster": "cluster:app",
    "outbox": "outbox:app",
    "subscribe": "subscribe:subscribe",
    "scenario": "scenarios:app",
    "app": "apps:app",
    "new": "new:app",
    "asyncapi": "asyncapi:asyncapi",
    "trace": "trace:trace",
    "log": "log:app",
    "pipeline": "pipeline:app",
    "console": "console:console",
    "monitoring": "monitoring:app",
    "demo": "demo:command",
}


HELP = ["-h", "--help"]
TRACEBACK = "HEADRACE_TRACEBACK"


def tree(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain text: in boxes names are cut at 80 columns.
        rich_markup_mode=None,
        # Inherited by every command.
        context_settings={"help_option_names": HELP},
    )
    app.callback(help="A message queue: one durable log with several front doors.")(options)
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        found = getattr(import_module(f"headrace.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    # `headrace serve` never comes here (see `headrace.cli.main`): this is its line in the list of commands.
    app.command("serve", add_help_option=False)(serve)
    app.command("version")(version)
    return app


def print_version(wanted: bool) -> None:
    """Print the version for `--version`, before typer reports that a command is missing."""
    if wanted:
        version()
        raise typer.Exit


def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version of this program.", is_eager=True, callback=print_version),
    ] = False,
) -> None:
    """The options of the program itself."""


def serve() -> None:
    """Starts a broker in the foreground. `headrace serve --help` lists the settings."""


def version() -> None:
    """Prints the version of this program."""
    print(f"headrace {__version__}")


def run() -> int:
    """Run the command that the process was started with; its exit code."""
    asked = sys.argv[1:2]
    alone = asked in (["version"], ["--version"])
    try:
        try:
            command = typer.main.get_command(
                tree([name for name in asked if name in COMMANDS] or (() if alone else COMMANDS))
            )
            tidy_help(command)
            command()
        finally:
            # Now, and not as the interpreter ends, when errors could not be caught.
            sys.stdout.flush()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
    except UnicodeEncodeError as error:
        print(f"headrace: {os.fsencode(error.object)!r} is not UTF-8", file=sys.stderr)
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"headrace: {error.strerror or error}{where}", file=sys.stderr)
        _discard_output()
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        print(
            f"headrace: unexpected error: {type(error).__name__}: {reason}. {TRACEBACK}=1 shows where it comes from.",
            file=sys.stderr,
        )
    return 1


def tidy_help(command: Any, parent: typer.Context | None = None) -> None:
    """In the help of a command and of its subcommands, show no type for flags, which take no value, and the whole first
    paragraph of each subcommand."""
    context = typer.Context(command, parent=parent, help_option_names=HELP)
    for option in (*command.params, command.get_help_option(context)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        below.short_help = (below.help or "").partition("\n\n")[0]
        tidy_help(below, context)


def _discard_output() -> None:
    """Do not write the rest of the output again as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
