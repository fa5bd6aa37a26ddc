"""Servers with users, rules and quotas, and the same servers without: what `bench.secured` compares.

Each secured one has two listeners. By the plain one comes what sets it up, as a super user; by the other one the load,
which has authenticated by SCRAM, has rights by rules among those of many users, and quotas that it never reaches.
"""

from __future__ import annotations

from typing import Any, Protocol

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.admin import Admin
from bench.peers import Peer, free_port
from bench.peers.headrace import Headrace
from bench.peers.kafka import Kafka

USERS = 500
USER, PASSWORD = "user-7", "correct horse battery staple"
TOPICS = "bench-"
"""What the names of all topics begin with."""
ITERATIONS = 4_096
SECONDS = 60.0
QUOTAS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}

PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{secured}
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class Compared(Peer, Protocol):
    """A server, and by what its load comes."""

    @property
    def way_in(self) -> dict[str, Any]:
        """What a load's specification has besides."""


class Open(Headrace):
    """Headrace as it is without any settings."""

    way_in: dict[str, Any] = {}  # noqa: RUF012


class OpenKafka(Kafka):
    """Apache Kafka without rights."""

    way_in: dict[str, Any] = {}  # noqa: RUF012


class Secured(Headrace):
    """Headrace with users, rules and quotas."""

    def __init__(self) -> None:
        super().__init__("Headrace, secured")
        self._secured = 0

    @property
    def way_in(self) -> dict[str, Any]:
        return _way_in(self._secured)

    def start(self) -> float:
        taken = super().start()
        secure(self.port)
        return taken

    def _doors(self) -> list[str]:
        self._secured = free_port()
        listener = f"secured=SASL_PLAINTEXT://127.0.0.1:{self._secured}?mechanisms=SCRAM-SHA-256"
        return ["--kafka-listeners", listener, "--authorization", "on", "--super-users", "ANONYMOUS"]


class SecuredKafka(Kafka):
    """Apache Kafka with the same, its rules kept by StandardAuthorizer."""

    name = "Apache Kafka, secured"

    def __init__(self) -> None:
        super().__init__()
        self._secured = 0

    @property
    def way_in(self) -> dict[str, Any]:
        return _way_in(self._secured)

    def start(self) -> float:
        taken = super().start()
        secure(self.port)
        return taken

    def _further_properties(self) -> str:
        self._secured = free_port()
        return PROPERTIES.format(port=self.port, secured=self._secured, controller=free_port())


def _way_in(port: int) -> dict[str, Any]:
    return {"port": port, "user": USER, "password": PASSWORD}


def secure(port: int) -> None:
    """Make the user of the load, rules for many users, and quotas."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
    user = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
    for made in admin.alter_user_scram_credentials([user]).values():
        made.result(SECONDS)
    rules = [
        AclBinding(ResourceType.TOPIC, name, pattern, f"User:user-{number}", "*", operation, AclPermissionType.ALLOW)
        for number in range(USERS)
        for name, pattern in (
            (TOPICS, ResourcePatternType.PREFIXED),
            (f"own-{number}", ResourcePatternType.LITERAL),
        )
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    for added in admin.create_acls(rules, request_timeout=SECONDS).values():
        added.result(SECONDS)
    with Admin("127.0.0.1", port) as raw:
        raw.set_quotas(USER, QUOTAS)
