"""How one client of a SASL listener authenticates: what it may send next, and as whom it is known then.

Until it is authenticated the connection has a gate, through which only ApiVersions, SaslHandshake and SaslAuthenticate
pass, one at a time and small; what a client sends behind them waits until the answer is known. A SaslHandshake names
the mechanism. Behind one of version 0 the messages are bare, each with its length; otherwise they come in
SaslAuthenticate. A failure is answered, after a delay that grows with their number, and the connection is closed.

A client may authenticate again on the same connection (KIP-368), by the same mechanism and as the same user, and has to
before its session ends, or the connection is closed. The gate is back while it does; its identity stays until then.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode

from headrace.broker.security import Identity
from headrace.doors.kafka.errors import Malformed, Unanswerable
from headrace.doors.kafka.mechanisms import NODE, Exchange, Refused, begin_exchange
from headrace.doors.kafka.registry import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.doors.kafka.wire import INT32
from headrace.errors import AuthenticationFailed

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

log = structlog.get_logger("headrace.kafka")

# A client that authenticates anew sooner is refused, as by Kafka.
AGAIN_SECONDS = 1.0
_BEFORE = (API_VERSIONS, SASL_HANDSHAKE)


class Sasl:
    """The authentications of one connection."""

    __slots__ = ("_began", "_connection", "_exchange", "_is_raw", "_mechanism", "_previous", "_timer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._exchange: Exchange | None = None
        self._is_raw = False
        # Of the exchange under way, and of the one before.
        self._mechanism = self._previous = ""
        self._began = 0.0
        settings = connection.door.settings
        self._timer: asyncio.TimerHandle | None = connection.door.loop.call_later(
            settings.sasl_timeout_ms / 1000, self._too_late
        )

    # --- the gate -----------------------------------------------------------------------------------------------------

    @property
    def takes_tokens(self) -> bool:
        """The next frame is a bare message of the mechanism."""
        return self._is_raw

    def check_size(self, size: int) -> None:
        """Raise Malformed for a frame that is too large for a client that is not authenticated."""
        most = self._connection.door.settings.sasl_max_bytes
        if not 0 <= size <= most:
            raise Malformed(f"{size} bytes before authentication; at most {most} are read (sasl_max_bytes)")

    def check_api(self, key: int) -> None:
        """Raise Unanswerable for a request that does not come before authentication, or not now."""
        if key not in (_BEFORE if self._exchange is None else (SASL_AUTHENTICATE,)):
            raise Unanswerable(f"a request of API {key} came before the client was authenticated")

    def close(self) -> None:
        """The client has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        log.debug("connection closed: not authenticated in time", client=self._connection.name)
        self._connection.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def handshake(self, mechanism: str, is_raw: bool) -> dict[str, Any]:
        """The reply to a SaslHandshake."""
        connection = self._connection
        offered = connection.listener.mechanisms
        now = connection.door.loop.time()
        again = connection.gate is None and mechanism != NODE
        if again and (is_raw or now - self._began < AGAIN_SECONDS):
            return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
        is_enforced = connection.door.broker.security.is_enforced
        if mechanism not in offered and not (mechanism == NODE and is_enforced and self._previous == ""):
            connection.close_when_idle()
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": offered}
        self._began = now
        authenticator, session = connection.door.broker.security.authenticator, connection.session
        if again and mechanism != self._previous:
            why = f"SASL mechanism {mechanism} cannot take over from {self._previous} on the same connection"
            self._exchange = Refused(lambda: authenticator.error(session, session.user, mechanism, why))
        else:
            self._exchange = begin_exchange(connection.door.broker, mechanism, session)
        self._mechanism = mechanism
        self._is_raw = is_raw
        connection.gate = self
        return {"error_code": ErrorCode.none, "mechanisms": offered}

    async def authenticate(self, message: bytes) -> dict[str, Any]:
        """The reply to a SaslAuthenticate."""
        if self._exchange is None:
            sentence = "the client is authenticated: begin again with SaslHandshake"
            return {"error_code": ErrorCode.illegal_sasl_state, "error_message": sentence, "auth_bytes": b""}
        try:
            answer = await self._step(message)
        except AuthenticationFailed as error:
            await self._fail(error)
            code = ErrorCode.sasl_authentication_failed
            return {"error_code": code, "error_message": str(error), "auth_bytes": b""}
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "auth_bytes": answer,
            "session_lifetime": self._lifetime() if self._connection.gate is None else 0,
        }

    async def take(self, message: bytes) -> None:
        """Answer a bare message. A failure has no form there: the connection is closed."""
        try:
            answer = await self._step(message)
        except AuthenticationFailed as error:
            await self._fail(error)
        else:
            self._connection.write(INT32.pack(len(answer)) + answer)

    async def _step(self, message: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None
        answer = await exchange.step(message)
        if exchange.identity is not None and not self._connection.lost:
            self._finish(exchange.identity)
        return answer

    def _finish(self, identity: Identity) -> None:
        connection = self._connection
        security, session = connection.door.broker.security, connection.session
        if self._mechanism != NODE and session.identity is not None and session.user != identity.user:
            raise security.authenticator.error(
                session, identity.user, self._mechanism, f"the client is {session.user}, and cannot become another one"
            )
        longest = connection.door.settings.sasl_session_ms
        if longest:
            ends = connection.door.broker.runtime.clock.now_ms() + longest
            identity = replace(
                identity, expires_at=ends if identity.expires_at is None else min(ends, identity.expires_at)
            )
        self._previous, self._exchange, self._is_raw = self._mechanism, None, False
        self.close()
        connection.gate = None
        connection.login(identity)

    def _lifetime(self) -> int:
        """Milliseconds until the client has to authenticate again; 0: it need not."""
        identity = self._connection.session.identity
        if identity is None or identity.expires_at is None:
            return 0
        return max(1, identity.expires_at - self._connection.door.broker.runtime.clock.now_ms())

    async def _fail(self, error: AuthenticationFailed) -> None:
        # The time for authenticating is over: that of the delay is the door's.
        self.close()
        await asyncio.sleep(error.delay_ms / 1000)
        self._connection.close_when_idle()
