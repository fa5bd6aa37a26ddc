"""Who may do what through nsqd's two protocols: AUTH against the broker's own users, and what each command takes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.brokers import running
from tests.doors.nsq.nsqd.test_auth import auth
from tests.doors.nsq.nsqd.test_http import Site
from tests.doors.nsq.nsqd.wired import Wire, dpub, mpub, open_door, pub
from tests.rights_model import allows, rules_by_chance
from tests.waiting import SECONDS

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.rights import OPERATIONS, Inside, Open
from headrace.broker.security.rules import ANY, allow
from headrace.doors.door import DoorContext
from headrace.doors.nsq.nsqd.codec import RULES
from headrace.doors.nsq.nsqd.http.api import NsqdHttp
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.doors.nsq.nsqd.registration import Registrations
from headrace.doors.nsq.nsqd.rights import COMMANDS, ROUTES
from headrace.doors.nsq.nsqd.topics import NsqTopics
from headrace.doors.nsq.presence import Presence

READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
TOPIC, QUEUE, CLUSTER = Resource.TOPIC, Resource.QUEUE, Resource.CLUSTER
USERS = ("ann", "bob")


async def users(door: Nsqd) -> dict[str, bytes]:
    """Two users, each with a token: their secrets."""
    accounts = door.broker.security.accounts
    secrets = {}
    for name in USERS:
        await accounts.create_user(OWN, name)
        _, text = await accounts.create_token(OWN, name)
        secrets[name] = text.encode()
    return secrets


async def known(door: Nsqd, secret: bytes) -> Wire:
    wire = await Wire.open(door, client_id="me")
    told = await wire.ask(auth(secret))
    assert json.loads(told)["permission_count"] == 1
    return wire


def test_every_command_declares_its_rights():
    assert set(COMMANDS) == set(RULES)
    assert all(isinstance(each, (Open, Inside)) for each in COMMANDS.values())


async def test_every_route_declares_its_rights(tmp_path: Path):
    async with running(tmp_path) as broker:
        context = DoorContext(broker, broker.config, broker.config)
        topics, presence = NsqTopics(broker, broker.config), Presence("here", 0)
        api = NsqdHttp(context, presence, topics, Registrations(broker, broker.config, presence), None)
        found = {f"{method} {route.path}" for route in api._api.routes for method in route.handlers}
        assert found == set(ROUTES)


async def test_a_token_or_a_password_is_the_secret(tmp_path: Path):
    async with open_door(tmp_path, authorization="on", nsq_auth_required=True) as door:
        secrets = await users(door)
        await door.broker.security.accounts.set_password(OWN, "ann", "tea:pot")
        for secret, name in ((secrets["ann"], "ann"), (b"ann:tea:pot", "ann"), (secrets["bob"], "bob")):
            async with await Wire.open(door, client_id="me") as wire:
                assert wire.told["auth_required"] is True
                told = json.loads(await wire.ask(auth(secret)))
                assert told == {"identity": name, "identity_url": "", "permission_count": 1}
                assert await wire.refused(auth(secret)) == "E_INVALID AUTH already set"


@pytest.mark.parametrize(
    "secret", [b"x", b"ann:wrong", b"nobody:wrong", b":", b"hr_0_0", b"\xff\xfe", b"ann:" + b"x" * 9_000]
)
async def test_a_wrong_secret_is_refused_and_said_nowhere(tmp_path: Path, secret: bytes):
    async with open_door(tmp_path, authorization="on", authentication_delay_max_ms=0) as door:
        await users(door)
        async with await Wire.open(door) as wire:
            assert await wire.refused(auth(secret)) == "E_AUTH_FAILED AUTH failed"
            assert await wire.closed() == b""


async def test_a_failure_is_answered_later_each_time(tmp_path: Path):
    async with open_door(tmp_path, authorization="on", authentication_delay_max_ms=400) as door:
        await users(door)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(6):
            async with await Wire.open(door) as wire:
                assert await wire.refused(auth(b"ann:wrong")) == "E_AUTH_FAILED AUTH failed"
        # 50, 100, 200, 400, 400, 400 ms at least.
        assert loop.time() - began >= 1.5


async def test_auth_comes_first_where_it_is_required(tmp_path: Path):
    async with open_door(tmp_path, nsq_auth_required=True) as door:
        for command in (pub("t", b"x"), mpub("t", b"x"), dpub("t", 0, b"x"), b"SUB t c\n"):
            async with await Wire.open(door) as wire:
                name = command.split()[0].decode()
                assert await wire.refused(command) == f"E_AUTH_FIRST AUTH required before {name}"
        assert door.topics.get("t") is None


async def test_who_is_not_known_is_told_to_authenticate(tmp_path: Path):
    async with open_door(tmp_path, authorization="on") as door, await Wire.open(door) as wire:
        assert (await wire.refused(pub("t", b"x"))).startswith("E_AUTH_FIRST AUTH required before PUB")
        assert await wire.closed() == b""


async def test_what_is_there_and_what_is_not_are_refused_alike(tmp_path: Path):
    async with open_door(tmp_path, authorization="on") as door:
        secrets = await users(door)
        topic = await door.topics.ensure("there")
        await door.broker.queues.ensure(topic, "c")
        for command in (b"SUB %s c\n", b"PUB %s\n\0\0\0\x01x", b"SUB %s other\n"):
            told = []
            for name in (b"there", b"other"):
                async with await known(door, secrets["ann"]) as wire:
                    told.append((await wire.refused(command % name)).replace(name.decode(), "T"))
            assert told[0] == told[1]
            assert told[0].startswith("E_UNAUTHORIZED")


async def test_rights_against_a_plain_model(tmp_path: Path):
    """Each user, command and name, under rules by chance: allowed is exactly what the model allows."""
    topics, channel = ("a", "ab", "b"), "c"
    asked = [(each, TOPIC, topic) for topic in topics for each in (READ, WRITE)]
    asked += [(each, QUEUE, f"{topic}/{channel}") for topic in topics for each in (READ, CREATE)]
    outcomes = {True: 0, False: 0}
    async with open_door(tmp_path, authorization="on", connections_max=1_000) as door:
        secrets = await users(door)
        for topic in topics:
            await door.topics.ensure(topic)
        for seed in range(12):
            rules = rules_by_chance(seed, USERS, asked)
            door.broker.security.set_rules(rules)
            for user in USERS:
                for topic in topics:
                    log = door.topics.get(topic)
                    assert log is not None
                    is_there = door.broker.queues.get(topic, channel) is not None
                    queue = f"{topic}/{channel}"
                    may_write = allows(rules, user, WRITE, TOPIC, topic)
                    may_read = allows(rules, user, READ, TOPIC, topic) and allows(rules, user, READ, QUEUE, queue)
                    may_read = may_read and (is_there or allows(rules, user, CREATE, QUEUE, queue))
                    for command, expected in (
                        (pub(topic, b"x"), may_write),
                        (mpub(topic, b"x"), may_write),
                        (dpub(topic, 1, b"x"), may_write),
                        (f"SUB {topic} {channel}\n".encode(), may_read),
                    ):
                        async with await known(door, secrets[user]) as wire:
                            wire.send(command)
                            _, data = await wire.frame()
                        outcomes[expected] += 1
                        told = data == b"OK"
                        assert told is expected, (seed, user, command, data, [str(rule) for rule in rules])
                        assert told or data.startswith(b"E_UNAUTHORIZED")
    assert min(outcomes.values()) > 20, "the rules by chance allow all or nothing"


async def test_a_missing_topic_takes_the_right_to_make_it(tmp_path: Path):
    async with open_door(tmp_path, authorization="on") as door:
        secrets = await users(door)
        security = door.broker.security
        rules = [allow("ann", WRITE, TOPIC, ANY), allow("ann", READ, TOPIC, ANY), allow("ann", READ, QUEUE, ANY)]
        for command in (pub("t", b"x"), b"SUB t c\n"):
            security.set_rules(rules)
            async with await known(door, secrets["ann"]) as wire:
                assert "CREATE on the topic 't'" in await wire.refused(command)
        security.set_rules([*rules, allow("ann", CREATE, TOPIC, "t")])
        async with await known(door, secrets["ann"]) as wire:
            assert "CREATE on the queue 't/c'" in await wire.refused(b"SUB t c\n")
        security.set_rules([*rules, allow("ann", CREATE, TOPIC, "t"), allow("ann", CREATE, QUEUE, "t/c")])
        async with await known(door, secrets["ann"]) as wire:
            assert await wire.ask(b"SUB t c\n") == b"OK"


async def test_a_right_that_is_revoked_ends_what_lives_by_it(tmp_path: Path):
    async with open_door(tmp_path, authorization="on") as door:
        secrets = await users(door)
        security = door.broker.security
        every = [allow(ANY, Operation.ALL, TOPIC, ANY), allow(ANY, Operation.ALL, QUEUE, ANY)]
        for left in every:
            security.set_rules(every)
            async with await known(door, secrets["ann"]) as subscriber, await known(door, secrets["bob"]) as publisher:
                assert await subscriber.ask(b"SUB t c\n") == b"OK"
                subscriber.send(b"RDY 1\n")
                assert await publisher.ask(pub("t", b"x")) == b"OK"
                await subscriber.message()
                security.set_rules([left])
                assert (await asyncio.wait_for(subscriber.error(), 1 + SECONDS)).startswith("E_UNAUTHORIZED")
                assert await subscriber.closed() == b""
                queue = door.broker.queues.get("t", "c")
                assert queue is not None
                assert not queue.consumers
                if left.resource is QUEUE:
                    # What was admitted is asked for again, on the path of many PUBs to one topic, too.
                    assert (await publisher.refused(pub("t", b"x"))).startswith("E_UNAUTHORIZED")


async def test_a_token_that_is_revoked_ends_its_connections(tmp_path: Path):
    async with open_door(tmp_path, authorization="off") as door:
        accounts = door.broker.security.accounts
        await accounts.create_user(OWN, "ann")
        token, text = await accounts.create_token(OWN, "ann")
        _, other = await accounts.create_token(OWN, "ann")
        async with await known(door, text.encode()) as wire, await known(door, other.encode()) as stays:
            assert await wire.ask(b"SUB t c\n") == b"OK"
            await accounts.revoke_token(OWN, token.id)
            assert (await wire.error()).startswith("E_AUTH_FAILED")
            assert await wire.closed() == b""
            assert await stays.ask(pub("t", b"x")) == b"OK"


async def test_a_scope_narrows_a_token(tmp_path: Path):
    async with open_door(tmp_path, authorization="on") as door:
        accounts = door.broker.security.accounts
        await accounts.create_user(OWN, "ann")
        door.broker.security.set_rules([allow("ann", Operation.ALL, each, ANY) for each in (TOPIC, QUEUE)])
        _, text = await accounts.create_token(OWN, "ann", scope=["write:topic:t", "create:topic:t"])
        async with await known(door, text.encode()) as wire:
            assert await wire.ask(pub("t", b"x")) == b"OK"
            assert (await wire.refused(b"SUB t c\n")).startswith("E_UNAUTHORIZED")


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_every_declared_right_is_one_that_there_is():
    for declaration in ROUTES.values():
        for each in declaration if isinstance(declaration, tuple) else ():
            assert each.operation in OPERATIONS[each.resource]


async def test_http_against_a_plain_model(tmp_path: Path):
    """Each route with a topic and channel, under rules by chance."""
    site = Site(tmp_path, authorization="on")
    await site.server.start()
    try:
        security = site.server.broker.security
        await security.accounts.create_user(OWN, "ann")
        _, text = await security.accounts.create_token(OWN, "ann")
        headers = {"Authorization": f"Bearer {text}"}
        needed = {
            route: [
                (each.operation, each.resource, each.by.format(topic="t", channel="c", option="log_level", page="heap"))
                for each in declaration
            ]
            for route, declaration in ROUTES.items()
            if isinstance(declaration, tuple)
        }
        asked = sorted({each for rights in needed.values() for each in rights})
        for seed in range(8):
            rules = rules_by_chance(seed, ("ann",), asked, 8)
            for route, rights in needed.items():
                security.set_rules([allow("ann", Operation.ALL, each, ANY) for each in (TOPIC, QUEUE, CLUSTER)])
                await site.ask("POST", "/topic/create?topic=t", headers=headers)
                await site.ask("POST", "/channel/create?topic=t&channel=c", headers=headers)
                security.set_rules(rules)
                method, path = route.split()
                path = path.format(option="log_level", page="cmdline")
                expected = all(allows(rules, "ann", *each) for each in rights)
                answer = await site.ask(method, f"{path}?topic=t&channel=c", b"info", headers=headers)
                # A topic may be missing to those who may not make it.
                assert (answer.status != 403) is expected or "CREATE" in str(answer.body), (route, answer.status, rules)
    finally:
        await site.server.stop()


async def test_http_asks_who_it_is(tmp_path: Path):
    site = Site(tmp_path, http_authentication="required")
    await site.server.start()
    try:
        answer = await site.ask("GET", "/info")
        assert (answer.status, answer.json["message"].split()[0]) == (401, "Unauthenticated")
        assert (await site.ask("GET", "/ping")).status == 200
    finally:
        await site.server.stop()


async def test_figures_leave_out_what_may_not_be_seen(tmp_path: Path):
    site = Site(tmp_path, authorization="on")
    await site.server.start()
    try:
        broker = site.server.broker
        for name in ("mine", "other"):
            topic = await broker.topics.ensure(name)
            await broker.queues.ensure(topic, "c")
        see = allow("ANONYMOUS", DESCRIBE, CLUSTER, "kafka-cluster")
        broker.security.set_rules([see])
        assert (await site.get("/stats?format=json"))["topics"] == []
        broker.security.set_rules([see, allow("ANONYMOUS", DESCRIBE, TOPIC, "mine")])
        (topic_figures,) = (await site.get("/stats?format=json"))["topics"]
        assert (topic_figures["topic_name"], topic_figures["channels"]) == ("mine", [])
        broker.security.set_rules([see, allow("ANONYMOUS", READ, TOPIC, "mine"), allow("ANONYMOUS", READ, QUEUE, ANY)])
        (topic_figures,) = (await site.get("/stats?format=json"))["topics"]
        assert [each["channel_name"] for each in topic_figures["channels"]] == ["c"]
        assert b"other" not in (await site.ask("GET", "/stats")).body
    finally:
        await site.server.stop()
