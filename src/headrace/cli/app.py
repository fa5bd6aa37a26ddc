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
from typer.core import TyperGroup

from headrace import __version__
from headrace.errors import HeadraceError

# Where each command is, in the sections of the help: MODULE:FUNCTION, or MODULE:GROUP for a group of commands.
SECTIONS = {
    "Run a broker": {
        "console": "console:console",
        "demo": "demo:command",
        "log": "log:app",
        "cluster": "cluster:app",
        "monitoring": "monitoring:app",
    },
    "Observe": {
        "overview": "figures:overview",
        "figures": "figures:figures",
        "search": "search:search",
        "trace": "trace:trace",
        "audit": "audit:audit",
        "client": "clients:app",
        "alert": "alerts:app",
    },
    "Topics and messages": {
        "topic": "topics:app",
        "produce": "produce:produce",
        "consume": "consume:consume",
        "group": "groups:app",
        "queue": "queues:app",
        "dead": "dead_letters:app",
        "redrive": "redrive:redrive",
        "timer": "timers:app",
        "transaction": "transactions:app",
        "half": "half:app",
    },
    "Users and limits": {
        "user": "users:app",
        "token": "tokens:app",
        "acl": "acls:app",
        "role": "acls:roles",
        "quota": "quotas:app",
        "register": "registrations:app",
    },
    "Applications": {
        "new": "new:app",
        "app": "apps:app",
        "scenario": "scenarios:app",
        "asyncapi": "asyncapi:asyncapi",
        "outbox": "outbox:app",
        "subscribe": "subscribe:subscribe",
        "pipeline": "pipeline:app",
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}


HELP = ["-h", "--help"]
TRACEBACK = "HEADRACE_TRACEBACK"


class Program(TyperGroup):
    """The program: its help lists commands by section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, all with their second column at the same place."""
        first = max(map(len, self.commands), default=0)
        for title, names in {**SECTIONS, "Run a broker": ("serve", *SECTIONS["Run a broker"], "version")}.items():
            rows = [
                (name.ljust(first), self.commands[name].short_help or "") for name in names if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def tree(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        name="headrace",
        cls=Program,
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
