"""The doors in front of one broker: opened in the order of the registry, closed in the other one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from headrace.broker.broker import Broker
from headrace.config import Config, command_line
from headrace.doors.capacity import Capacity
from headrace.doors.door import Door, DoorContext, Preloads
from headrace.doors.listeners import Listeners
from headrace.doors.registry import DoorEntry
from headrace.doors.settings import SharedSettings
from headrace.doors.tls import Contexts

log = structlog.get_logger("headrace.server")


class OpenDoors:
    """Those that are configured."""

    def __init__(
        self,
        config: Config,
        entries: Sequence[DoorEntry],
        capacity: Capacity,
        tls: Contexts,
        is_ready: Callable[[], bool],
        addresses: dict[str, str],
        listeners: Listeners | None = None,
    ) -> None:
        """`addresses` gets those of each door once it is open. In a group there are `listeners`."""
        self._config = config
        self._entries = entries
        self._capacity = capacity
        self._tls = tls
        self._is_ready = is_ready
        self._addresses = addresses
        self._listeners = listeners
        self._opened: list[Door] = []

    def load(self) -> None:
        """Import the doors of both roles now, so that none has to be when the role changes."""
        for entry in self._entries:
            if entry.is_configured(self._config):
                door = entry.load()
                if isinstance(door, Preloads):
                    door.preload(self._config.part(entry.settings))
                if entry.follower:
                    entry.load(follows=True)

    async def open(self, broker: Broker, *, follows: bool = False) -> None:
        """Open the doors, or those of a node that follows. Raises DoorClosed."""
        config = self._config
        shared, shown = config.part(SharedSettings), command_line(config)
        self._capacity.limits = broker.quotas.connections
        self._capacity.clients = broker.clients
        host_names = {"localhost", broker.runtime.hostname, *config.host_names}
        for entry in self._entries:
            if not entry.is_configured(config) or (follows and not entry.follower):
                continue
            context = DoorContext(
                broker,
                config.part(entry.settings),
                shared,
                self._capacity,
                self._tls.usual,
                self._tls.without_client_certificates,
                self._tls.on_reloaded,
                self._is_ready,
                self._addresses,
                host_names,
                shown,
                self._listeners,
            )
            door = entry.load(follows)(context)
            self._opened.append(door)
            await door.start()
            self._addresses.update(door.addresses)

    async def close(self) -> None:
        """Accept no more, answer what is under way, close."""
        for door in reversed(self._take()):
            await door.stop()

    async def close_together(self) -> None:
        """Likewise, but no door waits for another: none of them serves the role that the node has now."""
        stops = [asyncio.ensure_future(door.stop()) for door in self._take()]
        await asyncio.gather(*stops, return_exceptions=True)
        for each in stops:
            if (error := each.exception()) is not None:
                log.error("a door did not close in order", error=repr(error))

    def _take(self) -> list[Door]:
        opened, self._opened = self._opened, []
        return opened
