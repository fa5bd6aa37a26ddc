"""Headrace's own client at an Apache Kafka that wants authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from bench.peers import free_port
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests import apache
from tests.waiting import SECONDS

from headrace.client import EARLIEST, AuthenticationError, Client, Credentials, Mechanism
from headrace.client import connection as connections

pytestmark = pytest.mark.java

PASSWORD = "blue fish, red fish"
LISTENER = """
listeners=PLAINTEXT://127.0.0.1:{{port}},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN
connections.max.reauth.ms=20000
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ann="{password}";
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    sasl = free_port()
    with apache.running(LISTENER.format(sasl=sasl, password=PASSWORD)) as plain:
        admin = AdminClient({"bootstrap.servers": plain})
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        users = [
            UserScramCredentialUpsertion("ann", ScramCredentialInfo(each, 8192), PASSWORD.encode()) for each in kinds
        ]
        for user in users:
            for each in admin.alter_user_scram_credentials([user]).values():
                each.result(SECONDS)
        yield f"127.0.0.1:{sasl}"


@pytest.mark.parametrize("mechanism", list(Mechanism))
async def test_messages_go_both_ways(address: str, mechanism: Mechanism) -> None:
    ann = Credentials("ann", PASSWORD, mechanism=mechanism, allow_plaintext=True)
    topic = f"by-{mechanism}"
    async with Client(address, credentials=ann) as client:
        await client.admin.create_topic(topic, 1)
        async with client.producer() as producer:
            await (await producer.send(topic, b"one"))
        async with client.consumer() as consumer:
            await consumer.assign({(topic, 0): EARLIEST})
            assert [each.value async for each in consumer.records(await consumer.end_offsets())] == [b"one"]


@pytest.mark.parametrize("mechanism", list(Mechanism))
async def test_a_wrong_password_is_refused(address: str, mechanism: Mechanism) -> None:
    ann = Credentials("ann", "wrong", mechanism=mechanism, allow_plaintext=True)
    async with Client(address, credentials=ann) as client:
        with pytest.raises(AuthenticationError, match="refuses"):
            await client.cluster.refresh(())


async def test_who_says_nothing_is_told_what_is_wanted(address: str) -> None:
    async with Client(address) as client:
        with pytest.raises(AuthenticationError, match="wants authentication"):
            await client.cluster.refresh(())


async def test_a_session_is_renewed_beneath_the_requests(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RENEW_AT", 0.06)
    async with Client(address, credentials=Credentials("ann", PASSWORD)) as client:
        connection = await client.cluster.any_node()
        renewals: set[object] = set()
        while len(renewals) < 2:
            await asyncio.gather(*(client.cluster.refresh(()) for _ in range(20)))
            assert not connection.closed
            if connection._renewing is not None and connection._renewing.done():
                renewals.add(connection._renewing)
        assert await client.cluster.any_node() is connection
