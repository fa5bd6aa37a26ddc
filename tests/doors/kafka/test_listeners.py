"""Several listeners of one door: their settings, and where their clients are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kio.schema.errors import ErrorCode
from tests.certificates import Authority
from tests.doors.kafka.test_follower import following
from tests.doors.kafka.wired import Wire, fetch_fields, open_door

import headrace
from headrace.addresses import parse_address
from headrace.broker.membership import NodeView
from headrace.config import Config
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.settings import Listener, Protocol, listeners_of, parse_listeners
from headrace.doors.registry import DOORS
from headrace.errors import ConfigError
from headrace.exposure import exposed_doors
from headrace.log.interface import Topic

CERTIFICATE = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
NO_TOPICS = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
ALL = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")


def test_a_listener_is_read() -> None:
    assert parse_listeners("") == []
    found = parse_listeners(
        "inside=PLAINTEXT://127.0.0.1:9094, "
        "out-2=SASL_SSL://0.0.0.0:9095?mechanisms=plain+SCRAM-SHA-256&advertised=mq.example:19095,"
        "v6=SASL_PLAINTEXT://[::1]:0"
    )
    assert found == [
        Listener("kafka-inside", Protocol.PLAINTEXT, "127.0.0.1:9094"),
        Listener("kafka-out-2", Protocol.SASL_SSL, "0.0.0.0:9095", ("PLAIN", "SCRAM-SHA-256"), "mq.example:19095"),
        Listener("kafka-v6", Protocol.SASL_PLAINTEXT, "[::1]:0", ALL[:2]),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "is not NAME=PROTOCOL://HOST:PORT"),
        ("A=SSL://h:1", "is not NAME=PROTOCOL://HOST:PORT"),
        ("a=SSL://h", "is not HOST:PORT"),
        ("a=SSL://off", "is not an address"),
        ("a=TLS://h:1", "'TLS' is not a listener's protocol. Use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("a=SSL://h:1,a=SSL://h:2", "the listener kafka-a occurs more than once"),
        ("a=SSL://h:1?mechanisms=PLAIN", "a listener of SSL has none"),
        ("a=SASL_SSL://h:1?mechanisms=GSSAPI", "'GSSAPI' is not a supported SASL mechanism"),
        ("a=SASL_SSL://h:1?mechanism=PLAIN", "'mechanism=PLAIN' is not an option"),
        ("a=SASL_SSL://h:1?advertised=h:1&advertised=h:2", "'advertised=h:2' is not an option"),
        ("a=SASL_SSL://h:1?advertised=off", "is not an address"),
    ],
)
def test_what_is_no_listener_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(kafka_listeners=text)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "protocol", "mechanisms"),
    [
        ({}, Protocol.PLAINTEXT, ()),
        (CERTIFICATE, Protocol.SSL, ()),
        ({"kafka_mechanisms": "SCRAM-SHA-256"}, Protocol.SASL_PLAINTEXT, ("SCRAM-SHA-256",)),
        ({"kafka_mechanisms": "scram-sha-256, PLAIN", **CERTIFICATE}, Protocol.SASL_SSL, ("SCRAM-SHA-256", "PLAIN")),
        ({"kafka_protocol": "PLAINTEXT", **CERTIFICATE}, Protocol.PLAINTEXT, ()),
        ({"kafka_protocol": "SASL_SSL", **CERTIFICATE}, Protocol.SASL_SSL, ALL),
        ({"kafka_protocol": "SASL_PLAINTEXT"}, Protocol.SASL_PLAINTEXT, ALL[:2]),
    ],
)
def test_how_clients_speak_at_the_first_listener(
    settings: dict[str, str], protocol: Protocol, mechanisms: tuple[str, ...]
) -> None:
    config = Config(**settings)
    [listener] = listeners_of(config, has_certificate=bool(config.tls_cert))
    assert (listener.protocol, listener.mechanisms) == (protocol, mechanisms)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kafka_protocol": "SSL"}, "the listener kafka speaks SSL: give tls_cert and tls_key"),
        ({"kafka_listeners": "a=SASL_SSL://h:1"}, "the listener kafka-a speaks SASL_SSL: give tls_cert and tls_key"),
        ({"kafka_mechanisms": "PLAIN"}, "passwords in the clear (PLAIN over SASL_PLAINTEXT)"),
        ({"kafka_protocol": "SSL", "kafka_mechanisms": "PLAIN", **CERTIFICATE}, "a listener of SSL has none"),
        ({"kafka_protocol": "TLS"}, "not one of auto, PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"kafka_mechanisms": "NTLM"}, "'NTLM' is not a supported SASL mechanism"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**settings)
    assert reason in str(refused.value)


def test_passwords_in_the_clear_can_be_accepted() -> None:
    Config(kafka_mechanisms="PLAIN", sasl_plain_without_tls=True)


def exposed(**settings: Any) -> list[str]:
    return [each.name for each in exposed_doors(Config(**settings), DOORS)]


def test_a_listener_beyond_this_machine_needs_tls_or_authentication_that_gives_no_secret_away() -> None:
    assert exposed(kafka="0.0.0.0:1") == ["kafka"]
    assert exposed(kafka="0.0.0.0:1", kafka_mechanisms="SCRAM-SHA-256") == []
    assert exposed(kafka="0.0.0.0:1", kafka_mechanisms="PLAIN", sasl_plain_without_tls=True) == ["kafka"]
    assert exposed(kafka="0.0.0.0:1", kafka_mechanisms="OAUTHBEARER,SCRAM-SHA-512") == ["kafka"]
    assert exposed(kafka="0.0.0.0:1", kafka_protocol="PLAINTEXT", **CERTIFICATE) == ["kafka"]
    further = "a=PLAINTEXT://0.0.0.0:1,b=SSL://0.0.0.0:2,c=SASL_PLAINTEXT://0.0.0.0:3,d=PLAINTEXT://127.0.0.1:4"
    assert exposed(kafka_listeners=further, **CERTIFICATE) == ["kafka-a"]
    assert exposed(kafka="off", kafka_listeners="a=PLAINTEXT://0.0.0.0:1") == ["kafka-a"]


async def places(door: KafkaDoor, name: str) -> dict[str, tuple[str, int]]:
    """Where a client of a listener is sent, by what it asks."""
    [listener] = [each for each in door.listeners if each.name == name]
    async with await Wire.at(*listener.address) as wire:
        metadata = await wire.ask("metadata", 12, **NO_TOPICS)
        [broker] = metadata.brokers
        found = {"metadata": (broker.host, broker.port)}
        cluster = await wire.ask("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=1)
        found["cluster"] = (cluster.brokers[0].host, cluster.brokers[0].port)
        coordinator = await wire.ask("find_coordinator", 3, key="g", key_type=0)
        found["coordinator"] = (coordinator.host, coordinator.port)
        configs = await wire.ask(
            "describe_configs",
            4,
            resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": ["advertised.listeners"]}],
            include_synonyms=False,
            include_documentation=False,
        )
        [entry] = configs.results[0].configs
        title = "PLAINTEXT" if name == "kafka" else name.removeprefix("kafka-").upper()
        [own] = [each for each in entry.value.split(",") if each.startswith(f"{title}://")]
        place = parse_address(own.partition("://")[2])
        assert place is not None
        found["configs"] = place
    return found


async def test_clients_are_sent_to_the_listener_by_which_they_came(tmp_path: Path) -> None:
    further = "own=PLAINTEXT://127.0.0.1:0,out=PLAINTEXT://127.0.0.1:0?advertised=mq.example:19092"
    async with open_door(tmp_path, kafka_listeners=further) as door:
        assert list(door.addresses) == ["kafka", "kafka-own", "kafka-out"]
        ports = {name: int(address.rpartition(":")[2]) for name, address in door.addresses.items()}
        assert len(set(ports.values())) == 3
        assert set((await places(door, "kafka")).values()) == {("127.0.0.1", ports["kafka"])}
        assert set((await places(door, "kafka-own")).values()) == {("127.0.0.1", ports["kafka-own"])}
        assert set((await places(door, "kafka-out")).values()) == {("mq.example", 19092)}


async def test_a_door_may_have_further_listeners_alone(tmp_path: Path) -> None:
    async with open_door(tmp_path, kafka="off", kafka_listeners="own=PLAINTEXT://127.0.0.1:0") as door:
        assert list(door.addresses) == ["kafka-own"]
        await places(door, "kafka-own")
    assert not door.addresses


async def test_other_nodes_are_named_by_the_same_listener(tmp_path: Path) -> None:
    async with following(tmp_path, kafka_listeners="own=PLAINTEXT://127.0.0.1:0") as (node, door, topic):
        node.group.nodes[2] = NodeView(2, "green", {"kafka": "a.test:1", "kafka-own": "b.test:2"})
        node.group.nodes[3] = NodeView(3, "", {"kafka": "c.test:3"})
        for listener, others, leader in (("kafka", {2: "a.test", 3: "c.test"}, 1), ("kafka-own", {2: "b.test"}, 2)):
            [opened] = [each for each in door.listeners if each.name == listener]
            async with await Wire.at(*opened.address) as wire:
                metadata = await wire.ask("metadata", 12, **NO_TOPICS)
                assert {each.node_id: each.host for each in metadata.brokers if each.node_id != 1} == others
                assert metadata.controller_id == 2
                refused = await wire.ask("fetch", 17, **fields_of(topic))
                assert refused.responses[0].partitions[0].error_code is ErrorCode.fenced_leader_epoch
                assert [(each.node_id, each.port) for each in refused.node_endpoints] == [(2, leader)]
        node.group.nodes[2] = NodeView(2, "green", {"kafka": "a.test:1"})
        async with await Wire.at(*opened.address) as wire:
            metadata = await wire.ask("metadata", 12, **NO_TOPICS)
            assert metadata.controller_id == -1


def fields_of(topic: Topic) -> dict[str, Any]:
    fields = fetch_fields((topic, 0, 0))
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = 1
    return fields


def test_a_listener_over_tls_beside_one_in_the_clear(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(
        kafka_protocol="PLAINTEXT",
        kafka_listeners="safe=SSL://127.0.0.1:0",
        tls_cert=cert,
        tls_key=key,
        http="off",
    ) as broker:
        for address, settings in (
            (broker.kafka, {}),
            (broker.kafka_listener("safe"), {"security_protocol": "SSL", "ssl_cafile": authority.path}),
        ):
            client = KafkaConsumer(bootstrap_servers=address, **settings)
            assert client.topics() is not None
            client.close()
