"""Hostile HTTP against every door that speaks it: pages of other sites, requests that two readers would read in two
ways, lengths that lie, and clients that never read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS

from headrace.config import Config
from headrace.format import compression
from headrace.server import Server

DOORS = ("http", "nsq-http", "lookup-http")
# A request that changes something, and one that reads, at each door.
CHANGE = {
    "http": ("POST", "/topics/orders"),
    "nsq-http": ("POST", "/topic/delete?topic=orders"),
    "lookup-http": ("POST", "/topic/create?topic=orders"),
}
READ = {"http": ("GET", "/v1/queues"), "nsq-http": ("GET", "/stats"), "lookup-http": ("GET", "/topics")}


class Site:
    """One HTTP door of a server."""

    def __init__(self, server: Server, door: str) -> None:
        self.server = server
        self.door = door

    @property
    def address(self) -> str:
        return self.server.addresses[self.door]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.address.rsplit(":", 1)
        return await asyncio.open_connection(host, int(port))

    async def say(self, data: bytes) -> bytes:
        """All that is answered to bytes until the connection is closed."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), SECONDS)
        finally:
            writer.close()

    async def ask(self, request: tuple[str, str], body: bytes = b"", **headers: str) -> int:
        """The status of an answer."""
        given = {"Host": self.address, "Connection": "close", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
        answer = await self.say(f"{request[0]} {request[1]} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return int(answer.split()[1])

    async def change(self, **headers: str) -> int:
        return await self.ask(CHANGE[self.door], b"x" if self.door == "http" else b"", **headers)

    async def read(self, **headers: str) -> int:
        return await self.ask(READ[self.door], **headers)


async def opened(data: Path, door: str, host: str = "127.0.0.1", **settings: Any) -> Site:
    doors = {name.replace("-", "_"): f"{host}:0" if name == door else "off" for name in DOORS}
    doors |= {"rocketmq": "off", "rocketmq_namesrv": "off", "rocketmq_grpc": "off"}
    server = Server(
        Config(data=str(data), kafka="off", nsq="off", lookup="off", durability="async", **doors, **settings)
    )
    await server.start()
    await server.broker.topics.create("orders")
    return Site(server, door)


@pytest.fixture(params=DOORS)
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    made = await opened(tmp_path, request.param)
    yield made
    await made.server.stop()


# --- pages of other sites ---------------------------------------------------------------------------------------------


async def test_a_page_of_another_site_changes_nothing(site: Site):
    for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1", f"http://{site.address}.evil.example"):
        assert await site.change(Origin=origin) == 403, origin
        assert await site.read(Origin=origin) == 403, origin
    for where in ("cross-site", "same-site"):
        assert await site.change(Sec_Fetch_Site=where, Sec_Fetch_Mode="no-cors") == 403
        # A form that sends the browser to the door.
        assert await site.change(Sec_Fetch_Site=where, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document") == 403
        assert await site.read(Sec_Fetch_Site=where, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="script") == 403
    assert "orders" in site.server.broker.topics.all


async def test_the_doors_own_pages_links_to_it_and_programs_pass(site: Site):
    assert await site.read(Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document") == 200
    assert await site.read(Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate") == 200
    assert await site.read() == 200
    assert await site.change(Origin=f"http://{site.address}", Sec_Fetch_Site="same-origin") == 200
    assert await site.change(Origin="HTTP://LocalHost:1", Host="localhost:1") in (200, 404)


async def test_a_name_that_a_page_moved_to_the_doors_address_is_refused(site: Site):
    port = site.address.rsplit(":", 1)[1]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "broker",
        "broker.internal",
        "127.1x",
    ):
        assert await site.change(Host=host) == 421, host
        assert await site.read(Host=host) == 421, host
        assert await site.change(Host=host, Origin=f"http://{host}") == 421, host
    assert "orders" in site.server.broker.topics.all


async def test_addresses_and_the_brokers_own_names_pass(site: Site):
    hostname = site.server.broker.runtime.hostname
    for host in (
        "127.0.0.1",
        "127.0.0.1:80",
        "10.1.2.3:9",
        "[::1]:80",
        "localhost",
        "LOCALHOST:9",
        "localhost.",
        hostname,
    ):
        assert await site.read(Host=host) == 200, host
    assert (await site.say(b"GET /ping HTTP/1.0\r\n\r\n")).split()[1] in (b"200", b"404")


@pytest.mark.parametrize("door", DOORS)
async def test_names_can_be_added(tmp_path: Path, door: str):
    names = "mq.example.com, *.svc.example"
    site = await opened(tmp_path, door, http_hosts=names, nsq_broadcast="nsq.example", kafka_advertised="k.example:9")
    for host in ("mq.example.com", "MQ.example.com.:8080", "a.b.svc.example", "nsq.example", "k.example"):
        assert await site.read(Host=host) == 200, host
    for host in ("svc.example", "x.mq.example.com", "evilsvc.example", "other.example"):
        assert await site.read(Host=host) == 421, host
    await site.server.stop()
    site = await opened(tmp_path / "any", door, http_hosts="*")
    assert await site.read(Host="other.example") == 200
    await site.server.stop()


@pytest.mark.parametrize("door", DOORS)
async def test_a_door_in_a_private_network_is_called_by_private_names(tmp_path: Path, door: str):
    site = await opened(tmp_path, door, "0.0.0.0", insecure=True)
    for host in ("broker:9080", "broker.internal", "headrace-0.headrace.default.svc.cluster.local:80"):
        assert await site.read(Host=host) == 200, host
    for host in ("evil.example", "evil.com", "local", "internal"):
        assert await site.read(Host=host) == (200 if "." not in host else 421), host
    await site.server.stop()


# --- requests that two readers would read in two ways -----------------------------------------------------------------

AMBIGUOUS = {
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length of two": b"Content-Length: 3, 4\r\n\r\nabcd",
    "a length with a sign": b"Content-Length: +3\r\n\r\nabc",
    "a folded header": b"X-A: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a header folded by a tab": b"X-A: a\r\n\tb\r\nContent-Length: 0\r\n\r\n",
    "a folded header with bare line feeds": b"X-A: a\n b\nContent-Length: 0\n\n",
    "a folded length": b"Content-Length:\r\n 3\r\n\r\nabc",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "two hosts": b"Host: evil.example\r\nContent-Length: 0\r\n\r\n",
    "an end in a header": b"X-A: a\0b\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_what_can_be_read_in_two_ways_is_refused(site: Site, what: str):
    method, path = CHANGE[site.door]
    follower = b"POST /topic/delete?topic=orders HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for split in (0, 10, 60):
        data = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + AMBIGUOUS[what] + follower
        reader, writer = await site.connect()
        writer.write(data[:split])
        await writer.drain()
        writer.write(data[split:])
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
        assert answer.split()[1] == b"400", answer
        # Nothing of what follows is a request.
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()
    assert "orders" in site.server.broker.topics.all


async def test_a_folded_header_of_a_later_request_is_refused(site: Site):
    chunked = b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = await site.say(chunked + b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 400 " in answer


async def test_chunks_in_http_1_0_are_refused(site: Site):
    answer = await site.say(b"POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert answer.split()[1] == b"400"


@pytest.mark.parametrize(
    "target", ["http://evil.example/v1/queues", "//evil.example", "@evil.example/", "*", "evil.example:80"]
)
async def test_only_paths_are_asked_for(site: Site, target: str):
    answer = await site.say(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.split()[1] in (b"400", b"404")


# --- lengths that lie -------------------------------------------------------------------------------------------------


async def test_a_body_that_ends_early_does_nothing(site: Site):
    method, path = CHANGE[site.door]
    reader, writer = await site.connect()
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf".encode())
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    assert not answer or answer.split()[1] == b"400"
    assert "orders" in site.server.broker.topics.all


@pytest.mark.parametrize("length", ["99999999999", "9" * 30, "-1", "0x10", "1e3", ""])
async def test_a_length_beyond_all_bounds_is_refused_at_once(site: Site, length: str):
    answer = await site.say(f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
    assert answer.split()[1] in (b"400", b"413")


async def test_a_chunk_that_announces_more_than_comes_holds_nothing(site: Site):
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for size in (b"FFFFFFFFFFFFFFFF", b"-1", b"x", b"1" * 50):
        reader, writer = await site.connect()
        writer.write(head + size + b"\r\nabc")
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
        assert not answer or answer.split()[1] == b"400"
    assert await site.read() == 200


# --- clients that never read: see also tests/doors/test_capacity.py ---------------------------------------------------


def resident_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.long
@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_peeks_that_nobody_reads_stay_within_their_bound(tmp_path: Path, codec: int):
    """A broker as a process of its own: 150 connections peek at large messages, or at what unpacks to much."""
    with ServeProcess(tmp_path / "data", "--http", "127.0.0.1:0") as broker, ExitStack() as stack:
        host, port = broker.addresses["http"].split(":")
        producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": compression.NAMES[codec]})
        for _ in range(200):
            producer.produce("rain", b"x" * 900_000)
        producer.flush()
        asking = HTTPConnection(host, int(port), timeout=60)
        asking.request("PUT", "/v1/topics/rain/queues/q", b'{"from": "earliest"}')
        assert asking.getresponse().read()
        before = resident_bytes(broker.pid)
        request = b"GET /v1/topics/rain/queues/q/peek?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(150):
            lazy = stack.enter_context(closing(socket.socket()))
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            lazy.connect((host, int(port)))
            lazy.sendall(request * 20)
        # Behind them in the line of those who look.
        asking.request("GET", "/v1/topics/rain/queues/q/peek?limit=1")
        assert asking.getresponse().status == 200
        time.sleep(10)
        asking.close()
        # What may be unread, as much again for what is under way, and two unpacked batches.
        assert resident_bytes(broker.pid) - before < 2 * 268_435_456 + 2 * 134_217_728
