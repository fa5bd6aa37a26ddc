"""Who may do what through RocketMQ's remoting protocol: signatures, and what each request takes."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import MagicMock

import pytest
from tests.doors.rocketmq.client import Raw
from tests.rights_model import allows, rules_by_chance
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.publish import Message
from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Inside, Open
from headrace.broker.security.rules import ANY, allow
from headrace.config import Config
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.gate import signed_bytes
from headrace.doors.rocketmq.namesrv import handlers as namesrv_handlers
from headrace.doors.rocketmq.remoting import handlers as broker_handlers
from headrace.doors.rocketmq.rights import BROKER, NAME_SERVER
from headrace.server import Server

READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
T = TypeVar("T")


class Signed(Raw):
    """A client that signs what it asks, as RocketMQ's do."""

    def __init__(self, address: str, access_key: str, secret: str) -> None:
        super().__init__(address)
        self._keys = access_key, secret

    def send(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", flag: int = 0) -> int:
        access_key, secret = self._keys
        signed = {**(fields or {}), "AccessKey": access_key}
        digest = hmac.digest(secret.encode(), signed_bytes(signed, body), "sha1")
        return super().send(code, {**signed, "Signature": b64encode(digest).decode()}, body, flag)


class Stage:
    """A broker whose RocketMQ doors are open, and its users."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.keys: dict[str, tuple[str, str]] = {}
        self.raws: list[Raw] = []

    @property
    def broker(self) -> Broker:
        return self.server.broker

    async def user(self, name: str, **more: Any) -> tuple[str, str]:
        """Access key and secret of a user."""
        accounts = self.broker.security.accounts
        if name not in self.keys:
            await accounts.create_user(OWN, name)
        token, text = await accounts.create_token(OWN, name, signing=True, **more)
        self.keys[name] = token.id, text.rpartition("_")[2]
        return self.keys[name]

    def client(self, name: str = "", door: str = "rocketmq") -> Raw:
        address = self.server.addresses[door]
        raw = Signed(address, *self.keys[name]) if name else Raw(address)
        self.raws.append(raw)
        return raw

    async def do(self, call: Callable[..., T], *given: Any, **more: Any) -> T:
        """A client's call, which blocks."""
        return await asyncio.to_thread(call, *given, **more)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Stage] = []

    async def start(**settings: Any) -> Stage:
        off = dict.fromkeys(("kafka", "http", "nsq", "nsq_http", "lookup", "lookup_http", "rocketmq_grpc"), "off")
        config = {"rocketmq": "127.0.0.1:0", "rocketmq_namesrv": "127.0.0.1:0", "durability": "async"}
        server = Server(Config(data=str(tmp_path), **{**off, **config, "authentication_delay_max_ms": 0, **settings}))
        await server.start()
        made.append(Stage(server))
        return made[-1]

    yield start
    for each in made:
        for raw in each.raws:
            raw.close()
        await each.server.stop()


async def test_every_request_declares_its_rights():
    assert set(broker_handlers.of(MagicMock())) == set(BROKER)
    assert set(namesrv_handlers.of(MagicMock())) == set(NAME_SERVER)
    for declaration in (*BROKER.values(), *NAME_SERVER.values()):
        assert isinstance(declaration, (tuple, Open, Inside))
        for each in declaration if isinstance(declaration, tuple) else ():
            assert each.operation in OPERATIONS[each.resource], each


