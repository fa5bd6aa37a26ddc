"""One URL that answers, fails, is slow, redirects, talks too much, or is not there."""

from __future__ import annotations

import asyncio
import ssl
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web
from tests.certificates import Authority
from tests.waiting import SECONDS
from tests.webhooks.receiver import Got, Receiver, receiving

from headrace.webhooks.endpoint import Answer, Endpoint, Verdict, retry_after, verdict_of
from headrace.webhooks.hook import Hook

OK = {"Content-Type": "text/plain"}


async def ask(receiver: Receiver, timeout: float = 5.0) -> Answer:
    async with Endpoint(receiver.url, timeout, 4) as endpoint:
        return await endpoint.post(OK, b"x")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, Verdict.TAKEN) for status in (200, 201, 202, 204, 299)),
        *((status, Verdict.REFUSED) for status in (400, 401, 403, 404, 405, 409, 413, 422, 431, 451, 499)),
        *((status, Verdict.FAILING) for status in (408, 425, 500, 501, 505, 507, 599)),
        *((status, Verdict.DOWN) for status in (301, 302, 303, 304, 307, 308, 429, 502, 503, 504)),
        (410, Verdict.GONE),
    ],
)
def test_what_statuses_mean(status: int, verdict: Verdict):
    assert verdict_of(status) is verdict


def test_when_to_come_again():
    assert retry_after("7", 0) == 7
    assert retry_after(" 0 ", 0) == 0
    assert retry_after("9" * 500, 0) == 3_600
    assert retry_after(formatdate(1_000, usegmt=True), 970) == 30
    assert retry_after(formatdate(1_000, usegmt=True), 2_000) == 0
    for nothing in (None, "", "soon", "-1", "1.5", "Mon, 99 Foo 2026", "٧"):
        assert retry_after(nothing, 0) is None


async def test_an_answer():
    async with receiving() as receiver:
        answer = await ask(receiver)
    assert (answer.verdict, answer.status) == (Verdict.TAKEN, 200)
    assert answer.seconds > 0
    [got] = receiver.got
    assert (got.body, got.headers["content-type"]) == (b"x", "text/plain")
    assert got.headers["user-agent"].startswith("headrace/")
    assert got.headers["accept-encoding"] == "identity"
    assert got.headers["content-length"] == "1"


async def test_why_it_was_refused():
    text = "no such\x00 order\r\n" + "x" * 5_000
    async with receiving(lambda got: web.Response(status=422, text=text)) as receiver:
        answer = await ask(receiver)
    assert answer.verdict is Verdict.REFUSED
    assert answer.reason.startswith("HTTP 422 Unprocessable Entity: no such order xxx")
    assert len(answer.reason) < 400


async def test_a_redirect_is_not_followed():
    async with receiving() as other, receiving() as receiver:
        receiver.behave = lambda got: web.Response(status=307, headers={"Location": other.url})
        answer = await ask(receiver)
        assert not other.got
    assert answer.verdict is Verdict.DOWN
    assert answer.reason == f"HTTP 307 Temporary Redirect to {other.url}"


async def test_later():
    async with receiving(lambda got: web.Response(status=429, headers={"Retry-After": "17"})) as receiver:
        answer = await ask(receiver)
        assert (answer.verdict, answer.pause) == (Verdict.DOWN, 17)
        receiver.behave = lambda got: web.Response(status=503, headers={"Retry-After": "x"})
        answer = await ask(receiver)
        assert (answer.verdict, answer.pause) == (Verdict.DOWN, None)
        # Of what was taken or refused it says nothing.
        receiver.behave = lambda got: web.Response(status=400, headers={"Retry-After": "17"})
        assert (await ask(receiver)).pause is None


