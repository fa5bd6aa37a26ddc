"""Who a client is: shown to a real broker while it works, and not shown to a forged one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.client.fake import APIS, FakeCluster
from tests.doors.kafka.secured import PASSWORDS, secured_door
from tests.waiting import until

from headrace.broker.security.credentials import Mechanism as ServerMechanism
from headrace.broker.security.credentials import derive
from headrace.broker.security.identity import Identity
from headrace.broker.security.scram import ScramExchange
from headrace.client import AuthenticationError, Client, ConnectionLost, Credentials, Mechanism
from headrace.client import connection as connections
from headrace.errors import AuthenticationFailed

ANN = Credentials("ann", PASSWORDS["ann"])
METADATA, HANDSHAKE, AUTHENTICATE = 3, 17, 36
FAILED = 58


class SaslCluster(FakeCluster):
    """A broker with one user; what it knows of the password is `password`."""

    apis: ClassVar = {**APIS, HANDSHAKE: ("sasl_handshake", 1), AUTHENTICATE: ("sasl_authenticate", 2)}

    def __init__(self, password: str = PASSWORDS["ann"], lifetime_ms: int = 0) -> None:
        super().__init__()
        self.password = password
        self.lifetime_ms = lifetime_ms
        self.takes_every_proof = False
        self.shown: list[bytes] = []

    async def sasl_handshake(self, node: int, request: Any, error: int) -> dict[str, Any]:
        mechanism = ServerMechanism.SHA_256
        credentials = derive(self.password.encode(), {mechanism: (b"s" * 16, 4096)})

        def finish(user: str, proven: object) -> Identity:
            if proven is None:
                raise AuthenticationFailed("the password is wrong")
            return Identity(user, mechanism)

        self._exchange = ScramExchange(
            mechanism, lambda _: credentials, finish, lambda _, what: AuthenticationFailed(what), "server"
        )
        return {"error_code": error, "mechanisms": ["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]}

    async def sasl_authenticate(self, node: int, request: Any, error: int) -> dict[str, Any]:
        self.shown.append(bytes(request.auth_bytes))
        try:
            answer = self._exchange.step(request.auth_bytes)
        except AuthenticationFailed as failure:
            if not self.takes_every_proof:
                return {"error_code": FAILED, "error_message": str(failure), "auth_bytes": b""}
            answer = b"v=" + b"A" * 43 + b"="
        return {"error_code": 0, "auth_bytes": answer, "session_lifetime": self.lifetime_ms}


@asynccontextmanager
async def reaching(bootstrap: str, credentials: Credentials | None = ANN) -> AsyncIterator[Client]:
    async with Client(bootstrap, credentials=credentials) as client:
        yield client


async def test_a_broker_that_takes_every_proof_is_told_nothing() -> None:
    async with SaslCluster(password="another one") as cluster, reaching(cluster.bootstrap) as client:
        cluster.takes_every_proof = True
        with pytest.raises(AuthenticationError, match="signature is wrong"):
            await client.cluster.refresh(())
        assert METADATA not in [key for _, key in cluster.asked]


async def test_a_broker_that_knows_the_password_is_asked() -> None:
    async with SaslCluster() as cluster, reaching(cluster.bootstrap) as client:
        await client.cluster.refresh(())
        assert [key for _, key in cluster.asked] == [18, HANDSHAKE, AUTHENTICATE, AUTHENTICATE, METADATA]
        assert not any(PASSWORDS["ann"].encode() in each for each in cluster.shown)


@pytest.mark.parametrize(
    "credentials", [Credentials("ann", "blue fish", mechanism=Mechanism.PLAIN), Credentials(token="hr_x.y")]
)
async def test_secrets_do_not_go_in_the_clear(credentials: Credentials) -> None:
    async with SaslCluster() as cluster, reaching(cluster.bootstrap, credentials) as client:
        with pytest.raises(AuthenticationError, match="TLS"):
            await client.cluster.any_node()
        assert cluster.asked == []


async def test_a_broker_without_sasl_is_not_asked_for_it() -> None:
    async with FakeCluster() as cluster, reaching(cluster.bootstrap) as client:
        with pytest.raises(Exception, match="API 17"):
            await client.cluster.any_node()


async def test_a_session_that_is_not_renewed_is_an_error_that_stays() -> None:
    async with SaslCluster(lifetime_ms=20) as cluster, reaching(cluster.bootstrap) as client:
        connection = await client.cluster.any_node()
        cluster.password = "changed"
        await until(lambda: connection.closed)
        with pytest.raises(ConnectionLost, match="renewed"):
            await connection.send(METADATA, 12, (b"",), bytes)
        with pytest.raises(AuthenticationError, match="the password is wrong"):
            await client.cluster.any_node()


async def test_a_session_is_renewed_beneath_the_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real broker, which hangs up on a request that comes while a client authenticates again."""
    # It refuses to be authenticated at within a second of the last time.
    monkeypatch.setattr(connections, "RENEW_AT", 0.02)
    settings: dict[str, Any] = {"sasl_session_ms": 60_000, "super_users": "ann"}
    async with secured_door(tmp_path, **settings) as door, reaching("{}:{}".format(*door.address)) as client:
        connection = await client.cluster.any_node()
        renewals: set[object] = set()
        while len(renewals) < 2:
            await asyncio.gather(*(client.cluster.refresh(()) for _ in range(20)))
            assert not connection.closed
            if connection._renewing is not None and connection._renewing.done():
                renewals.add(connection._renewing)
        assert await client.cluster.any_node() is connection
        async with client.producer() as producer:
            assert (await (await producer.send("new", b"one"))).offset == 0


async def test_a_client_that_says_nothing_is_told_what_is_wanted(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door, reaching("{}:{}".format(*door.address), None) as client:
        with pytest.raises(AuthenticationError, match=r"wants authentication.*SCRAM-SHA-512"):
            await client.admin.create_topic("orders", 1)


def test_secrets_are_in_no_text() -> None:
    assert "blue fish" not in repr(ANN)
    assert "hr_x.y" not in repr(Credentials(token="hr_x.y"))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "a user with a password, or a token"),
        ({"user": "ann", "password": "x", "token": "y"}, "one of the two"),
        ({"user": "ann"}, "no password"),
        ({"user": "a\0b", "password": "x"}, "zero byte"),
        ({"token": "a b"}, "characters"),
        ({"token": "a\x01auth=Bearer"}, "characters"),
    ],
)
def test_what_are_no_credentials(given: dict[str, str], word: str) -> None:
    with pytest.raises(AuthenticationError, match=word):
        Credentials(**given)  # type: ignore[arg-type]
