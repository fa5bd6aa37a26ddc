"""The RocketMQ door: a name server and a broker of RocketMQ's in front of one broker.

Either can be open without the other. What the name server knows of the broker is how it is reached (`Presence`) and its
topics.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from headrace.addresses import format_address
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.rocketmq.listener import RemotingListener
from headrace.doors.rocketmq.presence import Presence
from headrace.doors.rocketmq.producers import ProducerGroups
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import RocketMqTopics


class RocketMqDoor:
    """Name server and broker, as far as they are configured."""

    name = "rocketmq"

    def __init__(self, context: DoorContext[RocketMqSettings]) -> None:
        self.addresses: dict[str, str] = {}
        self.settings = context.settings
        self._context = context
        self._presence = Presence(context.settings)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Open what is configured. Raises DoorClosed."""
        from headrace.doors.rocketmq.namesrv.listener import NameServer
        from headrace.doors.rocketmq.remoting.listener import Remoting

        context, settings = self._context, self.settings
        topics = RocketMqTopics(context.broker, settings.rocketmq_topic_queues)
        if settings.rocketmq != "off":
            producers = ProducerGroups(context.broker.prepared.check_back)
            remoting = Remoting(context, self._presence, topics, producers)
            await self._open("rocketmq", settings.rocketmq, remoting)
            self._presence.open(*remoting.address)
        if settings.rocketmq_namesrv != "off":
            await self._open("rocketmq-namesrv", settings.rocketmq_namesrv, NameServer(context, self._presence, topics))

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self._running.aclose()

    async def _open(self, name: str, address: str, listener: RemotingListener) -> None:
        self._running.push_async_callback(listener.stop)
        await open_listener(name, address, listener.listen)
        self.addresses[name] = format_address(*listener.address)
