"""The users and their API tokens, and how a password is looked up for a user that may not be there."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.broker.security.credentials import ITERATIONS_MAX, SALT_BYTES, Credential, Mechanism
from headrace.broker.security.tokens import Token

NAME_CHARACTERS_MAX = 255
# What verifies a password where a user has both.
PREFERRED = Mechanism.SHA_256


@dataclass(frozen=True, slots=True)
class User:
    """A user."""

    name: str
    credentials: tuple[Credential, ...] = ()

    def of(self, mechanism: Mechanism, now_ms: int) -> list[Credential]:
        """The valid credentials of a mechanism, the current one first."""
        found = [each for each in self.credentials if each.mechanism is mechanism and each.is_valid(now_ms)]
        return sorted(found, key=lambda each: each.expires_ms > 0)

    def with_password(self, made: Sequence[Credential], old_until_ms: int) -> User:
        """With other credentials for some mechanisms. The current ones stay until a time where one exchange can verify
        both; 0: they end now."""
        mechanisms = {each.mechanism for each in made}
        kept = [each for each in self.credentials if each.mechanism not in mechanisms]
        if old_until_ms:
            kept += [
                replace(old, expires_ms=old_until_ms)
                for new in made
                for old in self.credentials
                if not old.expires_ms and old.is_salted_alike(new)
            ]
        return replace(self, credentials=(*made, *kept))

    def without(self, mechanism: Mechanism) -> User:
        """Without the credentials of a mechanism."""
        return replace(self, credentials=tuple(each for each in self.credentials if each.mechanism is not mechanism))


class Users:
    """All users."""

    def __init__(self, secret: bytes) -> None:
        """With a secret from which salts are made up."""
        self.by_name: dict[str, User] = {}
        self.tokens: dict[str, Token] = {}
        """By their ids."""
        self.secret = secret

    def find(self, name: str, mechanism: Mechanism, now_ms: int) -> tuple[Sequence[Credential], bool]:
        """The credentials of a user that one exchange can verify, and True; or one that no password fits, and False."""
        user = self.by_name.get(name)
        found = user.of(mechanism, now_ms) if user is not None else []
        if not found:
            return (self._made_up(name, mechanism),), False
        return [each for each in found if each.is_salted_alike(found[0])], True

    def find_any(self, name: str, now_ms: int) -> tuple[Sequence[Credential], bool]:
        """The same by whichever mechanism the user has."""
        for mechanism in (PREFERRED, *Mechanism):
            found = self.find(name, mechanism, now_ms)
            if found[1]:
                return found
        return (self._made_up(name, PREFERRED),), False

    def _made_up(self, name: str, mechanism: Mechanism) -> Credential:
        """Always the same for the same name."""
        made = hmac.digest(self.secret, f"{mechanism}:{name}".encode("utf-8", "surrogatepass"), "sha512")
        # What follows is compared with proofs, and no proof can be made for it.
        keys = hmac.digest(made, b"keys", mechanism.hash)
        return Credential(mechanism, ITERATIONS_MAX, made[:SALT_BYTES], keys, keys)