async def test_a_signature_shows_who_asks(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    stage.broker.security.set_rules([allow("ann", WRITE, TOPIC, "t")])
    assert (await stage.do(stage.client("ann").sent, "t", b"x")).code == Code.SUCCESS
    refused = await stage.do(stage.client().sent, "t", b"x")
    assert (refused.code, "right WRITE on the topic 't'" in (refused.remark or "")) == (Code.NO_PERMISSION, True)


async def test_wrong_signatures(start: Callable[..., Any]):
    stage = await start()
    access_key, secret = await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    address = stage.server.addresses["rocketmq"]
    told = set()
    for key, word in ((access_key, "wrong"), ("nobody", secret), ("", ""), (access_key, "")):
        raw = Signed(address, key, word)
        answer = await stage.do(raw.sent, "t", b"x")
        assert answer.code == Code.NO_PERMISSION
        told.add(answer.remark)
        raw.close()
    assert len(told) == 1, "an unknown key and a wrong secret are told alike"
    # What was signed is the whole request: fields and body.
    raw = stage.client()
    fields = {"topic": "t", "queueId": "0", "AccessKey": access_key}
    digest = hmac.digest(secret.encode(), signed_bytes(fields, b""), "sha1")
    fields["Signature"] = b64encode(digest).decode()
    assert (await stage.do(raw.ask, Request.GET_MAX_OFFSET, fields)).code == Code.SUCCESS
    assert (await stage.do(raw.ask, Request.GET_MAX_OFFSET, {**fields, "queueId": "1"})).code == Code.NO_PERMISSION
    assert (await stage.do(raw.ask, Request.GET_MAX_OFFSET, fields, b"more")).code == Code.NO_PERMISSION
    for forged in ("", "!!!", "QUJD"):
        answer = await stage.do(raw.ask, Request.GET_MAX_OFFSET, {**fields, "Signature": forged})
        assert answer.code == Code.NO_PERMISSION


async def test_a_connection_that_has_signed_goes_on_to(start: Callable[..., Any]):
    """What others put into it is not signed."""
    stage = await start()
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    raw = stage.client("ann")
    assert (await stage.do(raw.sent, "t", b"x")).code == Code.SUCCESS
    unsigned = await stage.do(lambda: raw.answer(Raw.send(raw, Request.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})))
    assert unsigned.code == Code.NO_PERMISSION
    # The way of nearly all sends is none around it.
    raw.send = lambda *given, **more: Raw.send(raw, *given, **more)  # type: ignore[method-assign]
    assert (await stage.do(raw.sent, "t", b"x")).code == Code.NO_PERMISSION


async def test_signatures_can_be_required(start: Callable[..., Any]):
    stage = await start(rocketmq_authentication="required")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    for door, code, fields in (
        ("rocketmq", Request.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"}),
        ("rocketmq-namesrv", Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"}),
    ):
        assert (await stage.do(stage.client("", door).ask, code, fields)).code == Code.NO_PERMISSION
        assert (await stage.do(stage.client("ann", door).ask, code, fields)).code == Code.SUCCESS
    assert (await stage.do(stage.client().sent, "t", b"x")).code == Code.NO_PERMISSION


async def test_rights_against_a_plain_model(start: Callable[..., Any]):
    """Requests that name a topic or a group in their fields, under rules by chance: refused is exactly what the model
    refuses."""
    stage = await start(authorization="on", auto_create_topics=False)
    users, topics, groups = ("ann", "bob"), ("a", "ab"), ("g", "gh")
    for user in users:
        await stage.user(user)
    for topic in topics:
        await stage.broker.topics.create(topic, 1)
    resources = {TOPIC: "{topic}", GROUP: "{group}", CLUSTER: CLUSTER_NAME}
    needed: dict[tuple[str, int], list[tuple[Operation, Resource, str]]] = {}
    for door, table in (("rocketmq", BROKER), ("rocketmq-namesrv", NAME_SERVER)):
        for code, declaration in table.items():
            if isinstance(declaration, tuple):
                needed[door, code] = [(each.operation, each.resource, resources[each.resource]) for each in declaration]
    asked = [
        (operation, resource, name.format(topic=topic, group=group))
        for rights in needed.values()
        for operation, resource, name in rights
        for topic in topics
        for group in groups
    ]
    # A broker that is asked to change something for which there is no right would make other outcomes of it.
    left_out = {Request.DELETE_TOPIC_IN_BROKER, Request.WIPE_WRITE_PERM_OF_BROKER, Request.REGISTER_BROKER}
    outcomes = {True: 0, False: 0}
    for seed in range(4):
        rules = rules_by_chance(seed, users, sorted(set(asked)), 14)
        stage.broker.security.set_rules(rules)
        for user in users:
            clients = {door: stage.client(user, door) for door in ("rocketmq", "rocketmq-namesrv")}
            for (door, code), rights in needed.items():
                if code in left_out:
                    continue
                for topic, group in zip(topics, groups, strict=True):
                    fields = {"topic": topic, "b": topic, "queueId": "0", "key": "k"}
                    fields |= dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "destGroup"), group)
                    expected = all(
                        allows(rules, user, operation, resource, name.format(topic=topic, group=group))
                        for operation, resource, name in rights
                    )
                    answer = await stage.do(clients[door].ask, code, fields)
                    refused = answer.code == Code.NO_PERMISSION and "not authorized" in (answer.remark or "")
                    assert refused is not expected, (Request(code).name, user, fields, answer, list(map(str, rules)))
                    outcomes[expected] += 1
    assert min(outcomes.values()) > 20


