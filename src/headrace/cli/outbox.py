"""`headrace outbox`: messages from a table in the application's database to the log."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import Target, aims
from headrace.cli.durations import format_rough, parse_duration
from headrace.cli.foreground import LogFormat, LogLevel, stop_on_signals
from headrace.cli.options import Json, extra
from headrace.cli.output import show
from headrace.errors import HeadraceError
from headrace.logs import log_like_a_server

if TYPE_CHECKING:
    from headrace.outbox.store import Store

app = typer.Typer(help="Publishes messages from an application's own database.", no_args_is_help=True)

Database = Annotated[
    str,
    typer.Option(envvar="HEADRACE_DATABASE", metavar="URL", help="In SQLAlchemy's form: postgresql://USER@HOST/DB."),
]
TableName = Annotated[str, typer.Option("--table", metavar="NAME", help="The outbox's table, as NAME or SCHEMA.NAME.")]

DEFAULT_TABLE = "headrace_outbox"
DEFAULT_NAME = "default"
# With more, a batch would have more ids than a statement may have parameters.
MESSAGES_MAX = 10_000
# The relay itself retries for ever, and logs each attempt: one should not take long.
BROKER_SECONDS = 10.0
DRIVERS = {
    # The URLs that applications have for their async engines; the relay's engine is not async.
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "sqlite+aiosqlite": "sqlite",
}
# A database that does not answer at all must be noticed, or the relay would wait for it for ever.
PATIENCE = {
    "postgresql+psycopg": {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
}


class OnRefused(StrEnum):
    """What to do with a message that the broker refuses for good."""

    STOP = "stop"
    PARK = "park"


@app.command()
@aims
def relay(
    target: Target,
    database: Database,
    name: Annotated[
        str, typer.Option(help="The outbox's name at the broker. Each outbox needs its own.")
    ] = DEFAULT_NAME,
    table: TableName = DEFAULT_TABLE,
    on_refused: Annotated[
        OnRefused, typer.Option(help="A message that the broker refuses for good stops the relay, or is parked.")
    ] = OnRefused.STOP,
    keep: Annotated[bool, typer.Option("--keep", help="Mark published messages instead of deleting them.")] = False,
    begin_anew: Annotated[
        bool, typer.Option("--begin-anew", help="Publish everything in the table, also what the broker has.")
    ] = False,
    messages: Annotated[int, typer.Option(min=1, max=MESSAGES_MAX, help="The most messages per transaction.")] = 1_000,
    poll: Annotated[str, typer.Option(metavar="TIME", help="How often to poll an empty table.")] = "100ms",
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Publishes the messages of an outbox, in order, each once, until SIGTERM or SIGINT."""
    store = _open(database, table, keep=keep)
    from headrace.outbox.publisher import KafkaPublisher
    from headrace.outbox.relay import Relay, Settings

    settings = Settings(
        messages_max=messages,
        poll=parse_duration(poll) / 1000,
        park=on_refused is OnRefused.PARK,
        begin_anew=begin_anew,
    )
    log_like_a_server(log_level, log_format)

    async def run() -> None:
        async with target.client("headrace-outbox", BROKER_SECONDS) as client:
            publisher = KafkaPublisher(client, name, compression=compression)
            relay = Relay(store, publisher, name, settings)
            stop_on_signals(relay.stop)
            await relay.run()

    asyncio.run(run())


@app.command()
def status(database: Database, table: TableName = DEFAULT_TABLE, as_json: Json = False) -> None:
    """Shows how many messages wait, since when, and how many are parked."""
    store = _open(database, table)
    store.check()
    found = store.status()
    age = None if found.oldest_ms is None else max(0, time.time_ns() // 1_000_000 - found.oldest_ms)
    row = {
        "table": table,
        "name": found.name,
        "waiting": found.waiting,
        "oldest_ms": age,
        "oldest": None if age is None else format_rough(age),
        "refused": found.refused,
        "kept": found.kept,
        "published": found.position,
    }
    columns = {
        "table": "table",
        "relayed as": "name",
        "waiting": "waiting",
        "oldest": "oldest",
        "parked": "refused",
        "kept": "kept",
        "published": "published",
    }
    show([row], as_json, columns)


@app.command()
def parked(
    database: Database,
    table: TableName = DEFAULT_TABLE,
    retry: Annotated[bool, typer.Option("--retry", help="Let the relay publish them again.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The most messages to show.")] = 100,
    as_json: Json = False,
) -> None:
    """Lists the messages that the relay has parked, with the reasons."""
    store = _open(database, table)
    store.check()
    rows = [
        {"id": message.id, "topic": message.topic, "bytes": len(message.value or b""), "reason": reason}
        for message, reason in store.refused(limit)
    ]
    if retry:
        store.unpark()
    show(rows, as_json, ("id", "topic", "bytes", "reason"))


@app.command()
def create(database: Database, table: TableName = DEFAULT_TABLE) -> None:
    """Creates the tables of an outbox, for applications whose migrations do not."""
    _open(database, table).create()


def _open(database: str, table: str, *, keep: bool = False) -> Store:
    with extra("sql"):
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        from headrace.outbox import Outbox
        from headrace.outbox.store import Store
    try:
        url = make_url(database)
        url = url.set(drivername=DRIVERS.get(url.drivername, url.drivername))
        engine = create_engine(url, connect_args=PATIENCE.get(url.drivername, {}))
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise HeadraceError(f"--database cannot be opened by SQLAlchemy: {error}") from None
    schema, _, name = table.rpartition(".")
    return Store(engine, Outbox(table=name, schema=schema or None).tables, keep=keep)
