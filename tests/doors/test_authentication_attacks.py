"""Attacks on the authentication of every door but Kafka's (tests/doors/kafka/test_sasl_attacks.py): guessing is slowed,
no secret is told anywhere, and whatever is sent, nothing but a proof lets a client in."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import struct
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.captured_logs import capture_logs
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc, message
from tests.doors.rocketmq.grpc.test_rights import DATE
from tests.doors.rocketmq.test_rights import Signed
from tests.waiting import SECONDS

from headrace.broker.security import OWN
from headrace.config import Config
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.grpc.protocol import Code as GrpcCode
from headrace.server import Server

DOORS = ("http", "nsq", "nsq-http", "lookup-http", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc")
HTTP = {"http": "/v1/queues", "nsq-http": "/stats", "lookup-http": "/topics"}
OFF = ("kafka", "nsq_https", "lookup")
PASSWORD = "Ultramarine-43-Umbra"
GUESS = "Vermilion-77-Sepia"
DELAY_MAX_MS = 300

Start = Callable[..., Any]


class Stage:
    """A broker whose doors ask who comes, and a user with a password, a token and an access key."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.token = self.access_key = self.secret = ""

    async def add_user(self) -> None:
        accounts = self.server.broker.security.accounts
        await accounts.create_user(OWN, "ann")
        await accounts.set_password(OWN, "ann", PASSWORD)
        _, self.token = await accounts.create_token(OWN, "ann")
        made, text = await accounts.create_token(OWN, "ann", signing=True)
        self.access_key, self.secret = made.id, text.rpartition("_")[2]

    def come(self, door: str, is_right: bool) -> tuple[bool, str]:
        """Whether a client is let in with its secret, or with a guess; and what it is told. Blocks."""
        address = self.server.addresses[door]
        if door in HTTP:
            return by_http(
                f"http://{address}{HTTP[door]}",
                f"Bearer {self.token}" if is_right else f"Bearer hr_{self.access_key}_{GUESS}",
            )
        if door == "nsq":
            return by_nsq(address, f"ann:{PASSWORD if is_right else GUESS}".encode())
        secret = self.secret if is_right else GUESS
        if door == "rocketmq-grpc":
            return by_grpc(address, self.access_key, secret)
        with Signed(address, self.access_key, secret) as raw:
            answer = raw.ask(
                Request.GET_ROUTEINFO_BY_TOPIC if door == "rocketmq-namesrv" else Request.GET_MAX_OFFSET,
                {"topic": "t", "queueId": "0"},
            )
        return answer.code != Code.NO_PERMISSION, answer.remark or ""


def by_http(url: str, authorization: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"Authorization": authorization}), timeout=SECONDS
        ) as answer:
            return answer.status == 200, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return False, f"{error.headers}{error.read().decode()}"


def by_nsq(address: str, secret: bytes) -> tuple[bool, str]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as sock:
        sock.sendall(b"  V2AUTH\n" + struct.pack(">i", len(secret)) + secret)
        told = sock.recv(4_096)
    return b"permission_count" in told, told.decode("latin-1")


def by_grpc(address: str, key: str, secret: str) -> tuple[bool, str]:
    with RawGrpc(address) as client:
        signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
        given = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
        client.metadata = (*client.metadata, ("x-mq-date-time", DATE), ("authorization", given))
        status = client.send("t", message("t", b"one")).status
    return status.code != GrpcCode.UNAUTHORIZED, status.message


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Server] = []

    async def start(**settings: Any) -> Stage:
        doors = {each.replace("-", "_"): "127.0.0.1:0" for each in DOORS} | dict.fromkeys(OFF, "off")
        asked = {"http_authentication": "required", "nsq_auth_required": True, "rocketmq_authentication": "required"}
        more = {"durability": "async", "authentication_delay_max_ms": 0, **asked, **settings}
        server = Server(Config(data=str(tmp_path / "data"), **doors, **more))
        await server.start()
        made.append(server)
        stage = Stage(server)
        await stage.add_user()
        return stage

    yield start
    for each in made:
        await each.stop()


@pytest.mark.parametrize("door", DOORS)
async def test_guessing_is_slowed(start: Start, door: str) -> None:
    stage = await start(authentication_delay_max_ms=DELAY_MAX_MS)
    assert (await asyncio.to_thread(stage.come, door, True))[0]
    took = []
    for _ in range(5):
        began = time.monotonic()
        assert not (await asyncio.to_thread(stage.come, door, False))[0]
        took.append(time.monotonic() - began)
    # 50, 100 and 200 ms, and the longest from then on.
    for least, found in zip((0.05, 0.1, 0.2, 0.3, 0.3), took, strict=True):
        assert found >= least, took
    # The user is not locked out.
    assert (await asyncio.to_thread(stage.come, door, True))[0]


