"""A broker with authorization on, and a user with the rights that a job needs and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace
from headrace.cli.offline import OfflineApi

ADMIN_PASSWORD = "white whale in a file"
PASSWORD = "blue fish that nothing shows"
# As docs/pipeline.md lists them, for the source, for a sink under the application id `copy`, and for the audit.
RULES = (
    ("read", "topic", "events*"),
    ("describe-configs", "topic", "events*"),
    ("read", "group", "spark*"),
    ("read", "queue", "events*"),
    ("write", "topic", "copies*"),
    ("create", "topic", "copies*"),
    ("write", "transactional-id", "copy*"),
    ("read,write,create", "topic", "headrace-sink"),
)


@dataclass(frozen=True)
class Guarded:
    """The broker, and the files by which its users come in."""

    broker: headrace.Broker
    password_file: Path
    token_file: Path
    token: str
    admin_file: Path

    @property
    def login(self) -> dict[str, str]:
        """Options of the source and of the sink."""
        return {
            "kafka.bootstrap.servers": self.broker.kafka,
            "user": "spark",
            "passwordFile": str(self.password_file),
        }

    @property
    def admin(self) -> dict[str, str]:
        return self.login | {"user": "admin", "passwordFile": str(self.admin_file)}


def write_secret(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


@contextmanager
def guarded_broker(folder: Path) -> Iterator[Guarded]:
    data = str(folder / "data")
    api = OfflineApi(data, as_json=True)

    def ask(path: str, **body: Any) -> Any:
        return api.ask("POST", path, body)

    ask("/v1/users", name="admin", password=ADMIN_PASSWORD)
    ask("/v1/roles", user="admin", role="admin")
    ask("/v1/users", name="spark", password=PASSWORD)
    rules = [
        {"permission": "allow", "user": "spark", "host": "*", "operation": each, "resource": resource, "name": name}
        for operations, resource, name in RULES
        for each in operations.split(",")
    ]
    ask("/v1/acls", rules=rules)
    token = ask("/v1/tokens", user="spark")["token"]
    settings: dict[str, Any] = {"kafka_protocol": "SASL_PLAINTEXT", "authorization": "on", "nsq": "off"}
    with headrace.Broker(data=data, http="127.0.0.1:0", authentication_delay_max_ms=1, **settings) as broker:
        yield Guarded(
            broker,
            write_secret(folder / "password", PASSWORD),
            write_secret(folder / "token", token),
            token,
            write_secret(folder / "admin", ADMIN_PASSWORD),
        )
