"""Kafka's clients with all ways of authenticating, on a broker with `authorization` on that an administrator has set up
with a client's own administrative calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.helpers
import confluent_kafka as ck
import kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.broker.security.test_jwt import AUDIENCE, ISSUER, RSA_KEY, jwk, jwks, token
from tests.certificates import Authority
from tests.waiting import SECONDS, wait_until

import headrace

PASSWORD = "blue fish, red fish"


@dataclass
class Scene:
    """A broker and what its clients need."""

    broker: headrace.Broker
    authority: str
    certificates: dict[str, tuple[str, str]]
    admin: AdminClient

    def address(self, kind: str) -> str:
        return self.broker.kafka if kind == "SASL_SSL" else self.broker.kafka_listener(kind.lower().replace("_", "-"))


def common(scene: Scene, protocol: str) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap.servers": scene.address(protocol), "security.protocol": protocol}
    return found | ({"ssl.ca.location": scene.authority} if protocol.endswith("SSL") else {})


def upsert(user: str, mechanism: ScramMechanism) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())


def rule(user: str, operation: AclOperation, kind: ResourceType, name: str, prefixed: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    cert, key = authority.issue("localhost", "127.0.0.1")
    (folder / "jwks.json").write_bytes(jwks(jwk(RSA_KEY, "one")))
    certificates = {user: authority.issue(user) for user in ("admin", "ann", "eve")}
    with headrace.Broker(
        kafka_protocol="SASL_SSL",
        kafka_listeners="ssl=SSL://127.0.0.1:0,sasl-plaintext=SASL_PLAINTEXT://127.0.0.1:0",
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=authority.path,
        certificate_rules="RULE:^CN=([^,]+)$/$1/",
        authorization="on",
        super_users="User:admin",
        sasl_session_ms=4_000,
        authentication_delay_max_ms=1,
        jwt_keys=str(folder / "jwks.json"),
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        http="off",
        nsq="off",
    ) as broker:
        found = Scene(broker, authority.path, certificates, None)  # type: ignore[arg-type]
        admin = found.admin = AdminClient(confluent(found, "SSL", "", "admin"))
        users = [upsert(user, ScramMechanism.SCRAM_SHA_256) for user in ("ann", "eve")]
        users += [upsert("ann", ScramMechanism.SCRAM_SHA_512)]
        for each in admin.alter_user_scram_credentials(users).values():
            each.result(SECONDS)
        for each in admin.create_topics([NewTopic("orders-1", 1), NewTopic("other", 1)]).values():
            each.result(SECONDS)
        rules = [
            rule("ann", AclOperation.ALL, ResourceType.TOPIC, "orders", prefixed=True),
            rule("ann", AclOperation.READ, ResourceType.GROUP, "*"),
        ]
        for each in admin.create_acls(rules).values():
            each.result(SECONDS)
        yield found


# --- one way of authenticating, for each client -----------------------------------------------------------------------


def confluent(scene: Scene, protocol: str, mechanism: str, user: str, password: str = PASSWORD) -> dict[str, Any]:
    """librdkafka's settings."""
    found = common(scene, protocol)
    if protocol == "SSL":
        found["ssl.certificate.location"], found["ssl.key.location"] = scene.certificates[user]
    elif mechanism == "OAUTHBEARER":
        found |= {"sasl.mechanism": mechanism, "oauth_cb": lambda _: (token(sub=user), time.time() + 300)}
    else:
        found |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return found


class Provider(AbstractTokenProvider, aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    """For kafka-python, and for aiokafka below."""

    def __init__(self, user: str) -> None:
        self.user = user

    def token(self) -> str:
        return token(sub=self.user)


class AsyncProvider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, user: str) -> None:
        self.user = user

    async def token(self) -> str:
        return token(sub=self.user)


