"""TLS handshakes that fail are said and counted; all others are as good as a loop's own."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.captured_logs import capture_logs
from tests.certificates import Authority
from tests.waiting import SECONDS

import headrace
from headrace.broker.metrics import DoorMetrics
from headrace.doors.capacity import Capacity
from headrace.doors.tls import NO_TLS, UNTRUSTED, TlsServer

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def broker(authority: Authority) -> Iterator[headrace.Broker]:
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key, tls_client_ca=authority.path, http="127.0.0.1:0") as running:
        yield running


def connect(broker: headrace.Broker) -> socket.socket:
    host, port = broker.kafka.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 10)


def ask(broker: headrace.Broker, context: ssl.SSLContext) -> tuple[str, bytes]:
    """One request over TLS; the client's own address, and the beginning of the answer."""
    with connect(broker) as plain:
        address = "{}:{}".format(*plain.getsockname())
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(API_VERSIONS)
                return address, secure.recv(8)
        except OSError:
            return address, b""


def client(authority: Authority, certificate: tuple[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def failed(broker: headrace.Broker) -> int:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=SECONDS) as answer:
        found = re.search(r'headrace_tls_handshakes_failed_total\{door="kafka"\} (\d+)', answer.read().decode())
    assert found is not None
    return int(found[1])


def wait_for_line(lines: list[MutableMapping[str, Any]]) -> MutableMapping[str, Any]:
    for _ in range(1_000):
        found = [line for line in lines if line["event"] == "TLS handshake failed"]
        if found:
            assert len(found) == 1
            return found[0]
        time.sleep(0.01)
    raise AssertionError("nothing was said")


def test_a_client_with_a_certificate_is_answered(broker: headrace.Broker, authority: Authority) -> None:
    context = client(authority, authority.issue("someone"))
    with ThreadPoolExecutor(8) as pool:
        answers = [future.result()[1] for future in [pool.submit(ask, broker, context) for _ in range(40)]]
    assert {struct.unpack(">ii", answer)[1] for answer in answers} == {7}
    assert failed(broker) == 0


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("nobody", "the client shows no certificate"),
        ("a stranger", "the client's certificate is not accepted: .*signature"),
        ("an expired one", "the client's certificate is not accepted: certificate has expired"),
        ("a doubter", UNTRUSTED),
        ("one with another authority", UNTRUSTED),
    ],
)
def test_a_handshake_that_fails_is_said_once_and_counted(
    broker: headrace.Broker, authority: Authority, tmp_path: Path, who: str, reason: str
) -> None:
    match who:
        case "nobody":
            context = client(authority, None)
        case "a stranger":
            context = client(authority, Authority(tmp_path).issue("someone"))
        case "an expired one":
            context = client(authority, authority.issue("someone", expired=True))
        case "a doubter":
            context = ssl.create_default_context()
        case _:
            context = client(Authority(tmp_path), authority.issue("someone"))
    with capture_logs() as lines:
        address, answer = ask(broker, context)
        assert answer == b""
        line = wait_for_line(lines)
        assert (line["door"], line["client"], line["log_level"]) == ("kafka", address, "warning")
        assert re.search(reason, line["reason"])
        for _ in range(3):
            ask(broker, context)
        while failed(broker) < 4:
            time.sleep(0.01)
        wait_for_line(lines)


def test_a_client_that_does_not_speak_tls_is_said(broker: headrace.Broker) -> None:
    with capture_logs() as lines:
        with connect(broker) as plain:
            plain.sendall(API_VERSIONS)
            assert plain.recv(100)[:1] in (b"", b"\x15")
        assert wait_for_line(lines)["reason"] == NO_TLS


def test_a_look_at_the_port_is_nothing_to_speak_of(broker: headrace.Broker, authority: Authority) -> None:
    with capture_logs() as lines:
        connect(broker).close()
        assert ask(broker, client(authority, authority.issue("someone")))[1]
        assert not [line for line in lines if line["log_level"] != "debug"]
    assert failed(broker) == 0


def test_a_stop_does_not_wait_for_a_handshake(broker: headrace.Broker) -> None:
    with connect(broker) as silent:
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 5
        assert silent.recv(1) == b""


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EHOSTUNREACH])
async def test_errors_of_accepting_leave_the_loop_its_turn(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    tries = 0

    async def refuse(listening: socket.socket) -> None:
        nonlocal tries
        tries += 1
        if tries == 10_000:
            raise asyncio.CancelledError
        raise OSError(number, "not now")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", refuse)
    server = TlsServer(asyncio.Protocol, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), DoorMetrics("kafka"), Capacity())
    await server.start("127.0.0.1", 0)
    for _ in range(10):
        await asyncio.sleep(0)
    server.close()
    assert 1 <= tries <= 10


async def test_handshakes_take_descriptors_from_what_all_doors_share():
    capacity = Capacity(descriptors=2)
    metrics = DoorMetrics("kafka")
    server = TlsServer(asyncio.Protocol, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), metrics, capacity)
    await server.start("127.0.0.1", 0)
    # They say nothing, so their handshakes go on.
    clients = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(3)]
    async with asyncio.timeout(SECONDS):
        while metrics.connections_refused < 1:
            await asyncio.sleep(0.001)
        assert capacity.descriptors_left == 0
        for _, writer in clients:
            writer.close()
        while capacity.descriptors_left < 2:
            await asyncio.sleep(0.001)
    server.close()
