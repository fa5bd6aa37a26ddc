"""IDENTIFY: what is negotiated, by values and over a socket, with TLS and packed streams in their order."""

from __future__ import annotations

import asyncio
import json
import ssl
import zlib
from pathlib import Path
from typing import Any

import pytest
import snappy
from tests.certificates import Authority
from tests.device import Device
from tests.doors.nsq.nsqd.wired import Message, Wire, identify_command, kept, mpub, on_both_loops, open_door, pub, sized
from tests.waiting import SECONDS, until

from headrace.config import Config
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.nsqd import connection
from headrace.doors.nsq.nsqd.identify import Identity, negotiate, parse, reply
from headrace.doors.nsq.nsqd.listener import Nsqd

CONFIG = Config()


def asked(tls: bool = False, **fields: Any) -> Identity:
    return negotiate(parse(json.dumps({"feature_negotiation": True, **fields}).encode()), CONFIG, tls)


def test_nothing_asked_is_all_defaults() -> None:
    assert negotiate(parse(b"{}"), CONFIG, True) == Identity()
    assert negotiate(parse(b"null"), CONFIG, True) == Identity()


def test_without_negotiation_no_feature_is_given() -> None:
    body = {"snappy": True, "tls_v1": True, "headrace": 1, "heartbeat_interval": 1000}
    assert negotiate(parse(json.dumps(body).encode()), CONFIG, True) == Identity(heartbeat_ms=1000)


def test_everything_asked() -> None:
    identity = asked(
        tls=True,
        client_id="me",
        hostname="here",
        user_agent="test/1",
        heartbeat_interval=5000,
        output_buffer_size=4096,
        output_buffer_timeout=100,
        msg_timeout=2000,
        sample_rate=99,
        tls_v1=True,
        deflate=True,
        deflate_level=9,
        headrace=1,
        something_else=[1, 2],
    )
    assert identity == Identity(
        client_id="me",
        hostname="here",
        user_agent="test/1",
        heartbeat_ms=5000,
        output_buffer_size=4096,
        output_buffer_ms=100,
        msg_timeout_ms=2000,
        sample_rate=99,
        tls=True,
        deflate=True,
        deflate_level=6,
        extended=True,
        negotiated=True,
    )
    assert json.loads(reply(identity, CONFIG, CONFIG.queue_timeout_ms, "of-this-one", 9080)) == {
        "max_rdy_count": 2500,
        "version": "1.3.0",
        "max_msg_timeout": 900_000,
        "msg_timeout": 2000,
        "tls_v1": True,
        "deflate": True,
        "deflate_level": 6,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": 99,
        "auth_required": False,
        "output_buffer_size": 4096,
        "output_buffer_timeout": 100,
        "headrace": 1,
        "cluster_id": "of-this-one",
        "http_port": 9080,
    }


def test_minus_one_turns_things_off() -> None:
    assert asked(heartbeat_interval=-1).heartbeat_ms == 0
    assert asked(heartbeat_interval=60_000).heartbeat_ms == 60_000
    assert asked(output_buffer_timeout=-1).output_buffer_ms == 0
    off = asked(output_buffer_size=-1, output_buffer_timeout=100)
    assert (off.output_buffer_size, off.output_buffer_ms) == (1, 0)