def python_settings(scene: Scene, protocol: str, mechanism: str, user: str, password: str = PASSWORD) -> dict[str, Any]:
    """kafka-python's, which aiokafka shares but for TLS and tokens."""
    found: dict[str, Any] = {"bootstrap_servers": scene.address(protocol), "security_protocol": protocol}
    if mechanism:
        found["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = Provider(user)
    elif mechanism:
        found |= {"sasl_plain_username": user, "sasl_plain_password": password}
    return found


def kafka_python(scene: Scene, protocol: str, mechanism: str, user: str) -> dict[str, Any]:
    found = python_settings(scene, protocol, mechanism, user)
    if protocol.endswith("SSL"):
        found["ssl_cafile"] = scene.authority
    if protocol == "SSL":
        found["ssl_certfile"], found["ssl_keyfile"] = scene.certificates[user]
    return found


def aio(scene: Scene, protocol: str, mechanism: str, user: str) -> dict[str, Any]:
    found = python_settings(scene, protocol, mechanism, user)
    if protocol.endswith("SSL"):
        certificate, key = scene.certificates[user] if protocol == "SSL" else (None, None)
        found["ssl_context"] = aiokafka.helpers.create_ssl_context(
            cafile=scene.authority, certfile=certificate, keyfile=key
        )
    if mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = AsyncProvider(user)
    return found


WAYS = [
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "OAUTHBEARER"),
    ("SSL", ""),
]
each_way = pytest.mark.parametrize(("protocol", "mechanism"), WAYS)


@each_way
def test_confluent_kafka(scene: Scene, protocol: str, mechanism: str) -> None:
    settings = confluent(scene, protocol, mechanism, "ann")
    value = f"ck {protocol} {mechanism}".encode()
    failed: list[Any] = []
    producer = ck.Producer({**settings, "enable.idempotence": True})
    producer.produce("orders-1", value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(SECONDS) == 0
    assert failed == [None]
    consumer = ck.Consumer({**settings, "group.id": f"ck-{protocol}-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders-1"])
    wait_until(lambda: (got := consumer.poll(0.2)) is not None and got.error() is None and got.value() == value)
    consumer.close()


@each_way
def test_kafka_python(scene: Scene, protocol: str, mechanism: str) -> None:
    settings = kafka_python(scene, protocol, mechanism, "ann")
    value = f"kp {protocol} {mechanism}".encode()
    producer = kafka.KafkaProducer(**settings)
    producer.send("orders-1", value).get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "orders-1", **settings, group_id=f"kp-{protocol}-{mechanism}", auto_offset_reset="earliest"
    )
    seen: set[bytes] = set()

    def is_read() -> bool:
        for records in consumer.poll(timeout_ms=200).values():
            seen.update(each.value for each in records)
        return value in seen

    wait_until(is_read)
    consumer.close()


@each_way
async def test_aiokafka(scene: Scene, protocol: str, mechanism: str) -> None:
    settings = aio(scene, protocol, mechanism, "ann")
    value = f"aio {protocol} {mechanism}".encode()
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("orders-1", value)
    group = f"aio-{protocol}-{mechanism}"
    consumer = aiokafka.AIOKafkaConsumer("orders-1", **settings, group_id=group, auto_offset_reset="earliest")
    async with consumer:
        while (await asyncio.wait_for(consumer.getone(), SECONDS)).value != value:
            pass


# --- who is not let in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_librdkafka_is_told_that_it_failed(scene: Scene, mechanism: str) -> None:
    errors: list[ck.KafkaError] = []
    settings = confluent(scene, "SASL_SSL", mechanism, "ann", "wrong") | {"error_cb": errors.append}
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (token(sub="ann", aud="others"), time.time() + 300)
    producer = ck.Producer(settings)

    def is_told() -> bool:
        producer.poll(0.1)
        return any(each.code() == ck.KafkaError._AUTHENTICATION for each in errors)

    wait_until(is_told, lambda: f"{errors}")
    assert not any(PASSWORD in each.str() for each in errors)


