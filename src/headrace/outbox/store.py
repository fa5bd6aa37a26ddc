"""The relay's side of the database: what is claimed, what is published, which relay owns the outbox.

Two rules make it safe. Every change begins with an UPDATE of the relay's row that finds it only while this relay owns
it: that is the lock (of the row in PostgreSQL, of the file in SQLite) and the fence against a relay that was given up
for dead. And one transaction deletes what is out and claims what is next, so there is always exactly one batch of which
it may be open whether it is out, and the broker's position answers that.

Plain blocking calls; the relay runs them in a thread.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.outbox.errors import NoOutbox, RelayFenced, Unavailable
from headrace.outbox.tables import THE_ROW, HeaderList, Tables, decode_headers, decode_ids, encode_ids

TRY_LOCK = text("SELECT pg_try_advisory_lock(:key)")


@dataclass(frozen=True, slots=True)
class Message:
    """One row of an outbox."""

    id: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    added_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Messages that are next, or may be out already, and the positions before and behind them."""

    ids: Sequence[int]
    before: int
    position: int


@dataclass(frozen=True, slots=True)
class State:
    """The relay's row."""

    name: str
    identity: str
    """Of this outbox, among all that may ever use the same name."""
    claim: Claim


@dataclass(frozen=True, slots=True)
class Status:
    """What an outbox holds."""

    waiting: int
    oldest_ms: int | None
    """Since when the oldest of them waits."""
    refused: int
    kept: int
    name: str | None
    """Under which its relay publishes; None: none was there yet."""
    position: int


