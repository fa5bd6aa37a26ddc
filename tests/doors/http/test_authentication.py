"""Who asks over HTTP, and what those are told who do not show it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, add_user, basic, serving
from tests.waiting import until

from headrace.addresses import parse_address
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import ANY, allow


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Served]:
    """A broker with authorization, where ann may read about all topics, and bob exists."""
    async with serving(tmp_path, authorization="on", authentication_delay_max_ms=0) as served:
        add_user(served.broker, "ann", "tea:pot")
        add_user(served.broker, "bob", "builder")
        served.broker.security.set_rules([allow("ann", Operation.ALL, Resource.TOPIC, ANY)])
        await served.topic("t", 1)
        yield served


def fetch(served: Served, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    address = parse_address(served.server.addresses["http"])
    assert address is not None
    connection = HTTPConnection(*address, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response
    finally:
        connection.close()


async def test_a_password_opens_what_its_user_may_do(closed: Served):
    path = "/v1/topics/t/search?key=x"
    assert (await closed.ask("GET", path))[0] == 401
    assert (await closed.ask("GET", path, **basic("ann", "tea:pot")))[0] == 200
    status, answer = await closed.ask("GET", path, **basic("bob", "builder"))
    assert (status, answer["error"]) == (403, "NotAuthorized")


@pytest.mark.parametrize(
    "given",
    [
        basic("ann", "wrong")["Authorization"],
        basic("nobody", "wrong")["Authorization"],
        basic("ann", "")["Authorization"],
        basic("", "tea:pot")["Authorization"],
        "Basic " + b64encode(b"ann").decode(),
        "Basic " + b64encode(b"\xff\xfe:x").decode(),
        "Basic !!!!",
        "Basic",
        "Basic " + "A" * 10_000,
        "Digest username=ann",
        "ann:tea:pot",
    ],
)
async def test_wrong_credentials_are_refused_even_where_none_are_needed(closed: Served, given: str):
    for path in ("/v1/queues", "/openapi.json"):
        status, answer = await closed.ask("GET", path, Authorization=given)
        assert (status, answer["error"]) == (401, "Unauthenticated")
        assert "tea" not in answer["message"]


async def test_an_unknown_user_and_a_wrong_password_are_told_alike(closed: Served):
    answers = [await closed.ask("GET", "/v1/queues", **basic(user, "x")) for user in ("ann", "nobody")]
    assert answers[0] == answers[1]


async def test_anonymous_clients_are_asked_who_they_are(closed: Served):
    response = await asyncio.to_thread(fetch, closed, "GET", "/v1/topics/t/search?key=x", {})
    assert response.status == 401
    assert [each.partition(" ")[0] for each in response.headers.get_all("WWW-Authenticate")] == ["Basic", "Bearer"]
    # Figures name topics.
    assert (await asyncio.to_thread(fetch, closed, "GET", "/metrics", {})).status == 401
    assert (await asyncio.to_thread(fetch, closed, "GET", "/", basic("bob", "builder"))).status == 403
    assert (await asyncio.to_thread(fetch, closed, "GET", "/healthz", {})).status == 200


async def test_authentication_can_be_required_of_all(tmp_path: Path):
    async with serving(tmp_path, http_authentication="required") as served:
        add_user(served.broker, "ann", "teapot")
        for path in ("/v1/queues", "/openapi.json", "/metrics", "/"):
            assert (await asyncio.to_thread(fetch, served, "GET", path, {})).status == 401
            assert (await asyncio.to_thread(fetch, served, "GET", path, basic("ann", "teapot"))).status == 200
        for path in ("/healthz", "/readyz"):
            assert (await asyncio.to_thread(fetch, served, "GET", path, {})).status == 200


async def test_a_failure_is_answered_later_each_time(tmp_path: Path):
    async with serving(tmp_path, authentication_delay_max_ms=400) as served:
        add_user(served.broker, "ann", "teapot")
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(6):
            began = loop.time()
            assert (await served.ask("GET", "/v1/queues", **basic("ann", "wrong")))[0] == 401
            took.append(loop.time() - began)
        # 50, 100, 200, 400, 400, 400 ms at least.
        assert sum(took) >= 1.5
        assert (await served.ask("GET", "/v1/queues", **basic("ann", "teapot")))[0] == 200


async def test_what_takes_long_ends_with_the_identity(closed: Served):
    security = closed.broker.security
    security.set_rules([allow("ann", Operation.READ, Resource.GROUP, "g")])
    path = "/v1/half/checks?group=g&wait_ms=30000"
    asking = asyncio.ensure_future(asyncio.to_thread(fetch, closed, "GET", path, basic("ann", "tea:pot")))
    await until(lambda: any(each.user == "ann" for each in security._sessions))
    security.end_user("ann", "the user was deleted")
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(asking, 20)


async def test_a_session_is_left_when_its_request_is_answered(closed: Served):
    assert (await closed.ask("GET", "/v1/queues", **basic("ann", "tea:pot")))[0] == 200
    await until(lambda: not list(closed.broker.security._sessions))


async def test_one_connection_can_ask_as_several(closed: Served):
    """A connection proves nothing about its next request."""
    address = parse_address(closed.server.addresses["http"])
    assert address is not None

    def ask() -> list[int]:
        connection = HTTPConnection(*address, timeout=30)
        statuses = []
        for headers in (basic("ann", "tea:pot"), {}, basic("bob", "builder"), basic("ann", "tea:pot")):
            connection.request("GET", "/v1/topics/t/search?key=x", headers=headers)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        return statuses

    assert await asyncio.to_thread(ask) == [200, 401, 403, 200]
