"""SASL at the Kafka door, on the wire: how clients authenticate, and everything that must not let one in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.secured import PASSWORDS, ScramClient, as_user, authenticate, secured_door
from tests.doors.kafka.wired import Wire, frame
from tests.waiting import SECONDS, until

from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.registry import APIS

FAILED = ErrorCode.sasl_authentication_failed
ILLEGAL = ErrorCode.illegal_sasl_state
PLAIN = {"kafka_mechanisms": "PLAIN,SCRAM-SHA-256", "sasl_plain_without_tls": True}
NO_TOPICS: dict[str, Any] = {"topics": [], "allow_auto_topic_creation": False}


async def is_in(wire: Wire) -> bool:
    """Whether the connection answers what only those who are authenticated may ask."""
    return bool((await wire.ask("metadata", 9, **METADATA)).brokers)


METADATA: dict[str, Any] = {
    **NO_TOPICS,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def the_session(door: KafkaDoor) -> Any:
    [connection] = door.connections
    return connection.session


async def raw(wire: Wire, message: bytes) -> bytes:
    """Send a bare message and read the answer."""
    wire.writer.write(len(message).to_bytes(4, "big") + message)
    size = int.from_bytes(await asyncio.wait_for(wire.reader.readexactly(4), SECONDS), "big")
    return await asyncio.wait_for(wire.reader.readexactly(size), SECONDS)


# --- who gets in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("version", range(3))
async def test_a_client_authenticates_by_scram(tmp_path: Path, mechanism: str, version: int) -> None:
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask("api_versions", 3, client_software_name="test", client_software_version="1")
        assert (await authenticate(wire, "ann", mechanism=mechanism, version=version)).error_code is ErrorCode.none
        assert the_session(door).user == "ann"
        assert the_session(door).identity.how == mechanism
        assert await is_in(wire)


async def test_messages_come_bare_behind_a_handshake_of_version_0(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        assert (await wire.ask("sasl_handshake", 0, mechanism="SCRAM-SHA-256")).error_code is ErrorCode.none
        client = ScramClient("ann", PASSWORDS["ann"])
        client.check(await raw(wire, client.final(await raw(wire, client.first))))
        assert await is_in(wire)
        assert the_session(door).user == "ann"


async def test_bare_messages_may_be_shorter_than_any_request(tmp_path: Path) -> None:
    async with secured_door(tmp_path, **PLAIN) as door:
        async with await Wire.open(door) as wire:
            await wire.ask("sasl_handshake", 0, mechanism="PLAIN")
            assert await raw(wire, b"\0ann\0" + PASSWORDS["ann"].encode()) == b""
            assert await is_in(wire)
        async with await Wire.open(door) as wire:
            await wire.ask("sasl_handshake", 0, mechanism="PLAIN")
            wire.writer.write((0).to_bytes(4, "big"))
            assert await wire.closed() == b""


async def test_a_client_authenticates_by_plain(tmp_path: Path) -> None:
    async with secured_door(tmp_path, **PLAIN) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="PLAIN")
        message = b"ann\0ann\0" + PASSWORDS["ann"].encode()
        assert (await wire.ask("sasl_authenticate", 2, auth_bytes=message)).error_code is ErrorCode.none
        assert await is_in(wire)
        assert the_session(door).user == "ann"


# --- who does not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"\0ann\0wrong",
        b"\0nobody\0blue fish",
        b"\0\0blue fish",
        b"\0ann\0",
        b"bob\0ann\0blue fish",
        b"ann\0blue fish",
        b"\0ann\0blue fish\0",
        b"\0ann\0blue fish\xff",
        b"",
    ],
)
async def test_what_plain_does_not_take_is_answered_and_closed(tmp_path: Path, message: bytes) -> None:
    async with secured_door(tmp_path, **PLAIN) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="PLAIN")
        reply = await wire.ask("sasl_authenticate", 2, auth_bytes=message)
        assert reply.error_code is FAILED
        assert "blue fish" not in reply.error_message
        assert await wire.closed() == b""
        await until(lambda: not len(door.connections))


@pytest.mark.parametrize("user", ["ann", "nobody"])
async def test_a_wrong_password_looks_like_an_unknown_user(tmp_path: Path, user: str) -> None:
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        reply = await authenticate(wire, user, "wrong")
        assert reply.error_code is FAILED
        assert reply.error_message == "authentication failed: the user is unknown, or the password is wrong"
        assert await wire.closed() == b""


async def test_failures_are_delayed_then_answered_then_closed(tmp_path: Path) -> None:
    async with secured_door(tmp_path, authentication_delay_max_ms=60_000, **PLAIN) as door:
        failures = door.broker.security.authenticator.failures
        for _ in range(3):
            failures.count("ann", "elsewhere", door.loop.time())
        async with await Wire.open(door) as wire:
            await wire.ask("sasl_handshake", 1, mechanism="PLAIN")
            began = door.loop.time()
            wire.send("sasl_authenticate", 2, auth_bytes=b"\0ann\0wrong")
            [connection] = door.connections
            await until(lambda: door.broker.security.authenticator.failed.get("password"))
            # What comes behind it is not read any more.
            wire.send("sasl_handshake", 1, mechanism="PLAIN")
            assert not connection.transport.is_closing()
            reply = await asyncio.wait_for(wire.receive("sasl_authenticate", 2, wire.correlation - 1), SECONDS)
            assert reply.error_code is FAILED
            # The fourth failure: 50 ms, doubled three times.
            assert door.loop.time() - began >= 0.4
            assert await wire.closed() == b""


async def test_requests_behind_a_failed_authentication_do_not_slip_through(tmp_path: Path) -> None:
    async with secured_door(tmp_path, **PLAIN) as door, await Wire.open(door) as wire:
        created = wire.frame("create_topics", 5, topics=[topic_fields("smuggled")], timeout=1000, validate_only=False)
        wire.writer.write(
            b"".join(
                (
                    wire.frame("sasl_handshake", 1, mechanism="PLAIN"),
                    wire.frame("sasl_authenticate", 1, auth_bytes=b"\0ann\0wrong"),
                    created,
                    wire.frame("metadata", 9, **METADATA),
                )
            )
        )
        said = await wire.closed()
        # Two replies, and no more.
        first = int.from_bytes(said[:4], "big") + 4
        assert first + int.from_bytes(said[first : first + 4], "big") + 4 == len(said)
        assert door.broker.topics.get("smuggled") is None


async def test_requests_behind_a_good_authentication_are_answered_in_order(tmp_path: Path) -> None:
    async with secured_door(tmp_path, **PLAIN) as door, await Wire.open(door) as wire:
        frames = [
            wire.frame("sasl_handshake", 1, mechanism="PLAIN"),
            wire.frame("sasl_authenticate", 1, auth_bytes=b"\0ann\0" + PASSWORDS["ann"].encode()),
            wire.frame("metadata", 9, **METADATA),
        ]
        wire.writer.write(b"".join(frames))
        assert (await wire.receive("sasl_handshake", 1, 2 - 1)).error_code is ErrorCode.none
        assert (await wire.receive("sasl_authenticate", 1, 2)).error_code is ErrorCode.none
        assert (await wire.receive("metadata", 9, 3)).brokers


def topic_fields(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


BEFORE = (17, 18)


@pytest.mark.parametrize("key", [key for key in APIS if key not in BEFORE] + [38, 48, 58, 999])
async def test_nothing_else_is_answered_before_authentication(tmp_path: Path, key: int) -> None:
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        api = APIS.get(key)
        wire.writer.write(frame(key, api.newest if api else 0, 1, bytes(64)))
        assert await wire.closed() == b""


@pytest.mark.parametrize("key", [key for key in APIS if key != 36])
async def test_nothing_else_is_answered_within_an_authentication(tmp_path: Path, key: int) -> None:
    """Another SaslHandshake neither: a client cannot change to a weaker mechanism in the middle."""
    async with secured_door(tmp_path, **PLAIN) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        wire.writer.write(frame(key, APIS[key].newest, 2, bytes(64)))
        assert await wire.closed() == b""


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI", "scram-sha-256", "", "SCRAM-SHA-1"])
async def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(tmp_path: Path, mechanism: str) -> None:
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        reply = await wire.ask("sasl_handshake", 1, mechanism=mechanism)
        assert reply.error_code is ErrorCode.unsupported_sasl_mechanism
        assert reply.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
        assert await wire.closed() == b""


async def test_frames_before_authentication_are_small(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_max_bytes=2_000) as door:
        for size, goes_on in ((2_000, True), (2_001, False)):
            async with await Wire.open(door) as wire:
                await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
                empty = len(wire.frame("sasl_authenticate", 1, auth_bytes=b"")) - 4
                wire.send("sasl_authenticate", 1, auth_bytes=bytes(size - empty))
                if goes_on:
                    assert (await wire.receive("sasl_authenticate", 1)).error_code is FAILED
                assert await wire.closed() == b""
        for announced in (2_001, 100_000_000, (1 << 31) - 1, 1 << 31, 9):
            async with await Wire.open(door) as wire:
                # The size alone ends it: nothing is waited for, and no memory is taken.
                wire.writer.write(announced.to_bytes(4, "big"))
                if announced < 10:
                    wire.writer.write(bytes(announced))
                assert await wire.closed() == b""


async def test_authenticated_clients_may_send_more(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_max_bytes=2_000) as door, as_user(door, "root") as wire:
        wide = {"name": "x", "value": "y" * 4_000}
        reply = await wire.ask(
            "create_topics", 5, topics=[{**topic_fields("t"), "configs": [wide]}], timeout=1000, validate_only=False
        )
        assert reply.topics[0].error_code is ErrorCode.invalid_config


async def test_a_client_has_a_time_to_authenticate_in(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_timeout_ms=50) as door:
        async with await Wire.open(door) as silent:
            assert await silent.closed() == b""
        async with await Wire.open(door) as half:
            await half.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            assert await half.closed() == b""
        await until(lambda: not len(door.connections))


async def test_the_time_ends_with_the_authentication(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_timeout_ms=10_000) as door, as_user(door, "ann") as wire:
        [connection] = door.connections
        assert connection.sasl is not None
        assert connection.sasl._timer is None
        assert await is_in(wire)


async def test_a_replayed_exchange_fails(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        client = ScramClient("ann", PASSWORDS["ann"])
        async with await Wire.open(door) as wire:
            await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            first = await wire.ask("sasl_authenticate", 1, auth_bytes=client.first)
            last = client.final(first.auth_bytes)
            assert (await wire.ask("sasl_authenticate", 1, auth_bytes=last)).error_code is ErrorCode.none
        async with await Wire.open(door) as wire:
            await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            await wire.ask("sasl_authenticate", 1, auth_bytes=client.first)
            assert (await wire.ask("sasl_authenticate", 1, auth_bytes=last)).error_code is FAILED
            assert await wire.closed() == b""


@pytest.mark.parametrize("length", [0, 1, 10, 40, 60])
async def test_a_truncated_exchange_fails(tmp_path: Path, length: int) -> None:
    async with secured_door(tmp_path) as door:
        for step in (1, 2):
            client = ScramClient("ann", PASSWORDS["ann"])
            async with await Wire.open(door) as wire:
                await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
                sent = client.first[:-1] if step == 1 and length else client.first
                first = await wire.ask(
                    "sasl_authenticate", 1, auth_bytes=sent[: length if step == 1 and length < 8 else None]
                )
                if first.error_code is ErrorCode.none:
                    last = client.final(first.auth_bytes)
                    reply = await wire.ask("sasl_authenticate", 1, auth_bytes=last[:length])
                    assert reply.error_code is FAILED
                assert await wire.closed() == b""
        assert not any(each.session.user for each in door.connections)


async def test_a_header_that_claims_channel_binding_fails(tmp_path: Path) -> None:
    """A man in the middle may take the client's header away: the proof is for the header that the client sent."""
    async with secured_door(tmp_path) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        client = ScramClient("ann", PASSWORDS["ann"])
        first = await wire.ask("sasl_authenticate", 1, auth_bytes=client.first)
        reply = await wire.ask("sasl_authenticate", 1, auth_bytes=client.final(first.auth_bytes, b"y,,"))
        assert reply.error_code is FAILED


