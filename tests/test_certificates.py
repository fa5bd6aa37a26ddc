"""Certificates that change while a broker runs: at every door, without dropping connections."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.certificates import Authority
from tests.doors.nsq.nsqd.wired import sized
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

from headrace.addresses import parse_address
from headrace.config import Config
from headrace.server import Server

DOORS = {
    "kafka": "127.0.0.1:0",
    "http": "127.0.0.1:0",
    "nsq": "127.0.0.1:0",
    "nsq_https": "127.0.0.1:0",
    "rocketmq": "127.0.0.1:0",
    "rocketmq_namesrv": "127.0.0.1:0",
    "rocketmq_grpc": "127.0.0.1:0",
}
OVER_TLS = ("kafka", "http", "nsq-https", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc")


class Files:
    """The files that a broker is given, whose content changes."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "made")
        self.cert, self.key = folder / "server.pem", folder / "server.key"
        self.ca = folder / "clients.pem"
        shutil.copy(self.authority.path, self.ca)
        self.renew()

    def renew(self) -> bytes:
        """Another certificate; how clients see it."""
        cert, key = self.authority.issue("localhost", "127.0.0.1")
        shutil.copy(key, self.key)
        shutil.copy(cert, self.cert)
        return ssl.PEM_cert_to_DER_cert(Path(cert).read_text())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "made").mkdir()
    return Files(tmp_path)


@asynccontextmanager
async def serving(files: Files, data: Path, **settings: Any) -> AsyncIterator[Server]:
    given = {"nsq_http": "off", "lookup": "off", "lookup_http": "off", "http_tls": True, **DOORS, **settings}
    server = Server(Config(data=str(data), tls_cert=str(files.cert), tls_key=str(files.key), **given))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def shown_by(server: Server, door: str, context: ssl.SSLContext | None = None) -> bytes:
    """The certificate that a door shows to those who come."""
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = parse_address(server.addresses[door])
    assert place is not None
    if door == "nsq":
        reader, writer = await asyncio.open_connection(*place)
        writer.write(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation":true,"tls_v1":true}'))
        await reader.readexactly(4)
        await reader.readuntil(b"}")
        await writer.start_tls(context)
    else:
        if door == "rocketmq-grpc":
            context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(*place, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(shown)


async def test_a_changed_file_counts_for_those_who_come_next(files: Files, tmp_path: Path):
    first = files.renew()
    async with serving(files, tmp_path / "data", tls_reload_ms=20) as server:
        for door in (*OVER_TLS, "nsq"):
            assert await shown_by(server, door) == first, door
        place = parse_address(server.addresses["http"])
        assert place is not None
        context = ssl.create_default_context(cafile=files.authority.path)
        reader, writer = await asyncio.open_connection(*place, ssl=context)
        second = files.renew()
        for door in (*OVER_TLS, "nsq"):
            async with asyncio.timeout(SECONDS):
                while await shown_by(server, door) != second:
                    await asyncio.sleep(0.02)
        # Who was there goes on with what it has.
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), SECONDS)).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize("damage", ["no certificate", "another's key", "gone"])
async def test_a_bad_certificate_leaves_the_one_before(files: Files, tmp_path: Path, damage: str):
    first = files.renew()
    async with serving(files, tmp_path / "data", tls_reload_ms=0) as server:
        if damage == "no certificate":
            files.cert.write_text("nothing")
        elif damage == "another's key":
            _, key = files.authority.issue("localhost")
            shutil.copy(key, files.key)
        else:
            files.cert.unlink()
        with structlog.testing.capture_logs() as logs:
            await server.reload_certificates()
        assert [each["log_level"] for each in logs] == ["error"]
        assert "PRIVATE" not in str(logs)
        for door in OVER_TLS:
            assert await shown_by(server, door) == first, door


async def test_an_authority_that_is_taken_out_counts_no_more(files: Files, tmp_path: Path):
    """What a context has loaded into it cannot be taken out of it: another one takes its place."""
    settings = {"tls_client_ca": str(files.ca), "tls_reload_ms": 0}
    async with serving(files, tmp_path / "data", **settings) as server:
        context = ssl.create_default_context(cafile=files.authority.path)
        context.load_cert_chain(*files.authority.issue("client"))
        place = parse_address(server.addresses["http"])
        assert place is not None

        async def answer() -> bytes:
            try:
                reader, writer = await asyncio.open_connection(*place, ssl=context)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return await asyncio.wait_for(reader.read(), SECONDS)
            except OSError:
                return b""

        assert (await answer()).startswith(b"HTTP/1.1 200")
        (tmp_path / "other").mkdir()
        shutil.copy(Authority(tmp_path / "other").path, files.ca)
        await server.reload_certificates()
        assert await answer() == b""


def test_a_hangup_has_certificates_read_again(files: Files, tmp_path: Path):
    first = files.renew()
    flags = ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-reload-ms", "0")
    with ServeProcess(tmp_path / "data", "--kafka", "127.0.0.1:0", *flags) as broker:
        host, _, port = broker.addresses["kafka"].rpartition(":")
        shown = partial(ssl.get_server_certificate, (host, int(port)))
        assert ssl.PEM_cert_to_DER_cert(shown()) == first
        second = files.renew()
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: ssl.PEM_cert_to_DER_cert(shown()) == second)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_old_versions_of_tls_are_refused(files: Files, tmp_path: Path):
    async with serving(files, tmp_path / "data") as server:
        for door in OVER_TLS:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await shown_by(server, door, context)
