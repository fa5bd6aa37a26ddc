"""SASL mechanisms: from a client's messages to its identity.

An exchange takes one message after the other, and is over with the first one that fails. What the messages prove is for
the broker to say (`broker/security/authenticator.py`); here is how each mechanism puts it on the wire.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Callable
from typing import Protocol

from headrace.broker.broker import Broker
from headrace.broker.security import Identity, Session
from headrace.broker.security.authenticator import Authenticator
from headrace.broker.security.credentials import Mechanism
from headrace.broker.security.tokens import scope_of, scope_text
from headrace.doors.kafka.settings import OAUTHBEARER, PLAIN, SCRAM
from headrace.errors import AuthenticationFailed

# RFC 7628, as narrowly as Kafka reads it: a header, then pairs, each with a control-A behind it, and one more.
_BEARER = re.compile(
    r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_CREDENTIALS = re.compile(r"(\w+) +([-_.+/~=A-Za-z0-9]+)", re.ASCII)
# How RFC 7628 has the server say that a token is not taken; the client then sends one more message, and fails.
_REFUSED = b'{"status":"invalid_token"}'
NODE = "HEADRACE-NODE"
"""Never among those that are offered."""
NONCE_BYTES = 24
TAG_BYTES = 32


class Exchange(Protocol):
    """One authentication of one client."""

    @property
    def identity(self) -> Identity | None:
        """As whom the client is authenticated, once that is done."""

    async def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationFailed."""


class _Scram:
    def __init__(self, authenticator: Authenticator, mechanism: Mechanism, session: Session) -> None:
        self._exchange = authenticator.scram(mechanism, session)

    @property
    def identity(self) -> Identity | None:
        return self._exchange.identity

    async def step(self, message: bytes) -> bytes:
        return self._exchange.step(message)


class _Once:
    """An exchange of one message."""

    def __init__(self, authenticator: Authenticator, mechanism: str, session: Session) -> None:
        self._authenticator = authenticator
        self._mechanism = mechanism
        self._session = session
        self._is_over = False
        self.identity: Identity | None = None

    def _error(self, why: str, user: str = "") -> AuthenticationFailed:
        return self._authenticator.error(self._session, user, self._mechanism, why)

    async def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationFailed."""
        raise NotImplementedError

    def _begin(self, message: bytes) -> str:
        """The text of the one message."""
        if self._is_over:
            raise self._error("the exchange is over. Begin another one.")
        self._is_over = True
        try:
            return message.decode()
        except UnicodeDecodeError:
            raise self._error(f"a {self._mechanism} message must be UTF-8") from None


class _Plain(_Once):
    """RFC 4616: whom the client acts as (nobody else, here), its user, its password."""

    async def step(self, message: bytes) -> bytes:
        parts = self._begin(message).split("\0")
        if len(parts) != 3:
            raise self._error("a PLAIN message has two zero bytes, around the user")
        acts_as, user, password = parts
        if not user:
            raise self._error("a PLAIN message names a user")
        if acts_as not in ("", user):
            raise self._error("a user cannot act as another one. Leave out the authorization identity.", user)
        self.identity = await self._authenticator.password(user, password, self._session)
        return b""


class _Bearer(_Once):
    """RFC 7628. A token that is not taken is answered by a challenge first, which clients show to their users."""

    def __init__(self, authenticator: Authenticator, mechanism: str, session: Session) -> None:
        super().__init__(authenticator, mechanism, session)
        self._failed: AuthenticationFailed | None = None

    async def step(self, message: bytes) -> bytes:
        if self._failed is not None:
            raise self._failed
        text = self._begin(message)
        matched = _BEARER.fullmatch(text)
        if matched is None:
            raise self._error("an OAUTHBEARER message has a header and pairs (RFC 7628)")
        acts_as, pairs = matched.groups()
        names = [each.partition("=") for each in pairs.split("\x01")[:-1]]
        given = [value for name, _, value in names if name == "auth"]
        if len({name for name, _, _ in names}) < len(names) or not given:
            raise self._error("an OAUTHBEARER message has each pair once, and `auth` among them")
        credentials = _CREDENTIALS.fullmatch(given[0])
        if credentials is None or credentials[1].lower() != "bearer":
            raise self._error("the `auth` of an OAUTHBEARER message is `Bearer` and a token")
        try:
            identity = await self._authenticator.bearer(credentials[2], self._session)
            if acts_as is not None and acts_as.replace("=2C", ",").replace("=3D", "=") != identity.user:
                raise self._error(
                    "a user cannot act as another one. Leave out the authorization identity.", identity.user
                )
        except AuthenticationFailed as error:
            # A client that goes away without its last message has waited as well.
            await asyncio.sleep(error.delay_ms / 1000)
            error.delay_ms = 0
            self._failed = error
            return _REFUSED
        self.identity = identity
        return b""


class _Node:
    """Another node of the group, which passes on what a client of its own asks for (`relay.py`), and says who that is.
    The nodes know each other by the secret that is kept beside the users: no one else can make the tag."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self._session = session
        self._nonce = b""
        self.identity: Identity | None = None

    async def step(self, message: bytes) -> bytes:
        security = self._broker.security
        if not self._nonce:
            self._nonce = self._broker.runtime.random.bytes(NONCE_BYTES)
            return self._nonce
        tag, client = message[:TAG_BYTES], message[TAG_BYTES:]
        nonce, self._nonce = self._nonce, b""
        if not hmac.compare_digest(tag, tag_of(security.users.secret, nonce, client)):
            raise security.authenticator.error(self._session, "", NODE, "this is not a node of the group")
        said = json.loads(client)
        self._session.host = said["host"]
        self.identity = Identity(said["user"], NODE, scope=scope_of(said["scope"]))
        return b""


def tag_of(secret: bytes, nonce: bytes, client: bytes) -> bytes:
    """What shows that a node of the group speaks for a client."""
    return hmac.digest(secret, b"kafka relay" + nonce + client, "sha256")


def client_of(session: Session) -> bytes:
    """A client as its node names it to the leader."""
    scope = [] if session.scope is None else [scope_text(rule) for rule in session.scope.rules]
    return json.dumps({"user": session.user, "host": session.host, "scope": scope}).encode()


class Refused:
    """An exchange that can only fail, in the place where clients expect an error."""

    identity = None

    def __init__(self, error: Callable[[], AuthenticationFailed]) -> None:
        self._error = error

    async def step(self, message: bytes) -> bytes:
        raise self._error()


def begin_exchange(broker: Broker, mechanism: str, session: Session) -> Exchange:
    """An exchange by one of `settings.MECHANISMS`, or with another node."""
    authenticator = broker.security.authenticator
    if mechanism == NODE:
        return _Node(broker, session)
    if mechanism in SCRAM:
        return _Scram(authenticator, Mechanism(mechanism), session)
    kinds = {PLAIN: _Plain, OAUTHBEARER: _Bearer}
    return kinds[mechanism](authenticator, mechanism, session)
