from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.certificates import Authority
from tests.waiting import SECONDS, until

from headrace.broker.metrics import Metrics
from headrace.doors.door import DoorContext
from headrace.doors.http.door import HttpDoor
from headrace.doors.http.server import connection as connection_module
from headrace.doors.http.server import listener as listener_module
from headrace.doors.http.server.listener import Listener
from headrace.doors.http.server.messages import HttpError, Request, Response

CLOSE = b"Host: localhost\r\nConnection: close\r\n\r\n"
KEEP = b"Host: localhost\r\n\r\n"


class Site:
    """A listener over handlers that a test can hold back."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **settings: Any) -> None:
        self.metrics = Metrics()
        self.held: asyncio.Event = asyncio.Event()
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.large = b""
        self.tls = tls
        settings.setdefault("connections_max", 100)
        self.listener = Listener(self.answer, self.metrics.door("http"), **settings)

    async def answer(self, request: Request) -> Response:
        self.asked.append(request.path)
        if request.path == "/slow":
            await self.held.wait()
        elif request.path == "/fail":
            raise RuntimeError("no such luck")
        elif request.path == "/large":
            return Response(self.large)
        self.answered.append(request.path)
        return Response(f"{request.path} {len(request.body)}\n".encode())

    async def __aenter__(self) -> Site:
        await self.listener.listen("127.0.0.1", 0, self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.stop()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.listener.address)

    async def ask(self, request: bytes) -> bytes:
        """All that is said to `request` until the connection is closed."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
        return answer


def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", seconds)
    monkeypatch.setattr(connection_module, "SLOWEST_BYTES_PER_SECOND", 1 << 40)


async def test_a_slow_handler_holds_back_its_own_connection_only():
    async with Site() as site:
        reader, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP + b"GET /second HTTP/1.1\r\n" + CLOSE)
        await until(lambda: site.asked)
        assert (await site.ask(b"GET /other HTTP/1.1\r\n" + CLOSE)).endswith(b"/other 0\n")
        assert site.asked == ["/slow", "/other"]
        site.held.set()
        answers = await asyncio.wait_for(reader.read(), SECONDS)
        assert answers.index(b"/slow 0") < answers.index(b"/second 0")
        writer.close()


async def test_what_comes_while_a_handler_works_stays_in_the_socket():
    async with Site() as site:
        reader, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP)
        await until(lambda: site.asked)
        for _ in range(200):
            writer.write(b"POST /more HTTP/1.1\r\nContent-Length: 60000\r\n" + KEEP + bytes(60_000))
        writer.write(b"GET /last HTTP/1.1\r\n" + CLOSE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        site.held.set()
        answers = await asyncio.wait_for(reader.read(), SECONDS)
        assert answers.count(b"/more 60000") == 200
        assert answers.endswith(b"/last 0\n")
        writer.close()


async def test_a_client_that_is_done_sending_still_gets_its_answers():
    async with Site() as site:
        reader, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP + b"GET /two HTTP/1.1\r\n" + KEEP)
        writer.write_eof()
        await until(lambda: site.asked)
        await asyncio.sleep(0.01)
        site.held.set()
        answers = await asyncio.wait_for(reader.read(), SECONDS)
        assert b"/slow 0" in answers
        assert b"/two 0" in answers
        writer.close()


async def test_a_handler_ends_its_work_though_its_client_is_gone():
    async with Site() as site:
        _, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP)
        await until(lambda: site.asked)
        # A reset, not an orderly end.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: not len(site.listener.connections))
        site.held.set()
        await until(lambda: site.answered == ["/slow"])


