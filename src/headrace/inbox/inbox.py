"""The consumer's side of exactly once: what was handled is written down in the transaction that holds its effect.

A broker delivers at least once, since the word that a message was handled can always be lost. If that word stands in
the same database, and the same transaction, as the effect, the two cannot come apart: a message that comes again is
found there, and its effect is not repeated. The lock is the row itself: of two consumers that handle one message at
once, the second waits at the row until the first has ended, and then finds it.

    inbox = Inbox(Base.metadata)

    with Session(engine) as session, inbox.once(session, "billing", order_id) as fresh:
        if fresh:
            session.add(Invoice(order_id))

Two ways to name a message. By an id, for queues, and wherever messages have ids of their own; old ids must be cleaned
away. By its offset, for consumer groups, which see a partition in order: one row for each partition, and nothing to
clean.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, cast, overload

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    CursorResult,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from headrace.inbox.errors import InvalidId, UnsupportedDatabase
from headrace.inbox.once import Once
from headrace.sql import Awaited, Plain, dialect_of, execute

NAME = "headrace_inbox"
CONSUMER_MAX = 200
ID_MAX = 500
TOPIC_MAX = 249
# Rows that one call of `clean` deletes, so that it never holds locks for long.
CLEANED = 10_000

Partition = tuple[str, int]
Positions = dict[Partition, int]


class Inbox:
    """An inbox in a database. With your own `metadata`, `create_all` or Alembic makes its tables beside yours."""

    def __init__(self, metadata: MetaData | None = None, *, table: str = NAME, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        full = table if schema is None else f"{schema}.{table}"
        if full not in metadata.tables:
            _describe(metadata, table, schema)
        self.ids: Table = metadata.tables[full]
        self.offsets: Table = metadata.tables[f"{full}_offsets"]

    def create_all(self, bind: Engine | Connection) -> None:
        """Make the tables where they are missing."""
        self.ids.metadata.create_all(bind, tables=[self.ids, self.offsets])

    # --- around a handler ---

    def once(self, session: Plain | Awaited, consumer: str, message_id: str) -> Once:
        """`with` (or `async with`) around a handler; it gives whether the message is fresh: not handled before.

        `consumer` names the handler: each has ids of its own. If you have begun the transaction, you commit it;
        otherwise the end of the block does. If the block raises, the transaction is rolled back, even if you began it.
        """
        if not 0 < len(message_id) <= ID_MAX:
            raise InvalidId(f"a message id must have 1 to {ID_MAX} characters (got {len(message_id)})")
        row = {
            "consumer": _check_consumer(consumer),
            "message_id": message_id,
            "handled_ms": time.time_ns() // 1_000_000,
        }
        insert = _insert(session)(self.ids).values(row)
        return Once(session, insert.on_conflict_do_nothing().returning(self.ids.c.handled_ms))

    def at(self, session: Plain | Awaited, group: str, topic: str, partition: int, offset: int) -> Once:
        """The same for a message that is named by its offset. A group handles a partition in order: with an offset, all
        before it count as handled."""
        if offset < 0 or partition < 0:
            raise InvalidId(f"{topic}-{partition} has no offset {offset}: both count from 0")
        row = {"consumer": _check_consumer(group), "topic": topic, "partition": partition, "next_offset": offset + 1}
        columns = self.offsets.c
        insert = _insert(session)(self.offsets).values(row)
        move = insert.on_conflict_do_update(
            index_elements=[columns.consumer, columns.topic, columns.partition],
            set_={"next_offset": insert.excluded.next_offset},
            where=columns.next_offset < insert.excluded.next_offset,
        )
        return Once(session, move.returning(columns.next_offset))

    # --- beginning, and forgetting ---

    @overload
    def positions(self, session: Plain, group: str) -> Positions: ...

    @overload
    def positions(self, session: Awaited, group: str) -> Coroutine[Any, Any, Positions]: ...

    def positions(self, session: Plain | Awaited, group: str) -> Positions | Coroutine[Any, Any, Positions]:
        """By partition, the offset behind what the group has handled: where to go on."""
        columns = self.offsets.c
        wanted = select(columns.topic, columns.partition, columns.next_offset).where(columns.consumer == group)
        return execute(session, wanted, lambda rows: {(row.topic, row.partition): row.next_offset for row in rows})

    @overload
    def forget(self, session: Plain, group: str, topic: str) -> None: ...

    @overload
    def forget(self, session: Awaited, group: str, topic: str) -> Coroutine[Any, Any, None]: ...

    def forget(self, session: Plain | Awaited, group: str, topic: str) -> Coroutine[Any, Any, None] | None:
        """Take nothing of a topic for handled by offset: where it was deleted and made anew, so that offsets begin
        again, and where a group is to handle everything once more."""
        columns = self.offsets.c
        statement = delete(self.offsets).where(columns.consumer == group, columns.topic == topic)
        return execute(session, statement, lambda _: None)

    @overload
    def clean(self, session: Plain, older_than: timedelta, *, limit: int = CLEANED) -> int: ...

    @overload
    def clean(self, session: Awaited, older_than: timedelta, *, limit: int = CLEANED) -> Coroutine[Any, Any, int]: ...

    def clean(
        self, session: Plain | Awaited, older_than: timedelta, *, limit: int = CLEANED
    ) -> int | Coroutine[Any, Any, int]:
        """Forget ids that were handled longer ago than that, the oldest first, and at most `limit` of them; how many.

        A message that comes again after its id was forgotten is fresh: keep ids for longer than anything is retried.
        """
        columns = self.ids.c
        before = time.time_ns() // 1_000_000 - int(older_than.total_seconds() * 1000)
        old = select(columns.consumer, columns.message_id).where(columns.handled_ms < before)
        old = old.order_by(columns.handled_ms).limit(limit)
        statement = delete(self.ids).where(tuple_(columns.consumer, columns.message_id).in_(old))
        return execute(session, statement, lambda deleted: int(cast("CursorResult[Any]", deleted).rowcount))


def _describe(metadata: MetaData, name: str, schema: str | None) -> None:
    ids = Table(
        name,
        metadata,
        Column("consumer", String(CONSUMER_MAX), primary_key=True),
        Column("message_id", String(ID_MAX), primary_key=True),
        Column("handled_ms", BigInteger, nullable=False),
        schema=schema,
    )
    Index(f"{name}_handled", ids.c.handled_ms)
    Table(
        f"{name}_offsets",
        metadata,
        Column("consumer", String(CONSUMER_MAX), primary_key=True),
        Column("topic", String(TOPIC_MAX), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger, nullable=False),
        schema=schema,
    )


def _check_consumer(consumer: str) -> str:
    if not 0 < len(consumer) <= CONSUMER_MAX:
        raise InvalidId(f"a consumer's name must have 1 to {CONSUMER_MAX} characters (got {len(consumer)})")
    return consumer


def _insert(session: Plain | Awaited) -> Any:
    """INSERT as the session's database spells it where a row may be there already."""
    dialect = dialect_of(session)
    if dialect == "postgresql":
        return postgresql.insert
    if dialect == "sqlite":
        return sqlite.insert
    raise UnsupportedDatabase(f"an inbox works in PostgreSQL and SQLite, and this is {dialect}")
