"""Who may do what at the look-up service: every command of its TCP protocol and every route of its HTTP API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.doors.nsq.lookupd.conftest import IDENTITY, Peer
from tests.rights_model import allows, rules_by_chance
from tests.waiting import SECONDS

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Open
from headrace.broker.security.rules import ANY, Rule, allow
from headrace.broker.security.session import ANONYMOUS
from headrace.config import Config
from headrace.doors.nsq.lookupd.http import LookupApi
from headrace.doors.nsq.lookupd.rights import COMMANDS, ROUTES
from headrace.server import Server

TOPIC, QUEUE, CLUSTER = Resource.TOPIC, Resource.QUEUE, Resource.CLUSTER
CREATE, DELETE, ALTER, DESCRIBE = Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
TOPICS, CHANNEL = ("a", "ab", "b"), "c"
OFF = ("kafka", "http", "nsq", "nsq_http", "nsq_https", "rocketmq", "rocketmq_namesrv", "rocketmq_grpc")
# What each request takes, by this test's own words; any of the rights is enough.
NEEDS: dict[str, Sequence[tuple[Operation, Resource, str]]] = {
    "GET /lookup?topic={topic}": [(DESCRIBE, TOPIC, "{topic}")],
    "GET /channels?topic={topic}": [(DESCRIBE, TOPIC, "{topic}")],
    "GET /debug": [(DESCRIBE, CLUSTER, CLUSTER_NAME)],
    "POST /topic/create?topic={topic}": [(CREATE, TOPIC, "{topic}"), (CREATE, CLUSTER, CLUSTER_NAME)],
    "POST /topic/delete?topic={topic}": [(DELETE, TOPIC, "{topic}")],
    "POST /topic/tombstone?topic={topic}&node=here:1": [(ALTER, TOPIC, "{topic}")],
    "POST /channel/create?topic={topic}&channel=c": [(CREATE, QUEUE, "{topic}/c")],
    "POST /channel/delete?topic={topic}&channel=c": [(DELETE, QUEUE, "{topic}/c")],
}
OPEN = ("GET /ping", "GET /info", "GET /topics", "GET /nodes")
REGISTERING = ("REGISTER t", "UNREGISTER t", "IDENTIFY")


class Stage:
    """A broker of which the look-up service alone is open, and its users."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.tokens: dict[str, str] = {ANONYMOUS: ""}

    async def user(self, name: str) -> None:
        accounts = self.server.broker.security.accounts
        await accounts.create_user(OWN, name)
        _, self.tokens[name] = await accounts.create_token(OWN, name)

    def rule(self, rules: Sequence[Rule]) -> None:
        self.server.broker.security.set_rules(rules)

    async def ask(self, user: str, request: str) -> tuple[int, Any]:
        """Status and body of an answer."""
        method, path = request.split(" ")
        host, port = self.server.addresses["lookup-http"].rsplit(":", 1)
        token = self.tokens[user]
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Length: 0\r\n"
        head += f"Authorization: Bearer {token}\r\n" if token else ""
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
        head_bytes, _, body = answer.partition(b"\r\n\r\n")
        shown = json.loads(body) if body[:1] in b"{[" and body else body
        return int(head_bytes.split()[1]), shown

    async def producer(self) -> Peer:
        host, port = self.server.addresses["lookup"].rsplit(":", 1)
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        peer.writer.write(b"  V1")
        return peer


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    doors = {"lookup": "127.0.0.1:0", "lookup_http": "127.0.0.1:0", **dict.fromkeys(OFF, "off")}
    more = {"authorization": "on", "super_users": "root", "authentication_delay_max_ms": 0, "audit": "off"}
    server = Server(Config(data=str(tmp_path), durability="async", **doors, **more))
    await server.start()
    made = Stage(server)
    for name in ("root", "ann", "bob"):
        await made.user(name)
    yield made
    await server.stop()


def test_every_command_and_route_declares_its_rights() -> None:
    routes = LookupApi(MagicMock(), MagicMock()).routes
    assert set(ROUTES) == {f"{method} {path}" for path, handlers in routes.items() for method in handlers}
    assert {each.partition("?")[0] for each in (*NEEDS, *OPEN)} == set(ROUTES), "this test leaves a route out"
    assert {name for name, each in COMMANDS.items() if not isinstance(each, Open)} == {
        each.partition(" ")[0] for each in REGISTERING
    }
    for declaration in (*COMMANDS.values(), *ROUTES.values()):
        for right in declaration if isinstance(declaration, tuple) else ():
            assert right.operation in OPERATIONS[right.resource], right


async def test_a_command_that_is_not_known_is_refused_before_anything(stage: Stage) -> None:
    peer = await stage.producer()
    assert (await peer.say("DELETE t")).startswith(b"E_INVALID invalid command DELETE")
    assert await peer.ended()