async def test_a_revoked_right_ends_a_pull_that_waits(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    security = stage.broker.security
    for left in (allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "readers")):
        security.set_rules([allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "readers")])
        raw = stage.client("ann")
        opaque = await stage.do(raw.pull, "t", wait_ms=30_000)
        await until(lambda: len(security._watches._by_session) == 1)
        answering = asyncio.ensure_future(stage.do(raw.answer, opaque))
        security.set_rules([left])
        # Either is the end of it.
        with suppress(ConnectionError):
            assert (await asyncio.wait_for(answering, 10)).code == Code.PULL_NOT_FOUND
        with pytest.raises(ConnectionError):
            await stage.do(raw.receive)
        await until(lambda: not security._watches._by_session)
        again = stage.client("ann")
        assert (await stage.do(again.pulled, "t"))[0].code == Code.NO_PERMISSION
        again.close()
        await until(lambda: not security._watches._by_session)


async def test_a_revoked_token_ends_its_connections(start: Callable[..., Any]):
    stage = await start()
    access_key, _ = await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    raw = stage.client("ann")
    opaque = await stage.do(raw.pull, "t", wait_ms=30_000)
    await until(lambda: any(each.user == "ann" for each in stage.broker.security._sessions))
    answering = asyncio.ensure_future(stage.do(raw.answer, opaque))
    await stage.broker.security.accounts.revoke_token(OWN, access_key)
    with suppress(ConnectionError):
        assert (await asyncio.wait_for(answering, 10)).code == Code.PULL_NOT_FOUND
    with pytest.raises(ConnectionError):
        await stage.do(raw.receive)
    assert (await stage.do(stage.client("ann").sent, "t", b"x")).code == Code.NO_PERMISSION


async def test_a_heartbeat_joins_what_may_be_read(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    both = [allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "g")]
    groups = {"g": {"t": "*", "%RETRY%g": "*"}}
    for rules in ([], both[:1], both[1:]):
        stage.broker.security.set_rules(rules)
        assert (await stage.do(stage.client("ann").heartbeat, "me", groups)).code == Code.NO_PERMISSION
    stage.broker.security.set_rules(both)
    assert (await stage.do(stage.client("ann").heartbeat, "me", groups)).code == Code.SUCCESS


async def test_what_is_sent_back_takes_the_group_alone(start: Callable[..., Any]):
    """A consumer may not write, and still have messages again."""
    stage = await start(authorization="on", rocketmq_delay_levels="0s 0s 0s")
    await stage.user("ann")
    topic = await stage.broker.topics.create("t", 1)
    await stage.broker.publisher.publish(OWN, topic.name, [Message(None, b"x", [])])
    stage.broker.security.set_rules([allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "readers")])
    raw = stage.client("ann")
    _, (message,) = await stage.do(raw.pulled, "t")
    fields = {"offset": message.physical_offset, "group": "readers", "delayLevel": 0, "originMsgId": ""}
    assert (await stage.do(raw.ask, Request.CONSUMER_SEND_MSG_BACK, fields)).code == Code.SUCCESS
    _, again = await stage.do(raw.pulled, "%RETRY%readers", wait_ms=20_000)
    assert [each.body for each in again] == [b"x"]
    # The group of others is not for it, nor are messages of other topics by their place.
    assert (await stage.do(raw.pulled, "%RETRY%others"))[0].code == Code.NO_PERMISSION
    stage.broker.security.set_rules([allow("ann", READ, GROUP, "readers")])
    other = await stage.do(stage.client("ann").ask, Request.VIEW_MESSAGE_BY_ID, {"offset": message.physical_offset})
    missing = await stage.do(stage.client("ann").ask, Request.VIEW_MESSAGE_BY_ID, {"offset": 1 << 50})
    assert other.code == missing.code == Code.SYSTEM_ERROR


