"""How RocketMQ's clients reach this broker: its name, its cluster, and the address that its name server gives."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.addresses import format_address, parse_address
from headrace.doors.rocketmq.settings import RocketMqSettings

EVERY_INTERFACE = ("0.0.0.0", "::")


@dataclass(slots=True)
class Presence:
    """This broker among those of a cluster."""

    settings: RocketMqSettings
    host: str = ""
    """Empty: clients take the host by which they came to the name server."""
    port: int = 0
    """0: the door is closed."""

    def open(self, host: str, port: int) -> None:
        """The broker listens."""
        advertised = self.settings.rocketmq_advertised
        self.host, self.port = (parse_address(advertised) if advertised else None) or (host, port)
        if self.host in EVERY_INTERFACE:
            self.host = ""

    def address(self, came_by: str) -> str:
        """HOST:PORT for a client that came to the name server by a host."""
        return format_address(self.host or came_by, self.port)
