"""A door with users and rules, and the client's side of SASL, written a second time from the RFCs."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.doors.kafka.wired import Wire, open_door

from headrace.broker.broker import Broker
from headrace.broker.security.credentials import Mechanism, derive
from headrace.broker.security.rules import Rule
from headrace.broker.security.users import User
from headrace.doors.kafka.door import KafkaDoor

ITERATIONS = 4_096
PASSWORDS = {"ann": "blue fish", "bob": "red fish", "root": "white whale"}


def add_user(broker: Broker, name: str, password: str) -> None:
    salts = {each: (f"{name}{each}".encode().ljust(16, b"s"), ITERATIONS) for each in Mechanism}
    users = broker.security.users
    users.by_name[name] = User(name, tuple(derive(password.encode(), salts)))


@asynccontextmanager
async def secured_door(
    data: Path, rules: Sequence[Rule] = (), tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[KafkaDoor]:
    """A door whose clients authenticate by SCRAM, and are allowed what the rules say; `root` may do everything."""
    given = {"kafka_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512", "authorization": "on", "super_users": "root"}
    async with open_door(data, tls, **{**given, "authentication_delay_max_ms": 0, **settings}) as door:
        for name, password in PASSWORDS.items():
            add_user(door.broker, name, password)
        door.broker.security.set_rules(rules)
        yield door


class ScramClient:
    """One exchange, from the client's side."""

    def __init__(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256", nonce: str = "fyko+d2lbbFgONRv9qkxdawL"
    ) -> None:
        self.hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self.password = password
        self.bare = f"n={user},r={nonce}"
        self.server_signature = b""

    @property
    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, answer: bytes, header: bytes = b"n,,") -> bytes:
        """The proof, for the server's first message."""
        fields = dict(each.split("=", 1) for each in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), b64decode(fields["s"]), int(fields["i"]))
        without = f"c={b64encode(header).decode()},r={fields['r']}"
        signed = f"{self.bare},{answer.decode()},{without}".encode()
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, client_key).digest(), signed, self.hash)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self.server_signature = hmac.digest(hmac.digest(salted, b"Server Key", self.hash), signed, self.hash)
        return f"{without},p={b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """That the server knows the password, too."""
        assert answer == b"v=" + b64encode(self.server_signature)


async def authenticate(
    wire: Wire, user: str, password: str = "", mechanism: str = "SCRAM-SHA-256", version: int = 2
) -> Any:
    """Authenticate by SCRAM; the last reply."""
    shaken = await wire.ask("sasl_handshake", 1, mechanism=mechanism)
    assert shaken.error_code == 0
    client = ScramClient(user, password or PASSWORDS[user], mechanism)
    first = await wire.ask("sasl_authenticate", version, auth_bytes=client.first)
    assert first.error_code == 0, first
    last = await wire.ask("sasl_authenticate", version, auth_bytes=client.final(first.auth_bytes))
    if last.error_code == 0:
        client.check(last.auth_bytes)
    return last


@asynccontextmanager
async def as_user(door: KafkaDoor, user: str) -> AsyncIterator[Wire]:
    """A connection of a user."""
    async with await Wire.open(door) as wire:
        assert (await authenticate(wire, user)).error_code == 0
        yield wire
