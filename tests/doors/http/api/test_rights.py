"""What routes declare as their rights, and that it is asked for before anything else is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doors.http.api.conftest import Served, add_user, basic, serving

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Inside, Open, queue_name
from headrace.broker.security.rules import ANY, Rule, allow
from headrace.doors.http.api.handlers.pages import PAGES
from headrace.doors.http.api.openapi import NAME
from headrace.doors.http.api.operations import Endpoint
from headrace.doors.http.api.routes import ENDPOINTS
from headrace.doors.http.server.rights import describe, names_of

IDS = [f"{each.operation.method} {each.operation.path}" for each in ENDPOINTS]
ALICE = "alice"
DECLARED = [each for each in ENDPOINTS if isinstance(each.operation.rights, tuple)]


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Served]:
    """A broker with `authorization`, and no rule yet."""
    async with serving(tmp_path, authorization="on") as served:
        known(served)
        yield served


def known(served: Served) -> None:
    """Have requests come from a user."""
    add_user(served.broker, ALICE, "wonderland")
    served.headers = basic(ALICE, "wonderland")


def granted(*rules: tuple[Operation, Resource, str]) -> list[Rule]:
    return [allow(ALICE, *each) for each in rules]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=IDS)
def test_every_route_declares_its_rights(endpoint: Endpoint):
    operation = endpoint.operation
    rights = operation.rights
    assert isinstance(rights, (tuple, Open, Inside))
    assert rights != ()
    assert describe(rights)
    known = {*NAME.findall(operation.path), *(each.name for each in operation.query)}
    assert set(names_of(rights)) <= known, "a right is named by what the request does not have"
    for each in rights if isinstance(rights, tuple) else ():
        assert each.operation in OPERATIONS[each.resource], f"{each} is no right that there is"


def path_of(endpoint: Endpoint, topic: str) -> str:
    path = NAME.sub(lambda name: topic if name[1] == "topic" else "q", endpoint.operation.path)
    query = "&".join(f"{each}=q" for each in names_of(endpoint.operation.rights) if f"{{{each}}}" not in path)
    return f"{path}?{query}" if "{group}" in str(endpoint.operation.rights) else path


@pytest.mark.parametrize("endpoint", DECLARED, ids=[f"{e.operation.method} {e.operation.path}" for e in DECLARED])
async def test_a_declared_right_is_asked_for_first(closed: Served, endpoint: Endpoint):
    """Whether the topic exists or not, and whatever else is wrong, without the right there is one answer; each of
    several rights is needed; and with all of them the request goes through to its handler."""
    operation = endpoint.operation
    await closed.topic("there", 1)
    rights = operation.rights
    assert isinstance(rights, tuple)
    security = closed.broker.security

    def name(by: str, topic: str) -> str:
        return NAME.sub(lambda found: topic if found[1] == "topic" else "q", by)

    for topic in ("there", "missing"):
        path = path_of(endpoint, topic)
        needed = [(each.operation, each.resource, name(each.by, topic)) for each in rights]
        for left_out in needed:
            security.set_rules(granted(*(each for each in needed if each != left_out)))
            status, answer = await closed.ask(operation.method, path)
            assert (status, answer["error"]) == (403, "NotAuthorized"), (topic, left_out)
            kind = left_out[1].name.lower().replace("_", " ")
            assert answer["message"].replace(topic, "T") == (
                f"not authorized: this takes the right {left_out[0].name} on the "
                f"{kind} '{left_out[2].replace(topic, 'T')}'. An administrator grants it: see "
                "`headrace acl grant`"
            )
        security.set_rules(granted(*needed))
        status, _ = await closed.ask(operation.method, path)
        # To publish to a missing topic takes another right, which the publisher asks for.
        assert status != 403 or topic == "missing"


async def test_lists_show_what_may_be_described(closed: Served):
    for topic in ("mine", "other"):
        await closed.topic(topic, 1)
        await closed.broker.queues.ensure(closed.broker.topics.existing(topic), "q")
    security = closed.broker.security
    assert await closed.ask("GET", "/v1/queues") == (200, {"queues": [], "total": 0, "offset": 0})
    security.set_rules(granted((Operation.READ, Resource.QUEUE, queue_name("mine", "q"))))
    _, answer = await closed.ask("GET", "/v1/queues")
    assert [(each["topic"], each["queue"]) for each in answer["queues"]] == [("mine", "q")]
    # Whoever sees the topic does not see its queues by that.
    security.set_rules(granted((Operation.DESCRIBE, Resource.TOPIC, ANY)))
    assert await closed.ask("GET", "/v1/topics/other/queues") == (200, {"queues": [], "total": 0, "offset": 0})


async def test_timers_and_their_rights(closed: Served):
    security = closed.broker.security
    await closed.topic("mine", delay="true")
    security.set_rules(granted((Operation.WRITE, Resource.TOPIC, "mine")))
    status, sent = await closed.ask("POST", "/v1/topics/mine/messages", {"value": "x", "delay": "1h"})
    assert status == 200, sent
    timer = sent["timer"]
    assert (await closed.ask("GET", "/v1/timers"))[1]["timers"] == []
    assert (await closed.ask("GET", "/v1/timers?topic=mine"))[0] == 403
    assert (await closed.ask("GET", "/v1/timers?topic=missing"))[0] == 403
    # As if there were none.
    assert (await closed.ask("DELETE", f"/v1/timers/{timer}"))[0] == 404
    security.set_rules(granted((Operation.DESCRIBE, Resource.TIMER, "mine")))
    assert [each["id"] for each in (await closed.ask("GET", "/v1/timers"))[1]["timers"]] == [timer]
    assert (await closed.ask("DELETE", f"/v1/timers/{timer}"))[0] == 403
    security.set_rules(granted((Operation.DELETE, Resource.TIMER, "mine")))
    assert (await closed.ask("DELETE", f"/v1/timers/{'0' * 32}"))[0] == 404
    assert await closed.ask("DELETE", f"/v1/timers/{timer}") == (200, {"id": timer, "cancelled": True})


async def test_half_messages_and_their_rights(closed: Served):
    security = closed.broker.security
    await closed.topic("mine")
    order = {"topic": "mine", "group": "g", "value": "x"}
    assert (await closed.ask("POST", "/v1/half", order))[0] == 403
    assert (await closed.ask("POST", "/v1/half", {**order, "topic": "missing"}))[0] == 403
    security.set_rules(granted((Operation.WRITE, Resource.TOPIC, "mine")))
    status, prepared = await closed.ask("POST", "/v1/half", order)
    assert status == 201
    id = prepared["id"]
    assert len((await closed.ask("GET", "/v1/half"))[1]["half"]) == 1
    # Who may write sees that it is there, and not what it says.
    assert (await closed.ask("GET", f"/v1/half/{id}"))[0] == 403
    security.set_rules([])
    for method, path in (("GET", ""), ("POST", "/commit"), ("POST", "/rollback")):
        assert (await closed.ask(method, f"/v1/half/{id}{path}"))[0] == 404
    assert (await closed.ask("GET", "/v1/half"))[1]["half"] == []
    security.set_rules(granted((Operation.READ, Resource.TOPIC, "mine")))
    assert (await closed.ask("GET", f"/v1/half/{id}"))[1]["value"] == "x"
    assert (await closed.ask("POST", f"/v1/half/{id}/commit"))[0] == 403
    security.set_rules(granted((Operation.WRITE, Resource.TOPIC, "mine")))
    assert (await closed.ask("POST", f"/v1/half/{id}/commit"))[0] == 200


async def test_a_redrive_takes_rights_on_both_topics(closed: Served):
    security = closed.broker.security
    for topic in ("dead", "orders"):
        await closed.topic(topic, 1)
    order = {"topic": "dead", "dry_run": True}
    assert (await closed.ask("POST", "/v1/redrive", order))[0] == 403
    assert (await closed.ask("POST", "/v1/redrive", {**order, "topic": "missing"}))[0] == 403
    security.set_rules(granted((Operation.READ, Resource.TOPIC, "dead")))
    assert (await closed.ask("POST", "/v1/redrive", order))[0] == 200
    assert (await closed.ask("POST", "/v1/redrive", {"topic": "dead"}))[0] == 403


async def test_publishing_makes_a_topic_where_the_client_may(tmp_path: Path):
    async with serving(tmp_path, authorization="on", auto_create_topics=True) as served:
        known(served)
        security = served.broker.security
        body = {"value": "x"}
        rules = granted((Operation.WRITE, Resource.TOPIC, "made"))
        security.set_rules(rules)
        assert (await served.ask("POST", "/v1/topics/made/messages", body))[0] == 403
        security.set_rules([*rules, *granted((Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME))])
        assert (await served.ask("POST", "/v1/topics/made/messages", body))[0] == 200


async def test_log_only_refuses_nothing(tmp_path: Path):
    async with serving(tmp_path, authorization="log-only") as served:
        await served.topic("t")
        assert (await served.ask("POST", "/v1/topics/t/messages", {"value": "x"}))[0] == 200
        assert served.broker.security.refused


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_declares_its_rights(closed: Served, path: str):
    declaration, page = PAGES[path]
    assert isinstance(declaration, (tuple, Open))
    assert page is not None


def test_a_right_on_something_unknown_is_found():
    """The test above would not let it pass."""
    broken = replace(DECLARED[0].operation.rights[0], by="{nothing}")  # type: ignore[index]
    assert names_of((broken,)) == ["nothing"]
