"""How a connection authenticates: SaslHandshake names the mechanism, SaslAuthenticate carries its messages.

Both are packed by hand, as all that comes with every connection (`lookups`).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.credentials import OAUTHBEARER, Credentials, Mechanism
from headrace.client.errors import AuthenticationError, error_code
from headrace.client.scram import ScramClient
from headrace.client.wire import (
    INT16,
    compact_count,
    skip_tags,
    string,
    take_compact_count,
    take_compact_string,
    take_count,
    take_string,
)
from headrace.format.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.client.connection import Connection

SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION = 17, 1
SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION = 36, 2
NONCE_BYTES = 24
NO_TAGS = b"\0"


class Handshake(NamedTuple):
    """The answer to SaslHandshake."""

    error: int
    mechanisms: tuple[str, ...]
    """Those that the listener offers."""


class Authenticated(NamedTuple):
    """The answer to SaslAuthenticate."""

    error: int
    reason: str
    message: bytes
    """Of the mechanism."""
    lifetime_ms: int
    """How long the session lasts; 0: without end."""


async def authenticate(connection: Connection, credentials: Credentials) -> int:
    """Show who the client is; for how many milliseconds that holds, 0: without end. Raises AuthenticationError."""
    connection.require(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION)
    connection.require(SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION)
    mechanism = credentials.sasl_mechanism
    shaken = await _shake(connection, mechanism)
    if shaken.error == ErrorCode.illegal_sasl_state:
        raise AuthenticationError(
            f"{connection.address} takes no user and no token: it is a listener without SASL. Leave them out (--user, "
            "HEADRACE_USER, --token-file, HEADRACE_TOKEN), or use a SASL listener."
        )
    if shaken.error:
        offered = ", ".join(shaken.mechanisms) or "nothing else"
        raise AuthenticationError(
            f"{connection.address} does not offer the SASL mechanism {mechanism}. It offers {offered}."
        )
    if mechanism == OAUTHBEARER:
        return await _show(connection, f"n,,\x01auth=Bearer {credentials.token}\x01\x01".encode())
    if mechanism == Mechanism.PLAIN:
        return await _show(connection, f"\0{credentials.user}\0{credentials.password}".encode())
    exchange = ScramClient(
        credentials.mechanism, credentials.user, credentials.password, secrets.token_urlsafe(NONCE_BYTES)
    )
    first = await _say(connection, exchange.first())
    # Deriving a key from a password takes long on purpose.
    proof = await asyncio.to_thread(exchange.prove, first.message)
    last = await _say(connection, proof)
    exchange.check(last.message)
    return last.lifetime_ms


async def offered_mechanisms(connection: Connection) -> tuple[str, ...]:
    """By which mechanisms clients authenticate at a listener; none where they do not. It closes the connection."""
    if not connection.speaks(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION):
        return ()
    return (await _shake(connection, "")).mechanisms


async def _show(connection: Connection, message: bytes) -> int:
    """The exchange of a mechanism that has one message."""
    answer = await _say(connection, message)
    if answer.message:
        # RFC 7628: a refused token is answered with the reason, and fails with the client's next message.
        await _say(connection, b"\x01")
        raise AuthenticationError(f"{connection.address} refuses the token")
    return answer.lifetime_ms


async def _shake(connection: Connection, mechanism: str) -> Handshake:
    return await connection.send(
        SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, (string(mechanism),), _decode_handshake, urgent=True
    )


async def _say(connection: Connection, message: bytes) -> Authenticated:
    answer = await connection.send(
        SASL_AUTHENTICATE,
        SASL_AUTHENTICATE_VERSION,
        (NO_TAGS + compact_count(len(message)) + message + NO_TAGS,),
        _decode_authenticated,
        urgent=True,
    )
    if answer.error:
        reason = answer.reason or error_code(answer.error).name.replace("_", " ")
        raise AuthenticationError(f"{connection.address} refuses: {reason}")
    return answer


def _decode_handshake(payload: memoryview) -> Handshake:
    (error,) = INT16.unpack_from(payload)
    count, position = take_count(payload, INT16.size)
    mechanisms = []
    for _ in range(count):
        each, position = take_string(payload, position)
        mechanisms.append(each or "")
    return Handshake(error, tuple(mechanisms))


def _decode_authenticated(payload: memoryview) -> Authenticated:
    position = skip_tags(payload, 0)
    (error,) = INT16.unpack_from(payload, position)
    reason, position = take_compact_string(payload, position + INT16.size)
    size, position = take_compact_count(payload, position)
    end = position + max(size, 0)
    lifetime_ms = int.from_bytes(payload[end : end + 8], "big", signed=True)
    return Authenticated(error, reason or "", bytes(payload[position:end]), lifetime_ms)
