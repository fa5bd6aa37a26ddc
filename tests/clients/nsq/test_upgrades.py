"""Connections that are encrypted, compressed, or must say who they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.certificates import Authority
from tests.clients.nsq.clients import Client, ClientFailed
from tests.clients.nsq.conftest import Doors, nsq_serving
from tests.clients.nsq.test_messages import numbered

# A block of the compressed formats and a half, and hard to compress.
LARGE = Random(1).randbytes(48_000).hex()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    certificate, key = authority.issue("localhost", "127.0.0.1")
    made = nsq_serving(tmp_path_factory.mktemp("tls") / "data", "--tls-cert", certificate, "--tls-key", key)
    with made.serving:
        yield made.doors
        made.serving.stop()


def there_and_back(doors: Doors, client: Client, topic: str, large: bool = True, **how: Any) -> None:
    bodies = [*numbered(20), *([LARGE] if large else [])]
    # gnsq's producer does not expect the answer to an upgrade and falls over it; its consumer does.
    publishing = {} if client.name == "gnsq" and {"snappy", "deflate"} & set(how) else how
    client.publish(doors.nsq, topic, bodies, "batch", **publishing)
    found = client.read(topic, "c", len(bodies), nsqd=doors.nsq, in_flight=5, **how)
    assert sorted(each.body for each in found) == sorted(bodies)


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_compressed(doors: Doors, client: Client, topic: str, compression: str) -> None:
    # pynsq and gnsq take a block of snappy that comes in two reads for the end of the connection.
    there_and_back(doors, client, topic, large=client.name not in ("pynsq", "gnsq"), **{compression: True})


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
def test_encrypted(encrypted: Doors, authority: Authority, client: Client, topic: str, compression: str) -> None:
    if client.name == "gnsq":
        pytest.skip("gnsq wraps sockets in a way that Python's ssl no longer has")
    how = {compression: True} if compression else {}
    large = not (client.name == "pynsq" and compression)
    there_and_back(encrypted, client, topic, large, tls_ca=authority.path, **how)


def test_a_door_with_a_certificate_serves_clients_without_tls_too(encrypted: Doors, client: Client, topic: str) -> None:
    there_and_back(encrypted, client, topic)


PERMISSIONS = {
    "all": [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}],
    "reader": [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}],
}


class Permits(BaseHTTPRequestHandler):
    """An authority over NSQ's clients, as nsqd asks one: by the secret that they gave."""

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        secret = asked["secret"][0]
        if secret not in PERMISSIONS:
            self.send_error(403)
            return
        told = {"ttl": 3600, "identity": secret, "identity_url": "", "authorizations": PERMISSIONS[secret]}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Permits) as permits:
        threading.Thread(target=permits.serve_forever, daemon=True).start()
        folder: Path = tmp_path_factory.mktemp("auth")
        made = nsq_serving(folder / "data", "--auth-http", f"127.0.0.1:{permits.server_port}")
        with made.serving:
            yield made.doors
            made.serving.stop()
        permits.shutdown()


def test_who_may_do_all(guarded: Doors, client: Client, topic: str) -> None:
    there_and_back(guarded, client, topic, auth="all")


def test_who_may_not_publish(guarded: Doors, client: Client, topic: str) -> None:
    with pytest.raises(ClientFailed):
        client.publish(guarded.nsq, topic, ["no"], auth="reader")
    assert not guarded.get(f"/stats?format=json&topic={topic}")["topics"]
