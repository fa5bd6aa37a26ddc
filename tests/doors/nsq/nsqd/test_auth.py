"""AUTH: a server that says what a client may do, asked as nsqd asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import structlog
from tests.doors.nsq.nsqd.wired import Wire, dpub, mpub, open_door, pub, sized
from tests.shifted import Shifted

from headrace.doors.nsq.nsqd.auth import place_of
from headrace.errors import ConfigError

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class Server:
    """Answers every request with the same JSON."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answer: Any = {
            "ttl": 3600,
            "identity": "somebody",
            "identity_url": "http://who",
            "authorizations": [EVERYTHING],
        }
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = urlsplit(head.split()[1].decode())
        self.paths.append(target.path)
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line]
        self.headers.append({name.lower(): value for name, value in lines})
        self.asked.append({name: values[0] for name, values in parse_qs(target.query).items()})
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (self.status, len(body)) + body)
        writer.close()


@asynccontextmanager
async def auth_server() -> AsyncIterator[Server]:
    made = Server()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


async def test_who_has_authenticated_may_do_what_was_granted(tmp_path: Path) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        server.answer["authorizations"] = [
            {"topic": "^t$", "channels": ["^c$"], "permissions": ["subscribe"]},
            {"topic": "^t$", "channels": [".*"], "permissions": ["publish"]},
        ]
        wire = await Wire.open(door, client_id="me")
        assert wire.told["auth_required"] is True
        told = json.loads(await wire.ask(auth(b"a secret & more")))
        assert told == {"identity": "somebody", "identity_url": "http://who", "permission_count": 2}
        assert server.asked == [{"secret": "a secret & more", "remote_ip": "127.0.0.1", "tls": "false"}]
        assert server.paths == ["/auth"]
        assert await wire.ask(pub("t", b"x")) == b"OK"
        wire.send(pub("t", b"x") * 3)
        for _ in range(3):
            assert await wire.response() == b"OK"
        assert await wire.ask(mpub("t", b"x")) == b"OK"
        assert await wire.ask(b"SUB t c\n") == b"OK"
        assert len(server.asked) == 1
        assert await wire.refused(pub("other", b"x")) == 'E_UNAUTHORIZED AUTH failed for PUB on "other" ""'
        assert await wire.closed() == b""
        for command, error in (
            (mpub("other", b"x"), 'E_UNAUTHORIZED AUTH failed for MPUB on "other" ""'),
            (dpub("other", 5, b"x"), 'E_UNAUTHORIZED AUTH failed for DPUB on "other" ""'),
            (b"SUB t other\n", 'E_UNAUTHORIZED AUTH failed for SUB on "t" "other"'),
            (b"SUB other c\n", 'E_UNAUTHORIZED AUTH failed for SUB on "other" "c"'),
        ):
            async with await Wire.open(door) as wire:
                await wire.ask(auth(b"s"))
                assert await wire.refused(command) == error
                assert await wire.closed() == b""
        assert door.topics.get("other") is None


async def test_auth_comes_first(tmp_path: Path) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        for command, name in (
            (pub("t", b"x"), "PUB"),
            (mpub("t", b"x"), "MPUB"),
            (dpub("t", 0, b"x"), "DPUB"),
            (b"SUB t c\n", "SUB"),
        ):
            async with await Wire.open(door) as wire:
                assert await wire.refused(command) == f"E_AUTH_FIRST AUTH required before {name}"
                assert await wire.closed() == b""


