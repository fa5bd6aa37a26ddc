"""What outbox and inbox share: the sessions and connections of SQLAlchemy that they may be given, sync and async.

Both work inside a transaction that the application has begun, on whatever object it has at hand. This is the one place
that knows which objects those are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from typing_extensions import TypeIs

Plain = Session | scoped_session[Any] | Connection
Awaited = AsyncSession | async_scoped_session[Any] | AsyncConnection


def unscoped(session: Plain | Awaited) -> Session | Connection | AsyncSession | AsyncConnection:
    """The session that a scoped one stands for at the moment."""
    return session() if isinstance(session, scoped_session | async_scoped_session) else session


def dialect_of(session: Plain | Awaited) -> str:
    """The kind of database behind it."""
    found = unscoped(session)
    bind = found if isinstance(found, Connection | AsyncConnection) else found.get_bind()
    return bind.dialect.name


def is_awaited(session: Plain | Awaited) -> TypeIs[Awaited]:
    """Whether what is done with it must be awaited."""
    return isinstance(session, AsyncSession | async_scoped_session | AsyncConnection)
