"""The HTTP door over TLS."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
from tests.certificates import Authority
from tests.waiting import SECONDS

import headrace
from headrace.config import Config
from headrace.doors.http.api.handlers.cluster import leader_url
from headrace.errors import ConfigError


def test_the_door_speaks_tls_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key, http_tls=True) as broker:
        trusting = ssl.create_default_context(cafile=authority.path)
        with urllib.request.urlopen(f"https://{broker.http}/healthz", timeout=SECONDS, context=trusting) as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises((URLError, ConnectionError)):
            urllib.request.urlopen(f"http://{broker.http}/healthz", timeout=SECONDS)


def test_a_client_without_the_certificate_that_is_required_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key, tls_client_ca=authority.path, http_tls=True) as broker:
        trusting = ssl.create_default_context(cafile=authority.path)
        with pytest.raises((URLError, ConnectionError, ssl.SSLError)):
            urllib.request.urlopen(f"https://{broker.http}/healthz", timeout=SECONDS, context=trusting).read()
        trusting.load_cert_chain(*authority.issue("client"))
        with urllib.request.urlopen(f"https://{broker.http}/healthz", timeout=SECONDS, context=trusting) as answer:
            assert answer.read() == b"ok\n"


def test_it_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="http_tls needs tls_cert and tls_key"):
        Config(http_tls=True)


def test_followers_name_the_leader_by_what_its_door_speaks() -> None:
    view = SimpleNamespace(number=2, addresses={"http": "node2.test:9080"})
    group: Any = SimpleNamespace(nodes={2: view}, leader=2, node_id=1)
    assert leader_url(group, tls=True) == "https://node2.test:9080"
    assert leader_url(group, tls=False) == "http://node2.test:9080"
