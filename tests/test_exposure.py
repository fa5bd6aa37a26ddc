"""What listens beyond this machine is guarded, or accepted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.certificates import Authority
from tests.doors.test_registry import ADDRESSES, CLOSED, Knocker, KnockerConfig, KnockerSettings

import headrace
from headrace.addresses import is_loopback
from headrace.config import Config, resolve
from headrace.doors.registry import DOORS, DoorEntry
from headrace.errors import ConfigError
from headrace.exposure import exposed_doors, refuse_exposed
from headrace.server import Server

CERTIFICATE = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def exposed(**settings: Any) -> list[str]:
    """The listeners that are refused, of those that are given or else of all, on every interface."""
    addresses = dict.fromkeys(ADDRESSES, "0.0.0.0:0")
    return [each.name for each in exposed_doors(Config(**{**addresses, **settings}), DOORS)]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST."])
def test_the_loopback_interface_is_this_machines_alone(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "mq.example", "127.0.0.1.example", "fe80::1%eth0", "1"])
def test_every_other_host_is_reached_from_elsewhere(host: str):
    assert not is_loopback(host)


def test_no_door_is_exposed_by_default():
    assert exposed_doors(Config(), DOORS) == []
    assert exposed_doors(Config(**CERTIFICATE), DOORS) == []


def test_every_listener_needs_a_guard():
    assert exposed() == [name.replace("_", "-") for name in ADDRESSES if name != "nsq_https"]


def test_no_listener_is_left_out():
    """Every setting that is a listener's address, whichever door it belongs to; the console and the nodes of a group
    are refused by themselves."""
    listeners = {each.name for each in fields(Config) if each.metadata["address"]}
    assert listeners - {"console", "peer"} == set(ADDRESSES)


@pytest.mark.parametrize("listener", [each for each in ADDRESSES if each != "nsq_https"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3"])
async def test_each_listener_alone_keeps_a_broker_from_starting(tmp_path: Path, listener: str, host: str):
    server = Server(Config(data=str(tmp_path / "data"), **{**CLOSED, listener: f"{host}:0"}))
    with pytest.raises(ConfigError) as raised:
        await server.start()
    name = listener.replace("_", "-")
    assert f"other machines would reach {name} on {host}:0 with neither TLS nor authentication" in str(raised.value)
    assert "--insecure" in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_each_further_listener_of_kafka_needs_a_guard_of_its_own():
    further = "in=PLAINTEXT://0.0.0.0:0,out=SASL_PLAINTEXT://0.0.0.0:0?mechanisms=SCRAM-SHA-256"
    assert [each.name for each in exposed_doors(Config(**CLOSED, kafka_listeners=further), DOORS)] == ["kafka-in"]


def test_a_certificate_guards_doors_that_speak_tls_only():
    open_ones = ["http", "nsq", "nsq-http", "lookup", "lookup-http"]
    assert exposed(**CERTIFICATE) == open_ones
    assert exposed(**CERTIFICATE, nsq_tls_required=True) == ["http", "lookup", "lookup-http"]
    assert exposed(**CERTIFICATE, tls_client_ca="ca.pem") == ["http", "lookup", "lookup-http"]
    assert exposed(**CERTIFICATE, nsq_tls_required=True, http_tls=True) == ["lookup", "lookup-http"]


def test_an_authorization_server_guards_nsqd():
    assert "nsq" not in exposed(auth_http="127.0.0.1:1")
    assert "nsq-http" in exposed(auth_http="127.0.0.1:1")


async def test_a_start_is_refused_before_anything_is_made(tmp_path: Path):
    data = tmp_path / "data"
    server = Server(Config(data=str(data), **{**CLOSED, "http": "0.0.0.0:0", "nsq": ":0"}))
    with pytest.raises(ConfigError) as raised:
        await server.start()
    assert not data.exists()
    text = str(raised.value)
    assert text.startswith("other machines would reach http on 0.0.0.0:0, nsq on :0 with neither TLS nor authentic")
    assert "nsq_tls_required" in text
    assert "--insecure, HEADRACE_INSECURE=true, or insecure = true" in text


def test_a_broker_inside_of_a_program_is_refused_too():
    with pytest.raises(ConfigError, match=r"kafka on \[::\]:0"):
        headrace.Broker(kafka="[::]:0").start()


@pytest.mark.parametrize(
    "sources",
    [({"insecure": "true"}, {}, {}), ({}, {"HEADRACE_INSECURE": "true"}, {}), ({}, {}, {"insecure": True})],
    ids=["flag", "environment", "file"],
)
def test_the_operator_can_accept_it(sources: tuple[Any, Any, Any]):
    config = resolve(*sources)
    assert config.insecure
    listeners = exposed_doors(Config(kafka="0.0.0.0:1"), DOORS)
    with capture_logs() as logs:
        refuse_exposed(listeners, insecure=config.insecure)
    assert [each["event"] for each in logs] == [
        "insecure: other machines reach kafka on 0.0.0.0:1 with neither TLS nor authentication"
    ]


async def test_an_accepted_door_opens(tmp_path: Path):
    server = Server(Config(data=str(tmp_path), **{**CLOSED, "kafka": "0.0.0.0:0", "insecure": True}))
    await server.start()
    assert list(server.addresses) == ["kafka"]
    await server.stop()


async def test_a_guarded_door_opens(tmp_path: Path, authority: Authority):
    cert, key = authority.issue("localhost", "127.0.0.1")
    server = Server(Config(data=str(tmp_path), **{**CLOSED, "kafka": "0.0.0.0:0"}, tls_cert=cert, tls_key=key))
    await server.start()
    assert list(server.addresses) == ["kafka"]
    await server.stop()


async def test_a_door_that_declares_no_guard_has_none(tmp_path: Path):
    entry = DoorEntry("knocker", f"{Knocker.__module__}:Knocker", KnockerSettings)
    config = KnockerConfig(data=str(tmp_path), **CLOSED, knocker="10.0.0.1:1")
    with pytest.raises(ConfigError, match="knocker on 10"):
        await Server(config, doors=(*DOORS, entry)).start()
