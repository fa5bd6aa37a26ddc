from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path

import pytest
import structlog
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kio.schema.errors import ErrorCode
from tests.broker.groups.stage import join_request
from tests.certificates import Authority
from tests.doors.kafka.wired import Wire
from tests.waiting import SECONDS, until

import headrace
from headrace.broker.groups import Problem, State
from headrace.config import Config
from headrace.doors.kafka import door
from headrace.errors import ConfigError, DataDirectoryInvalid
from headrace.format import records
from headrace.log.native import NativeLog
from headrace.server import Server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def topics_over(address: str, seconds: float = 20, **settings: str) -> bool:
    """Whether a real client gets an answer."""
    client = AdminClient(
        {"bootstrap.servers": address, "log_level": 0, **{k.replace("_", "."): v for k, v in settings.items()}}
    )
    try:
        client.list_topics(timeout=seconds)
    except Exception:
        return False
    return True


def test_the_kafka_door_speaks_tls(authority: Authority):
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key) as broker:
        assert topics_over(broker.kafka, security_protocol="ssl", ssl_ca_location=authority.path)
        assert not topics_over(broker.kafka, 3)


def test_client_certificates_are_required_where_an_authority_is_given(authority: Authority, tmp_path: Path):
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key, tls_client_ca=authority.path) as broker:
        tls = {"security_protocol": "ssl", "ssl_ca_location": authority.path}
        assert not topics_over(broker.kafka, 3, **tls)
        client_cert, client_key = authority.issue("someone")
        assert topics_over(broker.kafka, **tls, ssl_certificate_location=client_cert, ssl_key_location=client_key)
        stranger_cert, stranger_key = Authority(tmp_path).issue("someone")
        assert not topics_over(
            broker.kafka, 3, **tls, ssl_certificate_location=stranger_cert, ssl_key_location=stranger_key
        )


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_tls_is_refused(authority: Authority):
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key) as broker:
        host, port = broker.kafka.split(":")
        context = ssl.create_default_context(cafile=authority.path)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection((host, int(port)), 5) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_key_of_another_certificate_is_said(authority: Authority):
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(ConfigError, match="cannot be used"):
        headrace.Broker(tls_cert=cert, tls_key=key).start()


@pytest.mark.parametrize(("said", "opened"), [({}, ["kafka"]), ({"nsq_https": "127.0.0.1:0"}, ["kafka", "nsq-https"])])
async def test_a_certificate_opens_no_door_of_nsq_that_was_not_asked_for(
    authority: Authority, tmp_path: Path, said: dict[str, str], opened: list[str]
):
    cert, key = authority.issue("localhost", "127.0.0.1")
    closed = dict.fromkeys(
        ("http", "nsq", "nsq_http", "lookup", "lookup_http", "rocketmq", "rocketmq_namesrv", "rocketmq_grpc"), "off"
    )
    config = Config(data=str(tmp_path), kafka="127.0.0.1:0", tls_cert=cert, tls_key=key, **closed, **said)
    server = Server(config)
    await server.start()
    assert sorted(server.addresses) == opened
    await server.stop()


def test_a_key_with_a_pass_phrase_is_refused_and_not_asked_for(authority: Authority, tmp_path: Path):
    cert, key = authority.issue("one")
    read = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    assert isinstance(read, ec.EllipticCurvePrivateKey)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        read.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match=r"encrypted\.key is encrypted"):
        headrace.Broker(tls_cert=cert, tls_key=str(encrypted)).start()


def test_a_missing_key_is_named(authority: Authority, tmp_path: Path):
    cert, _ = authority.issue("one")
    with pytest.raises(ConfigError, match=f"there is no {tmp_path}/nothing.key"):
        headrace.Broker(tls_cert=cert, tls_key=f"{tmp_path}/nothing.key").start()


def test_a_door_on_every_interface_sends_clients_back_the_way_they_came():
    with headrace.Broker(kafka="0.0.0.0:0", insecure=True) as broker:
        port = broker.kafka.rpartition(":")[2]
        metadata = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=SECONDS)
        assert [(each.host, each.port) for each in metadata.brokers.values()] == [("127.0.0.1", int(port))]


@pytest.mark.parametrize("name", [".lock", "checkpoint", "journal"])
def test_a_data_directory_that_cannot_be_used_is_said(tmp_path: Path, name: str):
    with headrace.Broker(data=tmp_path):
        pass
    if name == "journal":
        # Found only by a start that has something to recover.
        (tmp_path / "clean-shutdown").unlink()
        (tmp_path / name).rmdir()
        (tmp_path / name).write_bytes(b"")
    else:
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
    with pytest.raises(DataDirectoryInvalid, match="cannot be used"), headrace.Broker(data=tmp_path):
        pass


def test_a_disk_that_is_too_full_to_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def full(self: NativeLog) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(NativeLog, "start", full)
    with pytest.raises(DataDirectoryInvalid, match=f"the disk of the data directory {tmp_path} is full"):
        headrace.Broker(data=tmp_path).start()


async def test_a_stop_does_not_wait_for_members_to_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door, "STOP_SECONDS", 60.0)
    server = Server(
        Config(
            data=str(tmp_path),
            kafka="127.0.0.1:0",
            http="off",
            nsq="off",
            nsq_http="off",
            lookup="off",
            lookup_http="off",
            rocketmq="off",
            rocketmq_namesrv="off",
            rocketmq_grpc="off",
        )
    )
    await server.start()
    groups = server.broker.groups
    first = await groups.join("g", join_request())
    host, port = server.addresses["kafka"].split(":")
    async with Wire(*await asyncio.open_connection(host, int(port))) as wire:
        wire.send(
            "join_group",
            3,
            group_id="g",
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"r"}],
        )
        # The first member would have to join again, and nobody does that for it.
        await until(lambda: groups._shards.home("g").groups["g"].state is State.PREPARING)
        assert first.problem is Problem.NONE
        await asyncio.wait_for(server.stop(), SECONDS)
        reply = await asyncio.wait_for(wire.receive("join_group", 3), SECONDS)
        assert reply.error_code is ErrorCode.coordinator_not_available


async def test_what_is_stored_is_for_the_brokers_user_alone(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir(0o755)
    server = Server(
        Config(
            data=str(data),
            kafka="off",
            http="off",
            nsq="off",
            nsq_http="off",
            lookup="off",
            lookup_http="off",
            rocketmq="off",
            rocketmq_namesrv="off",
            rocketmq_grpc="off",
        )
    )
    umask = os.umask(0)
    try:
        await server.start()
        topic = await server.broker.topics.create("t", 2)
        for partition in topic.partitions:
            await partition.load()
            partition.append(records.build([(0, b"k", b"v", [])]))
        await server.stop()
    finally:
        os.umask(umask)
    modes = {path: path.stat().st_mode & 0o777 for path in [data, *data.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert sum(path.is_file() for path in modes) > 4


async def test_a_directory_that_others_can_read_is_warned_of(tmp_path: Path):
    config = Config(
        data=str(tmp_path),
        kafka="off",
        http="off",
        nsq="off",
        nsq_http="off",
        lookup="off",
        lookup_http="off",
        rocketmq="off",
        rocketmq_namesrv="off",
        rocketmq_grpc="off",
    )
    (tmp_path / "mine").touch()
    tmp_path.chmod(0o755)
    with structlog.testing.capture_logs() as lines:
        server = Server(config)
        await server.start()
        await server.stop()
    (warned,) = [line["event"] for line in lines if "chmod" in line["event"]]
    assert "mode 0755" in warned
    assert tmp_path.stat().st_mode & 0o777 == 0o755
