"""All commands but `serve`, put together.

Errors that Headrace raises on purpose become one line on standard error and exit code 1. A closed pipe and Ctrl-C end a
command quietly: both are how people stop a stream that they have seen enough of.
"""

from __future__ import annotations

import sys

import typer

from headrace import __version__
from headrace.cli import (
    apps,
    asyncapi,
    consume,
    demo,
    groups,
    half,
    log,
    new,
    outbox,
    pipeline,
    produce,
    queues,
    redrive,
    scenarios,
    subscribe,
    timers,
    topics,
    trace,
    transactions,
)
from headrace.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="A message queue: one durable log with several front doors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(topics.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="group")
app.add_typer(transactions.app, name="transaction")
app.add_typer(queues.app, name="queue")
app.command("redrive")(redrive.redrive)
app.add_typer(timers.app, name="timer")
app.add_typer(half.app, name="half")
app.add_typer(outbox.app, name="outbox")
app.command("subscribe")(subscribe.subscribe)
app.add_typer(scenarios.app, name="scenario")
app.add_typer(apps.app, name="app")
app.add_typer(new.app, name="new")
app.command("asyncapi")(asyncapi.asyncapi)
app.command("trace")(trace.trace)
app.add_typer(log.app, name="log")
app.add_typer(pipeline.app, name="pipeline")
app.command("demo")(demo.command)


# `headrace serve` never comes here (see `headrace.cli.main`): this is its line in the list of commands.
@app.command("serve", add_help_option=False)
def serve() -> None:
    """Start a broker and serve until it is told to stop; `headrace serve --help` lists the settings."""


@app.command("version")
def version() -> None:
    """The version of this program."""
    print(f"headrace {__version__}")


def run() -> int:
    """Run the command that the process was started with; its exit code."""
    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0