def test_what_the_door_does_not_have_is_not_given() -> None:
    assert not asked(tls=False, tls_v1=True).tls
    assert not asked(headrace=2).extended


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"heartbeat_interval": 999}, "E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid"),
        ({"heartbeat_interval": 60_001}, "E_BAD_BODY IDENTIFY heartbeat interval (60001) is invalid"),
        ({"heartbeat_interval": -2}, "E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"),
        ({"output_buffer_size": 63}, "E_BAD_BODY IDENTIFY output buffer size (63) is invalid"),
        ({"output_buffer_size": 65_537}, "E_BAD_BODY IDENTIFY output buffer size (65537) is invalid"),
        ({"output_buffer_timeout": 24}, "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid"),
        ({"output_buffer_timeout": 30_001}, "E_BAD_BODY IDENTIFY output buffer timeout (30001) is invalid"),
        ({"sample_rate": 100}, "E_BAD_BODY IDENTIFY sample rate (100) is invalid"),
        ({"sample_rate": -1}, "E_BAD_BODY IDENTIFY sample rate (-1) is invalid"),
        ({"msg_timeout": 999}, "E_BAD_BODY IDENTIFY msg timeout (999) is invalid"),
        ({"msg_timeout": 900_001}, "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid"),
        ({"snappy": True, "deflate": True}, "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"),
        ({"client_id": 5}, "E_BAD_BODY IDENTIFY failed to decode JSON body: client_id is not a str"),
        ({"snappy": 1}, "E_BAD_BODY IDENTIFY failed to decode JSON body: snappy is not a bool"),
        ({"sample_rate": True}, "E_BAD_BODY IDENTIFY failed to decode JSON body: sample_rate is not a int"),
        ({"msg_timeout": 1.5}, "E_BAD_BODY IDENTIFY failed to decode JSON body: msg_timeout is not a int"),
    ],
)
async def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(CommandError) as refused:
        asked(**fields)
    assert f"{refused.value.nsq_code} {refused.value}" == error
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.refused(identify_command(**fields)) == error
        assert await wire.closed() == b""


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000])
async def test_a_body_that_is_no_object(tmp_path: Path, body: bytes) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        error = await wire.refused(b"IDENTIFY\n" + sized(body))
        assert error.startswith("E_BAD_BODY IDENTIFY failed to decode JSON body")
        assert await wire.closed() == b""