async def test_routes_against_a_plain_model(stage: Stage) -> None:
    """Each user, route and topic, under rules by chance: allowed is exactly what the model allows."""
    asked = [
        (operation, resource, name.format(topic=topic))
        for needs in NEEDS.values()
        for operation, resource, name in needs
        for topic in TOPICS
    ]
    outcomes = {True: 0, False: 0}
    users = ("ann", "bob", ANONYMOUS)
    for seed in range(6):
        rules = rules_by_chance(seed, users, asked, 16)
        stage.rule(rules)
        for request, needs in NEEDS.items():
            for topic in TOPICS:
                assert (await stage.ask("root", f"POST /channel/create?topic={topic}&channel={CHANNEL}"))[0] == 200
                for user in users:
                    expected = any(
                        allows(rules, user, each, kind, name.format(topic=topic)) for each, kind, name in needs
                    )
                    status, body = await stage.ask(user, request.format(topic=topic))
                    outcomes[expected] += 1
                    told = (seed, user, request, topic, status, body, [str(rule) for rule in rules])
                    if expected:
                        assert status in (200, 404), told
                    else:
                        assert status == (401 if user == ANONYMOUS else 403), told
    assert min(outcomes.values()) > 50, "the rules by chance allow all or nothing"


async def test_lists_show_what_the_model_allows(stage: Stage) -> None:
    asked = [(DESCRIBE, TOPIC, topic) for topic in TOPICS]
    asked += [(DESCRIBE, QUEUE, f"{topic}/{CHANNEL}") for topic in TOPICS]
    shown = 0
    stage.rule([allow(ANY, Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)])
    producer = await stage.producer()
    await producer.say("IDENTIFY", IDENTITY)
    for topic in TOPICS:
        assert await producer.say(f"REGISTER {topic} {CHANNEL}") == b"OK"
    for seed in range(20):
        rules = rules_by_chance(seed, ("ann", "bob"), asked, 8)
        stage.rule(rules)
        for user in ("ann", "bob", ANONYMOUS):
            visible = [each for each in TOPICS if allows(rules, user, DESCRIBE, TOPIC, each)]
            assert (await stage.ask(user, "GET /topics"))[1] == {"topics": visible}
            nodes = (await stage.ask(user, "GET /nodes"))[1]["producers"]
            (node,) = (each for each in nodes if each["hostname"] == "elsewhere")
            assert node["topics"] == visible
            assert len(node["tombstones"]) == len(visible)
            for topic in visible:
                channels = [CHANNEL] if allows(rules, user, DESCRIBE, QUEUE, f"{topic}/{CHANNEL}") else []
                assert (await stage.ask(user, f"GET /channels?topic={topic}"))[1] == {"channels": channels}
                found = (await stage.ask(user, f"GET /lookup?topic={topic}"))[1]
                assert found["channels"] == channels
            shown += len(visible)
    assert 20 < shown < 20 * 3 * 3 - 20
    producer.writer.close()


async def test_what_is_there_and_what_is_not_are_refused_alike(stage: Stage) -> None:
    await stage.ask("root", "POST /channel/create?topic=there&channel=c")
    for request in NEEDS:
        if "{topic}" in request:
            there, other = [await stage.ask("ann", request.format(topic=each)) for each in ("there", "other")]
            assert there[0] == other[0] == 403
            assert json.dumps(there[1]).replace("there", "T") == json.dumps(other[1]).replace("other", "T")


@pytest.mark.parametrize("command", REGISTERING)
async def test_producers_register_by_a_rule_for_their_address(stage: Stage, command: str) -> None:
    """They cannot show who they are: the rule is for ANONYMOUS."""
    right = (Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    for rules, expected in (
        ([], False),
        ([allow("ann", *right)], False),
        ([allow(ANONYMOUS, DESCRIBE, CLUSTER, CLUSTER_NAME)], False),
        ([allow(ANONYMOUS, *right)], True),
        ([allow(ANY, Operation.ALL, CLUSTER, CLUSTER_NAME)], True),
    ):
        stage.rule([allow(ANY, *right)])
        peer = await stage.producer()
        if command != "IDENTIFY":
            await peer.say("IDENTIFY", IDENTITY)
        stage.rule(rules)
        assert await peer.say("PING") == b"OK"
        answer = await peer.say(command, IDENTITY if command == "IDENTIFY" else None)
        if expected:
            assert not answer.startswith(b"E_"), answer
            peer.writer.close()
        else:
            assert answer.startswith(f"E_UNAUTHORIZED {command.partition(' ')[0]}".encode()), answer
            assert await peer.ended()


async def test_a_wrong_token_is_refused_where_none_is_needed(stage: Stage) -> None:
    stage.tokens["mallory"] = "hr_1_2"
    assert (await stage.ask("mallory", "GET /topics"))[0] == 401
    assert (await stage.ask(ANONYMOUS, "GET /topics"))[0] == 200
