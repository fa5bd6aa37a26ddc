"""The application's side of an outbox: a message is a row, added in the application's own transaction.

So the message and what it tells of are committed together or not at all, and no broker needs to be there. A relay
(`headrace outbox relay`) takes it from the table to the log.

    outbox = Outbox(Base.metadata)

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, "orders", order.as_json(), key=order.customer)
"""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine
from typing import Any, overload

from sqlalchemy import Connection, Engine, Insert, MetaData, insert

from headrace.outbox.errors import InvalidMessage
from headrace.outbox.tables import NAME, TOPIC_MAX, Content, Headers, encode_headers, tables
from headrace.sql import Awaited, Plain, execute

LEGAL_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_MAX}}}")
PARTITION_MAX = (1 << 31) - 1


class Outbox:
    """An outbox in a database. With your own `metadata`, `create_all` or Alembic makes its tables beside yours."""

    def __init__(self, metadata: MetaData | None = None, *, table: str = NAME, schema: str | None = None) -> None:
        self.tables = tables(MetaData() if metadata is None else metadata, table, schema)

    def create_all(self, bind: Engine | Connection) -> None:
        """Make the tables where they are missing."""
        messages, relay = self.tables.messages, self.tables.relay
        messages.metadata.create_all(bind, tables=[messages, relay])

    @overload
    def add(
        self,
        session: Plain,
        topic: str,
        value: Content,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None: ...

    @overload
    def add(
        self,
        session: Awaited,
        topic: str,
        value: Content,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> Coroutine[Any, Any, None]: ...

    def add(
        self,
        session: Plain | Awaited,
        topic: str,
        value: Content,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> Coroutine[Any, Any, None] | None:
        """Add a message in the session's transaction; `await` it where the session is an async one.

        Text becomes UTF-8. Without a partition the key decides, as in Kafka's own clients. Raises InvalidMessage for
        what no broker would take.
        """
        statement = self._insert(topic, value, key, headers, partition)
        return execute(session, statement, lambda _: None)

    def _insert(
        self, topic: str, value: Content, key: Content, headers: Headers | None, partition: int | None
    ) -> Insert:
        if not LEGAL_TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise InvalidMessage(f"{topic!r} is not a topic name: 1 to {TOPIC_MAX} of a-z, A-Z, 0-9, `.`, `_` and `-`")
        if partition is not None and not 0 <= partition <= PARTITION_MAX:
            raise InvalidMessage(f"partition {partition} of {topic}: partitions count from 0")
        values = {
            "topic": topic,
            "partition": partition,
            "key": _encode(key),
            "value": _encode(value),
            "headers": encode_headers(headers),
            "added_ms": time.time_ns() // 1_000_000,
        }
        # The id is not needed: without `inline`, PostgreSQL would return it.
        return insert(self.tables.messages).values(values).inline()


def _encode(content: Content) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
