"""The look-up door: listens for producers over TCP and for questions over HTTP.

Both sides share one registry, and either can be opened without the other.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from headrace.doors.acceptor import BufferedAcceptor
from headrace.doors.door import DoorContext
from headrace.doors.http.server.authentication import HttpAuthentication
from headrace.doors.http.server.listener import Listener
from headrace.doors.nsq.lookupd.connection import LookupConnection
from headrace.doors.nsq.lookupd.http import LookupApi
from headrace.doors.nsq.lookupd.node import OwnNode
from headrace.doors.nsq.lookupd.registry import Registry
from headrace.doors.nsq.lookupd.rights import ROUTES
from headrace.doors.nsq.presence import NSQ_VERSION, Presence, broadcast_address
from headrace.doors.nsq.routes import Api
from headrace.doors.nsq.settings import NsqSettings

STOP_SECONDS = 1.0
BUFFER_BYTES = 262_144


class Lookupd(BufferedAcceptor[LookupConnection]):
    """nsqlookupd's two protocols in front of a registry."""

    def __init__(self, context: DoorContext[NsqSettings], presence: Presence) -> None:
        broker, settings, shared = context.broker, context.settings, context.shared
        super().__init__(
            broker.metrics.door("lookup"), shared.connections_max, context.capacity, buffer_bytes=BUFFER_BYTES
        )
        self.registry = Registry(
            OwnNode(broker, presence),
            broker.runtime.clock.now_ms,
            inactive_ms=settings.lookup_inactive_ms,
            tombstone_ms=settings.lookup_tombstone_ms,
            registrations_max=settings.lookup_registrations_max,
        )
        self.security = broker.security
        self._settings = settings
        self._idle_seconds = shared.connections_idle_ms / 1000
        self._presence = presence
        self.http = Listener(
            Api("lookup_http", LookupApi(self.registry, broker.security).routes, broker, ROUTES).answer,
            broker.metrics.door("lookup_http"),
            connections_max=shared.connections_max,
            capacity=context.capacity,
            answer_max_bytes=shared.http_answer_max_bytes,
            request_seconds=shared.http_request_ms / 1000,
            hosts=context.host_names,
            write_error=Api.write_error,
            authentication=HttpAuthentication.of(broker.security, shared),
        )

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen for producers; they send PING every 15 seconds. Raises OSError where that cannot be."""
        await super().listen(host, port, tls, sockets)
        self.close_idle(self._idle_seconds)

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        await self.close(STOP_SECONDS)

    def connect(self) -> LookupConnection:
        """A connection for a producer that has come."""
        return LookupConnection(self)

    async def channels(self, topic: str) -> list[str]:
        """The channels that are known of a topic, asked for as those of any other look-up service are."""
        return self.registry.channels(topic)

    def described(self) -> dict[str, object]:
        """The answer to a producer that has introduced itself."""
        host, port = self.address
        return {
            "tcp_port": port,
            "http_port": self.http.address[1] if self.http.is_open else 0,
            "version": NSQ_VERSION,
            "broadcast_address": broadcast_address(self._settings.nsq_broadcast, host, self._presence.hostname),
            "hostname": self._presence.hostname,
        }
