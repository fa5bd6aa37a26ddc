"""The two tables of an outbox: messages that wait, and one row of what the relay knows.

The idea: ids follow the order in which messages were added, not that in which transactions were committed, so a row may
appear *behind* the relay, with a lower id than one that is out already. Therefore nothing is remembered as "all up to
this id". The relay claims the very rows that it sees, writes their ids into its own row, publishes them, and deletes
them; `position` counts the messages that were ever claimed, and is committed to the broker.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

NAME = "headrace_outbox"
NAME_MAX = 200
TOPIC_MAX = 249

Content = bytes | str | None
Headers = Mapping[str, Content] | Iterable[tuple[str, Content]]
HeaderList = list[tuple[str, bytes | None]]

# The state is one row: a second relay must meet the first one there.
THE_ROW = 1


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one outbox."""

    messages: Table
    relay: Table


def tables(metadata: MetaData, name: str = NAME, schema: str | None = None) -> Tables:
    """Describe them in `metadata`, once."""
    # SQLite counts up by itself only in a column that is an INTEGER, and without AUTOINCREMENT gives an id twice.
    number = BigInteger().with_variant(Integer(), "sqlite")
    full = name if schema is None else f"{schema}.{name}"
    if full in metadata.tables:
        return Tables(metadata.tables[full], metadata.tables[f"{full}_relay"])
    messages = Table(
        name,
        metadata,
        Column("id", number, primary_key=True, autoincrement=True),
        Column("topic", String(TOPIC_MAX), nullable=False),
        Column("partition", Integer),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", Text),
        Column("added_ms", BigInteger, nullable=False),
        Column("refused", Text),
        Column("published_ms", BigInteger),
        schema=schema,
        sqlite_autoincrement=True,
    )
    waiting = messages.c.refused.is_(None) & messages.c.published_ms.is_(None)
    # Messages that are kept once they are out, or were refused, must not make it slow to find those that wait.
    Index(f"{name}_waiting", messages.c.id, postgresql_where=waiting, sqlite_where=waiting)
    relay = Table(
        f"{name}_relay",
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("name", String(NAME_MAX), nullable=False),
        Column("identity", String(32), nullable=False),
        Column("owner", String(32), nullable=False),
        Column("before", BigInteger, nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("claimed", Text, nullable=False),
        schema=schema,
    )
    return Tables(messages, relay)


# --- what the columns hold --------------------------------------------------------------------------------------------


def encode_headers(headers: Headers | None) -> str | None:
    """As JSON that a person can read in the table: text where it is text, `{"base64": ...}` where it is not."""
    if not headers:
        return None
    listed = headers.items() if isinstance(headers, Mapping) else headers
    return json.dumps([[name, _format(content)] for name, content in listed], ensure_ascii=False)


def decode_headers(text: str | None) -> HeaderList:
    return [] if text is None else [(name, _meant(content)) for name, content in json.loads(text)]


def _format(content: Content) -> str | dict[str, str] | None:
    if content is None or isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _meant(content: str | dict[str, str] | None) -> bytes | None:
    if content is None:
        return None
    return content.encode() if isinstance(content, str) else base64.b64decode(content["base64"])


def encode_ids(ids: Iterable[int]) -> str:
    """Rising ids as runs, `3-7,9`: none that is not there, since a gap may be a transaction that is still open."""
    runs: list[list[int]] = []
    for each in ids:
        if runs and each == runs[-1][1] + 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def decode_ids(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
