from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tests.unguarded import Unguarded

from headrace.broker.metrics import Metrics
from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas import Quotas
from headrace.broker.security.rights import Open
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.doors.http.server.routing import Routes
from headrace.doors.nsq.routes import Api
from headrace.runtime.clock import SystemClock


async def echo(request: Request, parameters: Mapping[str, str]) -> object:
    if parameters.get("fail"):
        raise HttpError(503, "NO_LUCK", parameters["fail"])
    return {"path": request.path, **{name: value for name, value in parameters.items() if name != "one"}}


async def text(request: Request, parameters: Mapping[str, str]) -> object:
    return {"none": None, "text": "é", "whole": Response(b"w", "image/png", 201)}[parameters["what"]]


def api() -> tuple[Api, Metrics]:
    metrics = Metrics()
    runtime = SimpleNamespace(clock=SystemClock())
    broker: Any = SimpleNamespace(
        metrics=metrics, security=Unguarded(), quotas=Quotas(QuotaSettings()), runtime=runtime
    )
    routes: Routes = {"/echo": {"GET": echo}, "/many/{one}": {"GET": echo}, "/text": {"PUT": text}}
    rights = {f"{method} {path}": Open("a test") for path, handlers in routes.items() for method in handlers}
    return Api("d", routes, broker, rights), metrics


async def asked(method: str, path: str, query: str = "") -> tuple[int, bytes]:
    response = await api()[0].answer(Request(method, path, query, b""))
    return response.status, response.body


async def test_routes():
    assert await asked("GET", "/echo", "a=b") == (200, b'{"path":"/echo","a":"b"}')
    assert await asked("HEAD", "/echo") == (200, b'{"path":"/echo"}')
    assert await asked("GET", "/many/one") == (200, b'{"path":"/many/one"}')
    assert await asked("GET", "/many/one/two") == (404, b'{"message":"NOT_FOUND"}')
    assert await asked("GET", "/echo/") == (404, b'{"message":"NOT_FOUND"}')
    assert await asked("POST", "/echo") == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert await asked("GET", "/echo", "fail=of all") == (503, b'{"message":"NO_LUCK of all"}')


async def test_the_methods_of_a_route_are_told():
    for path, allow in (
        ("/echo", "GET, HEAD, OPTIONS"),
        ("/many/one", "GET, HEAD, OPTIONS"),
        ("/text", "OPTIONS, PUT"),
    ):
        told = await api()[0].answer(Request("OPTIONS", path, "", b""))
        assert (told.status, told.body, told.headers) == (200, b"", (("Allow", allow),))
        refused = await api()[0].answer(Request("DELETE", path, "", b""))
        assert (refused.status, dict(refused.headers)["Allow"]) == (405, allow)
    assert await asked("OPTIONS", "/nothing") == (404, b'{"message":"NOT_FOUND"}')
    assert await asked("HEAD", "/text") == (405, b'{"message":"METHOD_NOT_ALLOWED"}')


async def test_bodies():
    assert await asked("PUT", "/text", "what=none") == (200, b"")
    assert await asked("PUT", "/text", "what=text") == (200, "é".encode())
    assert await asked("PUT", "/text", "what=whole") == (201, b"w")


async def test_queries_that_cannot_be_read():
    for query in ("a=%", "a=%f", "a=%zz", "a;b"):
        assert await asked("GET", "/echo", query) == (400, b'{"message":"INVALID_REQUEST"}')


async def test_requests_are_counted_by_route_and_errors_by_word():
    made, metrics = api()
    for path, query in (
        ("/echo", ""),
        ("/echo", "fail=1"),
        ("/echo", "fail=2"),
        ("/many/a", ""),
        ("/x", ""),
        ("/y", ""),
    ):
        await made.answer(Request("GET", path, query, b""))
    assert {name: api.requests for (_, name), api in metrics.apis.items()} == {"echo": 3, "many": 1, "other": 2}
    assert metrics.api("d", "echo").errors == {"NO_LUCK": 2}
    assert metrics.api("d", "other").errors == {"NOT_FOUND": 2}
    assert sum(metrics.api("d", "echo").latency.counts) == 3


def test_errors_of_the_server():
    assert Api.write_error(HttpError(413, "", "too much")).body == b'{"message":"BODY_TOO_BIG"}'
    assert Api.write_error(HttpError(413, "", "too much", path="/pub")).body == b'{"message":"MSG_TOO_BIG"}'
    assert Api.write_error(HttpError(431, "", "too long")).body == b'{"message":"too long"}'
