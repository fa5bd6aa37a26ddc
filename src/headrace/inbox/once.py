"""The block around a handler: the note that the message is handled, and whose business it is to commit.

The note is written first. So a second handler of the same message waits there, and does none of the work.
"""

from __future__ import annotations

from types import TracebackType

from sqlalchemy import Connection, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import SessionTransactionOrigin

from headrace.inbox.errors import InboxError
from headrace.sql import Awaited, Plain, is_awaited, unscoped


class Once:
    """A context manager, plain or async as the session is. It gives whether the message is fresh."""

    def __init__(self, session: Plain | Awaited, note: Executable) -> None:
        self._session = session
        self._note = note
        self._commits = False

    # --- with ---

    def __enter__(self) -> bool:
        session = self._session
        if is_awaited(session):
            raise InboxError("the session is an async one: write `async with`")
        self._commits = _commits(session)
        try:
            return session.execute(self._note).first() is not None
        except BaseException:
            session.rollback()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        session = self._session
        assert not is_awaited(session)
        if kind is not None:
            # Even in the caller's own transaction: it must not commit the note alone after it has handled the error.
            session.rollback()
        elif self._commits:
            session.commit()

    # --- async with ---

    async def __aenter__(self) -> bool:
        session = self._session
        if not is_awaited(session):
            raise InboxError("the session is not an async one: write `with`")
        self._commits = _commits(session)
        try:
            return (await session.execute(self._note)).first() is not None
        except BaseException:
            await session.rollback()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        session = self._session
        assert is_awaited(session)
        if kind is not None:
            await session.rollback()
        elif self._commits:
            await session.commit()


def _commits(session: Plain | Awaited) -> bool:
    """Whether the block must commit: the caller has not begun the transaction itself.

    A session that was used before has begun one by itself, and a caller that did not begin it does not end it. For a
    connection the two cannot be distinguished: its transactions are the caller's.
    """
    found = unscoped(session)
    if isinstance(found, Connection | AsyncConnection):
        return False
    plain = found.sync_session if isinstance(found, AsyncSession) else found
    if plain.in_nested_transaction():
        return False
    transaction = plain.get_transaction()
    return transaction is None or transaction.origin is SessionTransactionOrigin.AUTOBEGIN
