"""A group of nodes with SASL and rules on, and its users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses

from headrace.cli.credentials import Login
from headrace.cli.over_http import Api
from headrace.errors import HeadraceError

ANY = "127.0.0.1:0"
FLAGS = (
    *("--kafka-protocol", "SASL_PLAINTEXT", "--authorization", "on", "--http", ANY, "--nsq", ANY),
    *("--authentication-delay-max-ms", "1"),
)
ADMIN, ADMIN_PASSWORD = "ops", "white whale in a file"


class UserOfGroup:
    """A user, who asks whichever node leads over HTTP."""

    def __init__(self, group: GroupProcesses, name: str, password: str = "", token: str = "") -> None:
        self.name = name
        self.password = password
        self._group = group
        self._login = Login(name, password, token)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """The answer's JSON. Raises HeadraceError."""
        nodes = [each for each in self._group.nodes.values() if each.runs]
        api = Api(",".join(each.addresses["http"] for each in nodes), True, self._login.header)
        return api.ask(method, path, body or None)

    def why_not(self, method: str, path: str, **body: Any) -> str:
        """Why it may not; empty where it may."""
        try:
            self.ask(method, path, **body)
        except HeadraceError as error:
            return str(error)
        return ""

    @property
    def librdkafka(self) -> dict[str, Any]:
        """Settings of a Kafka client as this user."""
        return {
            "bootstrap.servers": self._group.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": self.name,
            "sasl.password": self.password,
            "topic.metadata.refresh.interval.ms": 1_000,
            "reconnect.backoff.max.ms": 500,
        }


@contextmanager
def secured_group(etcd_peers: Peers, folder: Path, *flags: str) -> Iterator[tuple[GroupProcesses, UserOfGroup]]:
    """The group, and its first administrator."""
    peers = etcd_peers(1)
    peers.wait()
    secret = folder / "admin.password"
    secret.write_text(ADMIN_PASSWORD + "\n")
    secret.chmod(0o600)
    init = ("--admin", ADMIN, "--password-file", str(secret))
    with GroupProcesses(peers, folder, *FLAGS, *flags, init=init) as group:
        yield group, UserOfGroup(group, ADMIN, ADMIN_PASSWORD)
