"""Who may do what over gRPC: signatures, what each method takes, and what ends when a right goes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.doors.rocketmq.grpc.client import RawGrpc, message
from tests.doors.rocketmq.test_rights import Stage
from tests.rights_model import allows, rules_by_chance
from tests.waiting import until

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.rights import OPERATIONS, Inside, Open
from headrace.broker.security.rules import ANY, allow
from headrace.config import Config
from headrace.doors.rocketmq.grpc.handlers import Handlers
from headrace.doors.rocketmq.grpc.protocol import Code, definition
from headrace.doors.rocketmq.grpc.rights import METHODS
from headrace.server import Server

READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
DATE = "20260101T000000Z"


def signed(client: RawGrpc, access_key: str, secret: str) -> RawGrpc:
    """The client, which signs its calls from now on."""
    signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest().upper()
    authorization = f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    client.metadata = (*client.metadata, ("x-mq-date-time", DATE), ("authorization", authorization))
    return client


class GrpcStage(Stage):
    """A broker whose gRPC door is open."""

    def grpc(self, name: str = "") -> RawGrpc:
        client = RawGrpc(self.server.addresses["rocketmq-grpc"])
        return signed(client, *self.keys[name]) if name else client


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[GrpcStage] = []

    async def start(**settings: Any) -> GrpcStage:
        off = ("kafka", "http", "nsq", "nsq_http", "lookup", "lookup_http", "rocketmq_namesrv")
        config = {"rocketmq": "127.0.0.1:0", "rocketmq_grpc": "127.0.0.1:0", "durability": "async"}
        config |= {"authentication_delay_max_ms": 0, **dict.fromkeys(off, "off"), **settings}
        server = Server(Config(data=str(tmp_path), **config))
        await server.start()
        made.append(GrpcStage(server))
        return made[-1]

    yield start
    for each in made:
        await each.server.stop()


async def test_every_method_declares_its_rights():
    context = MagicMock()
    context.settings.rocketmq_delay_levels = "1s"
    made = Handlers(context, MagicMock(), MagicMock(), MagicMock(), MagicMock())
    assert set(METHODS) == {*made.unary, *made.streaming, "Telemetry"}
    for declaration in METHODS.values():
        assert isinstance(declaration, (tuple, Open, Inside))
        for each in declaration if isinstance(declaration, tuple) else ():
            assert each.operation in OPERATIONS[each.resource], each


async def test_rights_against_a_plain_model(start: Callable[..., Any]):
    stage = await start(authorization="on", auto_create_topics=False)
    users, topics, group = ("ann", "bob"), ("a", "ab"), "g"
    for user in users:
        await stage.user(user)
    for topic in topics:
        await stage.broker.topics.create(topic, 1)
    asked = [(each, TOPIC, topic) for topic in topics for each in (READ, WRITE, DESCRIBE)] + [(READ, GROUP, group)]
    resource, of_group = definition.Resource, definition.Resource(name=group)
    outcomes = {True: 0, False: 0}
    for seed in range(8):
        rules = rules_by_chance(seed, users, asked, 8)
        stage.broker.security.set_rules(rules)
        for user in users:
            with stage.grpc(user) as client:
                for topic in topics:
                    named = resource(name=topic)
                    read = [(READ, TOPIC, topic), (READ, GROUP, group)]
                    for method, fields, rights in (
                        ("QueryRoute", {"topic": named}, [(DESCRIBE, TOPIC, topic)]),
                        ("QueryAssignment", {"topic": named, "group": of_group}, read),
                        ("SendMessage", {"messages": [message(topic, b"x")]}, [(WRITE, TOPIC, topic)]),
                        ("RecallMessage", {"topic": named, "recall_handle": "x"}, [(WRITE, TOPIC, topic)]),
                        ("EndTransaction", {"topic": named, "transaction_id": "x"}, [(WRITE, TOPIC, topic)]),
                        ("AckMessage", {"topic": named, "group": of_group}, read),
                        ("ChangeInvisibleDuration", {"topic": named, "group": of_group}, read),
                        ("ForwardMessageToDeadLetterQueue", {"topic": named, "group": of_group}, read),
                    ):
                        expected = all(allows(rules, user, *each) for each in rights)
                        answer = await stage.do(client.ask, method, **fields)
                        refused = answer.status.code == Code.FORBIDDEN
                        assert refused is not expected, (method, user, topic, answer, list(map(str, rules)))
                        outcomes[expected] += 1
    assert min(outcomes.values()) > 20


async def test_wrong_signatures(start: Callable[..., Any]):
    stage = await start()
    access_key, secret = await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    told = set()
    topic = definition.Resource(name="t")
    for key, word in ((access_key, "wrong"), ("nobody", secret), (access_key + "/region", "")):
        with signed(RawGrpc(stage.server.addresses["rocketmq-grpc"]), key, word) as client:
            answer = await stage.do(client.ask, "QueryRoute", topic=topic)
            assert answer.status.code == Code.UNAUTHORIZED
            told.add(answer.status.message)
    assert len(told) == 1
    for text in ("MQv2-HMAC-SHA1 Credential=x, Signature=zz", "Basic x", "MQv2-HMAC-SHA1 " + "x" * 5_000, "MQv2"):
        with RawGrpc(stage.server.addresses["rocketmq-grpc"]) as client:
            client.metadata = (*client.metadata, ("authorization", text))
            answer = await stage.do(client.ask, "QueryRoute", topic=topic)
            assert answer.status.code in (Code.UNAUTHORIZED, Code.OK)
    with signed(RawGrpc(stage.server.addresses["rocketmq-grpc"]), access_key + "/region", secret) as client:
        assert (await stage.do(client.ask, "QueryRoute", topic=topic)).status.code == Code.OK


async def test_signatures_can_be_required(start: Callable[..., Any]):
    stage = await start(rocketmq_authentication="required")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    topic = definition.Resource(name="t")
    with stage.grpc() as stranger, stage.grpc("ann") as ann:
        assert (await stage.do(stranger.ask, "QueryRoute", topic=topic)).status.code == Code.UNAUTHORIZED
        assert (await stage.do(ann.ask, "QueryRoute", topic=topic)).status.code == Code.OK


async def test_a_revoked_right_ends_a_receive_that_waits(start: Callable[..., Any]):
    stage = await start(authorization="on")
    await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    security = stage.broker.security
    every = [allow("ann", READ, TOPIC, "t"), allow("ann", READ, GROUP, "g")]
    for left in every:
        security.set_rules(every)
        with stage.grpc("ann") as client:
            stream = await stage.do(client.be_consumer, "g", "t")
            queue = definition.MessageQueue(topic=definition.Resource(name="t"), id=-1)
            fields = {"group": definition.Resource(name="g"), "message_queue": queue, "batch_size": 1}
            receiving = asyncio.ensure_future(stage.do(client.stream, "ReceiveMessage", **fields, auto_renew=True))
            await until(lambda: bool(security._watches._by_session))
            security.set_rules([left])
            answers = await asyncio.wait_for(receiving, 15)
            assert answers[-1].status.code == Code.FORBIDDEN
            await stage.do(stream.close)


async def test_the_python_client_with_credentials(start: Callable[..., Any], rocketmq: ModuleType):
    stage = await start(authorization="on")
    access_key, secret = await stage.user("ann")
    await stage.broker.topics.create("t", 1)
    stage.broker.security.set_rules([allow("ann", each, TOPIC, ANY) for each in (WRITE, READ)])

    def send(secret: str) -> str:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        credentials = rocketmq.Credentials(access_key, secret)
        address = stage.server.addresses["rocketmq-grpc"]
        producer = rocketmq.Producer(rocketmq.ClientConfiguration(address, credentials, request_timeout=10), ("t",))
        try:
            producer.startup()
            sent = rocketmq.Message()
            sent.topic, sent.body = "t", b"signed"
            return str(producer.send(sent).message_id)
        except Exception as error:
            return repr(error)
        finally:
            producer.shutdown()
            asyncio.set_event_loop(None)
            loop.close()

    assert "Exception" not in await stage.do(send, secret)
    topic = stage.broker.topics.existing("t")
    await until(lambda: topic.partitions[0].high_watermark == 1)
    assert "Exception" in await stage.do(send, "wrong")
    assert topic.partitions[0].end == 1


async def test_a_transaction_is_ended_by_who_may_write(start: Callable[..., Any]):
    stage = await start(authorization="on")
    for name in ("ann", "bob"):
        await stage.user(name)
    for name in ("t", "mine"):
        await stage.broker.topics.create(name, 1)
    stage.broker.security.set_rules([allow("ann", WRITE, TOPIC, "t"), allow("bob", WRITE, TOPIC, "mine")])
    prepared = await stage.broker.prepared.prepare("t", b"x", group="t", session=OWN)
    fields = {"topic": definition.Resource(name="mine"), "transaction_id": prepared, "resolution": definition.COMMIT}
    with stage.grpc("bob") as bob, stage.grpc("ann") as ann:
        assert (await stage.do(bob.ask, "EndTransaction", **fields)).status.code == Code.FORBIDDEN
        fields["topic"] = definition.Resource(name="t")
        assert (await stage.do(ann.ask, "EndTransaction", **fields)).status.code == Code.OK
