"""Rights that last are asked for again when they may have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.rules import ANY, allow, deny
from headrace.broker.security.watches import STEP_WATCHES
from headrace.errors import NotAuthorized

Starting = Callable[..., Awaitable[Broker]]
READ, TOPIC = Operation.READ, Resource.TOPIC


async def test_a_right_goes(start_broker: Starting):
    broker = await start_broker(authorization="on")
    security = broker.security
    await security.grants.add_rules(OWN, [allow("ann", READ, TOPIC, "t"), allow("bob", READ, TOPIC, ANY)])
    ann, bob = Session(user="ann"), Session(user="bob")
    gone: list[str] = []
    watches = [
        security.watch(session, READ, TOPIC, name, lambda error, name=name: gone.append(error.name))  # type: ignore[misc]
        for session, name in ((ann, "t"), (bob, "t"), (bob, "u"), (bob, "v"))
    ]
    with pytest.raises(NotAuthorized):
        security.watch(ann, READ, TOPIC, "u", lambda error: None)
    watches[3].end()
    watches[3].end()
    await security.grants.add_rules(OWN, [deny("bob", READ, TOPIC, name) for name in "uv"])
    await until(lambda: gone == ["u"])
    await security.grants.remove_rules(OWN, [RuleFilter(name="t")])
    await until(lambda: gone == ["u", "t"])
    assert watches[0].is_over
    assert not watches[1].is_over
    # Only once.
    await security.grants.add_rules(OWN, [deny(ANY, READ, TOPIC, ANY)])
    await until(lambda: gone == ["u", "t", "t"])
    assert not security._watches._by_session


async def test_an_identity_goes(start_broker: Starting):
    broker = await start_broker(authorization="on")
    security = broker.security
    await security.accounts.create_user(OWN, "ann")
    await security.grants.add_rules(OWN, [allow("ann", READ, TOPIC, "t")])
    gone: list[int] = []
    now = broker.runtime.clock.now_ms()
    for number, identity in enumerate((Identity("ann", "jwt", expires_at=now + 30), Identity("ann", "password"))):
        session = Session()
        security.login(session, identity)
        security.watch(session, READ, TOPIC, "t", lambda error, number=number: gone.append(number))  # type: ignore[misc]
    await until(lambda: gone == [0])
    await security.accounts.delete_user(OWN, "ann")
    await until(lambda: gone == [0, 1])


async def test_many_are_asked_for_in_pieces(start_broker: Starting):
    security = (await start_broker(authorization="on")).security
    security.set_rules([allow(ANY, READ, TOPIC, "t")])
    gone: list[int] = []
    count = 3 * STEP_WATCHES
    watches = [
        security.watch(Session(user="ann"), READ, TOPIC, "t", lambda error: gone.append(1)) for _ in range(count)
    ]
    security.set_rules([])
    assert not gone
    # One that is ended before its turn is not called.
    watches[-1].end()
    most = 0
    while len(gone) < count - 1:
        before = len(gone)
        await asyncio.sleep(0)
        most = max(most, len(gone) - before)
    assert 0 < most <= STEP_WATCHES


async def test_a_session_with_many_rights_is_asked_for_in_pieces(start_broker: Starting):
    security = (await start_broker(authorization="on")).security
    security.set_rules([allow(ANY, READ, TOPIC, ANY)])
    gone: list[str] = []
    ann = Session(user="ann")
    for number in range(10_000):
        security.watch(ann, READ, TOPIC, f"t{number}", lambda error: gone.append(error.name))
    most = turns = 0
    await security.grants.add_rules(OWN, [deny("ann", READ, TOPIC, ANY)])
    while len(gone) < 10_000:
        before = len(gone)
        await asyncio.sleep(0)
        most, turns = max(most, len(gone) - before), turns + 1
    assert most <= STEP_WATCHES
    assert turns < 200
    assert not security._watches._by_session


async def test_a_change_while_rights_are_asked_for_is_not_missed(start_broker: Starting):
    security = (await start_broker(authorization="on")).security
    security.set_rules([allow(ANY, READ, TOPIC, ANY)])
    gone: list[str] = []
    users = [f"u{number}" for number in range(1_000)]
    for user in users:
        security.watch(Session(user=user), READ, TOPIC, user, lambda error: gone.append(error.name))
    security.set_rules([allow(ANY, READ, TOPIC, ANY), deny("u999", READ, TOPIC, ANY)])
    await asyncio.sleep(0)
    # Those that were asked for lose theirs now; one that had lost it gets no second chance.
    security.set_rules([allow(ANY, READ, TOPIC, ANY), deny("u0", READ, TOPIC, ANY), deny("u999", READ, TOPIC, ANY)])
    await until(lambda: sorted(gone) == ["u0", "u999"])


async def test_ten_thousand_users_in_one_change_are_one_pass(start_broker: Starting):
    """The work of a change is in proportion to what there is, and not to its product with who is named."""
    broker = await start_broker(authorization="on")
    security, calls = broker.security, []
    security.on_changed.append(calls.append)
    await security.grants.add_rules(OWN, [allow(f"u{number}", READ, TOPIC, "t") for number in range(10_000)])
    assert [len(each or ()) for each in calls] == [10_000]


async def test_nothing_is_watched_where_everything_is_allowed(broker: Broker):
    watch = broker.security.watch(Session(), READ, TOPIC, "t", lambda error: None)
    assert not broker.security._watches._by_session
    watch.end()
