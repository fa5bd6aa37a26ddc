"""The look-up door: listens for producers over TCP and for questions over HTTP.

Both sides share one registry, and either can be opened without the other.
"""

from __future__ import annotations

import asyncio

from headrace.doors.door import DoorContext
from headrace.doors.http.server.guard import own_names
from headrace.doors.http.server.listener import Listener
from headrace.doors.nsq.lookupd.connection import LookupConnection
from headrace.doors.nsq.lookupd.http import LookupApi
from headrace.doors.nsq.lookupd.own import own_side
from headrace.doors.nsq.lookupd.registry import Registry
from headrace.doors.nsq.presence import NSQ_VERSION, Presence, broadcast_address
from headrace.doors.nsq.routes import Api, refusal
from headrace.doors.roster import Roster

STOP_SECONDS = 1.0
# How often idle connections are looked for, in parts of the time that they may be idle.
SWEEPS = 10


class Lookupd:
    """nsqlookupd's two protocols in front of a registry."""

    def __init__(self, context: DoorContext, presence: Presence) -> None:
        broker, config = context.broker, context.config
        self.registry = Registry(
            own_side(broker, presence),
            broker.ground.clock.now_ms,
            inactive_ms=config.lookup_inactive_ms,
            tombstone_ms=config.lookup_tombstone_ms,
            registrations_max=config.lookup_registrations_max,
        )
        self._config = config
        self._presence = presence
        self._metrics = broker.metrics.door("lookup")
        self.http = Listener(
            Api("lookup_http", LookupApi(self.registry).routes, broker.metrics).answer,
            broker.metrics.door("lookup_http"),
            connections_max=config.connections_max,
            capacity=context.capacity,
            answer_max_bytes=config.http_answer_max_bytes,
            hosts=own_names(config, presence.hostname),
            refusal=refusal,
        )
        self.connections: Roster[LookupConnection] = Roster(config.connections_max, self._metrics, context.capacity)
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where the TCP side listens."""
        assert self._server is not None, "the door is not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int) -> None:
        """Listen for producers. Raises OSError where that cannot be."""
        self._server = await asyncio.get_running_loop().create_server(lambda: LookupConnection(self), host, port)
        self._sweep()

    async def stop(self) -> None:
        """Stop accepting, let answers out, close."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.connections.close(LookupConnection.close, STOP_SECONDS)

    async def channels(self, topic: str) -> list[str]:
        """The channels that are known of a topic, asked for as those of any other look-up service are."""
        return self.registry.channels(topic)

    def described(self) -> dict[str, object]:
        """What a producer is told that has introduced itself."""
        host, port = self.address
        return {
            "tcp_port": port,
            "http_port": self.http.address[1] if self.http.is_open else 0,
            "version": NSQ_VERSION,
            "broadcast_address": broadcast_address(self._config.nsq_broadcast, host, self._presence.hostname),
            "hostname": self._presence.hostname,
        }

    def _sweep(self) -> None:
        """Close the connections of which nothing was heard; producers say PING every 15 seconds."""
        loop = asyncio.get_running_loop()
        idle = self._config.connections_idle_ms / 1000
        for connection in self.connections:
            if loop.time() - connection.heard_at > idle:
                connection.abort()
        self._sweeping = loop.call_later(idle / SWEEPS, self._sweep)