async def test_without_negotiation_the_answer_is_ok(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await wire.ask(b"IDENTIFY\n" + sized(b'{"client_id":"me"}')) == b"OK"
        assert [each.identity.client_id for each in door.connections] == ["me"]
        # As nsqd has it, one may identify again before subscribing.
        assert await wire.ask(b"IDENTIFY\n" + sized(b'{"client_id":"you"}')) == b"OK"
        assert await wire.ask(b"SUB t c\n") == b"OK"
        assert await wire.refused(b"IDENTIFY\n" + sized(b"{}")) == "E_INVALID cannot IDENTIFY in current state"


async def test_identify_waits_for_the_answers_before_it(tmp_path: Path) -> None:
    async with open_door(tmp_path, durability="sync") as door, await Wire.open(door) as wire:
        await wire.ask(pub("t", b"x"))
        wire.send(pub("t", b"y") * 5 + identify_command(client_id="me") + pub("t", b"z"))
        for _ in range(5):
            assert await wire.response() == b"OK"
        assert json.loads(await wire.response())["version"] == "1.3.0"
        assert await wire.response() == b"OK"


# --- packed streams ---


class Packed:
    """The other end of a packed stream, by other libraries than the door's."""

    def __init__(self, wire: Wire, how: str) -> None:
        self.wire = wire
        self.how = how
        if how == "snappy":
            self._pack: Any = snappy.StreamCompressor()
            self._unpack: Any = snappy.StreamDecompressor()
        else:
            self._pack = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        self._plain = b""

    def send(self, data: bytes) -> None:
        if self.how == "snappy":
            self.wire.send(self._pack.compress(data))
        else:
            self.wire.send(self._pack.compress(data) + self._pack.flush(zlib.Z_SYNC_FLUSH))

    async def frame(self) -> tuple[int, bytes]:
        while len(self._plain) < 4 or len(self._plain) < 4 + int.from_bytes(self._plain[:4], "big"):
            data = await asyncio.wait_for(self.wire.reader.read(65_536), SECONDS)
            assert data
            self._plain += self._unpack.decompress(data)
        size = 4 + int.from_bytes(self._plain[:4], "big")
        data, self._plain = self._plain[:size], self._plain[size:]
        return int.from_bytes(data[4:8], "big"), data[8:]


async def packed(door: Nsqd, how: str) -> Packed:
    wire = await Wire.open(door, **{how: True})
    assert wire.told[how] is True
    stream = Packed(wire, how)
    assert await stream.frame() == (0, b"OK")
    return stream


@pytest.mark.parametrize("how", ["snappy", "deflate"])
@on_both_loops
async def test_a_packed_conversation(tmp_path: Path, how: str) -> None:
    async with open_door(tmp_path) as door:
        stream = await packed(door, how)
        bodies = [b"%d" % number * 50 for number in range(300)]
        stream.send(mpub("t", *bodies) + pub("t", b"large" * 100_000) + pub("t", b"tiny") + b"SUB t c\n")
        for _ in range(4):
            assert await stream.frame() == (0, b"OK")
        stream.send(b"RDY 2500\n")
        found = [Message((await stream.frame())[1]) for _ in range(302)]
        assert [each.body for each in found] == [*bodies, b"large" * 100_000, b"tiny"]
        stream.send(b"".join(b"FIN " + each.id + b"\n" for each in found) + b"FIN zzzzzzzzzzzzzzzz\n")
        assert (await stream.frame())[1].startswith(b"E_FIN_FAILED")
        queue = door.broker.queues.get("t", "c")
        assert queue is not None
        assert queue.figures().finished == 302
        stream.wire.writer.close()


@on_both_loops
async def test_answers_before_identify_are_not_packed(device: Device) -> None:
    async with open_door(device, durability="sync") as door, await Wire.open(door) as wire:
        await wire.ask(pub("t", b"0"))
        device.hold()
        wire.send(pub("t", b"1") + identify_command(snappy=True))
        await until(lambda: device.waiting)
        await asyncio.sleep(0.05)
        device.release()
        assert await wire.response() == b"OK"
        assert json.loads(await wire.response())["snappy"] is True
        assert await Packed(wire, "snappy").frame() == (0, b"OK")


@pytest.mark.parametrize("how", ["snappy", "deflate"])
@on_both_loops
async def test_a_packed_stream_in_any_parts(tmp_path: Path, how: str) -> None:
    async with open_door(tmp_path) as door:
        stream = await packed(door, how)
        sent: list[bytes] = []
        stream.wire.send = sent.append  # type: ignore[method-assign]
        stream.send(pub("t", b"one") + mpub("t", b"two", b"three") + pub("t", b"four" * 1000))
        for byte in b"".join(sent):
            stream.wire.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        for _ in range(3):
            assert await stream.frame() == (0, b"OK")
        stream.wire.writer.close()


@pytest.mark.parametrize("how", ["snappy", "deflate"])
@on_both_loops
async def test_garbage_in_a_packed_stream(tmp_path: Path, how: str) -> None:
    async with open_door(tmp_path) as door:
        stream = await packed(door, how)
        stream.wire.send(b"\xff" * 100)
        kind, data = await stream.frame()
        assert kind == 1
        assert data.startswith(b"E_INVALID")
        assert await stream.wire.closed() == b""


@on_both_loops
async def test_a_packed_bomb_takes_no_memory(tmp_path: Path) -> None:
    """A hundred megabytes of NOPs in a few kilobytes: read a slice at a time, with others served in between."""
    async with open_door(tmp_path) as door:
        stream = await packed(door, "deflate")
        compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        nops = b"NOP\n" * 262_144
        bomb = b"".join(compressor.compress(nops) for _ in range(100)) + compressor.flush(zlib.Z_SYNC_FLUSH)
        assert len(bomb) < 1_000_000
        stream.wire.send(bomb)
        (bombed,) = door.connections
        most = 0
        async with await Wire.open(door) as other:
            for _ in range(20):
                await other.ask(pub("t", b"x"))
                most = max(most, kept(bombed))
        assert most < 1_000_000
        stream.wire.writer.transport.abort()


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def server_context(authority: Authority, clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost", "127.0.0.1"))
    if clients:
        context.load_verify_locations(authority.path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def encrypted(door: Nsqd, authority: Authority, name: str = "", **identify: Any) -> Wire:
    wire = await Wire.open(door, tls_v1=True, **identify)
    assert wire.told["tls_v1"] is True
    context = ssl.create_default_context(cafile=authority.path)
    if name:
        context.load_cert_chain(*authority.issue(name))
    await wire.writer.start_tls(context, server_hostname="localhost")
    assert await wire.response() == b"OK"
    return wire


@on_both_loops
async def test_tls_is_for_those_who_ask(tmp_path: Path, authority: Authority) -> None:
    async with open_door(tmp_path, server_context(authority)) as door:
        async with await encrypted(door, authority) as wire:
            assert await wire.ask(pub("t", b"secret" * 100_000)) == b"OK"
            assert await wire.ask(b"SUB t c\n") == b"OK"
            wire.send(b"RDY 1\n")
            message = await wire.message()
            assert message.body == b"secret" * 100_000
            wire.send(b"FIN " + message.id + b"\nFIN " + message.id + b"\n")
            assert (await wire.error()).startswith("E_FIN_FAILED")
            assert await wire.refused(b"HELP\n") == "E_INVALID invalid command HELP"
            assert await wire.closed() == b""
        async with await Wire.open(door) as wire:
            assert await wire.ask(pub("t", b"open")) == b"OK"


@pytest.mark.parametrize("how", ["snappy", "deflate"])
@on_both_loops
async def test_tls_then_packed(tmp_path: Path, authority: Authority, how: str) -> None:
    async with open_door(tmp_path, server_context(authority)) as door:
        stream = Packed(await encrypted(door, authority, **{how: True}), how)
        assert await stream.frame() == (0, b"OK")
        stream.send(pub("t", b"x" * 1000))
        assert await stream.frame() == (0, b"OK")
        stream.wire.writer.close()


@on_both_loops
async def test_no_heartbeat_comes_into_a_handshake(tmp_path: Path, authority: Authority) -> None:
    async with open_door(tmp_path, server_context(authority)) as door:
        wire = await Wire.open(door, tls_v1=True, heartbeat_interval=1000)
        await asyncio.sleep(1.5)
        context = ssl.create_default_context(cafile=authority.path)
        await wire.writer.start_tls(context, server_hostname="localhost")
        assert await wire.frame(heartbeats=True) == (0, b"OK")
        assert await wire.frame(heartbeats=True) == (0, b"_heartbeat_")
        wire.writer.close()


@on_both_loops
async def test_one_upgrades_once(tmp_path: Path, authority: Authority) -> None:
    async with open_door(tmp_path, server_context(authority)) as door:
        async with await encrypted(door, authority) as wire:
            assert await wire.refused(identify_command(tls_v1=True)) == "E_INVALID cannot IDENTIFY in current state"
        stream = await packed(door, "snappy")
        stream.send(identify_command(deflate=True))
        assert await stream.frame() == (1, b"E_INVALID cannot IDENTIFY in current state")
        stream.wire.writer.close()


@on_both_loops
async def test_a_handshake_that_never_ends_is_given_up(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
    async with open_door(tmp_path, server_context(authority)) as door:
        wire = await Wire.open(door, tls_v1=True)
        await until(lambda: not door.connections)
        wire.writer.close()


@on_both_loops
async def test_where_tls_is_required(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue("localhost")
    async with open_door(
        tmp_path, server_context(authority), nsq_tls_required=True, tls_cert=cert, tls_key=key
    ) as door:
        for command, name in ((pub("t", b"x"), "PUB"), (b"SUB t c\n", "SUB"), (b"NOP\n", "NOP")):
            async with await Wire.open(door) as wire:
                assert await wire.refused(command) == f"E_INVALID cannot {name} in current state (TLS required)"
                assert await wire.closed() == b""
        async with await Wire.open(door, snappy=False) as wire:
            assert (await wire.refused(b"NOP\n")).endswith("(TLS required)")
        async with await encrypted(door, authority) as wire:
            assert await wire.ask(pub("t", b"x")) == b"OK"


@on_both_loops
async def test_client_certificates_imply_tls(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.issue("localhost")
    settings = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.path}
    async with open_door(tmp_path, server_context(authority, clients=True), **settings) as door:
        async with await Wire.open(door) as wire:
            assert (await wire.refused(pub("t", b"x"))).endswith("(TLS required)")
        async with await encrypted(door, authority, name="somebody") as wire:
            assert [each.common_name for each in door.connections if each.encrypted] == ["somebody"]
            assert await wire.ask(pub("t", b"x")) == b"OK"
        with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
            await encrypted(door, authority)
        assert len(door.connections) < 3


@on_both_loops
async def test_bytes_before_the_handshake_are_refused(tmp_path: Path, authority: Authority) -> None:
    """Whoever sits between client and broker could have put them there."""
    async with open_door(tmp_path, server_context(authority)) as door, await Wire.open(door) as wire:
        error = await wire.refused(identify_command(tls_v1=True) + pub("t", b"slipped in"))
        assert error == "E_IDENTIFY_FAILED IDENTIFY failed bytes came before the TLS handshake"
        assert await wire.closed() == b""
        assert door.topics.get("t") is None


@on_both_loops
async def test_a_handshake_that_fails_closes_the_connection(tmp_path: Path, authority: Authority) -> None:
    async with open_door(tmp_path, server_context(authority)) as door, await Wire.open(door, tls_v1=True) as wire:
        wire.send(b"this is no handshake at all, whatever one may think of it")
        await wire.closed()
        await until(lambda: not door.connections)
        async with await Wire.open(door) as other:
            assert await other.ask(pub("t", b"x")) == b"OK"