async def test_garbage_is_answered_and_closed():
    async with Site() as site:
        assert (await site.ask(b"\x00\x01\x02\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert (await site.ask(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)).startswith(b"HTTP/1.1 431")
        assert (await site.ask(b"GET /still HTTP/1.1\r\n" + CLOSE)).startswith(b"HTTP/1.1 200")


async def test_a_body_may_be_as_large_as_the_listener_says():
    async with Site(body_max_bytes=1_000_000) as site:
        fits = b"POST /in HTTP/1.1\r\nContent-Length: 1000000\r\n" + CLOSE + bytes(1_000_000)
        assert (await site.ask(fits)).endswith(b"/in 1000000\n")


async def test_a_refused_client_that_still_sends_gets_its_answer():
    async with Site(body_max_bytes=1_000) as site:
        reader, writer = await site.connect()
        writer.write(b"POST /in HTTP/1.1\r\nContent-Length: 3000000\r\n" + KEEP)
        for _ in range(30):
            writer.write(bytes(100_000))
            await writer.drain()
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"larger than 1000 bytes" in answer
        writer.close()
        await until(lambda: site.metrics.door("http").connections == 0)


async def test_a_door_may_word_what_is_too_large_by_path():
    async with Site(
        body_max_bytes=10, write_error=lambda error: Response(f"{error.path}?".encode(), status=error.status)
    ) as site:
        answer = await site.ask(b"POST /a%62 HTTP/1.1\r\nContent-Length: 11\r\n" + KEEP + bytes(11))
        assert answer.endswith(b"/ab?")
        assert b"/ab?" not in await site.ask(b"nonsense\r\n\r\n")


async def test_a_refused_client_is_cut_off_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", 0.05)
    async with Site() as site:
        reader, writer = await site.connect()
        writer.write(b"\x00\r\n\r\n")
        await asyncio.wait_for(reader.read(), SECONDS)
        await until(lambda: not len(site.listener.connections))
        writer.close()


async def test_refusals_are_worded_by_the_door():
    def write_error(error: HttpError) -> Response:
        return Response(b"{}", "application/json", error.status, (("X-Why", str(error)),))

    async with Site(write_error=write_error) as site:
        failed = await site.ask(b"GET /fail HTTP/1.1\r\n" + CLOSE)
        assert failed.startswith(b"HTTP/1.1 500")
        assert b"application/json" in failed
        assert b"x-why: not http/1.1" in (await site.ask(b"?\r\n\r\n")).lower()


async def test_a_handler_that_fails_does_not_take_the_connection_with_it():
    async with Site() as site:
        answer = await site.ask(b"GET /fail HTTP/1.1\r\n" + KEEP + b"GET /next HTTP/1.1\r\n" + CLOSE)
        assert answer.startswith(b"HTTP/1.1 500")
        assert answer.endswith(b"/next 0\n")


async def test_a_slow_client_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    patience(monkeypatch, 0.5)
    async with Site() as site:
        assert (await site.ask(b"GET /healthz HT")).startswith(b"HTTP/1.1 408")
        assert await site.ask(b"") == b""


async def test_how_long_a_client_may_be_silent_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "SLOWEST_BYTES_PER_SECOND", 1 << 40)
    async with brokers.running(tmp_path, http="127.0.0.1:0", http_request_ms=300) as broker:
        door = HttpDoor(DoorContext(broker, broker.config, broker.config))
        await door.start()
        try:
            for sent, answer in ((b"", b""), (b"GET /healthz HT", b"HTTP/1.1 408")):
                reader, writer = await asyncio.open_connection(*door.address)
                writer.write(sent)
                assert (await asyncio.wait_for(reader.read(), SECONDS))[: len(answer) or 1] == answer
                writer.close()
        finally:
            await door.stop()


async def test_a_large_body_may_take_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connection_module, "SLOWEST_BYTES_PER_SECOND", 100)
    async with Site(body_max_bytes=1_000) as site:
        reader, writer = await site.connect()
        writer.write(b"POST /in HTTP/1.1\r\nContent-Length: 1000\r\n" + CLOSE + bytes(999))
        await asyncio.sleep(0.8)
        writer.write(b"x")
        assert (await asyncio.wait_for(reader.read(), SECONDS)).endswith(b"/in 1000\n")
        writer.close()


