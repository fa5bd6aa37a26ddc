from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select, update
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.inbox.conftest import effect, effects, happened, inbox, metadata
from tests.postgres import Postgres

from headrace.inbox import InboxError, InvalidId, UnsupportedDatabase


def handle(session: Session, message: str, consumer: str = "billing") -> bool:
    with inbox.once(session, consumer, message) as fresh:
        if fresh:
            session.execute(effect(message))
    return fresh


def fail_after(session: Session | Connection, message: str) -> None:
    session.execute(effect(message))
    raise KeyError(message)


def test_a_message_that_comes_again_changes_nothing(engine: Engine):
    for expected in (True, False, False):
        with Session(engine) as session:
            assert handle(session, "17") is expected
    assert happened(engine) == ["17"]


def test_each_consumer_has_its_own(engine: Engine):
    with Session(engine) as session:
        assert handle(session, "17", "billing")
        assert handle(session, "17", "stock")
        assert handle(session, "18", "billing")
    assert happened(engine) == ["17", "17", "18"]


def test_a_handler_that_fails_leaves_nothing(engine: Engine):
    with Session(engine) as session, pytest.raises(KeyError), inbox.once(session, "billing", "17"):
        fail_after(session, "17")
    assert happened(engine) == []
    with Session(engine) as session:
        assert handle(session, "17")


def test_whoever_begins_the_transaction_commits_it(engine: Engine):
    with Session(engine) as session, session.begin():
        assert handle(session, "1")
        assert handle(session, "2")
        assert not handle(session, "1")
        with Session(engine) as other:
            assert other.scalar(select(func.count()).select_from(effects)) == 0
    assert happened(engine) == ["1", "2"]
    with Session(engine) as session:
        transaction = session.begin()
        assert handle(session, "3")
        transaction.rollback()
    assert happened(engine) == ["1", "2"]


def test_a_session_that_was_read_from_before_is_committed(engine: Engine):
    """It has begun a transaction by itself: nobody would think of committing that."""
    with Session(engine) as session:
        session.scalar(select(func.count()).select_from(effects))
        assert handle(session, "17")
    assert happened(engine) == ["17"]


def test_an_error_that_is_caught_inside_of_the_callers_transaction(engine: Engine):
    """The note must not be committed without the effect."""
    with Session(engine) as session, session.begin(), pytest.raises(KeyError), inbox.once(session, "billing", "17"):
        raise KeyError
    with Session(engine) as session:
        assert handle(session, "17")


def test_and_of_a_connections(engine: Engine):
    with engine.begin() as connection, pytest.raises(KeyError), inbox.once(connection, "billing", "17"):
        fail_after(connection, "17")
    with engine.begin() as connection, inbox.once(connection, "billing", "17") as fresh:
        assert fresh
        connection.execute(effect("17"))
    with engine.connect() as connection, inbox.once(connection, "billing", "17") as fresh:
        assert not fresh
    assert happened(engine) == ["17"]