async def test_guesses_at_one_door_slow_those_at_another(start: Start) -> None:
    stage = await start(authentication_delay_max_ms=DELAY_MAX_MS)
    for door in DOORS:
        await asyncio.to_thread(stage.come, door, False)
    for door in DOORS:
        began = time.monotonic()
        assert not (await asyncio.to_thread(stage.come, door, False))[0]
        assert time.monotonic() - began >= DELAY_MAX_MS / 1000, door


async def test_no_secret_is_told_anywhere(start: Start, tmp_path: Path) -> None:
    """Not in the log, answers, metrics, lists and the audit; and on the disk only that which must be read again."""
    with capture_logs() as lines:
        stage = await start(log_level="debug", authorization="on", super_users="ann", audit="on", audit_reads=True)
        told = []
        for door in DOORS:
            for is_right in (True, False):
                accepted, text = await asyncio.to_thread(stage.come, door, is_right)
                assert accepted is is_right, (door, text)
                told.append(text)
        base = f"http://{stage.server.addresses['http']}"
        for path in ("/metrics", "/v1/users", "/v1/tokens", "/v1/audit", "/v1/cluster", "/v1/clients", "/v1/whoami"):
            accepted, text = await asyncio.to_thread(by_http, base + path, f"Bearer {stage.token}")
            assert accepted, (path, text)
            told.append(text)
        basic = b64encode(f"ann:{GUESS}".encode()).decode()
        told.append((await asyncio.to_thread(by_http, base + "/v1/whoami", f"Basic {basic}"))[1])
        await stage.server.stop()
    logged = repr(lines)
    assert "authentication failed" in logged
    secrets = [PASSWORD, GUESS, stage.token.rpartition("_")[2], stage.secret, basic]
    for secret in secrets:
        assert secret not in logged
        assert not any(secret in each for each in told)
    # The secret of an access key is needed to verify signatures; all others are hashed.
    written = b"".join(each.read_bytes() for each in (tmp_path / "data").rglob("*") if each.is_file())
    assert [secret for secret in secrets if secret.encode() in written] == [stage.secret]


# --- anything ---------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["Basic", "basic", "Bearer", "BEARER", "Digest", "Negotiate", "MQv2-HMAC-SHA1", "", "Basic Bearer"]
)
REST = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80),
    st.binary(max_size=60).map(lambda given: b64encode(given).decode()),
    st.sampled_from(
        [
            "ann",
            "ann:",
            ":",
            "hr_",
            "hr__",
            "hr_1_",
            "a.b.c",
            "eyJhbGciOiJub25lIn0.e30.",
            "=",
            "====",
            "YW5u",
            "x" * 9_000,
        ]
    ),
    st.sampled_from(
        ["Credential=ann, Signature=00", "Credential=, Signature=", "Credential=ann", "Signature=zz, Credential=a"]
    ),
)
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def drive(tmp_path: Path, attack: Callable[[Stage], None]) -> None:
    """An attack on doors that ask who comes: nobody is let in, nothing fails, and the user still is served."""

    async def run() -> None:
        doors = {each.replace("-", "_"): "127.0.0.1:0" for each in DOORS} | dict.fromkeys(OFF, "off")
        asked = {"http_authentication": "required", "nsq_auth_required": True, "rocketmq_authentication": "required"}
        server = Server(
            Config(data=str(tmp_path / "data"), durability="async", authentication_delay_max_ms=0, **doors, **asked)
        )
        with capture_logs() as lines:
            await server.start()
            try:
                stage = Stage(server)
                await stage.add_user()
                await asyncio.to_thread(attack, stage)
                assert not server.broker.security.authenticator.succeeded
                for door in DOORS:
                    assert (await asyncio.to_thread(stage.come, door, True))[0]
            finally:
                await server.stop()
        assert not [each for each in lines if each["log_level"] in ("error", "critical")]

    asyncio.run(run())


@pytest.mark.parametrize("door", HTTP)
def test_no_authorization_header_but_a_proof_lets_a_client_in(tmp_path: Path, door: str) -> None:
    def attack(stage: Stage) -> None:
        host, _, port = stage.server.addresses[door].rpartition(":")

        @FUZZ
        @given(
            st.lists(
                st.tuples(
                    st.sampled_from(["Authorization", "authorization", "AUTHORIZATION", "Proxy-Authorization"]),
                    WORDS,
                    st.sampled_from([" ", "  ", "\t", ""]),
                    REST,
                ),
                min_size=1,
                max_size=3,
            )
        )
        def converse(headers: list[tuple[str, str, str, str]]) -> None:
            lines = "".join(f"{name}: {word}{gap}{rest}\r\n" for name, word, gap, rest in headers)
            with socket.create_connection((host, int(port)), SECONDS) as sock:
                sock.sendall(
                    f"GET {HTTP[door]} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n{lines}\r\n".encode()
                )
                answer = b""
                while more := sock.recv(65_536):
                    answer += more
            assert int(answer.split()[1]) in (400, 401, 431), (headers, answer[:200])

        converse()

    drive(tmp_path, attack)


