"""The name server: it knows this broker, what RocketMQ's tools have configured, and other brokers that may register.

Nothing of the broker is stored: what it has is looked up for each question.
"""

from __future__ import annotations

import socket
import ssl
from asyncio import TimerHandle
from collections.abc import Sequence

from headrace.doors.door import DoorContext
from headrace.doors.rocketmq.listener import RemotingListener
from headrace.doors.rocketmq.namesrv import handlers
from headrace.doors.rocketmq.namesrv.registry import BrokerRegistry
from headrace.doors.rocketmq.presence import Presence
from headrace.doors.rocketmq.rights import NAME_SERVER
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import RocketMqTopics

# How often silent brokers are looked for.
SCAN_SECONDS = 1.0


class NameServer(RemotingListener):
    """Answers where topics are."""

    title = "name server"

    def __init__(self, context: DoorContext[RocketMqSettings], presence: Presence, topics: RocketMqTopics) -> None:
        super().__init__(context, "rocketmq_namesrv", NAME_SERVER)
        self.registry = BrokerRegistry(self.settings.rocketmq_namesrv_brokers_max, self.frame_max)
        self.handlers = handlers.of(self)
        self._scanning: TimerHandle | None = None
        self.presence = presence
        self.topics = topics
        self.is_writable = True
        """Whether routes let producers write to this broker: an administrator may take that away until the next start.
        """

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen, and look for registered brokers that are silent. Raises OSError where that cannot be."""
        await super().listen(host, port, tls, sockets)
        if self.settings.rocketmq_namesrv_registration:
            self._scan()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        if self._scanning is not None:
            self._scanning.cancel()
        await super().stop()

    def _scan(self) -> None:
        self.registry.scan(self.loop.time())
        self._scanning = self.loop.call_later(SCAN_SECONDS, self._scan)
