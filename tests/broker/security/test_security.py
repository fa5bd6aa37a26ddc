"""What a broker with rights allows, in its three modes, and how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.publish import Message
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.identity import Scope
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS
from headrace.broker.security.rules import ANY, allow, deny
from headrace.errors import NotAuthorized

Starting = Callable[..., Awaitable[Broker]]
MESSAGE = [Message(None, b"v", [])]
WRITE, READ, DESCRIBE, CREATE = Operation.WRITE, Operation.READ, Operation.DESCRIBE, Operation.CREATE
TOPIC = Resource.TOPIC


def session_of(user: str, **more: Any) -> Session:
    return Session(user=user, host="127.0.0.1", **more)


async def test_everything_is_allowed_by_default(broker: Broker):
    security = broker.security
    assert not security.is_enforced
    assert security.allows(Session(), Operation.DELETE, TOPIC, "t")
    assert security.visible(Session(), TOPIC, ["a", "b"]) == ["a", "b"]
    assert security.operations(Session(), TOPIC, "a") == OPERATIONS[TOPIC]
    assert security.allows_some(Session(), WRITE, TOPIC)
    await broker.publisher.publish(Session(), "t", MESSAGE)


async def test_users_and_rules_are_for_no_client_whatever_the_mode(start_broker: Starting):
    for mode in ("off", "log-only", "on"):
        security = (await start_broker(authorization=mode, super_users="root")).security
        for session in (Session(), session_of("root")):
            assert not security.allows(session, READ, TOPIC, "__security")
            assert "__security" not in security.visible(session, TOPIC, ["__security"])
        assert security.allows(OWN, READ, TOPIC, "__security")


async def test_what_no_rule_allows_is_denied(start_broker: Starting):
    broker = await start_broker(authorization="on", super_users="User:root; admin")
    security = broker.security
    await broker.topics.create("t", 1)
    ann = session_of("ann")
    with pytest.raises(NotAuthorized, match="takes the right WRITE on the topic 't'"):
        await broker.publisher.publish(ann, "t", MESSAGE)
    assert security.visible(ann, TOPIC, ["t"]) == []
    assert security.operations(ann, TOPIC, "t") == frozenset()
    assert security.refused == {(WRITE, TOPIC): 1}
    for name in ("root", "admin"):
        await broker.publisher.publish(session_of(name), "t", MESSAGE)
    security.set_rules([allow("ann", WRITE, TOPIC, "t")])
    await broker.publisher.publish(ann, "t", MESSAGE)
    assert security.visible(ann, TOPIC, ["t", "u"]) == ["t"]
    assert security.operations(ann, TOPIC, "t") == {WRITE, DESCRIBE}
    assert security.allows_some(ann, WRITE, TOPIC)
    assert not security.allows_some(ann, READ, TOPIC)
    # Nobody in particular is a user of their own.
    security.set_rules([allow("ANONYMOUS", WRITE, TOPIC, "t")])
    await broker.publisher.publish(Session(), "t", MESSAGE)
    with pytest.raises(NotAuthorized):
        await broker.publisher.publish(ann, "t", MESSAGE)


async def test_a_topic_is_made_by_those_who_may(start_broker: Starting):
    broker = await start_broker(authorization="on")
    ann = session_of("ann")
    security = broker.security
    with pytest.raises(NotAuthorized, match="WRITE"):
        await broker.publisher.publish(ann, "t", MESSAGE)
    security.set_rules([allow("ann", WRITE, TOPIC, ANY)])
    with pytest.raises(NotAuthorized, match="CREATE"):
        await broker.publisher.publish(ann, "t", MESSAGE)
    assert not broker.topics.all
    for resource, name in ((TOPIC, "t"), (Resource.CLUSTER, CLUSTER_NAME)):
        security.set_rules([allow("ann", WRITE, TOPIC, ANY), allow("ann", CREATE, resource, name)])
        await broker.publisher.publish(ann, "t", MESSAGE)
        await broker.topics.delete("t")


async def test_log_only_reports_and_allows(start_broker: Starting):
    broker = await start_broker(authorization="log-only")
    security = broker.security
    ann = session_of("ann")
    await broker.publisher.publish(ann, "t", MESSAGE)
    assert security.refused == {(WRITE, TOPIC): 2, (CREATE, TOPIC): 1}
    # One admission, and so one report, however many messages.
    await broker.publisher.publish(ann, "t", MESSAGE)
    assert security.refused[WRITE, TOPIC] == 2
    assert security.visible(ann, TOPIC, ["t"]) == ["t"]
    assert security.operations(ann, TOPIC, "t") == OPERATIONS[TOPIC]
    assert security.allows_some(ann, WRITE, TOPIC)


async def test_a_change_of_rights_ends_admissions_of_that_user(start_broker: Starting):
    broker = await start_broker(authorization="on")
    rules = [allow(user, WRITE, TOPIC, "t") for user in ("ann", "bob")]
    broker.security.set_rules(rules)
    topic = await broker.topics.create("t", 1)
    admissions = {user: broker.publisher.admit(session_of(user), topic) for user in ("ann", "bob")}
    broker.security.set_rules(rules[1:], {"ann"})
    assert not admissions["ann"].valid
    assert admissions["bob"].valid
    with pytest.raises(NotAuthorized):
        broker.publisher.admit(session_of("ann"), topic)
    broker.security.set_rules(rules)
    assert not admissions["bob"].valid
    assert broker.publisher.admit(session_of("ann"), topic).valid


async def test_rules_about_an_address_part_the_admissions_of_one_user(start_broker: Starting):
    broker = await start_broker(authorization="on")
    topic = await broker.topics.create("t", 1)
    here, there = session_of("ann"), Session(user="ann", host="10.0.0.1")
    broker.security.set_rules([allow("ann", WRITE, TOPIC, "t")])
    assert broker.publisher.admit(here, topic) is broker.publisher.admit(there, topic)
    broker.security.set_rules([allow("ann", WRITE, TOPIC, "t"), deny("ann", WRITE, TOPIC, "t", host="10.0.0.1")])
    assert broker.publisher.admit(here, topic).valid
    with pytest.raises(NotAuthorized):
        broker.publisher.admit(there, topic)


async def test_the_brokers_own_admissions_are_not_for_anonymous_clients(start_broker: Starting):
    broker = await start_broker(authorization="on")
    topic = await broker.topics.create("t", 1)
    assert broker.publisher.admit(OWN, topic).valid
    with pytest.raises(NotAuthorized):
        broker.publisher.admit(Session(), topic)


async def test_a_scope_narrows_what_a_user_may(start_broker: Starting):
    broker = await start_broker(authorization="on", super_users="root")
    security = broker.security
    security.set_rules([allow("ann", WRITE, TOPIC, "t"), allow("ann", WRITE, TOPIC, "u")])
    scope = Scope([allow(ANY, WRITE, TOPIC, "t"), allow(ANY, READ, TOPIC, ANY)])
    for user in ("ann", "root"):
        session = Session(host="127.0.0.1")
        security.login(session, Identity(user, "token", scope=scope))
        assert security.allows(session, WRITE, TOPIC, "t")
        assert not security.allows(session, WRITE, TOPIC, "u")
        assert security.allows(session, READ, TOPIC, "t") == (user == "root")
        assert security.allows_some(session, WRITE, TOPIC)
        assert not security.allows_some(session, CREATE, TOPIC)
        topic = broker.topics.get("u") or await broker.topics.create("u", 1)
        assert broker.publisher.admit(session_of(user), topic).valid
        with pytest.raises(NotAuthorized):
            broker.publisher.admit(session, topic)


async def test_an_identity_ends_when_it_expires(start_broker: Starting):
    broker = await start_broker(authorization="on")
    security = broker.security
    topic = await broker.topics.create("t", 1)
    security.set_rules([allow("ann", WRITE, TOPIC, "t")])
    ended: list[str] = []
    session = Session()
    session.on_ended = ended.append
    now = broker.runtime.clock.now_ms()
    security.login(session, Identity("ann", "jwt", expires_at=now + 100_000))
    # The same client once more, for a shorter while.
    security.login(session, Identity("ann", "jwt", expires_at=now + 30))
    admission = broker.publisher.admit(session, topic)
    await until(lambda: bool(ended))
    assert ended == ["the authentication has expired"]
    assert not admission.valid
    assert (session.user, session.identity) == ("", None)
    assert not security._expiring


async def test_the_sessions_of_a_user_or_a_token_are_ended(broker: Broker):
    security = broker.security
    ended: list[int] = []
    sessions = [Session(number) for number in range(3)]
    for session in sessions:
        session.on_ended = lambda reason, session=session: ended.append(session.number)  # type: ignore[misc]
    security.login(sessions[0], Identity("ann", "token", token_id="one"))
    security.login(sessions[1], Identity("ann", "token", token_id="two"))
    security.login(sessions[2], Identity("bob", "password"))
    security.end_user("ann", "its token was revoked", token_id="two")
    assert ended == [1]
    security.logout(sessions[2])
    security.end_user("ann", "the user was deleted")
    security.end_user("bob", "the user was deleted")
    assert ended == [1, 0]


async def test_decisions_are_bounded(start_broker: Starting):
    security = (await start_broker(authorization="on", authorization_cache_max=10)).security
    for number in range(25):
        assert not security.allows(session_of("ann"), READ, TOPIC, f"t{number}")
        assert len(security._decisions) <= 10
