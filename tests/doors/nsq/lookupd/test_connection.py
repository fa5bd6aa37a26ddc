from __future__ import annotations

import asyncio
import json
import socket

import pytest
from tests.doors.nsq.lookupd.conftest import IDENTITY, Lookup
from tests.waiting import SECONDS, until


async def test_a_producer_registers_and_goes(lookup: Lookup):
    peer = await lookup.connect()
    told = json.loads(await peer.say("IDENTIFY", IDENTITY))
    assert told == {
        "tcp_port": lookup.door.address[1],
        "http_port": lookup.door.http.address[1],
        "version": "1.3.0",
        "broadcast_address": "127.0.0.1",
        "hostname": "here",
    }
    assert await peer.say("REGISTER orders mail") == b"OK"
    assert await peer.say("REGISTER orders") == b"OK"
    assert await peer.say("REGISTER other#ephemeral") == b"OK"
    host, port = peer.writer.get_extra_info("sockname")
    assert await lookup.get("/lookup?topic=orders") == {
        "channels": ["mail"],
        "producers": [{"remote_address": f"{host}:{port}", **IDENTITY}],
    }
    assert await peer.say("UNREGISTER orders mail") == b"OK"
    assert await lookup.get("/channels?topic=orders") == {"channels": ["mail"]}
    assert await peer.say("PING") == b"OK"
    await peer.close()
    await until(lambda: not lookup.door.registry.producers("orders"))
    assert await lookup.get("/lookup?topic=orders") == {"channels": ["mail"], "producers": []}
    assert await lookup.get("/topics") == {"topics": ["orders"]}


async def test_ping_comes_before_anything(lookup: Lookup):
    peer = await lookup.connect()
    assert await peer.say("PING") == b"OK"


async def test_ping_keeps_a_producer_alive(lookup: Lookup):
    peer = await lookup.producer()
    await peer.say("REGISTER orders")
    lookup.now_ms += 299_000
    await peer.say("PING")
    lookup.now_ms += 299_000
    assert (await lookup.get("/lookup?topic=orders"))["producers"]
    lookup.now_ms += 2_000
    assert (await lookup.get("/lookup?topic=orders"))["producers"] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("REGISTER", b"E_INVALID REGISTER insufficient number of params"),
        ("UNREGISTER", b"E_INVALID UNREGISTER insufficient number of params"),
        ("REGISTER a$b", b"E_BAD_TOPIC REGISTER topic name 'a$b' is not valid"),
        ("REGISTER x.ephemeral", b"E_BAD_TOPIC REGISTER topic name 'x.ephemeral' is not valid"),
        ("UNREGISTER t c/d", b"E_BAD_CHANNEL UNREGISTER channel name 'c/d' is not valid"),
        ("FLY", b"E_INVALID invalid command FLY"),
        ("", b"E_INVALID invalid command "),
    ],
)
async def test_what_is_wrong_ends_the_connection(lookup: Lookup, line: str, said: bytes):
    peer = await lookup.producer()
    assert await peer.say(line) == said
    assert await peer.ended()


@pytest.mark.parametrize("line", ["REGISTER t", "UNREGISTER t"])
async def test_a_producer_introduces_itself_first(lookup: Lookup, line: str):
    peer = await lookup.connect()
    assert await peer.say(line) == b"E_INVALID client must IDENTIFY"
    assert await peer.ended()


async def test_a_producer_introduces_itself_once(lookup: Lookup):
    peer = await lookup.producer()
    assert await peer.say("IDENTIFY", IDENTITY) == b"E_INVALID cannot IDENTIFY again"
    assert await peer.ended()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", b"decode JSON"),
        (b"{", b"decode JSON"),
        (b"[" * 50_000, b"decode JSON"),
        (b"[]", b"decode JSON"),
        (b"\xff", b"decode JSON"),
        ({**IDENTITY, "tcp_port": "4150"}, b"decode JSON"),
        ({**IDENTITY, "http_port": 70_000}, b"decode JSON"),
        ({**IDENTITY, "broadcast_address": 7}, b"decode JSON"),
        ({**IDENTITY, "hostname": "x" * 300}, b"decode JSON"),
        ({}, b"missing fields"),
        ({**IDENTITY, "broadcast_address": ""}, b"missing fields"),
        ({**IDENTITY, "http_port": None}, b"missing fields"),
    ],
)
async def test_bad_introductions(lookup: Lookup, body: object, said: bytes):
    peer = await lookup.connect()
    answer = await peer.say("IDENTIFY", body)
    assert answer.startswith(b"E_BAD_BODY IDENTIFY ")
    assert said in answer
    assert await peer.ended()


async def test_another_protocol_is_told_so(lookup: Lookup):
    peer = await lookup.connect(b"  V2")
    assert await peer.answer() == b"E_BAD_PROTOCOL"
    assert await peer.ended()


async def test_many_commands_at_once_and_a_peer_that_does_not_read(lookup: Lookup):
    peer = await lookup.producer()
    count = 200_000
    (connection,) = lookup.door.connections
    for transport in (connection.transport, peer.writer.transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    peer.writer.write(b"PING\n" * count)
    await until(lambda: connection.unread)
    assert await asyncio.wait_for(peer.reader.readexactly(6 * count), SECONDS) == b"\0\0\0\2OK" * count


async def test_the_bound_is_told(lookups):
    lookup = await lookups(lookup_registrations_max=2)
    peer = await lookup.producer()
    assert await peer.say("REGISTER one") == b"OK"
    assert b"lookup_registrations_max" in await peer.say("REGISTER two")
    assert await peer.ended()
    await until(lambda: lookup.door.registry.nodes()[1:] == [])


async def test_connections_are_bounded_and_idle_ones_go(lookups):
    lookup = await lookups(connections_max=1, connections_idle_ms=1_500)
    peer = await lookup.connect()
    await peer.say("PING")
    other = await lookup.connect()
    try:
        assert await asyncio.wait_for(other.reader.read(), SECONDS) == b""
    except ConnectionResetError:
        pass
    assert lookup.metrics.door("lookup").connections_refused == 1
    try:
        assert await peer.ended()
    except ConnectionResetError:
        pass
    await until(lambda: lookup.metrics.door("lookup").connections == 0)