async def test_the_time_of_the_handler_is_not_the_clients(monkeypatch: pytest.MonkeyPatch):
    patience(monkeypatch, 0.5)
    async with Site() as site:
        asking = asyncio.ensure_future(site.ask(b"GET /slow HTTP/1.1\r\n" + CLOSE))
        await until(lambda: site.asked)
        done, _ = await asyncio.wait([asking], timeout=0.8)
        assert not done
        site.held.set()
        assert (await asking).endswith(b"/slow 0\n")


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    patience(monkeypatch, 0.2)
    async with Site() as site:
        site.large = b"x" * 4_000_000
        reader, writer = await site.connect()
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        await until(lambda: not len(site.listener.connections))
        assert len(site.asked) < 50
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(50 * 4_000_000)
        writer.close()


async def test_stop_ends_idle_connections_and_lets_answers_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_module, "STOP_SECONDS", 60.0)
    async with Site() as site:
        idle, idle_writer = await site.connect()
        idle_writer.write(b"GET /a HTTP/1.1\r\n" + KEEP)
        await idle.readuntil(b"/a 0\n")
        slow, slow_writer = await site.connect()
        slow_writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP)
        await until(lambda: "/slow" in site.asked)
        stopping = asyncio.ensure_future(site.listener.stop())
        assert await asyncio.wait_for(idle.read(), SECONDS) == b""
        site.held.set()
        assert (await asyncio.wait_for(slow.read(), SECONDS)).endswith(b"/slow 0\n")
        await asyncio.wait_for(stopping, SECONDS)
        idle_writer.close()
        slow_writer.close()


async def test_stop_waits_for_a_handler_whose_client_is_gone():
    async with Site() as site:
        _, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP)
        await until(lambda: site.asked)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: not len(site.listener.connections))
        stopping = asyncio.ensure_future(site.listener.stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        site.held.set()
        await asyncio.wait_for(stopping, SECONDS)
        assert site.answered == ["/slow"]


async def test_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener_module, "STOP_SECONDS", 0.05)
    async with Site() as site:
        reader, writer = await site.connect()
        writer.write(b"GET /slow HTTP/1.1\r\n" + KEEP)
        await until(lambda: site.asked)
        await asyncio.wait_for(site.listener.stop(), SECONDS)
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        writer.close()
        assert site.answered == []


async def test_an_answer_that_cannot_be_sent_ends_its_connection():
    async def answer(request: Request) -> Response:
        return Response(b"", headers=(("X-A", "a\nb"),))

    async with Site() as site:
        site.listener.answer = answer
        assert await site.ask(b"GET / HTTP/1.1\r\n" + KEEP) == b""


async def test_between_requests_a_connection_holds_nothing():
    async with Site() as site:
        reader, writer = await site.connect()
        for _ in range(2):
            writer.write(b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n" + KEEP + bytes(9))
            await reader.readuntil(b"/a 9\n")
            (connection,) = site.listener.connections
            assert connection._codec is None
        writer.close()


async def test_over_tls(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    async with Site(tls=context) as site:
        trusting = ssl.create_default_context(cafile=authority.path)
        reader, writer = await asyncio.open_connection(
            *site.listener.address, ssl=trusting, server_hostname="localhost"
        )
        writer.write(b"GET /a HTTP/1.1\r\n" + KEEP)
        await asyncio.wait_for(reader.readuntil(b"/a 0\n"), SECONDS)
        writer.write(b"GET /b HTTP/1.1\r\n" + CLOSE)
        assert (await asyncio.wait_for(reader.read(), SECONDS)).endswith(b"/b 0\n")
        writer.close()


def test_the_grammar_is_not_loaded_at_the_start():
    code = "import sys, headrace.doors.http.door; sys.exit('h11' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
