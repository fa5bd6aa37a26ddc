"""RocketMQ's broker in front of this one: its handlers, and what they share."""

from __future__ import annotations

import socket
import ssl
from asyncio import TimerHandle
from collections.abc import Sequence
from functools import lru_cache

from headrace.broker.rocketmq.subscription_groups import SubscriptionGroup
from headrace.doors.door import DoorContext
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.listener import RemotingListener
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.presence import Presence
from headrace.doors.rocketmq.producers import ProducerGroups
from headrace.doors.rocketmq.remoting import handlers
from headrace.doors.rocketmq.remoting.resets import Resets
from headrace.doors.rocketmq.remoting.sender import RemotingSender
from headrace.doors.rocketmq.remoting.wire_sends import WireSends
from headrace.doors.rocketmq.rights import BROKER
from headrace.doors.rocketmq.settings import RocketMqSettings, parse_levels
from headrace.doors.rocketmq.topics import RocketMqTopics
from headrace.doors.rocketmq.transactions import Transactions

# How often silent clients are looked for, in parts of the time that they may be silent.
SCANS = 12

_host_of = lru_cache(maxsize=1_024)(Host.of)


class Remoting(RemotingListener):
    """Takes and hands out messages."""

    title = "broker"

    def __init__(
        self,
        context: DoorContext[RocketMqSettings],
        presence: Presence,
        topics: RocketMqTopics,
        producers: ProducerGroups,
    ) -> None:
        super().__init__(context, "rocketmq", BROKER)
        self.presence = presence
        self.topics = topics
        self.producers = producers
        self.clients: dict[str, RemotingConnection] = {}
        """The connection by which each client sent its last heartbeat, by the client's id."""
        self.transactions = Transactions(self.broker)
        self._delay_levels = parse_levels(self.settings.rocketmq_delay_levels)
        self.sender = RemotingSender(self)
        self.take = WireSends(self).take
        self.resets = Resets()
        self.handlers = handlers.of(self)
        self._expiry = self.settings.rocketmq_client_expiry_ms / 1000
        self._scanning: TimerHandle | None = None

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen, and look for clients without heartbeats. Raises OSError where that cannot be."""
        await super().listen(host, port, tls, sockets)
        self._scan()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        if self._scanning is not None:
            self._scanning.cancel()
        await super().stop()

    def delay_ms(self, level: int) -> int:
        """The delay of a level: none for 0 and less, that of the highest for what is above it."""
        levels = self._delay_levels
        return levels[min(level, len(levels)) - 1] if level > 0 else 0

    def group_settings(self, group: str) -> SubscriptionGroup | None:
        """The settings of a group; None where it may not consume because it was not made."""
        found = self.broker.rocketmq.groups.get(group)
        if found is None and self.settings.rocketmq_auto_create_groups:
            found = SubscriptionGroup(group)
        return found

    def existing_group(self, group: str) -> SubscriptionGroup:
        """The settings of a group that may consume. Raises ResponseError."""
        found = self.group_settings(group)
        if found is None:
            raise ResponseError(
                Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist. Make it by mqadmin updateSubGroup "
                "(rocketmq_auto_create_groups is off).",
            )
        return found

    def members(self, group: str) -> list[RemotingConnection]:
        """The connections of a group's members."""
        return [
            each
            for each in self.connections
            if each.client is not None
            and group in each.client.consumers
            and each.memberships is not None
            and each.memberships.find(group) is not None
        ]

    def own_address(self, connection: RemotingConnection) -> str:
        """HOST:PORT of this broker, for a client."""
        return self.presence.address(str(connection.transport.get_extra_info("sockname")[0]))

    def store_host(self, connection: RemotingConnection) -> Host:
        """The address that a message carries as that of its broker, for a client."""
        host = self.presence.ip or str(connection.transport.get_extra_info("sockname")[0])
        return _host_of(host, self.presence.port)

    def born_host(self, connection: RemotingConnection) -> Host:
        """The address that a message carries as that of its producer."""
        return _host_of(*connection.address)

    def _scan(self) -> None:
        """Close the clients whose heartbeats have stopped, as RocketMQ does: they leave their groups with that."""
        before = self.loop.time() - self._expiry
        for connection in list(self.connections):
            if connection.heartbeat and connection.heartbeat < before:
                connection.abort()
        self._scanning = self.loop.call_later(self._expiry / SCANS, self._scan)
