"""SCRAM credentials: what the broker keeps instead of a password (RFC 5802, RFC 7677).

From the stored key a client's proof is verified, and from the server key the broker's own is made; the password can be
found from neither but by guessing. While a password is being changed, the old one stays valid for a while: both were
then derived with one salt, because an exchange names the salt before the client shows which password it has.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
"""The bounds of Kafka's brokers; credentials that this broker makes have the most."""
SALT_BYTES = 24


class Mechanism(StrEnum):
    """A hash that passwords are derived with, by the name of the SASL mechanism."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash(self) -> str:
        """The name of the hash function."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """Bytes of the hash."""
        return 32 if self is Mechanism.SHA_256 else 64


@dataclass(frozen=True, slots=True)
class Credential:
    """What verifies one password by one mechanism."""

    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    expires_ms: int = 0
    """When it ends, because another one has taken its place; 0: it is the current one."""

    def is_valid(self, now_ms: int) -> bool:
        return not self.expires_ms or now_ms < self.expires_ms

    def is_salted_alike(self, other: Credential) -> bool:
        """Whether one exchange can verify both."""
        mine = self.mechanism, self.iterations, self.salt
        return mine == (other.mechanism, other.iterations, other.salt)


def salt_password(mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The salted password, which takes milliseconds: to be called off the loop."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password, salt, iterations)


def credential_of(mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """What is kept of a salted password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash)
    stored_key = hashlib.new(mechanism.hash, client_key).digest()
    return Credential(
        mechanism, iterations, salt, stored_key, hmac.digest(salted_password, b"Server Key", mechanism.hash)
    )


def derive(password: bytes, salts: Mapping[Mechanism, tuple[bytes, int]]) -> list[Credential]:
    """Credentials of a password, with a salt and iterations for each mechanism. To be called off the loop."""
    return [
        credential_of(mechanism, salt_password(mechanism, password, salt, iterations), salt, iterations)
        for mechanism, (salt, iterations) in salts.items()
    ]


def matching(password: bytes, candidates: Sequence[Credential]) -> int:
    """Which of some credentials with the same salt a password fits; -1: none. To be called off the loop. It takes the
    same work for any number of iterations, and whether one fits or not."""
    first = candidates[0]
    salted = salt_password(first.mechanism, password, first.salt, first.iterations)
    if first.iterations < ITERATIONS_MAX:
        salt_password(first.mechanism, password, first.salt, ITERATIONS_MAX - first.iterations)
    made = credential_of(first.mechanism, salted, first.salt, first.iterations)
    found = -1
    for number, candidate in enumerate(candidates):
        if hmac.compare_digest(made.stored_key, candidate.stored_key):
            found = number
    return found