async def test_a_slow_answer():
    async def slow(got: Got) -> int:
        await asyncio.sleep(60)
        return 200

    async with receiving(slow) as receiver:
        answer = await ask(receiver, timeout=0.2)
    assert (answer.verdict, answer.status) == (Verdict.FAILING, 0)
    assert answer.reason == "no answer within 0.2 seconds"
    assert answer.seconds < 20


async def test_a_body_without_end(caplog: pytest.LogCaptureFixture):
    sent = 0

    def endless(status: int):
        async def behave(got: Got) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse(status=status)
            request = requests[-1]
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * 65_536)
                    sent += 65_536
            except (ConnectionError, asyncio.CancelledError):
                raise

        return behave

    requests: list[web.Request] = []

    class Talkative(Receiver):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            requests.append(request)
            return await super()._answer(request)

    for status, verdict in ((200, Verdict.TAKEN), (400, Verdict.REFUSED)):
        receiver = Talkative(endless(status))
        await receiver.start()
        try:
            answer = await asyncio.wait_for(ask(receiver), SECONDS)
        finally:
            await receiver.stop()
        assert answer.verdict is verdict
    # What lies in sockets' buffers, and no more.
    assert sent < 32 << 20


async def test_a_body_that_never_comes_is_an_answer_all_the_same():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", 0.3, 1) as endpoint:
        assert (await endpoint.post(OK, b"x")).verdict is Verdict.TAKEN


async def test_nobody_there():
    async with receiving() as receiver:
        pass
    answer = await ask(receiver)
    assert (answer.verdict, answer.status) == (Verdict.DOWN, 0)
    assert answer.reason.startswith("no connection")
    async with Endpoint("http://nowhere.invalid/", 5, 1) as endpoint:
        assert (await endpoint.post(OK, b"x")).verdict is Verdict.DOWN


async def test_what_is_no_http():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-nonsense\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", 2, 1) as endpoint:
        assert (await endpoint.post(OK, b"x")).verdict is Verdict.FAILING


async def test_connections_are_used_again():
    async with receiving() as receiver, Endpoint(receiver.url, 5, 4) as endpoint:
        for _ in range(20):
            await endpoint.post(OK, b"x")
        assert len({got.peer for got in receiver.got}) == 1
        await asyncio.gather(*(endpoint.post(OK, b"x") for _ in range(40)))
        assert len({got.peer for got in receiver.got}) <= 4


async def test_a_kept_connection_that_was_closed_is_no_failure():
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request of a connection, and drops it at the second."""
        nonlocal answered
        await reader.readuntil(b"x")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        answered += 1
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", 2, 1) as endpoint:
        for _ in range(3):
            assert (await endpoint.post({}, b"x")).verdict is Verdict.TAKEN
    assert answered == 3


async def test_tls(tmp_path: Path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    async with receiving(tls=server) as receiver:

        async def verdict(**settings: str | bool) -> Answer:
            hook = Hook(receiver.url, **settings)  # type: ignore[arg-type]
            async with Endpoint(hook.url, 5, 1, hook.tls()) as endpoint:
                return await endpoint.post(OK, b"x")

        assert (await verdict(ca_file=authority.path)).verdict is Verdict.TAKEN
        assert (await verdict(insecure=True)).verdict is Verdict.TAKEN
        stranger = await verdict()
        assert stranger.verdict is Verdict.DOWN
        assert "certificate" in stranger.reason.lower()
        # The right authority, and another name.
        receiver_url = receiver.url.replace("127.0.0.1", "localhost")
        hook = Hook(receiver_url, ca_file=authority.path)
        async with Endpoint(hook.url, 5, 1, hook.tls()) as endpoint:
            assert (await endpoint.post(OK, b"x")).verdict is Verdict.DOWN

        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(authority.path)
        assert (await verdict(ca_file=authority.path)).verdict is not Verdict.TAKEN
        mine = authority.issue("pusher")
        shown = await verdict(ca_file=authority.path, cert_file=mine[0], key_file=mine[1])
        assert shown.verdict is Verdict.TAKEN
