"""How RocketMQ's clients reach this broker: its name, its cluster, and the address that its name server gives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from socket import SOCK_STREAM

import structlog

from headrace.addresses import format_address, parse_address
from headrace.doors.rocketmq.settings import RocketMqSettings

log = structlog.get_logger("headrace.rocketmq")

EVERY_INTERFACE = ("0.0.0.0", "::")


@dataclass(slots=True)
class Presence:
    """This broker among those of a cluster."""

    settings: RocketMqSettings
    host: str = ""
    """Empty: clients take the host by which they came to the name server."""
    ip: str = ""
    """What the host's name stands for, which messages carry."""
    port: int = 0
    """0: the door is closed."""

    def open(self, host: str, port: int) -> None:
        """The broker listens."""
        advertised = self.settings.rocketmq_advertised
        self.host, self.port = (parse_address(advertised) if advertised else None) or (host, port)
        if self.host in EVERY_INTERFACE:
            self.host = ""
        self.ip = self.host

    async def resolve(self) -> None:
        """Look the advertised name up. Messages carry no address where that fails."""
        if self.host:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=SOCK_STREAM)
            except OSError as error:
                log.warning("rocketmq_advertised cannot be resolved", host=self.host, error=str(error))
            else:
                self.ip = str(found[0][4][0])

    def address(self, came_by: str) -> str:
        """HOST:PORT for a client that came to the name server by a host."""
        return format_address(self.host or came_by, self.port)