def test_no_handshake_of_nsq_but_a_proof_lets_a_client_in(tmp_path: Path) -> None:
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 40), 1 << 40),
        st.text(max_size=20),
        st.lists(st.integers(), max_size=2),
    )
    names = st.sampled_from(
        [
            "client_id",
            "hostname",
            "feature_negotiation",
            "heartbeat_interval",
            "output_buffer_size",
            "tls_v1",
            "snappy",
            "deflate",
            "deflate_level",
            "sample_rate",
            "user_agent",
            "msg_timeout",
            "auth_required",
            "x",
        ]
    )
    bodies = st.one_of(
        st.dictionaries(names, scalars, max_size=6).map(json.dumps).map(str.encode),
        st.binary(max_size=60),
        st.just(b"[" * 2_000),
    )
    sized = st.one_of(
        bodies.map(lambda body: struct.pack(">i", len(body)) + body),
        st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), bodies).map(
            lambda given: struct.pack(">i", given[0]) + given[1]
        ),
    )
    commands = st.tuples(
        st.sampled_from(
            [b"IDENTIFY\n", b"AUTH\n", b"AUTH x\n", b"IDENTIFY x\n", b"NOP\n", b"PUB t\n", b"SUB t c\n", b"AUTH\r\n"]
        ),
        sized,
    ).map(b"".join)

    def attack(stage: Stage) -> None:
        host, _, port = stage.server.addresses["nsq"].rpartition(":")

        @FUZZ
        @given(st.sampled_from([b"  V2", b"  V1", b"", b"GET "]), st.lists(commands, max_size=4))
        def converse(magic: bytes, sent: list[bytes]) -> None:
            with socket.create_connection((host, int(port)), SECONDS) as sock:
                try:
                    sock.sendall(magic + b"".join(sent))
                    sock.shutdown(socket.SHUT_WR)
                    answer = b""
                    while more := sock.recv(65_536):
                        answer += more
                except OSError:
                    # It was closed while this was sent.
                    return
            assert b"permission_count" not in answer

        converse()

    drive(tmp_path, attack)


@pytest.mark.parametrize("door", ["rocketmq", "rocketmq-namesrv"])
def test_no_signature_but_the_right_one_lets_a_client_in(tmp_path: Path, door: str) -> None:
    def attack(stage: Stage) -> None:
        code = Request.GET_ROUTEINFO_BY_TOPIC if door == "rocketmq-namesrv" else Request.GET_MAX_OFFSET
        keys = st.one_of(st.sampled_from([stage.access_key, "\x80"]), st.text(max_size=30))
        signatures = st.one_of(
            st.binary(max_size=40).map(lambda given: b64encode(given).decode()), st.text(max_size=40)
        )
        more = st.dictionaries(
            st.sampled_from(["SecurityToken", "topic", "queueId", "accesskey"]), st.text(max_size=10)
        )

        @FUZZ
        @given(keys, st.none() | signatures, more)
        def converse(key: str, signature: str | None, fields: dict[str, str]) -> None:
            given = {"topic": "t", "queueId": "0", **fields, "AccessKey": key}
            with Raw(stage.server.addresses[door]) as raw:
                answer = raw.ask(code, given if signature is None else given | {"Signature": signature})
            assert answer.code == Code.NO_PERMISSION

        converse()

    drive(tmp_path, attack)


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("name", ["AccessKey", "Signature", "topic"])
async def test_half_a_character_in_a_signed_request_is_refused(start: Start, is_required: bool, name: str) -> None:
    """JSON can have what no signature is over, and no answer can repeat: such a frame ends its connection."""
    stage = await start(rocketmq_authentication="required" if is_required else "optional")
    fields = {"topic": "t", **({"AccessKey": "k", "Signature": "AA=="} if is_required else {}), name: "\ud800"}
    header = {"code": 105, "opaque": 1, "flag": 0, "language": "JAVA", "version": 0, "extFields": fields}
    data = json.dumps(header).encode()

    def ask() -> None:
        with Raw(stage.server.addresses["rocketmq-namesrv"]) as raw:
            raw._socket.sendall(struct.pack(">ii", 4 + len(data), len(data)) + data)
            with pytest.raises(ConnectionError):
                raw.receive()

    with capture_logs() as lines:
        await asyncio.to_thread(ask)
    assert not [each for each in lines if each["log_level"] == "error"]


def test_no_metadata_but_a_signature_lets_a_client_in(tmp_path: Path) -> None:
    def attack(stage: Stage) -> None:
        with RawGrpc(stage.server.addresses["rocketmq-grpc"]) as client:
            printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
            known = st.just(f"Credential={stage.access_key}, SignedHeaders=x-mq-date-time, Signature={'0' * 40}")

            @FUZZ
            @given(WORDS, st.one_of(REST, known), printable)
            def converse(word: str, rest: str, date: str) -> None:
                metadata = (*client.metadata, ("x-mq-date-time", date), ("authorization", f"{word} {rest}"))
                answer = client.ask("SendMessage", metadata, messages=[message("t", b"one")])
                assert answer.status.code == GrpcCode.UNAUTHORIZED

            converse()

    drive(tmp_path, attack)
