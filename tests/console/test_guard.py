"""The guard: which requests reach the console, from whose page, under which name."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from headrace.console.guard import BODY_MAX_BYTES, Guard


class Inner:
    def __init__(self) -> None:
        self.reached = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached += 1
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})


def scope(kind: str = "http", method: str = "GET", path: str = "/", **headers: str) -> dict[str, Any]:
    named = {"host": "127.0.0.1:9070", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {
        "type": kind,
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }


async def ask(guard: Guard, asked: dict[str, Any]) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {}

    await guard(asked, receive, send)
    return sent


OWN = "http://127.0.0.1:9070"


@pytest.mark.parametrize(
    ("asked", "is_let_in"),
    [
        (scope(), True),
        (scope(host="localhost:9070"), True),
        (scope(host="[::1]:9070"), True),
        (scope(host="console.example:9070"), True),
        (scope(host="evil.example:9070"), False),
        (scope(host=""), False),
        (scope(method="POST", path="/login", origin=OWN), True),
        (scope(method="POST", path="/login"), False),
        (scope(method="POST", path="/login", origin="http://evil.example"), False),
        (scope(method="POST", path="/login", origin="null"), False),
        (scope(method="POST", path="/login", origin=OWN, sec_fetch_site="cross-site"), False),
        (scope("websocket", path="/_nicegui_ws/socket.io/", origin=OWN), True),
        (scope("websocket", path="/_nicegui_ws/socket.io/"), False),
        (scope("websocket", path="/_nicegui_ws/socket.io/", origin="http://127.0.0.1:9071"), False),
        (scope(path="/_nicegui_ws/socket.io/", sec_fetch_site="cross-site"), False),
        (scope(method="POST", origin=OWN, content_length=str(BODY_MAX_BYTES + 1)), False),
        (scope(method="POST", origin=OWN, content_length="-1"), False),
    ],
)
async def test_whose_requests_are_answered(asked: dict[str, Any], is_let_in: bool) -> None:
    inner = Inner()
    sent = await ask(Guard(inner, {"console.example"}, 10), asked)
    assert inner.reached == int(is_let_in)
    if not is_let_in:
        assert sent[0].get("status") == 403 or sent[0]["type"] == "websocket.close"


async def test_answers_cannot_be_framed_and_load_nothing_from_elsewhere() -> None:
    sent = await ask(Guard(Inner(), set(), 10), scope())
    headers = dict(sent[0]["headers"])
    assert headers[b"x-frame-options"] == b"DENY"
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert b"http" not in headers[b"content-security-policy"]


async def test_sockets_are_counted_and_bounded() -> None:
    async def stays(scope_: Any, receive: Any, send: Any) -> None:
        assert guard.sockets == 1
        refused = await ask(guard, scope("websocket", origin=OWN))
        assert refused[0]["type"] == "websocket.close"

    guard = Guard(stays, set(), 1)
    await ask(guard, scope("websocket", origin=OWN))
    assert guard.sockets == 0
