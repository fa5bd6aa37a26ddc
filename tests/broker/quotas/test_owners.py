"""So many topics and queues of one user's making: counted also while they are made, after deletions, and restarts."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.conftest import Starting

from headrace.broker.broker import Broker
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import OWN, Session
from headrace.errors import BoundReached, HeadraceError

ANN, BEN = Session(user="ann"), Session(user="ben")


async def test_so_many_topics(start_broker: Starting) -> None:
    broker: Broker = await start_broker(quota_user_topics=3)
    topics = broker.topics
    made = await asyncio.gather(
        *(topics.create(f"t{number}", session=ANN) for number in range(10)), return_exceptions=True
    )
    assert sum(isinstance(each, BoundReached) for each in made) == 7, "they were made at once"
    with pytest.raises(BoundReached, match="the user 'ann' has 3 topics, the maximum that it may own"):
        await topics.ensure("more", session=ANN)
    for session in (BEN, Session(), OWN, None):
        await topics.create(f"of-{id(session)}", session=session)

    broker = await start_broker(quota_user_topics=3)
    topics = broker.topics
    with pytest.raises(BoundReached):
        await topics.create("more", session=ANN)
    await topics.delete(next(name for name in topics.all if name.startswith("t")))
    await topics.create("more", session=ANN)
    with pytest.raises(BoundReached):
        await topics.create("too-much", session=ANN)
    broker.quotas.apply(make_entity([("user", "ann")]), {Kind.TOPICS: 4})
    await topics.create("raised", session=ANN)
    assert broker.quotas.figures[Kind.TOPICS].refused == 2


async def test_what_fails_does_not_count(start_broker: Starting) -> None:
    broker: Broker = await start_broker(quota_user_topics=1)
    with pytest.raises(HeadraceError):
        await broker.topics.create("t", -1, {"no.such": "setting"}, session=ANN)
    await broker.topics.create("t", session=ANN)


async def test_so_many_queues(start_broker: Starting) -> None:
    broker: Broker = await start_broker(quota_user_queues=2)
    topic = await broker.topics.create("orders")
    ensure = broker.queues.ensure
    await ensure(topic, "a", session=ANN)
    await ensure(topic, "b", session=ANN)
    await ensure(topic, "b", session=ANN)
    with pytest.raises(BoundReached, match="has 2 queues"):
        await ensure(topic, "c", session=ANN)
    await ensure(topic, "c", session=BEN)
    broker = await start_broker(quota_user_queues=2)
    topic = broker.topics.existing("orders")
    ensure = broker.queues.ensure
    await ensure(topic, "c", session=ANN)
    with pytest.raises(BoundReached):
        await ensure(topic, "d", session=ANN)
    await broker.queues.delete("orders", "a")
    await ensure(topic, "d", session=ANN)
    await broker.topics.delete("orders")
    topic = await broker.topics.create("orders")
    await ensure(topic, "a", session=ANN)


async def test_what_is_gone_is_forgotten(start_broker: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.quotas.owners.KEPT_GONE", 2)
    broker: Broker = await start_broker()
    for number in range(8):
        await broker.topics.create(f"t{number}", session=ANN)
        await broker.topics.delete(f"t{number}")
    (owners, _) = broker._owners
    await owners.settle()
    assert len(owners._table.values) <= 3
    assert owners.count("ann") == 0
