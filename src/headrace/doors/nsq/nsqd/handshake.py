"""IDENTIFY and AUTH on a connection: what was negotiated takes effect.

The order on the wire is nsqd's: the JSON reply in the clear, the TLS handshake and an OK inside of it, then the packed
stream and an OK inside of that.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from headrace.addresses import is_loopback
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.nsqd import frames
from headrace.doors.nsq.nsqd.auth import AuthFailed, reject
from headrace.doors.nsq.nsqd.compression import (
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from headrace.doors.nsq.nsqd.identify import Identity, negotiate, parse, reply
from headrace.errors import AuthenticationFailed

if TYPE_CHECKING:
    from headrace.doors.nsq.nsqd.connection import Connection


def identify(connection: Connection, body: bytes, *, last: bool) -> None:
    """Do an IDENTIFY; `last`: nothing came behind it yet. Raises CommandError."""
    door = connection.door
    if connection.upgraded:
        raise CommandError("E_INVALID", "cannot IDENTIFY in current state")
    identity = negotiate(parse(body), door.settings, door.tls is not None)
    if identity.tls and not last:
        # It was not encrypted, so it need not have come from the client that the handshake will be with.
        raise CommandError("E_IDENTIFY_FAILED", "IDENTIFY failed bytes came before the TLS handshake")
    door.count("IDENTIFY")
    connection.identity = identity
    connection.session.client_id = identity.client_id
    connection.codec.extended = identity.extended
    connection.codec.heartbeats = identity.heartbeat_ms > 0
    connection.watch()
    if not identity.negotiated:
        connection.reply(frames.OK)
        return
    broker = door.broker
    answer = reply(identity, door.settings, broker.config.queue_timeout_ms, broker.cluster_id, door.http_port)
    connection.reply(frames.frame(frames.RESPONSE, answer))
    if identity.tls:
        connection.stop_reading()
    if identity.tls or identity.snappy or identity.deflate:
        connection.upgrading = True
        connection.hold_for("IDENTIFY", _upgrade(connection, identity))


async def _upgrade(connection: Connection, identity: Identity) -> None:
    if identity.tls:
        try:
            await connection.upgrade()
        except OSError as error:
            connection.door.handshakes.failed(connection.name, error)
            connection.abort()
            # A loop may not report the end of a connection that is neither the one nor the other.
            connection.connection_lost(None)
            return
        certificate = connection.transport.get_extra_info("peercert")
        if certificate and connection.door.authority is None:
            connection.log_in(
                connection.door.broker.security.authenticator.certificate(certificate, connection.session)
            )
        connection.reply(frames.OK)
        connection.flush()
    if identity.snappy:
        connection.compress_with(SnappyCompressor(), SnappyDecompressor())
    elif identity.deflate:
        connection.compress_with(DeflateCompressor(identity.deflate_level), DeflateDecompressor())
    connection.upgrading = False
    if identity.snappy or identity.deflate:
        connection.reply(frames.OK)


async def authenticate(connection: Connection, secret: bytes) -> None:
    """Do an AUTH. Raises CommandError."""
    authority = connection.door.authority
    known = connection.session.identity
    if connection.authorization is not None or (known is not None and known.how != "certificate"):
        raise CommandError("E_INVALID", "AUTH already set")
    if authority is None:
        await _log_in(connection, secret)
        return
    try:
        granted = await authority.ask(connection, secret)
    except AuthFailed as error:
        raise reject(connection, error) from None
    if not granted.permissions:
        raise CommandError("E_UNAUTHORIZED", "AUTH no authorizations found")
    connection.door.count("AUTH")
    connection.authorize(granted)
    _reply(connection, granted.identity, granted.identity_url, len(granted.permissions))


async def _log_in(connection: Connection, secret: bytes) -> None:
    """An AUTH that the broker decides by itself: the secret is an API token, or USER:PASSWORD. Raises CommandError."""
    door = connection.door
    security, session = door.broker.security, connection.session
    if not security.users.by_name and not security.is_enforced:
        raise CommandError("E_AUTH_DISABLED", "AUTH disabled")
    if not (connection.encrypted or door.takes_clear or is_loopback(session.host)):
        raise CommandError("E_AUTH_FAILED", "AUTH failed: a secret is not taken in the clear, ask for TLS by tls_v1")
    text = secret.decode("utf-8", "replace")
    user, colon, password = text.partition(":")
    try:
        if colon:
            identity = await security.authenticator.password(user, password, session)
        else:
            identity = security.authenticator.token(text, session)
    except AuthenticationFailed as error:
        await asyncio.sleep(error.delay_ms / 1000)
        raise CommandError("E_AUTH_FAILED", "AUTH failed") from None
    door.count("AUTH")
    connection.log_in(identity)
    # What it may do is decided by rules that can change: there is no count of permissions to tell.
    _reply(connection, identity.user, "", 1)


def _reply(connection: Connection, identity: str, url: str, permissions: int) -> None:
    granted = {"identity": identity, "identity_url": url, "permission_count": permissions}
    connection.reply(frames.frame(frames.RESPONSE, json.dumps(granted, separators=(",", ":")).encode()))
