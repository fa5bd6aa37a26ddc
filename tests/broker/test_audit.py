"""What is written to `__audit`, and what is not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.broker.queues.stage import consume
from tests.captured_logs import capture_logs
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.dynamic_config import Scope
from headrace.broker.publish import Message
from headrace.broker.reading import read
from headrace.broker.redrive import Order
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.roles import Grant
from headrace.broker.security.rules import allow
from headrace.errors import AuthenticationFailed, NotAuthorized, StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in

Starting = Callable[..., Awaitable[Broker]]
READ, WRITE, TOPIC = Operation.READ, Operation.WRITE, Resource.TOPIC


def session_of(user: str = "", **more: Any) -> Session:
    return Session(user=user, host="127.0.0.1", door="kafka", client_id="c", **more)


async def entries(broker: Broker) -> list[dict[str, Any]]:
    """What was written so far."""
    await broker.audit.flush()
    topic = broker.topics.get("__audit")
    if topic is None:
        return []
    partition = topic.partitions[0]
    await partition.load()
    await until(lambda: partition.high_watermark == partition.end)
    raw = await read(broker.runtime, partition, partition.start, 1 << 24) if partition.end else b""
    found = []
    for at, header in batches_in(raw):
        for _, _, key, value, _ in records.parse(raw[at : at + header.size], 1 << 24):
            entry = json.loads(value or b"")
            assert (key or b"").decode() == entry["user"]
            found.append(entry)
    return found


async def actions(broker: Broker) -> list[tuple[str, str, str, str]]:
    return [(each["user"], each["action"], each["name"], each["result"]) for each in await entries(broker)]


async def test_nothing_is_recorded_by_default(start_broker: Starting):
    for settings in ({}, {"audit": "off", "authorization": "on"}):
        broker = await start_broker(**settings)
        await broker.topics.create("t", 1, session=session_of("ann"))
        broker.security.allows(session_of("ann"), WRITE, TOPIC, "t")
        await broker.topics.delete("t")
        assert await entries(broker) == []


async def test_who_did_what(start_broker: Starting):
    broker = await start_broker(authorization="on", super_users="root")
    root = session_of("root")
    accounts, grants = broker.security.accounts, broker.security.grants
    await accounts.create_user(root, "ann", "my-password")
    await accounts.set_password(root, "ann", "my-password", keep_old_ms=5)
    token, text = await accounts.create_token(root, "ann", scope=["write:topic:t"])
    await accounts.revoke_token(root, token.id)
    await grants.add_rules(root, [allow("ann", WRITE, TOPIC, "t")])
    await grants.remove_rules(root, [RuleFilter()])
    await grants.grant_role(root, Grant("ann", "viewer"))
    await grants.revoke_role(root, Grant("ann", "viewer"))
    topic = await broker.topics.create("t", 1, {"lake": "", "retention.ms": "1000"}, session=root)
    await broker.topics.grow("t", 2, root)
    await broker.topics.alter_config("t", lambda old: {"retention.ms": "2000"}, root)
    queue = await broker.queues.ensure(topic, "q", session=root)
    await broker.queues.configure(queue, {"timeout_ms": 5_000}, root)
    await broker.queues.pause(queue, True, root)
    await broker.queues.empty(queue, root)
    await broker.queues.delete("t", "q", root)
    await broker.topics.delete("t", session=root)
    await broker.dynamic.alter(Scope.BROKER, "", lambda old: {"log.retention.ms": "5000"}, session=root)
    await accounts.delete_user(root, "ann")
    found = await entries(broker)
    assert [(each["action"], each["resource"], each["name"], each.get("detail", "")) for each in found] == [
        ("user.create", "user", "ann", ""),
        ("user.password", "user", "ann", "the old one stays valid for 5 ms"),
        ("token.create", "user", "ann", f"{token.id} write:topic:t"),
        ("token.revoke", "user", "ann", token.id),
        ("acl.grant", "topic", "t", "allow ann WRITE on topic t"),
        ("acl.revoke", "topic", "t", "allow ann WRITE on topic t"),
        ("role.grant", "user", "ann", "viewer"),
        ("role.revoke", "user", "ann", "viewer"),
        ("topic.create", "topic", "t", "1 partitions lake retention.ms"),
        ("topic.grow", "topic", "t", "from 1 to 2 partitions"),
        ("topic.alter", "topic", "t", "lake retention.ms"),
        ("queue.create", "queue", "t/q", ""),
        ("queue.alter", "queue", "t/q", "timeout_ms"),
        ("queue.pause", "queue", "t/q", ""),
        ("queue.empty", "queue", "t/q", ""),
        ("queue.delete", "queue", "t/q", ""),
        ("topic.delete", "topic", "t", ""),
        ("settings.alter", "cluster", "", "log.retention.ms"),
        ("user.delete", "user", "ann", ""),
    ]
    for each in found:
        assert (each["user"], each["host"], each["door"], each["client"]) == ("root", "127.0.0.1", "kafka", "c")
        assert each["result"] == "ok"
    assert "my-password" not in json.dumps(found)
    assert text not in json.dumps(found)
    # Its own topics are no one's doing.
    assert broker.topics.existing("__security")


async def test_logins_and_refusals(start_broker: Starting):
    broker = await start_broker(authorization="on", audit_reads=True)
    security = broker.security
    await security.accounts.create_user(OWN, "ann", "right")
    ann = session_of()
    with pytest.raises(AuthenticationFailed):
        await security.authenticator.password("ann", "wrong", ann)
    security.login(ann, await security.authenticator.password("ann", "right", ann))
    security.set_rules([allow("ann", READ, TOPIC, "t")])
    for _ in range(3):
        assert not security.allows(ann, WRITE, TOPIC, "t")
        assert security.allows(ann, READ, TOPIC, "t")
    with pytest.raises(NotAuthorized):
        await broker.publisher.publish(session_of(), "t", [Message(None, b"secret message", [])])
    found = await entries(broker)
    assert [(each["user"], each["action"], each["name"], each["result"], each.get("count", 1)) for each in found] == [
        ("", "user.create", "ann", "ok", 1),
        ("ann", "login", "", "failed", 1),
        ("ann", "login", "", "ok", 1),
        ("ann", "write", "t", "refused", 3),
        ("ann", "read", "t", "ok", 3),
        ("ANONYMOUS", "write", "t", "refused", 1),
    ]
    assert found[0]["door"] == "broker"
    assert found[1]["detail"].startswith("password: ")
    assert "secret" not in json.dumps(found)


async def test_what_would_be_refused(start_broker: Starting):
    broker = await start_broker(authorization="log-only")
    await broker.publisher.publish(session_of("ann"), "t", [Message(None, b"v", [])])
    assert await actions(broker) == [
        ("ann", "write", "t", "would be refused"),
        ("ann", "create", "t", "would be refused"),
        ("ann", "topic.create", "t", "ok"),
    ]


async def test_what_waits_is_bounded_and_refusals_hide_nothing(start_broker: Starting):
    broker = await start_broker(audit="on", audit_entries_max=10)
    audit = broker.audit
    for number in range(20):
        audit.record(session_of("eve"), "write", TOPIC, f"t{number}", "refused")
    assert (len(audit._waiting), audit.dropped) == (5, 15)
    for number in range(20):
        audit.record(session_of("eve"), "topic.delete", TOPIC, f"t{number}")
    assert (len(audit._waiting), audit.dropped) == (10, 30)
    # One that waits is counted up.
    audit.record(session_of("eve"), "topic.delete", TOPIC, "t0")
    assert audit.dropped == 30
    found = await entries(broker)
    assert len(found) == audit.written == 10
    assert [each["count"] for each in found if "count" in each] == [2]
    audit.record(session_of("eve"), "x" * 3, TOPIC, "n" * 5_000, detail="d" * 5_000)
    assert {len((await entries(broker))[-1][field]) for field in ("name", "detail")} == {512}


async def test_it_is_written_in_time_and_at_the_end(start_broker: Starting):
    broker = await start_broker(audit="on")
    broker.audit.record(session_of("ann"), "one")
    await until(lambda: broker.audit.written == 1)
    broker.audit.record(session_of("ann"), "two")
    broker = await start_broker(audit="on")
    assert [action for _, action, _, _ in await actions(broker)] == ["one", "two"]
    assert broker.topics.existing("__audit").config["retention.ms"] == str(30 * 24 * 3600 * 1000)


async def test_what_cannot_be_written_is_logged(start_broker: Starting, monkeypatch: pytest.MonkeyPatch):
    broker = await start_broker(audit="on")
    broker.audit.record(session_of("ann"), "one", TOPIC, "t")
    await broker.audit.flush()

    def refuse(*arguments: object) -> None:
        raise StorageFailed("the disk is full")

    partition = broker.topics.existing("__audit").partitions[0]
    monkeypatch.setattr(type(partition), "append", refuse)
    with capture_logs() as lines:
        broker.audit.record(session_of("ann"), "two", TOPIC, "t")
        await broker.audit.flush()
    shown = next(each for each in lines if each["event"] == "audit")
    assert {key: shown[key] for key in ("user", "action", "name", "result")} == {
        **{"user": "ann", "action": "two", "name": "t"},
        "result": "ok",
    }
    assert broker.audit.dropped == 1


async def test_a_node_that_follows_logs_alone(start_broker: Starting):
    leader = await start_broker(authorization="on")
    follower = Broker(leader.runtime, leader.log, leader.config)
    with capture_logs() as lines:
        follower.security.allows(session_of("ann"), READ, TOPIC, "t")
        await follower.audit.flush()
    assert [each["action"] for each in lines if each["event"] == "audit"] == ["read"]
    assert "__audit" not in leader.topics.all


async def test_redrive_is_recorded(start_broker: Starting):
    broker = await start_broker(audit="on")
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q", session=session_of("ann"))
    await broker.publisher.publish(OWN, "t", [Message(None, b"v", [])])
    keeper = consume(queue, session=session_of("ann"))
    await until(lambda: keeper.values == [b"v"])
    keeper.requeue(b"v", delay_ms=-1)
    await until(lambda: queue.figures().dead == 1)
    await broker.redrive.step(Order(topic=queue.dead_letter_topic), session_of("ann"))
    found = [each for each in await entries(broker) if each["action"] == "redrive"]
    assert [(each["user"], each["name"], each["detail"]) for each in found] == [("ann", "t.q.dead", "1 messages")]


async def test_a_subscription_ends_with_its_right(start_broker: Starting):
    broker = await start_broker(authorization="on")
    security = broker.security
    topic = await broker.topics.create("t", 1)
    queue = await broker.queues.ensure(topic, "q")
    ann = session_of()
    security.login(ann, Identity("ann", "password"))
    read_queue = allow("ann", READ, Resource.QUEUE, "t/q")
    for rules in ([], [allow("ann", READ, TOPIC, "t")], [read_queue]):
        security.set_rules(rules)
        with pytest.raises(NotAuthorized):
            consume(queue, session=ann)
    assert not queue.consumers
    security.set_rules([allow("ann", READ, TOPIC, "t"), read_queue])
    consume(queue, session=ann).consumer.close()
    keeper = consume(queue, session=ann)
    await broker.publisher.publish(OWN, "t", [Message(None, b"v", [])])
    await until(lambda: keeper.values == [b"v"])
    security.set_rules([read_queue])
    await until(lambda: keeper.ended)
    assert "takes the right READ on the topic 't'" in (keeper.ended or "")
    assert keeper.consumer.closed
    assert not queue.consumers
    assert not security._watches._by_session
    # What it had is another's now.
    assert queue.figures().in_flight == 0
    security.set_rules([allow("ann", READ, TOPIC, "t"), read_queue])
    again = consume(queue, session=ann)
    await until(lambda: again.values == [b"v"])
    await broker.queues.delete("t", "q")
    assert again.ended == "the queue q of t was deleted"
    assert not security._watches._by_session