def test_what_is_not_allowed_is_refused(scene: Scene) -> None:
    settings = confluent(scene, "SASL_PLAINTEXT", "SCRAM-SHA-256", "eve")
    admin = AdminClient(settings)
    assert admin.list_topics(timeout=SECONDS).topics == {}
    for name in ("orders-1", "no-such-topic"):
        [found] = admin.list_topics(name, timeout=SECONDS).topics.values()
        assert found.error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    failed: list[Any] = []
    producer = ck.Producer(settings)
    producer.produce("orders-1", b"x", on_delivery=lambda error, _: failed.append(error.code()))
    assert producer.flush(SECONDS) == 0
    assert failed == [ck.KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(ck.KafkaException) as refused:
        admin.create_topics([NewTopic("mine", 1)])["mine"].result(SECONDS)
    assert refused.value.args[0].code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    [made] = admin.create_acls([rule("eve", AclOperation.ALL, ResourceType.TOPIC, "*")]).values()
    with pytest.raises(ck.KafkaException) as refused:
        made.result(SECONDS)
    assert refused.value.args[0].code() == ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED
    # librdkafka shows the refusal as an empty list.
    assert admin.describe_acls(every).result(SECONDS) == []
    assert len(scene.admin.describe_acls(every).result(SECONDS)) == 2


# --- what lasts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_librdkafka_goes_on_beyond_its_session(scene: Scene, mechanism: str) -> None:
    settings = confluent(scene, "SASL_SSL", mechanism, "ann")
    failed: list[Any] = []
    producer = ck.Producer(settings)
    end = time.monotonic() + 9
    sent = 0
    while time.monotonic() < end:
        producer.produce("orders-1", b"x", on_delivery=lambda error, _: failed.append(error))
        sent += 1
        producer.poll(0.1)
    assert producer.flush(SECONDS) == 0
    assert failed == [None] * sent


def test_a_consumer_that_loses_its_right_is_told(scene: Scene) -> None:
    right = rule("eve", AclOperation.READ, ResourceType.TOPIC, "other")
    group = rule("eve", AclOperation.READ, ResourceType.GROUP, "eves")
    for each in scene.admin.create_acls([right, group]).values():
        each.result(SECONDS)
    settings = confluent(scene, "SASL_PLAINTEXT", "SCRAM-SHA-256", "eve")
    consumer = ck.Consumer(
        {**settings, "group.id": "eves", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5_000}
    )
    consumer.subscribe(["other"])
    producer = ck.Producer(confluent(scene, "SSL", "", "admin"))
    producer.produce("other", b"before")
    producer.flush(SECONDS)
    wait_until(lambda: (got := consumer.poll(0.2)) is not None and got.error() is None)
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        "other",
        ResourcePatternType.LITERAL,
        "User:eve",
        None,
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    [removed] = scene.admin.delete_acls([wanted]).values()
    assert len(removed.result(SECONDS)) == 1
    got = wait_until(lambda: consumer.poll(0.2))
    assert got is not None
    assert got.error().code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()


def test_credentials_are_listed_and_taken_away(scene: Scene) -> None:
    from confluent_kafka.admin import UserScramCredentialDeletion

    [made] = scene.admin.alter_user_scram_credentials([upsert("tim", ScramMechanism.SCRAM_SHA_512)]).values()
    made.result(SECONDS)
    described = scene.admin.describe_user_scram_credentials(["tim"])["tim"].result(SECONDS)
    [info] = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_512, 4096)
    [gone] = scene.admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion("tim", ScramMechanism.SCRAM_SHA_512)]
    ).values()
    gone.result(SECONDS)
    with pytest.raises(ck.KafkaException) as refused:
        scene.admin.describe_user_scram_credentials(["tim"])["tim"].result(SECONDS)
    assert refused.value.args[0].code() == ck.KafkaError.RESOURCE_NOT_FOUND
