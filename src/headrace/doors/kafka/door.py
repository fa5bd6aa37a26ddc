"""The Kafka door: listens, admits connections, and holds what they share.

They share what an acceptor has, fetch sessions, and what is known of Produce requests.

What a client can make the door hold: nothing while it is idle (10,000 connections that have each produced once take
27 MB, 2.7 KB each, measured on uvloop); the bytes that have arrived of a cut request, at most doubled and never more
than `request_max_bytes`, of which all clients together have `receiving_max_bytes`; a megabyte of requests behind one
that is under way; and no reply beyond the first that it does not read, which counts against what all doors may hold of
such (`unread_max_bytes`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Hashable, Sequence
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from headrace.addresses import format_address, parse_address
from headrace.broker.security import Session
from headrace.doors.acceptor import BufferedAcceptor
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.kafka import codec
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.connection import BUFFER_BYTES, Connection
from headrace.doors.kafka.errors import KafkaError
from headrace.doors.kafka.produce_replies import CachedProduce
from headrace.doors.kafka.readable import ReadableTopics
from headrace.doors.kafka.registry import APIS, Api, handler
from headrace.doors.kafka.sessions import Sessions
from headrace.doors.kafka.settings import MAIN, KafkaSettings, Listener, listeners_of
from headrace.errors import HeadraceError
from headrace.log.interface import Partition, Topic

log = structlog.get_logger("headrace.kafka")

# The largest buffer of a large request that is kept for the next one.
SPARE_BYTES_MAX = 4_194_304
STOP_SECONDS = 5.0
# How often replies are looked for that have waited for their commit for too long.
EXPIRY_SECONDS = 0.5
TOPIC_KEYS_MAX = 20_000
# Long polls that look again between two turns of the loop.
FETCHES_A_TURN = 50
# About a kilobyte each.
CACHED_REQUESTS_MAX = 20_000

# Metadata, ListOffsets, groups and transactions.
PRELOADED = (2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22, 24, 25, 26, 28)

EVERY_INTERFACE = ("0.0.0.0", "::")


class OpenListener:
    """A listener of the door, open or about to be."""

    def __init__(self, door: KafkaDoor, listener: Listener) -> None:
        self.door = door
        self.name = listener.name
        self.protocol = listener.protocol
        self.mechanisms = listener.mechanisms
        self.address: tuple[str, int] = ("", 0)
        # Where clients are sent; no host: to the address by which each of them came.
        self._advertised = parse_address(listener.advertised) if listener.advertised else None

    async def listen(self, host: str, port: int, *, sockets: Sequence[socket.socket] = ()) -> None:
        """Accept clients. Raises OSError."""
        context = self.door.context
        tls = None
        if self.protocol.is_encrypted:
            tls = context.tls_without_client_certificates if self.protocol.has_sasl else None
            tls = tls or context.tls
        self.address = await self.door.listen_too(host, port, self.connect, tls, sockets)
        if not self.door.listeners:
            self.door.address = self.address
        host, port = self._advertised or self.address
        self._advertised = ("" if host in EVERY_INTERFACE else host, port)
        self.door.listeners.append(self)

    def connect(self) -> Connection:
        """A connection for a client that has come."""
        return Connection(self.door, self)

    def advertised_to(self, connection: Connection) -> tuple[str, int]:
        """Where a client is sent. Where the door listens on all of its host's addresses, the client can come again by
        the one by which it came."""
        host, port = self._advertised or self.address
        return host or str(connection.transport.get_extra_info("sockname")[0]), port


class KafkaDoor(BufferedAcceptor[Connection]):
    """Kafka's wire protocol in front of a broker."""

    name = "kafka"
    follows = False
    """Whether this is the door of a node that does not lead its group."""

    def __init__(self, context: DoorContext[KafkaSettings]) -> None:
        broker, settings = context.broker, context.settings
        super().__init__(
            broker.metrics.door("kafka"),
            context.shared.connections_max,
            context.capacity,
            buffer_bytes=BUFFER_BYTES,
            spare_bytes_max=SPARE_BYTES_MAX,
        )
        self.broker = broker
        self.context = context
        self.settings = settings
        self.request_max = settings.request_max_bytes
        self.quotas = broker.quotas
        self.seconds = broker.runtime.clock.boot_seconds
        broker.quotas.on_changed.append(self.unmute)
        self.produce_metrics = broker.metrics.api("kafka", "produce")
        self.fetch_metrics = broker.metrics.api("kafka", "fetch")
        # By user, version, and the bytes that such requests have in common.
        self.produce_cache: dict[tuple[Hashable, int, bytes], CachedProduce] = {}
        self.readable = ReadableTopics(broker.security)
        self.listeners: list[OpenListener] = []
        self.sessions: Sessions
        self._expiring: asyncio.TimerHandle | None = None
        self._topics: dict[bytes, Topic] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of each listener, once it is open."""
        return {each.name: format_address(*each.address) for each in self.listeners} if self.is_open else {}

    @staticmethod
    def preload(settings: KafkaSettings) -> None:
        """Import the handlers of producers, consumers and transactions, with the newest form of each request."""
        for key in PRELOADED:
            handler(key)
            codec.preload(key, APIS[key].newest)

    async def start(self) -> None:
        """Open the listeners. Raises DoorClosed."""
        codec.ARRAY_MAX = self.settings.array_max
        loop = asyncio.get_running_loop()
        self.sessions = Sessions(self.settings.fetch_sessions_max, self.broker.runtime.random, loop)
        context = self.context
        for each in listeners_of(self.settings, has_certificate=context.tls is not None):
            listener = OpenListener(self, each)
            setting = "" if each.name == MAIN else "kafka-listeners"
            await open_listener(each.name, each.address, listener.listen, context.listeners, setting)
        if not self.is_open:
            return
        self.close_idle(context.shared.connections_idle_ms / 1000)
        self.broker.security.on_changed.append(self._on_rights_changed)
        self.broker.topics.changed.append(self.readable.drop)
        if self.broker.log.is_replicated:
            self._expire()

    def _on_rights_changed(self, users: Collection[str] | None) -> None:
        """Long polls of these users, or of any, look again: they may have lost what they read."""
        self.readable.forget(users)
        waiting = [
            each
            for each in self.connections
            if each.fetching is not None and (users is None or each.session.user in users)
        ]
        self._wake(waiting)

    def _wake(self, waiting: list[Connection]) -> None:
        for connection in waiting[-FETCHES_A_TURN:]:
            if connection.fetching is not None:
                connection.fetching.wake()
        del waiting[-FETCHES_A_TURN:]
        if waiting:
            self.loop.call_soon(self._wake, waiting)

    def unmute(self) -> None:
        for connection in self.connections:
            connection.timed = None
        super().unmute()

    def _expire(self) -> None:
        """Answer, from now on, the Produce requests that have waited for their commit for longer than they allow."""
        now = self.loop.time()
        for connection in self.connections:
            connection.expire_replies(now)
        self._expiring = self.loop.call_later(EXPIRY_SECONDS, self._expire)

    def too_late(self) -> HeadraceError:
        """Why a batch that this node has was not committed in time."""
        group = self.broker.membership
        if len(group.isr) < group.min_isr:
            return KafkaError(
                ErrorCode.not_enough_replicas_after_append,
                f"{len(group.isr)} replicas are in sync, and min.insync.replicas asks for {group.min_isr}: the "
                "batch may be committed later",
            )
        return KafkaError(ErrorCode.request_timed_out, "the batch was not committed in time, and may be later")

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        if self._expiring is not None:
            self._expiring.cancel()
        if self._on_rights_changed in self.broker.security.on_changed:
            self.broker.security.on_changed.remove(self._on_rights_changed)
            self.broker.topics.changed.remove(self.readable.drop)
        await self.close(STOP_SECONDS)

    async def answer(self, api: Api, call: Call, request: Any, frame: bytes) -> dict[str, Any] | bytes | None:
        """The reply to a request off the hot path, whose body is `frame`; bytes: as another node has written it."""
        return await handler(api.key)(call, request)

    def epoch_of(self, partition: Partition) -> int:
        """The leader epoch that clients know of a partition."""
        return partition.epoch

    def may_read(self) -> bool:
        """Whether consumers may read here."""
        return True

    # --- topics as the wire names them --------------------------------------------------------------------------------

    def cache_request(self, session: Session, cached: CachedProduce) -> None:
        """Cache a Produce request, for all connections of the same user."""
        if len(self.produce_cache) >= CACHED_REQUESTS_MAX:
            self.produce_cache.clear()
        self.produce_cache[session.subject, cached.version, cached.prefix] = cached

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
        found = self.broker.log.topics.by_id.get(UUID(bytes=key))
        if found is None:
            self._topics.pop(key, None)
        else:
            if len(self._topics) >= TOPIC_KEYS_MAX:
                self._topics.clear()
            self._topics[key] = found
        return found
