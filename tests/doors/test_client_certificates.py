"""Who a client is by its certificate, at every door that is not Kafka's, shown by real TLS clients.

Kafka's own are in tests/clients/test_kafka_security.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.certificates import Authority
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc, message
from tests.waiting import SECONDS

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.rules import allow
from headrace.config import Config
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.grpc.protocol import Code as GrpcCode
from headrace.server import Server

TOPIC = "letters"
DOORS = ("http", "nsq", "rocketmq", "rocketmq-grpc")
OFF = ("kafka", "nsq_http", "nsq_https", "lookup", "lookup_http", "rocketmq_namesrv")

Paths = tuple[str, str]
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def start(tmp_path: Path, authority: Authority) -> AsyncIterator[Start]:
    made: list[Server] = []

    async def start(user: str, **settings: Any) -> Server:
        """A broker at which this user may write."""
        cert, key = authority.issue("localhost", "127.0.0.1")
        doors = {each.replace("-", "_"): "127.0.0.1:0" for each in DOORS} | dict.fromkeys(OFF, "off")
        tls = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.path, "http_tls": True}
        more = {"authorization": "on", "durability": "async", "authentication_delay_max_ms": 0, **settings}
        server = Server(Config(data=str(tmp_path), **doors, **tls, **more))
        await server.start()
        made.append(server)
        rules = [allow(user, each, Resource.TOPIC, TOPIC) for each in (Operation.WRITE, Operation.CREATE)]
        await server.broker.security.grants.add_rules(OWN, rules)
        return server

    yield start
    for each in made:
        await each.stop()


def trusting(authority: Authority, certificate: Paths | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def publish(door: str, address: str, authority: Authority, certificate: Paths | None) -> bool:
    """Whether a client may write. Raises OSError or grpc.RpcError where it is not let in at all."""
    return CLIENTS[door](address, authority, certificate)


def by_http(address: str, authority: Authority, certificate: Paths | None) -> bool:
    url = f"https://{address.replace('127.0.0.1', 'localhost')}/v1/topics/{TOPIC}/messages"
    body = json.dumps({"messages": [{"value": "one"}]}).encode()
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, context=trusting(authority, certificate), timeout=SECONDS):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (401, 403):
            raise
        return False


def by_nsq(address: str, authority: Authority, certificate: Paths | None) -> bool:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as plain:
        asked = json.dumps({"tls_v1": True, "feature_negotiation": True}).encode()
        plain.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(asked)) + asked)
        assert b"tls_v1" in read_frame(plain)
        with trusting(authority, certificate).wrap_socket(plain, server_hostname="localhost") as secure:
            first = read_frame(secure)
            if first != b"OK":
                return False
            secure.sendall(b"PUB letters\n" + struct.pack(">i", 3) + b"one")
            answer = read_frame(secure)
    assert answer == b"OK" or answer.startswith((b"E_UNAUTHORIZED", b"E_AUTH_FIRST"))
    return answer == b"OK"


def read_frame(sock: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = sock.recv(size - len(got))
            if not more:
                raise ConnectionResetError
            got += more
        return got

    size, _ = struct.unpack(">ii", exactly(8))
    return exactly(size - 4)


def by_remoting(address: str, authority: Authority, certificate: Paths | None) -> bool:
    with Raw(address, tls=trusting(authority, certificate)) as raw:
        code = raw.sent(TOPIC, b"one").code
    assert code in (Code.SUCCESS, Code.NO_PERMISSION)
    return code == Code.SUCCESS


def by_grpc(address: str, authority: Authority, certificate: Paths | None) -> bool:
    chain, key = (Path(each).read_bytes() for each in certificate) if certificate is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(Path(authority.path).read_bytes(), key, chain)
    with RawGrpc(address.replace("127.0.0.1", "localhost"), credentials=credentials) as client:
        code = client.send(TOPIC, message(TOPIC, b"one")).status.code
    assert code in (GrpcCode.OK, GrpcCode.FORBIDDEN, GrpcCode.UNAUTHORIZED)
    return bool(code == GrpcCode.OK)


CLIENTS = {"http": by_http, "nsq": by_nsq, "rocketmq": by_remoting, "rocketmq-grpc": by_grpc}

RULES = {
    "subject": ({}, "CN=Ann"),
    "rule": ({"certificate_rules": "RULE:^CN=([A-Z].*)$/$1@corp/L"}, "ann@corp"),
    "san": ({"certificate_user": "dns"}, "Ann"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", RULES)
async def test_a_client_is_whom_its_certificate_names(start: Start, authority: Authority, door: str, kind: str) -> None:
    settings, user = RULES[kind]
    server = await start(user, **settings)
    address = server.addresses[door]
    # One may write; the other may not, and neither may one whose name no rule makes a user of.
    for name, expected in (("Ann", True), ("Ben", False), ("carl", False)):
        assert await asyncio.to_thread(publish, door, address, authority, authority.issue(name)) is expected, name


@pytest.mark.parametrize("door", DOORS)
async def test_a_certificate_of_another_authority_or_none_is_not_let_in(
    start: Start, authority: Authority, tmp_path: Path, door: str
) -> None:
    server = await start("CN=Ann")
    address = server.addresses[door]
    folder = tmp_path / "others"
    folder.mkdir()
    for certificate in (Authority(folder).issue("Ann"), authority.issue("Ann", expired=True), None):
        with pytest.raises((OSError, grpc.RpcError)):
            await asyncio.to_thread(publish, door, address, authority, certificate)
    assert await asyncio.to_thread(publish, door, address, authority, authority.issue("Ann"))
