"""Who asks over HTTP. Each request shows it anew: by `Authorization` (Basic with a password or a token, Bearer with an
API token or a JWT), or by the certificate with which its connection began.

Credentials that are given are verified, whether they are asked for or not: a client must not take itself for somebody
and be treated as nobody. Without TLS they are taken from this machine alone, unless the operator says that the network
is guarded.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from headrace.addresses import is_loopback
from headrace.broker.security import Identity, Security, Session
from headrace.doors.http.server.messages import Headers, HttpError, Request
from headrace.doors.settings import SharedSettings
from headrace.errors import AuthenticationFailed, NotAuthorized

CHALLENGES: Headers = (
    ("WWW-Authenticate", 'Basic realm="headrace", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="headrace"'),
)
# What load balancers and supervisors ask, which have no credentials.
PROBES = frozenset(("/healthz", "/readyz", "/ping"))
CREDENTIALS_MAX = 8_192


def unauthenticated(why: str) -> HttpError:
    """The client has to show who it is, or did not show it rightly."""
    return HttpError(401, "Unauthenticated", why, CHALLENGES)


def refused(request: Request, error: NotAuthorized) -> HttpError:
    """What the client may not do: one that is not known yet is asked who it is."""
    return HttpError(403, error.code, str(error)) if request.session.user else unauthenticated(str(error))


class HttpAuthentication:
    """How one listener finds out who asks."""

    def __init__(self, security: Security, *, is_required: bool, takes_clear: bool) -> None:
        """`takes_clear`: credentials come without TLS from other machines, too."""
        self._security = security
        self._is_required = is_required
        self._takes_clear = takes_clear

    @classmethod
    def of(cls, security: Security, settings: SharedSettings) -> HttpAuthentication:
        """As it is configured."""
        return cls(
            security,
            is_required=settings.http_authentication == "required",
            takes_clear=settings.sasl_plain_without_tls,
        )

    async def identify(
        self, request: Request, *, is_encrypted: bool, certificate: Mapping[str, Any] | None = None
    ) -> None:
        """Give the request's session its identity, if it has one; `certificate` is the client's. Raises HttpError."""
        given = request.headers.get("authorization")
        if given is None and not certificate:
            if self._is_required and request.path not in PROBES:
                raise unauthenticated("authentication is required: send a user and password, or a token")
            return
        if given is not None:
            self._check_clear(request, is_encrypted)
        try:
            if given is not None:
                identity = await self._verify(given, request)
            else:
                identity = self._security.authenticator.certificate(certificate or {}, request.session)
        except AuthenticationFailed as error:
            await asyncio.sleep(error.delay_ms / 1000)
            raise unauthenticated(str(error)) from None
        self._security.login(request.session, identity)

    def _check_clear(self, request: Request, is_encrypted: bool) -> None:
        """Raise HttpError for credentials that others may have read on the way."""
        if not is_encrypted and not self._takes_clear and not is_loopback(request.session.host):
            raise HttpError(
                403,
                "TlsRequired",
                "credentials are not taken in the clear from another machine, and these may have been read on the way. "
                "Use https (http_tls), or set sasl_plain_without_tls where the network is guarded",
            )

    def forget(self, session: Session) -> None:
        """A request is answered."""
        session.on_ended = None
        if session.identity is not None:
            self._security.logout(session)

    async def _verify(self, given: str, request: Request) -> Identity:
        """The identity behind an Authorization header. Raises AuthenticationFailed or HttpError."""
        scheme, _, credentials = given.partition(" ")
        credentials = credentials.strip()
        authenticator = self._security.authenticator
        if not credentials or len(credentials) > CREDENTIALS_MAX:
            raise unauthenticated("Authorization has no credentials, or too many")
        if scheme.lower() == "basic":
            user, password = _user_and_password(credentials)
            return await authenticator.password(user, password, request.session)
        if scheme.lower() == "bearer":
            return await authenticator.bearer(credentials, request.session)
        raise unauthenticated("Authorization is neither Basic nor Bearer")


def _user_and_password(credentials: str) -> tuple[str, str]:
    """Those of Basic authentication (RFC 7617). Raises HttpError."""
    try:
        user, colon, password = b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise unauthenticated("Basic authentication is USER:PASSWORD in UTF-8 and Base64") from None
    if not user or not colon:
        raise unauthenticated("Basic authentication has a user and a password")
    return user, password