# --- again on the same connection -------------------------------------------------------------------------------------


def let_again(door: KafkaDoor) -> None:
    """As if a second had gone since the last authentication."""
    for connection in door.connections:
        assert connection.sasl is not None
        connection.sasl._began -= 1


async def test_a_session_lasts_for_the_configured_time(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_session_ms=600_000) as door, await Wire.open(door) as wire:
        last = await authenticate(wire, "ann")
        assert 0 < last.session_lifetime.total_seconds() <= 600
    async with secured_door(tmp_path / "other", sasl_session_ms=0) as door, await Wire.open(door) as wire:
        assert (await authenticate(wire, "ann")).session_lifetime.total_seconds() == 0


async def test_a_session_that_is_not_renewed_ends(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_session_ms=200) as door, await Wire.open(door) as wire:
        await authenticate(wire, "ann")
        assert await wire.closed() == b""


async def test_a_client_authenticates_again_while_it_works(tmp_path: Path) -> None:
    async with secured_door(tmp_path, sasl_session_ms=600_000) as door, as_user(door, "ann") as wire:
        before = the_session(door).identity
        let_again(door)
        assert (await authenticate(wire, "ann")).error_code is ErrorCode.none
        assert the_session(door).identity is not before
        assert await is_in(wire)


async def test_authenticating_again_too_soon_is_refused(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "ann") as wire:
        assert (await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")).error_code is ILLEGAL
        assert (await wire.ask("sasl_authenticate", 1, auth_bytes=b"x")).error_code is ILLEGAL
        assert await is_in(wire)
        let_again(door)
        assert (await wire.ask("sasl_handshake", 0, mechanism="SCRAM-SHA-256")).error_code is ILLEGAL
        assert await is_in(wire)


@pytest.mark.parametrize("change", ["user", "mechanism", "password"])
async def test_a_client_cannot_become_another_one(tmp_path: Path, change: str) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "ann") as wire:
        let_again(door)
        mechanism = "SCRAM-SHA-512" if change == "mechanism" else "SCRAM-SHA-256"
        user = "bob" if change == "user" else "ann"
        assert (await wire.ask("sasl_handshake", 1, mechanism=mechanism)).error_code is ErrorCode.none
        client = ScramClient(user, "wrong" if change == "password" else PASSWORDS[user], mechanism)
        reply = await wire.ask("sasl_authenticate", 1, auth_bytes=client.first)
        if change != "mechanism":
            reply = await wire.ask("sasl_authenticate", 1, auth_bytes=client.final(reply.auth_bytes))
        assert reply.error_code is FAILED
        assert await wire.closed() == b""


async def test_nothing_else_passes_while_a_client_authenticates_again(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "ann") as wire:
        let_again(door)
        await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        wire.send("metadata", 9, **METADATA)
        assert await wire.closed() == b""


async def test_a_deleted_user_is_disconnected(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door, as_user(door, "ann") as wire, as_user(door, "bob") as other:
        door.broker.security.end_user("ann", "the user is deleted")
        assert await wire.closed() == b""
        assert await is_in(other)


async def test_listeners_without_sasl_say_so(tmp_path: Path) -> None:
    async with secured_door(tmp_path, kafka_mechanisms="", authorization="off") as door, await Wire.open(door) as wire:
        assert (await wire.ask("sasl_handshake", 1, mechanism="PLAIN")).error_code is ILLEGAL
        assert (await wire.ask("sasl_authenticate", 2, auth_bytes=b"")).error_code is ILLEGAL
        assert await is_in(wire)