async def test_a_transaction_is_ended_by_who_may_write(start: Callable[..., Any]):
    stage = await start(authorization="on")
    for name in ("ann", "bob"):
        await stage.user(name)
    await stage.broker.topics.create("t", 1)
    stage.broker.security.set_rules([allow("ann", WRITE, TOPIC, "t")])
    sent = await stage.do(stage.client("ann").sent, "t", b"x", properties={"TRAN_MSG": "true", "PGROUP": "producers"})
    assert sent.code == Code.SUCCESS
    fields = {
        "producerGroup": "producers",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": int(sent.fields["msgId"][-16:], 16),
        "commitOrRollback": 8,
    }
    assert (await stage.do(stage.client("bob").ask, Request.END_TRANSACTION, fields)).code == Code.NO_PERMISSION
    assert (await stage.do(stage.client("ann").ask, Request.END_TRANSACTION, fields)).code == Code.SUCCESS


async def test_topics_are_made_and_changed_by_who_may(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    security = stage.broker.security
    security.set_rules([allow("ann", WRITE, TOPIC, ANY)])
    refused = await stage.do(stage.client("ann").sent, "made", b"x")
    assert (refused.code, "CREATE" in (refused.remark or "")) == (Code.NO_PERMISSION, True)
    update = {"topic": "made", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102"}
    assert (await stage.do(stage.client("ann").ask, Request.UPDATE_AND_CREATE_TOPIC, update)).code == Code.NO_PERMISSION
    security.set_rules([allow("ann", WRITE, TOPIC, ANY), allow("ann", CREATE, TOPIC, "made")])
    assert (await stage.do(stage.client("ann").sent, "made", b"x")).code == Code.SUCCESS
    assert (await stage.do(stage.client("ann").ask, Request.UPDATE_AND_CREATE_TOPIC, update)).code == Code.NO_PERMISSION
    change = [Operation.ALTER, Operation.ALTER_CONFIGS]
    security.set_rules([allow("ann", each, TOPIC, "made") for each in change])
    assert (await stage.do(stage.client("ann").ask, Request.UPDATE_AND_CREATE_TOPIC, update)).code == Code.SUCCESS


async def test_bodies_that_name_groups(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    may = [allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "g")]
    configs = allow("ann", Operation.ALTER_CONFIGS, GROUP, "g")
    queue = {"topic": "t", "brokerName": "headrace", "queueId": 0}
    asked = {"topic": "t", "consumerGroup": "g", "clientId": "me"}
    for code, body, rules in (
        (Request.LOCK_BATCH_MQ, {**asked, "mqSet": [queue]}, may[1:]),
        (Request.UNLOCK_BATCH_MQ, {**asked, "mqSet": [queue]}, may[1:]),
        (Request.QUERY_ASSIGNMENT, asked, may),
        (Request.SET_MESSAGE_REQUEST_MODE, {**asked, "mode": "POP", "popShareQueueNum": 0}, [configs]),
        (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}, [configs]),
        (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [{"groupName": "g"}]}, [configs]),
    ):
        raw = stage.client("ann")
        for left_out in rules:
            stage.broker.security.set_rules([each for each in rules if each is not left_out])
            answer = await stage.do(raw.ask, code, {}, json.dumps(body).encode())
            assert answer.code == Code.NO_PERMISSION, Request(code).name
        stage.broker.security.set_rules(rules)
        answer = await stage.do(raw.ask, code, {}, json.dumps(body).encode())
        assert answer.code == Code.SUCCESS, (Request(code).name, answer)


async def test_lists_of_topics_leave_out_the_others(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    for name in ("mine", "other"):
        await stage.broker.topics.create(name, 1)
    stage.broker.security.set_rules([allow("ann", DESCRIBE, TOPIC, "mine")])
    raw = stage.client("ann", "rocketmq-namesrv")
    listed = await stage.do(raw.json, Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert listed["topicList"] == ["mine"]
