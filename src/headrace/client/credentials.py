"""Who a client is, and how it shows that (SASL). Secrets are in no text that this value is printed as."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headrace.client.errors import AuthenticationError


class Mechanism(StrEnum):
    """How a password is shown."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    PLAIN = "PLAIN"


OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or a token."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """An API token, or one that an identity provider has signed. Instead of user and password."""
    mechanism: Mechanism = Mechanism.SCRAM_SHA_256
    """For the password."""
    allow_plaintext: bool = False
    """Send what others can read (PLAIN, a token) without TLS, too."""

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.user):
            raise AuthenticationError("credentials are a user with a password, or a token. Give one of the two.")
        if self.user and not self.password:
            raise AuthenticationError(f"the user {self.user!r} has no password. Give one.")
        if "\0" in self.user + self.password:
            raise AuthenticationError("a user or a password must not contain a zero byte")
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise AuthenticationError("the token has characters that a token cannot have")

    @property
    def sasl_mechanism(self) -> str:
        """The name of the SASL mechanism."""
        return OAUTHBEARER if self.token else self.mechanism.value

    def check_way(self, *, encrypted: bool) -> None:
        """Raise AuthenticationError where others could read the secret on its way."""
        readable = self.sasl_mechanism in (OAUTHBEARER, Mechanism.PLAIN)
        if readable and not encrypted and not self.allow_plaintext:
            raise AuthenticationError(
                f"{self.sasl_mechanism} sends the secret in the clear. Use TLS, or a password with "
                f"{Mechanism.SCRAM_SHA_256}."
            )
