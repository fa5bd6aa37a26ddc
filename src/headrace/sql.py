"""What outbox and inbox share: the sessions and connections of SQLAlchemy that they take, sync and async.

Both work inside a transaction of the application, on the object that it has at hand. This is the one place that knows
which objects those are.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Executable, Result
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from typing_extensions import TypeIs

Plain = Session | scoped_session[Any] | Connection
Awaited = AsyncSession | async_scoped_session[Any] | AsyncConnection
T = TypeVar("T")


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


@overload
def execute(session: Plain, statement: Executable, read: Callable[[Result[Any]], T]) -> T: ...


@overload
def execute(session: Awaited, statement: Executable, read: Callable[[Result[Any]], T]) -> Coroutine[Any, Any, T]: ...


def execute(
    session: Plain | Awaited, statement: Executable, read: Callable[[Result[Any]], T]
) -> T | Coroutine[Any, Any, T]:
    """Execute a statement and read its result: at once, or when it is awaited, as the session is."""
    if not is_awaited(session):
        return read(session.execute(statement))

    async def awaited() -> T:
        return read(await session.execute(statement))

    return awaited()