def test_within_a_savepoint(engine: Engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("Python's driver for SQLite begins no transaction for a savepoint")
    with Session(engine) as session:
        with session.begin_nested(), inbox.once(session, "billing", "17") as fresh:
            assert fresh
        session.rollback()
    with Session(engine) as session:
        assert handle(session, "17")


def test_a_scoped_session(engine: Engine):
    session = scoped_session(sessionmaker(engine))
    with inbox.once(session, "billing", "17") as fresh:
        assert fresh
        session.execute(effect("17"))
    session.remove()
    assert happened(engine) == ["17"]


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_at_once(postgres: Postgres, first_commits: bool):
    """The second waits until the first has ended, and then knows."""
    engine = create_engine(postgres.url(postgres.new_database()))
    metadata.create_all(engine)
    outcome: list[bool] = []
    with Session(engine) as session:
        transaction = session.begin()
        with inbox.once(session, "billing", "17") as fresh:
            assert fresh
            session.execute(effect("first"))

        def second() -> None:
            with Session(engine) as other, inbox.once(other, "billing", "17") as fresh:
                outcome.append(fresh)
                if fresh:
                    other.execute(effect("second"))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        assert outcome == []
        (transaction.commit if first_commits else transaction.rollback)()
        thread.join(20)
    assert outcome == [not first_commits]
    assert happened(engine) == ["first" if first_commits else "second"]
    engine.dispose()


# --- by offset --------------------------------------------------------------------------------------------------------


def handle_at(session: Session, offset: int, partition: int = 0, group: str = "billing") -> bool:
    with inbox.at(session, group, "orders", partition, offset) as fresh:
        if fresh:
            session.execute(effect(f"{partition}/{offset}"))
    return fresh


def test_by_offset(engine: Engine):
    with Session(engine) as session:
        outcomes = [handle_at(session, offset) for offset in (0, 1, 2, 1, 2, 3, 0, 7, 5)]
    assert outcomes == [True, True, True, False, False, True, False, True, False]
    assert happened(engine) == ["0/0", "0/1", "0/2", "0/3", "0/7"]


def test_where_to_go_on(engine: Engine):
    with Session(engine) as session:
        assert inbox.positions(session, "billing") == {}
        handle_at(session, 4)
        handle_at(session, 9, partition=2)
        handle_at(session, 1, group="stock")
        assert inbox.positions(session, "billing") == {("orders", 0): 5, ("orders", 2): 10}
        inbox.forget(session, "billing", "orders")
        session.commit()
        assert inbox.positions(session, "billing") == {}
        assert handle_at(session, 0)
        assert inbox.positions(session, "stock") == {("orders", 0): 2}


def test_a_failed_one_does_not_move_the_offset(engine: Engine):
    with Session(engine) as session:
        handle_at(session, 4)
        with pytest.raises(KeyError), inbox.at(session, "billing", "orders", 0, 5):
            raise KeyError
        assert inbox.positions(session, "billing") == {("orders", 0): 5}
        assert handle_at(session, 5)


def test_the_owner_before_a_rebalance_comes_late(postgres: Postgres):
    """It waits for the row, and finds that its message was handled by the new owner."""
    engine = create_engine(postgres.url(postgres.new_database()))
    metadata.create_all(engine)
    outcome: list[bool] = []
    with Session(engine) as session:
        handle_at(session, 0)
        with session.begin():
            assert handle_at(session, 1)

            def late() -> None:
                with Session(engine) as other:
                    outcome.append(handle_at(other, 1))

            thread = threading.Thread(target=late)
            thread.start()
            thread.join(0.2)
            assert outcome == []
    thread.join(20)
    assert outcome == [False]
    assert happened(engine) == ["0/0", "0/1"]
    engine.dispose()


# --- cleaning ---------------------------------------------------------------------------------------------------------


def test_old_ids_are_cleaned_in_bounded_steps(engine: Engine):
    with Session(engine) as session:
        for number in range(10):
            handle(session, str(number))
        old = inbox.ids.c.message_id.in_([str(number) for number in range(7)])
        session.execute(update(inbox.ids).where(old).values(handled_ms=1_000))
        session.commit()
        cleaned = []
        while count := inbox.clean(session, timedelta(days=7), limit=3):
            session.commit()
            cleaned.append(count)
        assert cleaned == [3, 3, 1]
        assert [handle(session, str(number)) for number in (6, 7)] == [True, False]


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_stored_is_said(engine: Engine):
    with Session(engine) as session:
        for consumer, message in (("billing", ""), ("billing", "x" * 501), ("", "1"), ("x" * 201, "1")):
            with pytest.raises(InvalidId):
                inbox.once(session, consumer, message)
        for partition, offset in ((0, -1), (-1, 0)):
            with pytest.raises(InvalidId):
                inbox.at(session, "billing", "orders", partition, offset)


def test_a_database_that_it_does_not_know(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine.dialect, "name", "oracle")
    with Session(engine) as session, pytest.raises(UnsupportedDatabase, match="oracle"):
        inbox.once(session, "billing", "17")


async def test_the_wrong_kind_of_with(engine: Engine):
    with Session(engine) as session, pytest.raises(InboxError, match="`with`"):
        async with inbox.once(session, "billing", "17"):
            pass


# --- async ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def async_engine(postgres: Postgres) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(postgres.url(postgres.new_database()))
    async with made.begin() as connection:
        await connection.run_sync(metadata.create_all)
    yield made
    await made.dispose()


async def test_async(async_engine: AsyncEngine):
    async def handle(session: AsyncSession, message: str) -> bool:
        async with inbox.once(session, "billing", message) as fresh:
            if fresh:
                await session.execute(effect(message))
        return fresh

    async with AsyncSession(async_engine) as session:
        assert [await handle(session, message) for message in ("1", "2", "1")] == [True, True, False]
        with pytest.raises(KeyError):
            async with inbox.once(session, "billing", "3"):
                raise KeyError
        assert await handle(session, "3")
        async with inbox.at(session, "billing", "orders", 0, 4) as fresh:
            assert fresh
        assert await inbox.positions(session, "billing") == {("orders", 0): 5}
        await inbox.forget(session, "billing", "orders")
        assert await inbox.positions(session, "billing") == {}
        await session.commit()
        assert await inbox.clean(session, timedelta(seconds=-5)) == 3
        with pytest.raises(InboxError, match="async with"):
            inbox.once(session, "billing", "17").__enter__()


async def test_a_scoped_async_session(async_engine: AsyncEngine):
    session = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    async with inbox.once(session, "billing", "17") as fresh:
        assert fresh
    await session.remove()
    async with async_engine.begin() as connection, inbox.once(connection, "billing", "17") as fresh:
        assert not fresh