async def test_auth_where_there_is_none_to_be_had(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.refused(auth(b"s")) == "E_AUTH_DISABLED AUTH disabled"
        assert await wire.closed() == b""


async def test_auth_once_and_before_subscribing(tmp_path: Path) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        async with await Wire.open(door) as wire:
            await wire.ask(auth(b"s"))
            assert await wire.refused(auth(b"s")) == "E_INVALID AUTH already set"
        async with await Wire.open(door) as wire:
            await wire.ask(auth(b"s"))
            await wire.ask(b"SUB t c\n")
            assert await wire.refused(auth(b"s")) == "E_INVALID cannot AUTH in current state"


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"[]",
        {"authorizations": [EVERYTHING]},
        {"ttl": 0, "authorizations": [EVERYTHING]},
        {"ttl": "5", "authorizations": [EVERYTHING]},
        {"ttl": 5, "authorizations": [{**EVERYTHING, "permissions": ["own"]}]},
        {"ttl": 5, "authorizations": [{**EVERYTHING, "topic": "("}]},
        {"ttl": 5, "authorizations": [{**EVERYTHING, "channels": ["("]}]},
        {"ttl": 5, "authorizations": ["everything"]},
        500,
    ],
)
async def test_answers_that_cannot_be_used(tmp_path: Path, answer: Any) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        if isinstance(answer, int):
            server.status = answer
        else:
            server.answer = answer
        async with await Wire.open(door) as wire:
            assert await wire.refused(auth(b"s")) == "E_AUTH_FAILED AUTH failed"
            assert await wire.closed() == b""


async def test_nothing_granted(tmp_path: Path) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        server.answer = {"ttl": 60, "authorizations": []}
        async with await Wire.open(door) as wire:
            assert await wire.refused(auth(b"s")) == "E_UNAUTHORIZED AUTH no authorizations found"


async def test_it_is_asked_again_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with auth_server() as server, open_door(tmp_path, auth_http=server.address) as door:
        clock = Shifted(monkeypatch)
        server.answer["ttl"] = 15
        async with await Wire.open(door) as wire:
            await wire.ask(auth(b"s"))
            assert await wire.ask(pub("t", b"x")) == b"OK"
            clock.forward(15)
            wire.send(pub("t", b"x") * 5)
            for _ in range(5):
                assert await wire.response() == b"OK"
            assert [each["secret"] for each in server.asked] == ["s", "s"]
            server.answer["authorizations"] = [{**EVERYTHING, "permissions": ["subscribe"]}]
            clock.forward(15)
            assert await wire.refused(pub("t", b"x")) == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
            assert len(server.asked) == 3


async def test_the_next_server_is_asked_where_one_does_not_answer(tmp_path: Path) -> None:
    async with auth_server() as server:
        places = f"127.0.0.1:1, http://{server.address}/who/may"
        async with open_door(tmp_path, auth_http=places) as door, await Wire.open(door) as wire:
            assert json.loads(await wire.ask(auth(b"s")))["permission_count"] == 1
            assert server.paths == ["/who/may"]


async def test_no_server_answers(tmp_path: Path) -> None:
    async with open_door(tmp_path, auth_http="127.0.0.1:1") as door, await Wire.open(door) as wire:
        assert await wire.refused(auth(b"s")) == "E_AUTH_FAILED AUTH failed"


async def test_a_password_of_the_server_is_sent_to_it_and_is_in_no_log(tmp_path: Path) -> None:
    async with auth_server() as server:
        places = f"http://me:hush@127.0.0.1:1/token, http://me:hush@{server.address}/auth"
        with structlog.testing.capture_logs() as lines:
            async with open_door(tmp_path, auth_http=places) as door, await Wire.open(door) as wire:
                server.answer = {"ttl": 0}
                assert await wire.refused(auth(b"client-secret")) == "E_AUTH_FAILED AUTH failed"
        assert server.headers[-1]["authorization"] == "Basic bWU6aHVzaA=="
        assert server.headers[-1]["host"] == server.address
    (line,) = [line for line in lines if line["event"] == "AUTH failed"]
    assert server.address in line["reason"]
    for secret in ("hush", "token", "client-secret"):
        assert secret not in str(lines)


def test_where_to_ask() -> None:
    assert place_of("auth:4181") == "http://auth:4181/auth"
    assert place_of("https://auth") == "https://auth/auth"
    assert place_of("http://auth:4181/path/") == "http://auth:4181/path"
    for wrong in ("ftp://auth", "auth:port", "http://", "http://auth/?a=b"):
        with pytest.raises(ConfigError, match="auth_http"):
            place_of(wrong)
    with pytest.raises(ConfigError) as error:
        place_of("ftp://me:hush@auth?secret=hush")
    assert "hush" not in str(error.value)
