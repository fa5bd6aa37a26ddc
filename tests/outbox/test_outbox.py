from __future__ import annotations

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.postgres import Postgres

from headrace.outbox import InvalidMessage, Outbox
from headrace.outbox.store import Store
from headrace.outbox.tables import decode_headers, decode_ids, encode_headers, encode_ids


def rows(engine: Engine, outbox: Outbox) -> list[tuple[object, ...]]:
    columns = outbox.tables.messages.c
    wanted = select(columns.topic, columns.partition, columns.key, columns.value, columns.headers).order_by(columns.id)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(wanted)]


def test_a_message_is_there_with_its_transaction(engine: Engine, outbox: Outbox):
    with Session(engine) as session, session.begin():
        outbox.add(session, "orders", "a hat", key=b"42", headers={"from": "shop", "raw": b"\xff"}, partition=3)
        outbox.add(session, "orders", None)
    assert rows(engine, outbox) == [
        ("orders", 3, b"42", b"a hat", '[["from", "shop"], ["raw", {"base64": "/w=="}]]'),
        ("orders", None, None, None, None),
    ]


def test_and_not_without_it(engine: Engine, outbox: Outbox):
    with Session(engine) as session:
        outbox.add(session, "orders", b"a hat")
        session.rollback()
    assert rows(engine, outbox) == []


def test_by_a_connection(engine: Engine, outbox: Outbox):
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"a hat")
    assert len(rows(engine, outbox)) == 1


async def test_by_an_async_session(postgres: Postgres):
    url = postgres.url(postgres.new_database())
    plain, engine = create_engine(url), create_async_engine(url)
    outbox = Outbox()
    outbox.create_all(plain)
    async with AsyncSession(engine) as session, session.begin():
        await outbox.add(session, "orders", b"a hat")
    async with engine.begin() as connection:
        await outbox.add(connection, "orders", b"boots")
    await engine.dispose()
    assert [row[3] for row in rows(plain, outbox)] == [b"a hat", b"boots"]
    plain.dispose()


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, "schön"])
def test_what_no_broker_would_take_is_refused_where_it_is_added(topic: str):
    with create_engine("sqlite://").begin() as connection, pytest.raises(InvalidMessage, match="topic"):
        Outbox().add(connection, topic, b"")


def test_a_partition_that_cannot_be():
    with create_engine("sqlite://").begin() as connection, pytest.raises(InvalidMessage, match="-1"):
        Outbox().add(connection, "orders", b"", partition=-1)


def test_its_tables_stand_beside_the_applications_own(engine: Engine):
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    outbox = Outbox(metadata, table="shop_outbox")
    metadata.create_all(engine)
    assert set(inspect(engine).get_table_names()) == {"orders", "shop_outbox", "shop_outbox_relay"}
    with engine.begin() as connection:
        Outbox(metadata, table="shop_outbox").add(connection, "orders", b"a hat")
    assert len(rows(engine, outbox)) == 1


def test_an_id_is_never_given_twice(engine: Engine, outbox: Outbox):
    seen = []
    for _ in range(3):
        with engine.begin() as connection:
            outbox.add(connection, "orders", b"a hat")
            seen.append(connection.scalar(select(outbox.tables.messages.c.id)))
            connection.execute(outbox.tables.messages.delete())
    assert len(set(seen)) == 3


def test_what_is_missing_is_said(engine: Engine):
    with pytest.raises(Exception, match="headrace_outbox"):
        Store(engine, Outbox().tables).check()


@pytest.mark.parametrize(
    ("ids", "text"), [([], ""), ([7], "7"), ([1, 2, 3, 5], "1-3,5"), ([1, 3, 4, 9], "1,3-4,9"), ([10, 11], "10-11")]
)
def test_ids_in_runs(ids: list[int], text: str):
    assert encode_ids(ids) == text
    assert decode_ids(text) == ids


def test_headers_there_and_back():
    headers = [("a", b"text"), ("a", b"\x80"), ("b", None), ("c", "日本".encode()), ("", b"")]
    assert decode_headers(encode_headers(headers)) == headers
    assert encode_headers({}) is None
    assert decode_headers(None) == []
