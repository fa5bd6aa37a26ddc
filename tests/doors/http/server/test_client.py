from __future__ import annotations

import asyncio
import ssl

import pytest
from tests.certificates import Authority
from tests.waiting import SECONDS

from headrace.broker.metrics import Metrics
from headrace.doors.http.server.client import HttpFailed, get
from headrace.doors.http.server.listener import Listener
from headrace.doors.http.server.messages import Request, Response


async def answer(request: Request) -> Response:
    return Response(f"{request.method} {request.path} {request.query} {request.headers}".encode(), status=404)


async def listening(tls: ssl.SSLContext | None = None) -> Listener:
    listener = Listener(answer, Metrics().door("http"), connections_max=10)
    await listener.listen("127.0.0.1", 0, tls)
    return listener


async def test_get():
    listener = await listening()
    _, port = listener.address
    said = await get(f"http://127.0.0.1:{port}/a?b=c", timeout=SECONDS, headers=(("Accept", "x"),))
    assert said.status == 404
    assert said.body.startswith(b"GET /a b=c {")
    assert f"'host': '127.0.0.1:{port}', 'accept': 'x'".encode() in said.body
    assert (await get(f"http://127.0.0.1:{port}", timeout=SECONDS)).body.startswith(b"GET / ")
    with pytest.raises(HttpFailed, match="more than 5 bytes"):
        await get(f"http://127.0.0.1:{port}/", timeout=SECONDS, body_max_bytes=5)
    await listener.stop()
    with pytest.raises(HttpFailed, match="cannot be asked"):
        await get(f"http://127.0.0.1:{port}/", timeout=SECONDS)


async def test_get_over_tls(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    listener = await listening(context)
    url = f"https://127.0.0.1:{listener.address[1]}/"
    trusting = ssl.create_default_context(cafile=authority.path)
    assert (await get(url, timeout=SECONDS, tls=trusting)).status == 404
    with pytest.raises(HttpFailed):
        await get(url, timeout=SECONDS)
    await listener.stop()


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "nothing", "http://h:x/"])
async def test_what_is_no_url(url):
    with pytest.raises(HttpFailed):
        await get(url, timeout=SECONDS)


@pytest.mark.parametrize("said", [b"", b"\x00\x01\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"])
async def test_what_is_no_answer(said):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    with pytest.raises(HttpFailed):
        await get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout=SECONDS)
    server.close()


async def test_silence_ends():
    held = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    with pytest.raises(HttpFailed, match=r"within 0\.05 seconds"):
        await get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout=0.05)
    held.set()
    server.close()
