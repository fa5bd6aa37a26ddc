"""What attackers send at a SASL listener: none of it lets them in, and none of it costs more than it may."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.broker.security.test_jwt import AUDIENCE, ISSUER, OTHER_KEY, RSA_KEY, jwk, jwks, token
from tests.captured_logs import capture_logs
from tests.doors.kafka.secured import PASSWORDS, ScramClient, authenticate, secured_door
from tests.doors.kafka.wired import Wire, frame
from tests.waiting import SECONDS

from headrace.broker.security import authenticator
from headrace.broker.security.credentials import Credential
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.mechanisms import NODE

FAILED = ErrorCode.sasl_authentication_failed
ALL = {"kafka_mechanisms": "SCRAM-SHA-256,PLAIN,OAUTHBEARER", "sasl_plain_without_tls": True}


def with_keys(folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    keys = folder / "jwks.json"
    keys.write_bytes(jwks(jwk(RSA_KEY, "one")))
    return {**ALL, "jwt_keys": str(keys), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}


def bearer(text: str, header: str = "n,,", pairs: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {text}\x01{pairs}\x01".encode()


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["n,,", "n,a=ann,"])
@pytest.mark.parametrize("pairs", ["", "logicalCluster=lkc-1\x01"])
async def test_a_signed_token_lets_its_user_in(tmp_path: Path, header: str, pairs: str) -> None:
    async with secured_door(tmp_path / "data", **with_keys(tmp_path)) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")
        reply = await wire.ask("sasl_authenticate", 2, auth_bytes=bearer(token(), header, pairs))
        assert (reply.error_code, reply.auth_bytes) == (ErrorCode.none, b"")
        # Until the token expires.
        assert 500 < reply.session_lifetime.total_seconds() <= 630
        [connection] = door.connections
        assert connection.session.user == "ann"


NONE = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ."


@pytest.mark.parametrize(
    "text",
    [
        token(exp=1),
        token(aud="others"),
        token(iss="https://others.example"),
        token(OTHER_KEY),
        token(sub=None),
        NONE,
        "hr_00000000_00000000",
        "x",
    ],
)
async def test_a_token_that_does_not_count_is_told_so_in_two_steps(tmp_path: Path, text: str) -> None:
    async with secured_door(tmp_path / "data", **with_keys(tmp_path)) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")
        challenged = await wire.ask("sasl_authenticate", 2, auth_bytes=bearer(text))
        assert (challenged.error_code, challenged.auth_bytes) == (ErrorCode.none, b'{"status":"invalid_token"}')
        # Another token behind it is of no use.
        reply = await wire.ask("sasl_authenticate", 2, auth_bytes=bearer(token()))
        assert reply.error_code is FAILED
        assert text not in reply.error_message
        assert await wire.closed() == b""


GOOD = token()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        GOOD.encode(),
        bearer(GOOD, "y,,"),
        bearer(GOOD, "p=tls-unique,,"),
        bearer(GOOD, "n,"),
        bearer(GOOD)[:-1],
        bearer(GOOD) + b"x",
        bearer(GOOD, pairs=f"auth=Bearer {GOOD}\x01"),
        bearer(GOOD, pairs="a=1\x01a=2\x01"),
        bearer(GOOD, pairs="a b=1\x01"),
        bearer(GOOD, pairs="a=\x01"),
        b"n,,\x01host=here\x01\x01",
        b"n,,\x01auth=Basic " + GOOD.encode() + b"\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01\xff=a\x01\x01",
    ],
)
async def test_what_is_no_bearer_message_is_refused(tmp_path: Path, message: bytes) -> None:
    async with secured_door(tmp_path / "data", **with_keys(tmp_path)) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")
        reply = await wire.ask("sasl_authenticate", 2, auth_bytes=message)
        assert reply.error_code is FAILED
        assert await wire.closed() == b""


async def test_a_token_does_not_speak_for_another_user(tmp_path: Path) -> None:
    async with secured_door(tmp_path / "data", **with_keys(tmp_path)) as door, await Wire.open(door) as wire:
        await wire.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")
        await wire.ask("sasl_authenticate", 2, auth_bytes=bearer(token(), "n,a=root,"))
        assert (await wire.ask("sasl_authenticate", 2, auth_bytes=b"\x01")).error_code is FAILED


# --- other nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanisms", ["", "SCRAM-SHA-256"])
async def test_nobody_speaks_for_others_without_the_nodes_secret(tmp_path: Path, mechanisms: str) -> None:
    async with secured_door(tmp_path, kafka_mechanisms=mechanisms) as door, await Wire.open(door) as wire:
        assert (await wire.ask("sasl_handshake", 1, mechanism=NODE)).error_code is ErrorCode.none
        nonce = await wire.ask("sasl_authenticate", 1, auth_bytes=b"")
        assert len(nonce.auth_bytes) == 24
        claims = b'{"user": "root", "host": "", "scope": []}'
        assert (await wire.ask("sasl_authenticate", 1, auth_bytes=bytes(32) + claims)).error_code is FAILED
        assert await wire.closed() == b""


async def test_without_rights_nobody_speaks_for_others(tmp_path: Path) -> None:
    async with secured_door(tmp_path, authorization="off") as door, await Wire.open(door) as wire:
        shaken = await wire.ask("sasl_handshake", 1, mechanism=NODE)
        assert shaken.error_code is ErrorCode.unsupported_sasl_mechanism
        assert NODE not in shaken.mechanisms


# --- work, and what tells one from the other --------------------------------------------------------------------------


async def test_an_unknown_user_takes_the_work_of_a_wrong_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: list[int] = []
    matching = authenticator.matching

    def counted(password: bytes, candidates: list[Credential]) -> int:
        derived.append(len(candidates))
        return matching(password, candidates)

    monkeypatch.setattr(authenticator, "matching", counted)
    async with secured_door(tmp_path, **ALL) as door:
        for user in ("ann", "nobody"):
            async with await Wire.open(door) as wire:
                await wire.ask("sasl_handshake", 1, mechanism="PLAIN")
                reply = await wire.ask("sasl_authenticate", 1, auth_bytes=f"\0{user}\0wrong".encode())
                assert reply.error_code is FAILED
        assert derived == [1, 1]


async def test_scram_goes_on_for_an_unknown_user_with_the_same_salt(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        salts: dict[str, set[bytes]] = {"nobody": set(), "ann": set()}
        for user in (*salts, *salts):
            async with await Wire.open(door) as wire:
                await wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
                client = ScramClient(user, "wrong")
                first = await wire.ask("sasl_authenticate", 1, auth_bytes=client.first)
                salts[user].add(first.auth_bytes.split(b",")[1])
                last = await wire.ask("sasl_authenticate", 1, auth_bytes=client.final(first.auth_bytes))
                assert last.error_code is FAILED
        assert [len(each) for each in salts.values()] == [1, 1]


async def test_no_secret_is_in_what_is_logged(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with secured_door(tmp_path / "data", **with_keys(tmp_path), log_level="debug") as door:
            for message, mechanism in ((b"\0ann\0very secret", "PLAIN"), (bearer(token(OTHER_KEY)), "OAUTHBEARER")):
                async with await Wire.open(door) as wire:
                    await wire.ask("sasl_handshake", 1, mechanism=mechanism)
                    await wire.ask("sasl_authenticate", 1, auth_bytes=message)
            async with await Wire.open(door) as wire:
                await authenticate(wire, "ann", PASSWORDS["bob"])
    logged = repr(lines)
    assert "authentication failed" in logged
    for secret in ("very secret", PASSWORDS["bob"], token(OTHER_KEY).rpartition(".")[2]):
        assert secret not in logged


# --- anything ---------------------------------------------------------------------------------------------------------

MECHANISMS = st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", NODE, "GSSAPI", ""])
MESSAGES = st.one_of(
    st.binary(max_size=200),
    st.text("nyp,=acrvi\0\x01ann", max_size=60).map(str.encode),
    st.sampled_from([b"n,,n=ann,r=abc", b"\0ann\0wrong", b"n,,\x01auth=Bearer x\x01\x01", b"c=biws,r=abc,p=AAAA"]),
)
SENT = st.one_of(
    st.tuples(st.just("handshake"), st.integers(0, 1), MECHANISMS),
    st.tuples(st.just("authenticate"), st.integers(0, 2), MESSAGES),
    st.tuples(st.just("bare"), st.just(0), MESSAGES),
    st.tuples(st.just("other"), st.integers(0, 80), MESSAGES),
    st.tuples(st.just("junk"), st.just(0), MESSAGES),
)


def encode(wire: Wire, kind: str, number: int, what: Any) -> bytes:
    if kind == "handshake":
        return wire.frame("sasl_handshake", number, mechanism=what)
    if kind == "authenticate":
        return wire.frame("sasl_authenticate", number, auth_bytes=what)
    if kind == "bare":
        return len(what).to_bytes(4, "big") + bytes(what)
    return frame(number, 0, 1, what) if kind == "other" else bytes(what)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(SENT, min_size=1, max_size=8), min_size=1, max_size=4))
def test_nothing_but_a_proof_lets_a_client_in(conversations: list[list[tuple[str, int, Any]]]) -> None:
    """Whatever is sent, in one piece: the door ends the conversation or waits for more, and knows nobody."""

    async def converse(door: KafkaDoor, sent: list[tuple[str, int, Any]]) -> None:
        async with await Wire.open(door) as wire:
            wire.writer.write(b"".join(encode(wire, *each) for each in sent))
            wire.writer.write_eof()
            await asyncio.wait_for(wire.reader.read(), SECONDS)

    async def run() -> None:
        with tempfile.TemporaryDirectory() as data:
            async with secured_door(Path(data), **ALL) as door:
                seen: list[Any] = []
                login = door.broker.security.login
                door.broker.security.login = lambda *given: (seen.append(given), login(*given))[1]  # type: ignore
                for sent in conversations:
                    await converse(door, sent)
                assert not seen
                assert not door.broker.security.authenticator.succeeded
                # And it still serves.
                async with await Wire.open(door) as wire:
                    assert (await authenticate(wire, "ann")).error_code is ErrorCode.none

    asyncio.run(run())
