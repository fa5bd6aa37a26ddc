"""Signed tokens (JWT) of an identity provider, verified with its public keys (a JWKS).

PyJWT verifies; here is what may be in a token, and where keys come from: a file or a URL, read off the loop, again from
time to time, and when a token names a key that is not known, but no more often than a setting says: strangers send
tokens, too. Keys that cannot be read again stay as they are.

The algorithms are those that the settings list, whatever a token says of itself; only ones with a public key can be
listed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import structlog

from headrace.broker.loading import SharedLoad
from headrace.broker.security.identity import Identity, Scope
from headrace.broker.security.rules import ANY
from headrace.broker.security.session import ANONYMOUS
from headrace.broker.security.tokens import rule_of_scope
from headrace.broker.security.users import NAME_CHARACTERS_MAX
from headrace.broker.security_settings import JwtSettings
from headrace.errors import ConfigError, HeadraceError, InvalidRule
from headrace.redaction import redact_url
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.security")

TOKEN_CHARACTERS_MAX = 16_384
KEYS_BYTES_MAX = 1 << 20
KEYS_MAX = 100
FETCH_SECONDS = 10.0
# Scopes of tokens that are kept, so that what was decided by them is remembered.
SCOPES_MAX = 1_000


class InvalidToken(HeadraceError):
    """The token is none that counts here. The text says why, and nothing of the token."""


class Key(NamedTuple):
    """A public key."""

    key: Any
    """As PyJWT takes it."""
    algorithm: str
    """The one that it is for; empty: any that fits it."""


def read_keys(place: str) -> bytes:
    """What is in a file, or at a URL and nowhere that it redirects to. Blocks. Raises OSError."""
    if "://" not in place:
        with open(place, "rb") as file:
            return file.read(KEYS_BYTES_MAX + 1)
    # Imported here: most brokers read no URL.
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any, **more: Any) -> None:
            return None

    try:
        with build_opener(NoRedirects(), ProxyHandler({})).open(place, timeout=FETCH_SECONDS) as answer:
            raw: bytes = answer.read(KEYS_BYTES_MAX + 1)
            return raw
    except HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from None


def parse_keys(raw: bytes) -> dict[str, Key]:
    """The keys that verify signatures, by their ids. Raises ValueError."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if len(raw) > KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {KEYS_BYTES_MAX} bytes")
    found = json.loads(raw)
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"it is not a JWKS: an object with 'keys', a list of {KEYS_MAX} at most")
    keys: dict[str, Key] = {}
    for each in listed:
        # A symmetric key would let all who can read it sign.
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            keys[str(each.get("kid", ""))] = Key(PyJWK(each).key, str(each.get("alg", "")))
        except (PyJWTError, ValueError, TypeError, AttributeError):
            # Of a kind that is not known: others may be.
            continue
    if not keys:
        raise ValueError("it has no key that verifies signatures")
    return keys


class JwtVerifier:
    """Says as whom a token shows its bearer."""

    def __init__(
        self,
        runtime: Runtime,
        config: JwtSettings,
        read: Callable[[str], bytes] = read_keys,
    ) -> None:
        if config.jwt_keys and find_spec("jwt") is None:
            raise ConfigError("jwt_keys takes PyJWT, which is not installed: pip install 'headrace[jwt]'")
        self._runtime = runtime
        self._config = config
        self._read = read
        self._algorithms = config.algorithms
        self._keys: dict[str, Key] = {}
        # By the clock of the loop.
        self._tried_at = float("-inf")
        self._load = SharedLoad(self._fetch)
        self._scopes: dict[tuple[str, ...], Scope] = {}

    @property
    def is_on(self) -> bool:
        """Whether any token counts."""
        return bool(self._config.jwt_keys)

    async def verify(self, text: str) -> Identity:
        """The identity that a token shows. Raises InvalidToken."""
        if not self.is_on:
            raise InvalidToken("signed tokens are not accepted: jwt_keys is not configured")
        if len(text) > TOKEN_CHARACTERS_MAX:
            raise InvalidToken(f"the token has more than {TOKEN_CHARACTERS_MAX} characters")
        header = _header_of(text)
        algorithm = header.get("alg")
        # Before any key is looked for.
        if algorithm not in self._algorithms:
            raise InvalidToken("the token's algorithm is not among jwt_algorithms")
        if "crit" in header:
            raise InvalidToken("the token has critical headers (crit), which are not supported")
        key = await self._key(str(header.get("kid", "")))
        return self._identity(text, str(algorithm), key)

    def _identity(self, text: str, algorithm: str, key: Key) -> Identity:
        import jwt

        if key.algorithm not in ("", algorithm):
            raise InvalidToken("the token's algorithm is not its key's")
        config = self._config
        try:
            claims = jwt.decode(
                text,
                key.key,
                algorithms=[algorithm],
                audience=config.jwt_audience,
                issuer=config.jwt_issuer,
                leeway=config.jwt_clock_skew_ms / 1000,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise InvalidToken("the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise InvalidToken("the token is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise InvalidToken("the token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise InvalidToken("the token has another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"the token lacks the claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise InvalidToken("the token's signature or form is wrong") from None
        return Identity(
            self._user(claims), "jwt", int(claims["exp"]) * 1000 + config.jwt_clock_skew_ms, self._scope(claims)
        )

    def _user(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self._config.jwt_user_claim)
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise InvalidToken(f"the token's claim {self._config.jwt_user_claim} is not a user name")
        if name in (ANY, ANONYMOUS):
            raise InvalidToken(f"no user can have the name in the token's claim {self._config.jwt_user_claim}")
        return name

    def _scope(self, claims: Mapping[str, Any]) -> Scope | None:
        """What the token is narrowed to. Words that are no scopes of ours are for others."""
        if not self._config.jwt_scope_claim:
            return None
        value = claims.get(self._config.jwt_scope_claim, "")
        words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        key = tuple(sorted({each for each in words if isinstance(each, str)}))
        known = self._scopes.get(key)
        if known is None:
            rules = []
            for word in key:
                try:
                    rules.append(rule_of_scope(word))
                except InvalidRule:
                    continue
            if len(self._scopes) >= SCOPES_MAX:
                self._scopes.clear()
            known = self._scopes[key] = Scope(rules)
        return known

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def _key(self, kid: str) -> Key:
        now = asyncio.get_running_loop().time()
        age = (now - self._tried_at) * 1000
        is_known = kid in self._keys
        if age >= self._config.jwt_refresh_ms or (not is_known and age >= self._config.jwt_refetch_ms):
            self._load.begin()
        if not is_known and self._load.is_running:
            await self._load.load()
        if not self._keys:
            raise InvalidToken("the keys that verify tokens cannot be read now (jwt_keys). Try again.")
        found = self._keys.get(kid)
        if found is None and not kid and len(self._keys) == 1:
            (found,) = self._keys.values()
        if found is None:
            raise InvalidToken("the token's key is unknown")
        return found

    async def _fetch(self) -> None:
        self._tried_at = asyncio.get_running_loop().time()
        place = self._config.jwt_keys
        try:
            raw = await self._runtime.offload.run(self._read, place)
            keys = await self._runtime.offload.run(parse_keys, raw)
        except (OSError, ValueError) as error:
            log.warning(
                "keys of tokens cannot be read", place=redact_url(place), error=str(error), keys=len(self._keys)
            )
            return
        if set(keys) != set(self._keys):
            log.info("read keys of tokens", place=redact_url(place), keys=len(keys))
        self._keys = keys


def _header_of(text: str) -> Mapping[str, Any]:
    import jwt

    try:
        return jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise InvalidToken("the token is not a signed token") from None
