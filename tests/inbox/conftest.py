from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from tests.postgres import Postgres
from tests.postgres import postgres as postgres

from headrace.inbox import Inbox

metadata = MetaData()
inbox = Inbox(metadata)
# The effect that is to happen once; nothing in the table itself keeps it from happening twice.
effects = Table(
    "effects",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("what", String(500)),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'application.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.new_database())


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = create_engine(database)
    metadata.create_all(made)
    yield made
    made.dispose()


def effect(what: str):
    return insert(effects).values(what=what)


def happened(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.what).order_by(effects.c.id)))
