"""The Kafka door: listens, admits connections, and holds what they share.

They share the receive buffer, a few spare buffers for large requests, fetch sessions and quotas, one timer that closes
idle ones, and the end of a loop turn, at which replies that became ready during it go out together.

What a client can make the door hold: nothing while it is idle (10,000 connections that have each produced once take
27 MB, 2.7 KB each, measured on uvloop); the bytes that have arrived of a cut request, at most doubled and never more
than `request_max_bytes`; a megabyte of requests behind one that is under way; and no reply beyond the first that it
does not read, which counts against what all doors may hold of such (`unread_max_bytes`).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import structlog

from headrace.broker.publish import Session
from headrace.config import format_address, parse_address
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.kafka import messages
from headrace.doors.kafka.connection import BUFFER_BYTES, Connection
from headrace.doors.kafka.produce import Target
from headrace.doors.kafka.quotas import Quota
from headrace.doors.kafka.sessions import Sessions
from headrace.doors.receiving import Buffers, EndOfTurn
from headrace.doors.roster import Roster
from headrace.doors.tls import TlsServer
from headrace.log.interface import Topic

log = structlog.get_logger("headrace.kafka")

# The largest buffer of a large request that is kept for the next one.
SPARE_BYTES_MAX = 4_194_304
SWEEPS = 10
STOP_SECONDS = 5.0
TOPIC_KEYS_MAX = 20_000
# About a kilobyte each.
TARGETS_MAX = 20_000

EVERY_INTERFACE = ("0.0.0.0", "::")


class KafkaDoor:
    """Kafka's wire protocol in front of a broker."""

    name = "kafka"
    loop: asyncio.AbstractEventLoop

    def __init__(self, context: DoorContext) -> None:
        broker, config = context.broker, context.config
        self.broker = broker
        self.config = config
        self.request_max = config.request_max_bytes
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.tick = 0
        self.metrics = broker.metrics.door("kafka")
        self.connections: Roster[Connection] = Roster(config.connections_max, self.metrics, context.capacity)
        self.buffers = Buffers(SPARE_BYTES_MAX)
        self.soon = EndOfTurn().soon
        self.produce_quota = Quota(config.quota_produce_bytes) if config.quota_produce_bytes else None
        self.fetch_quota = Quota(config.quota_fetch_bytes) if config.quota_fetch_bytes else None
        self.produce_metrics = broker.metrics.api("kafka", "produce")
        self.fetch_metrics = broker.metrics.api("kafka", "fetch")
        # By who asks, version, and the bytes that such requests have in common.
        self.targets: dict[tuple[str, int, bytes], Target] = {}
        # Where clients are sent; no host: to the address by which each of them came.
        self.advertised_host = ""
        self.advertised_port = 0
        self.address: tuple[str, int] = ("", 0)
        self.sessions: Sessions
        self._tls = context.tls
        self._topics: dict[bytes, Topic] = {}
        self._server: asyncio.Server | TlsServer | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of the door, once it is open."""
        return {} if self._server is None else {"kafka": format_address(*self.address)}

    async def start(self) -> None:
        """Listen; over TLS alone where a certificate is configured. Raises DoorClosed."""
        await open_listener("kafka", self.config.kafka, self._listen)

    async def _listen(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        messages.ARRAY_MAX = self.config.array_max
        self.sessions = Sessions(self.config.fetch_sessions_max, self.broker.ground.random, self.loop)
        if self._tls is None:
            self._server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        else:
            self._server = TlsServer(lambda: Connection(self), self._tls, self.metrics, self.connections.capacity)
            await self._server.start(host, port)
        bound = self._server.sockets[0].getsockname()
        self.address = (str(bound[0]), int(bound[1]))
        advertised = parse_address(self.config.kafka_advertised) if self.config.kafka_advertised else None
        self.advertised_host, self.advertised_port = advertised or self.address
        if self.advertised_host in EVERY_INTERFACE:
            self.advertised_host = ""
        self._sweep()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.connections.close(Connection.close_when_idle, STOP_SECONDS)
        self._server = None

    # --- connections --------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Close the connections that asked nothing for too long, or took nothing of what they asked for."""
        self.tick += 1
        for connection in self.connections:
            if connection.stuck():
                if self.tick - connection.seen > SWEEPS:
                    log.debug("connection closed: its reply is not read", client=connection.client_host)
                    connection.abort()
            elif self.tick - connection.seen > SWEEPS and connection.idle:
                log.debug("idle connection closed", client=connection.client_host)
                connection.close()
        self._sweeping = self.loop.call_later(self.config.connections_idle_ms / 1000 / SWEEPS, self._sweep)

    # --- topics as the wire names them --------------------------------------------------------------------------------

    def remember(self, session: Session, target: Target) -> None:
        """Keep what is known of such Produce requests, for all connections of the same user."""
        if len(self.targets) >= TARGETS_MAX:
            self.targets.clear()
        self.targets[session.user, target.version, target.prefix] = target

    def topic(self, key: bytes, by_id: bool) -> Topic | None:
        """The topic of an undecoded name or id."""
        if not by_id:
            try:
                return self.broker.log.topics.get(key.decode())
            except UnicodeDecodeError:
                return None
        # Making a UUID costs more than the rest of a small request.
        found = self._topics.get(key)
        if found is not None and not found.deleted:
            return found
        found = self.broker.log.topics_by_id.get(UUID(bytes=key))
        if found is None:
            self._topics.pop(key, None)
        else:
            if len(self._topics) >= TOPIC_KEYS_MAX:
                self._topics.clear()
            self._topics[key] = found
        return found
