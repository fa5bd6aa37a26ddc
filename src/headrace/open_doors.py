"""The doors in front of one broker: opened in the order of the registry, closed in the other one."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from headrace.broker.broker import Broker
from headrace.config import Config, command_line
from headrace.doors.capacity import Capacity
from headrace.doors.door import DoorContext
from headrace.doors.listeners import Listeners
from headrace.doors.registry import DoorEntry
from headrace.doors.settings import SharedSettings


class OpenDoors:
    """Those that are configured."""

    def __init__(
        self,
        config: Config,
        entries: Sequence[DoorEntry],
        capacity: Capacity,
        tls: ssl.SSLContext | None,
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
        self._opened = AsyncExitStack()

    def load(self) -> None:
        """Import the doors of both roles now, so that none has to be when the role changes."""
        for entry in self._entries:
            if entry.is_configured(self._config):
                entry.load()
                if entry.follower:
                    entry.load(follows=True)

    async def open(self, broker: Broker, *, follows: bool = False) -> None:
        """Open the doors, or those of a node that follows. Raises DoorClosed."""
        config = self._config
        shared, shown = config.part(SharedSettings), command_line(config)
        host_names = {"localhost", broker.runtime.hostname, *config.host_names}
        for entry in self._entries:
            if not entry.is_configured(config) or (follows and not entry.follower):
                continue
            context = DoorContext(
                broker,
                config.part(entry.settings),
                shared,
                self._capacity,
                self._tls,
                self._is_ready,
                self._addresses,
                host_names,
                shown,
                self._listeners,
            )
            door = entry.load(follows)(context)
            self._opened.push_async_callback(door.stop)
            await door.start()
            self._addresses.update(door.addresses)

    async def close(self) -> None:
        """Accept no more, answer what is under way, close."""
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()
