"""Sessions are found by user and token, and end some at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.rules import allow
from headrace.broker.security.security import STEP_INVALIDATIONS
from headrace.broker.security.sessions import STEP_SESSIONS, Sessions

Starting = Callable[..., Awaitable[Broker]]
COUNT = 10_000


def login(broker: Broker, ended: list[str], user: str, token_id: str = "") -> Session:
    session = Session()
    session.on_ended = ended.append
    broker.security.login(session, Identity(user, "token" if token_id else "password", token_id=token_id))
    return session


async def turns_until(count: int, found: list[Any], step: int) -> int:
    """The turns of the loop until there are so many, none of which adds more than a step."""
    turns = 0
    while len(found) < count:
        before = len(found)
        await asyncio.sleep(0)
        assert len(found) - before <= step
        turns += 1
        assert turns < 10 * COUNT
    return turns


async def test_the_sessions_of_a_user_end_in_steps(start_broker: Starting):
    broker = await start_broker(authorization="on")
    ended: list[str] = []
    await broker.security.accounts.create_user(OWN, "ann")
    kept = [login(broker, ended, "ann") for _ in range(COUNT)]
    other = login(broker, ended, "bob")
    # One that comes as another user before its turn stays.
    changed = kept[-1]
    broker.security.end_user("ann", "the user was deleted")
    assert len(ended) == STEP_SESSIONS
    broker.security.login(changed, Identity("bob", "password"))
    assert await turns_until(COUNT - 1, ended, STEP_SESSIONS) <= COUNT // STEP_SESSIONS + 1
    assert [changed.user, other.user] == ["bob", "bob"]
    assert {each.user for each in kept} == {"", "bob"}
    assert len(list(broker.security._sessions)) == 2


async def test_a_token_ends_its_own_sessions_alone(start_broker: Starting):
    broker = await start_broker()
    ended: list[str] = []
    sessions = {each: login(broker, ended, "ann", each) for each in ("", "1", "2")}
    broker.security.end_user("ann", "the token was revoked", "1")
    assert [each.user for each in sessions.values()] == ["ann", "", "ann"]
    assert ended == ["the token was revoked"]


async def test_what_has_gone_is_not_kept() -> None:
    sessions = Sessions(lambda session, reason: None)
    session = Session()
    session.identity = Identity("ann", "password")
    sessions.add(session, session.identity)
    sessions.discard(session)
    assert not sessions._by_user
    sessions.discard(session)
    sessions.add(session, session.identity)
    del session
    gc.collect()
    assert not list(sessions)


async def test_admissions_are_forgotten_in_steps_before_a_change_returns(start_broker: Starting):
    broker = await start_broker(authorization="on")
    write, topic = Operation.WRITE, Resource.TOPIC
    await broker.security.grants.add_rules(OWN, [allow("*", write, topic, "*")])
    made = await broker.topics.create("t")
    admissions = broker.publisher.admissions
    kept = [admissions.admit(Session(user=f"u{number % 900}"), made) for number in range(900)]
    assert all(each.valid for each in kept)
    most = asked = 0
    is_done = asyncio.ensure_future(broker.security.notify_rules(["*"]))
    while not is_done.done():
        before = sum(each.valid for each in kept)
        await asyncio.sleep(0)
        most = max(most, before - sum(each.valid for each in kept))
        asked += 1
    assert not any(each.valid for each in kept)
    assert 0 < most <= STEP_INVALIDATIONS + 1
    assert asked >= 2
    assert not admissions._by_user
    assert not admissions._by_topic
