"""Who a client is: its password, its proof, its token or its certificate, and the identity that this shows.

Errors say the same of an unknown user and of a wrong password, and both take the same work. Failures are counted by
user and by address, and the answers to them are delayed (`AuthenticationFailed.delay_ms`), which the door does.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64encode
from collections.abc import Callable, Sequence

import structlog

from headrace.broker.rate_limit import RateLimit
from headrace.broker.security import tokens
from headrace.broker.security.certificates import CertificateNames, PeerCertificate
from headrace.broker.security.credentials import Credential, Mechanism, matching
from headrace.broker.security.der import names_of
from headrace.broker.security.failures import Failures
from headrace.broker.security.identity import Identity
from headrace.broker.security.jwt import InvalidToken, JwtVerifier
from headrace.broker.security.scram import NONCE_BYTES, ScramExchange
from headrace.broker.security.session import Session
from headrace.broker.security.tokens import Token
from headrace.broker.security.users import Users
from headrace.broker.security_settings import SecuritySettings
from headrace.errors import AuthenticationFailed, InvalidCredentials
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.security")

PASSWORD_BYTES_MAX = 1_024
# Users whose last password is remembered, by a digest with a key that lives as long as the process.
VERIFIED_MAX = 10_000
WRONG = "the user is unknown, or the password is wrong"


class Authenticator:
    """All ways in which a client shows who it is."""

    def __init__(self, runtime: Runtime, users: Users, config: SecuritySettings) -> None:
        self.users = users
        self.failures = Failures(config.authentication_delay_max_ms, config.authentication_failures_max)
        self.succeeded: dict[str, int] = {}
        """How many were authenticated, by how."""
        self.failed: dict[str, int] = {}
        self.on_failed: list[Callable[[Session, str, str, str], None]] = []
        """Called with a session, the user that it wanted to be, how, and why it is not."""
        self._runtime = runtime
        self._jwt = JwtVerifier(runtime, config)
        self._certificates = CertificateNames(config.certificate_user, config.certificate_rules)
        self._waiting_max = config.authentication_waiting_max
        self._waiting = 0
        # One at a time: an attacker must not take the threads from what else needs them.
        self._deriving = asyncio.Lock()
        self._key = runtime.random.bytes(32)
        self._verified: dict[str, tuple[bytes, Credential]] = {}
        self._failure_log = RateLimit()

    async def password(self, user: str, password: str, session: Session, how: str = "password") -> Identity:
        """The identity behind a password, or an API token in its place. Raises AuthenticationFailed."""
        if tokens.parse(password) is not None:
            return self.token(password, session, user)
        raw = password.encode("utf-8", "surrogatepass")
        if len(raw) > PASSWORD_BYTES_MAX or not raw:
            raise self.error(session, user, how, WRONG)
        now = self._runtime.clock.now_ms()
        digest = hmac.digest(self._key, len(user).to_bytes(4, "big") + user.encode("utf-8", "replace") + raw, "sha256")
        candidates, is_real = self.users.find_any(user, now)
        known = self._verified.get(user)
        is_known = known is not None and known[1] in candidates and hmac.compare_digest(known[0], digest)
        if not is_known:
            number = await self._match(raw, candidates, session, user, how)
            # The user may have changed meanwhile.
            valid, _ = self.users.find_any(user, self._runtime.clock.now_ms())
            if number < 0 or not is_real or candidates[number] not in valid:
                raise self.error(session, user, how, WRONG)
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[user] = digest, candidates[number]
        return self.succeed(Identity(user, how))

    def token(self, text: str, session: Session, user: str | None = None) -> Identity:
        """The identity behind an API token; with a `user`, only if it is that one's. Raises AuthenticationFailed."""
        token_id, secret = tokens.parse(text) or ("", "")
        token = self.users.tokens.get(token_id)
        shown = user or (token.user if token is not None else "")
        if token is None or not token.fits(secret) or user not in (None, token.user):
            raise self.error(session, shown, "token", "the API token is unknown, or it was revoked")
        return self._identity_of(token, session, "token")

    async def bearer(self, text: str, session: Session) -> Identity:
        """The identity behind a bearer token of HTTP or OAUTHBEARER: an API token, or a signed one (JWT). Raises
        AuthenticationFailed."""
        if text.startswith(tokens.PREFIX):
            return self.token(text, session)
        try:
            return self.succeed(await self._jwt.verify(text))
        except InvalidToken as error:
            raise self.error(session, "", "jwt", str(error)) from None

    def certificate(self, certificate: PeerCertificate | bytes, session: Session) -> Identity:
        """The identity behind a client certificate (`getpeercert()`, or PEM) that TLS has verified. Raises
        AuthenticationFailed."""
        try:
            names = names_of(certificate) if isinstance(certificate, bytes) else certificate
            return self.succeed(Identity(self._certificates.name(names), "certificate"))
        except InvalidCredentials as error:
            raise self.error(session, "", "certificate", str(error)) from None

    def signature(self, access_key: str, signed: bytes, signature: bytes, session: Session) -> Identity:
        """The identity behind a HMAC-SHA1 signature: the access key is the id of an API token that signs, the key its
        secret. Raises AuthenticationFailed."""
        token = self.users.tokens.get(access_key)
        key = token.secret if token is not None else ""
        is_right = hmac.compare_digest(hmac.digest(key.encode() or self._key, signed, "sha1"), signature)
        if token is None or not token.signs or not is_right:
            shown = token.user if token is not None else ""
            raise self.error(session, shown, "signature", "the access key is unknown, or the signature is wrong")
        return self._identity_of(token, session, "signature")

    def _identity_of(self, token: Token, session: Session, how: str) -> Identity:
        if not token.is_valid(self._runtime.clock.now_ms()):
            raise self.error(session, token.user, how, f"the API token {token.id} has expired. Make another one.")
        return self.succeed(Identity(token.user, how, token.expires_at or None, token.scope, token.id))

    async def _match(
        self, password: bytes, candidates: Sequence[Credential], session: Session, user: str, how: str
    ) -> int:
        if self._waiting >= self._waiting_max:
            raise self.error(session, user, how, "too many passwords wait to be verified. Try again.")
        self._waiting += 1
        try:
            async with self._deriving:
                return await self._runtime.offload.run(matching, password, candidates)
        finally:
            self._waiting -= 1

    def scram(self, mechanism: Mechanism, session: Session) -> ScramExchange:
        """A new exchange with a client."""

        def find(user: str) -> Sequence[Credential]:
            return self.users.find(user, mechanism, self._runtime.clock.now_ms())[0]

        def finish(user: str, proven: Credential | None) -> Identity:
            # The user may have changed since the exchange began.
            valid, is_real = self.users.find(user, mechanism, self._runtime.clock.now_ms())
            if not is_real or proven not in valid:
                raise self.error(session, user, mechanism.value, WRONG)
            return self.succeed(Identity(user, mechanism.value))

        def fail(user: str, why: str) -> AuthenticationFailed:
            return self.error(session, user, mechanism.value, why)

        nonce = b64encode(self._runtime.random.bytes(NONCE_BYTES)).decode()
        return ScramExchange(mechanism, find, finish, fail, nonce)

    def succeed(self, identity: Identity) -> Identity:
        """Count it."""
        self.succeeded[identity.how] = self.succeeded.get(identity.how, 0) + 1
        return identity

    def error(self, session: Session, user: str, how: str, why: str) -> AuthenticationFailed:
        """Count and log a failure; the error to raise. Nothing secret may be in `why`."""
        self.failed[how] = self.failed.get(how, 0) + 1
        now = asyncio.get_running_loop().time()
        error = AuthenticationFailed(f"authentication failed: {why}")
        error.delay_ms = self.failures.count(user, session.host, now)
        due = self._failure_log.count(now)
        if due:
            where = {"host": session.host, "door": session.door, "how": how}
            log.warning("authentication failed", user=user[:256], why=why, failures=due, **where)
        for call in self.on_failed:
            call(session, user, how, why)
        return error
