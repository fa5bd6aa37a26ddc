from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from tests.postgres import Postgres
from tests.postgres import postgres as postgres

from headrace.outbox import Outbox


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'application.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(server.new_database())


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = create_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    made = Outbox()
    made.create_all(engine)
    return made
