"""`headrace outbox`: from a table in the application's database to the log."""

from __future__ import annotations

import asyncio
import signal
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import Bootstrap, Json, TlsCa, TlsCert, TlsKey, show, tls_context
from headrace.cli.durations import about, parse_duration
from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.logs import LEVELS, log_like_a_server

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from headrace.outbox import Outbox
    from headrace.outbox.relay import Relay

app = typer.Typer(help="Messages that an application has put into its own database.", no_args_is_help=True)

Database = Annotated[
    str,
    typer.Option(envvar="HEADRACE_DATABASE", metavar="URL", help="As SQLAlchemy writes it: postgresql://USER@HOST/DB."),
]
TableName = Annotated[
    str, typer.Option("--table", metavar="NAME", help="The outbox, perhaps with its SCHEMA and a dot.")
]

DEFAULT_TABLE = "headrace_outbox"
DEFAULT_NAME = "default"
# Below it a batch would have more ids than a statement may have parameters.
MESSAGES_MAX = 10_000
# The relay itself tries for ever: it wants to hear soon that there is something to say.
BROKER_SECONDS = 10.0
DRIVERS = {
    # What an application writes for its own async engine; the relay's is not async.
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
    """What to do with a message that the broker will never take."""

    STOP = "stop"
    PARK = "park"


@app.command()
def relay(
    database: Database,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    name: Annotated[str, typer.Option(help="Of the outbox, at the broker: one for each.")] = DEFAULT_NAME,
    table: TableName = DEFAULT_TABLE,
    on_refused: Annotated[
        OnRefused, typer.Option(help="A message that the broker will never take ends the relay, or is put aside.")
    ] = OnRefused.STOP,
    keep: Annotated[bool, typer.Option("--keep", help="Mark what is published instead of deleting it.")] = False,
    begin_anew: Annotated[
        bool, typer.Option("--begin-anew", help="Publish all that is in the table, whatever the broker says is out.")
    ] = False,
    messages: Annotated[int, typer.Option(min=1, max=MESSAGES_MAX, help="The most messages in a transaction.")] = 1_000,
    poll: Annotated[str, typer.Option(metavar="TIME", help="How often to look while nothing happens.")] = "100ms",
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    tls_ca: TlsCa = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    log_level: Annotated[str, typer.Option(help=", ".join(LEVELS) + ".")] = "info",
    log_format: Annotated[str, typer.Option(help="console, json, or auto.")] = "auto",
) -> None:
    """Publish what is in an outbox, in order, each message once, until told to stop (SIGTERM, SIGINT)."""
    if log_level not in LEVELS:
        raise HeadraceError(f"--log-level {log_level} is none of {', '.join(LEVELS)}")
    engine, outbox = _opened(database, table)
    from headrace.outbox.publisher import KafkaPublisher
    from headrace.outbox.relay import Relay, Settings
    from headrace.outbox.store import Store

    settings = Settings(
        messages_max=messages,
        poll=parse_duration(poll) / 1000,
        park=on_refused is OnRefused.PARK,
        begin_anew=begin_anew,
    )
    store = Store(engine, outbox.tables, keep=keep)
    log_like_a_server(log_level, log_format)

    async def run() -> None:
        tls = tls_context(tls_ca, tls_cert, tls_key)
        async with Client(bootstrap, tls=tls, client_id="headrace-outbox", timeout=BROKER_SECONDS) as client:
            publisher = KafkaPublisher(client, name, compression=compression)
            await _until_told(Relay(store, publisher, name, settings))

    asyncio.run(run())


async def _until_told(relay: Relay) -> None:
    loop = asyncio.get_running_loop()

    def told() -> None:
        # The second time, it ends at once.
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        relay.stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, told)
    await relay.run()


@app.command()
def status(database: Database, table: TableName = DEFAULT_TABLE, as_json: Json = False) -> None:
    """How many messages wait, since when, and how many were refused."""
    engine, outbox = _opened(database, table)
    from headrace.outbox.store import Store

    store = Store(engine, outbox.tables)
    store.check()
    found = store.status()
    age = None if found.oldest_ms is None else max(0, time.time_ns() // 1_000_000 - found.oldest_ms)
    row = {
        "table": table,
        "name": found.name,
        "waiting": found.waiting,
        "oldest_ms": age,
        "oldest": None if age is None else about(age),
        "refused": found.refused,
        "kept": found.kept,
        "published": found.position,
    }
    columns = {
        "table": "table",
        "name": "relayed as",
        "waiting": "waiting",
        "oldest": "oldest",
        "refused": "parked",
        "kept": "kept",
        "published": "published",
    }
    show([row], as_json, columns)


@app.command()
def parked(
    database: Database,
    table: TableName = DEFAULT_TABLE,
    retry: Annotated[bool, typer.Option("--retry", help="Let the relay try them all again.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many to show at most.")] = 100,
    as_json: Json = False,
) -> None:
    """The messages that a relay has put aside, and why."""
    engine, outbox = _opened(database, table)
    from headrace.outbox.store import Store

    store = Store(engine, outbox.tables)
    store.check()
    rows = [
        {"id": message.id, "topic": message.topic, "bytes": len(message.value or b""), "reason": reason}
        for message, reason in store.refused(limit)
    ]
    if retry:
        store.unpark()
    show(rows, as_json, {"id": "id", "topic": "topic", "bytes": "bytes", "reason": "reason"})


@app.command()
def create(database: Database, table: TableName = DEFAULT_TABLE) -> None:
    """Make the tables of an outbox, where migrations do not."""
    engine, outbox = _opened(database, table)
    from headrace.outbox.store import Store

    Store(engine, outbox.tables).create()


def _opened(database: str, table: str) -> tuple[Engine, Outbox]:
    try:
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        from headrace.outbox import Outbox
    except ImportError as error:
        raise HeadraceError(f"`headrace outbox` needs the extra `sql`, as in 'headrace[sql]': {error}") from None
    try:
        url = make_url(database)
        url = url.set(drivername=DRIVERS.get(url.drivername, url.drivername))
        engine = create_engine(url, connect_args=PATIENCE.get(url.drivername, {}))
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise HeadraceError(f"--database is nothing that SQLAlchemy can open: {error}") from None
    schema, _, name = table.rpartition(".")
    return engine, Outbox(table=name, schema=schema or None)
