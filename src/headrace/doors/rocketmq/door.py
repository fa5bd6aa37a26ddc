"""The RocketMQ door: a name server, a broker and a gRPC proxy of RocketMQ's in front of one broker.

Each can be open without the others. What the name server knows of the broker is how it is reached (`Presence`) and its
topics.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import structlog

from headrace.addresses import format_address
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.rocketmq.presence import Presence
from headrace.doors.rocketmq.producers import ProducerGroups
from headrace.doors.rocketmq.settings import GRPC_ADDRESS, RocketMqSettings, missing_grpc_packages
from headrace.doors.rocketmq.topics import RocketMqTopics
from headrace.errors import DoorClosed

log = structlog.get_logger("headrace.rocketmq")


class Listener(Protocol):
    """What listens at one address."""

    address: tuple[str, int]

    async def listen(self, host: str, port: int, *, sockets: Sequence[socket.socket] = ()) -> None: ...

    async def stop(self) -> None: ...


class RocketMqDoor:
    """Name server and broker, as far as they are configured."""

    name = "rocketmq"

    def __init__(self, context: DoorContext[RocketMqSettings]) -> None:
        self.addresses: dict[str, str] = {}
        self.settings = context.settings
        self._context = context
        self._presence = Presence(context.settings)
        self._running = AsyncExitStack()

    @staticmethod
    def preload(settings: RocketMqSettings) -> None:
        """Import what answers at the addresses that are configured."""
        import headrace.doors.rocketmq.namesrv.listener
        import headrace.doors.rocketmq.remoting.listener

        if settings.rocketmq_grpc != "off" and not missing_grpc_packages():
            import headrace.doors.rocketmq.grpc.listener  # noqa: F401

    async def start(self) -> None:
        """Open what is configured. Raises DoorClosed."""
        from headrace.doors.rocketmq.namesrv.listener import NameServer
        from headrace.doors.rocketmq.remoting.listener import Remoting

        context, settings = self._context, self.settings
        topics = RocketMqTopics(context.broker, settings.rocketmq_topic_queues, settings.rocketmq_cluster)
        producers = ProducerGroups(context.broker.prepared.check_back)
        if settings.rocketmq != "off":
            remoting = Remoting(context, self._presence, topics, producers)
            await self._open("rocketmq", settings.rocketmq, remoting)
            self._presence.open(*remoting.address)
            await self._presence.resolve()
        if settings.rocketmq_namesrv != "off":
            await self._open("rocketmq-namesrv", settings.rocketmq_namesrv, NameServer(context, self._presence, topics))
        if settings.rocketmq_grpc != "off" and _has_grpc(settings.rocketmq_grpc):
            from headrace.doors.rocketmq.grpc.listener import GrpcListener

            await self._open("rocketmq-grpc", settings.rocketmq_grpc, GrpcListener(context, topics, producers))

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self._running.aclose()

    async def _open(self, name: str, address: str, listener: Listener) -> None:
        self._running.push_async_callback(listener.stop)
        await open_listener(name, address, listener.listen, self._context.listeners)
        self.addresses[name] = format_address(*listener.address)


def _has_grpc(address: str) -> bool:
    """Whether the extra is installed. Raises DoorClosed where it is not, and an address was configured."""
    missing = missing_grpc_packages()
    if not missing:
        return True
    text = f"the rocketmq-grpc door needs {', '.join(missing)}: install headrace[rocketmq-grpc]"
    if address != GRPC_ADDRESS:
        raise DoorClosed(f"{text}, or give --rocketmq-grpc off")
    log.info(f"{text} to open it on {address}")
    return False