class Store:
    """An outbox in a database, as one relay sees it."""

    def __init__(self, engine: Engine, tables: Tables, *, keep: bool = False) -> None:
        self._engine = engine
        self._messages = tables.messages
        self._relay = tables.relay
        self._keep = keep
        self._owner = uuid.uuid4().hex
        self._lock: Connection | None = None
        messages = tables.messages
        self._waiting = messages.c.refused.is_(None) & messages.c.published_ms.is_(None)

    # --- ownership ---

    def create(self) -> None:
        """Make the tables where they are missing."""
        with self._translate_errors():
            self._messages.metadata.create_all(self._engine, tables=[self._messages, self._relay])

    def check(self) -> None:
        """Raise NoOutbox where a table is missing."""
        with self._translate_errors():
            found = inspect(self._engine)
            for table in (self._messages, self._relay):
                if not found.has_table(table.name, table.schema):
                    raise NoOutbox(
                        f"{self._engine.url.render_as_string()} has no table {table.fullname}: "
                        "make it with `headrace outbox create`, `Outbox.create_all` or your migrations"
                    )

    @property
    def takes_turns(self) -> bool:
        """Whether a second relay waits until the first has gone, because the database has locks that go with a
        connection. Elsewhere the last one to begin shuts out the others."""
        return self._engine.dialect.name == "postgresql"

    def acquire(self) -> bool:
        """Whether it is this relay's turn."""
        if not self.takes_turns or self._holds():
            return True
        with self._translate_errors():
            connection = self._engine.connect()
            try:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                # From the pool, which would keep it open when it is closed here.
                connection.detach()
                if connection.scalar(TRY_LOCK, {"key": self._lock_key()}):
                    self._lock = connection
                    return True
            finally:
                if self._lock is not connection:
                    connection.close()
            return False

    def _holds(self) -> bool:
        if self._lock is None:
            return False
        try:
            self._lock.scalar(text("SELECT 1"))
        except DBAPIError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Let go of the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _lock_key(self) -> int:
        digest = hashlib.sha256(f"headrace outbox {self._messages.fullname}".encode()).digest()
        return int.from_bytes(digest[:8], signed=True)

    def take(self, name: str) -> State:
        """Become the owner of the relay's row, made if there is none. From now on no other can change it."""
        relay = self._relay
        mine = update(relay).where(relay.c.id == THE_ROW).values(owner=self._owner)
        with self._translate_errors():
            with self._engine.begin() as connection:
                if connection.execute(mine).rowcount:
                    return self._state(connection)
            row = {"id": THE_ROW, "name": name, "identity": uuid.uuid4().hex, "owner": self._owner}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(relay).values(**row, before=0, position=0, claimed=""))
                    return self._state(connection)
            except IntegrityError:
                raise Unavailable("another relay began at the same moment") from None

    def owns(self) -> bool:
        """Whether no other relay has begun since `take`."""
        relay = self._relay
        with self._translate_errors(), self._engine.connect() as connection:
            return bool(connection.scalar(select(relay.c.owner).where(relay.c.id == THE_ROW)) == self._owner)

    def begin_anew(self, name: str, position: int) -> State:
        """Take everything in the table for not published, whatever was under way."""
        with self._owning() as connection:
            self._write(connection, Claim((), position, position), name=name)
            return self._state(connection)

    def _state(self, connection: Connection) -> State:
        row = connection.execute(select(self._relay).where(self._relay.c.id == THE_ROW)).one()
        return State(row.name, row.identity, Claim(decode_ids(row.claimed), row.before, row.position))

    # --- what is next ---

    def is_waiting(self) -> bool:
        """Whether there is something to claim; takes no lock."""
        with self._translate_errors(), self._engine.connect() as connection:
            return connection.execute(select(self._messages.c.id).where(self._waiting).limit(1)).first() is not None

    def advance(self, out: Claim, messages_max: int, bytes_max: int) -> Claim:
        """Take the messages of a claim out of the table and claim the next ones, which may be none."""
        columns = self._messages.c
        parts = (columns.key, columns.value, columns.headers)
        sizes = [func.coalesce(func.length(each), 0) for each in parts]
        next_ones = select(columns.id, *sizes).where(self._waiting).order_by(columns.id).limit(messages_max)
        with self._owning() as connection:
            if out.ids:
                self._remove(connection, out.ids)
            ids: list[int] = []
            room = bytes_max
            for number, *lengths in connection.execute(next_ones):
                room -= sum(lengths)
                if ids and room < 0:
                    break
                ids.append(number)
            claim = Claim(ids, out.position, out.position + len(ids))
            self._write(connection, claim)
            return claim

    def shorten(self, claim: Claim, count: int) -> Claim:
        """Claim only the first of them; none of them is out."""
        with self._owning() as connection:
            shorter = replace(claim, ids=claim.ids[:count], position=claim.before + count)
            self._write(connection, shorter)
            return shorter

    def park(self, claim: Claim, number: int, reason: str) -> Claim:
        """Put one message of a claim aside, where it stays with the reason, and claim none; none of them is out."""
        with self._owning() as connection:
            connection.execute(update(self._messages).where(self._messages.c.id == number).values(refused=reason))
            nothing = Claim((), claim.before, claim.before)
            self._write(connection, nothing)
            return nothing

    def messages(self, claim: Claim) -> list[Message]:
        """The messages of a claim, in order, without those that were deleted meanwhile."""
        with self._translate_errors(), self._engine.connect() as connection:
            rows = connection.execute(
                select(self._messages).where(self._within(claim.ids)).order_by(self._messages.c.id)
            )
            return [_message(row) for row in rows]

    def _remove(self, connection: Connection, ids: Sequence[int]) -> None:
        if self._keep:
            now = time.time_ns() // 1_000_000
            connection.execute(update(self._messages).where(self._within(ids)).values(published_ms=now))
        else:
            connection.execute(delete(self._messages).where(self._within(ids)))

    def _within(self, ids: Sequence[int]) -> ColumnElement[bool]:
        return self._messages.c.id.in_(ids)

    def _write(self, connection: Connection, claim: Claim, **others: str) -> None:
        values = {"before": claim.before, "position": claim.position, "claimed": encode_ids(claim.ids), **others}
        connection.execute(update(self._relay).where(self._relay.c.id == THE_ROW).values(values))

    # --- looking, and what was put aside or kept ---

    def status(self) -> Status:
        messages = self._messages
        with self._translate_errors(), self._engine.connect() as connection:
            waiting, oldest = connection.execute(
                select(func.count(), func.min(messages.c.added_ms)).where(self._waiting)
            ).one()
            refused = connection.scalar(select(func.count()).where(messages.c.refused.is_not(None)))
            kept = connection.scalar(select(func.count()).where(messages.c.published_ms.is_not(None)))
            row = connection.execute(select(self._relay).where(self._relay.c.id == THE_ROW)).first()
        name, position = (None, 0) if row is None else (row.name, row.position)
        return Status(waiting, oldest, refused or 0, kept or 0, name, position)

    def refused(self, limit: int) -> list[tuple[Message, str]]:
        """The oldest of the messages that were put aside, with the reasons."""
        messages = self._messages
        wanted = select(messages).where(messages.c.refused.is_not(None)).order_by(messages.c.id).limit(limit)
        with self._translate_errors(), self._engine.connect() as connection:
            return [(_message(row), row.refused) for row in connection.execute(wanted)]

    def unpark(self) -> None:
        """Let everything that was put aside be tried again."""
        messages = self._messages
        with self._translate_errors(), self._engine.begin() as connection:
            connection.execute(update(messages).where(messages.c.refused.is_not(None)).values(refused=None))

    # --- the database ---

    @contextmanager
    def _owning(self) -> Iterator[Connection]:
        """A transaction in which no other relay can change the row."""
        relay = self._relay
        # A value is set to what it is: it takes the lock before anything is read, in every database.
        hold = update(relay).where(relay.c.id == THE_ROW, relay.c.owner == self._owner).values(owner=self._owner)
        with self._translate_errors(), self._engine.begin() as connection:
            if not connection.execute(hold).rowcount:
                raise RelayFenced(f"another relay has taken over the outbox {self._messages.fullname}")
            yield connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise Unavailable(f"the database has no connection to spare: {error}") from error
        except DBAPIError as error:
            # Drivers speak in several lines.
            raise Unavailable("the database cannot answer: " + " ".join(str(error.orig or error).split())) from error


def _message(row: Any) -> Message:
    return Message(row.id, row.topic, row.partition, row.key, row.value, decode_headers(row.headers), row.added_ms)
