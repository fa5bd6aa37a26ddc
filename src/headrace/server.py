"""The composition root: a runtime, a log on it, a broker on that, and doors in front.

Nothing else in Headrace knows all layers. They start from the bottom up and stop from the doors down: a stopping
server first refuses new clients and lets the replies under way out, then flushes, so that a clean stop leaves nothing
to recover. Which doors there are is the registry's to say (`headrace.doors.registry`). A node of a group is composed in
`group_server.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from headrace.broker.broker import Broker
from headrace.broker.membership import Alone
from headrace.broker.settings import BrokerSettings
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.doors.registry import DOORS, DoorEntry
from headrace.exposure import exposed_doors, refuse_exposed
from headrace.log.native import NativeLog
from headrace.log.settings import LogSettings
from headrace.open_doors import OpenDoors
from headrace.resources import Resources, directory_error
from headrace.runtime import Runtime
from headrace.version import VERSION

log = structlog.get_logger("headrace.server")


class Server:
    """One broker with its doors, on the running loop."""

    broker: Broker
    """There once the server has started."""

    def __init__(self, config: Config, runtime: Runtime | None = None, doors: Sequence[DoorEntry] = DOORS) -> None:
        self.config = config
        self._doors = doors
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each open listener, by its name."""
        self._runtime = runtime
        self._ready = False
        self._capacity = Capacity(unread_bytes=config.unread_max_bytes, receiving_bytes=config.receiving_max_bytes)
        self._running = AsyncExitStack()

    @property
    def ready(self) -> bool:
        """Every door accepts."""
        return self._ready

    async def start(self) -> None:
        """Start everything; raises a HeadraceError with everything stopped again."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def wait_failed(self) -> None:
        """Wait for ever: what fails of a broker that runs alone does not end it."""
        await asyncio.Event().wait()

    async def _start(self) -> None:
        config = self.config
        refuse_exposed(exposed_doors(config, self._doors), insecure=config.insecure)
        self._resources = resources = Resources(config, self._runtime, self._capacity)
        self._running.callback(resources.close)
        await self._compose(resources)
        self._ready = True
        if not self.addresses:
            log.warning("every door is off: nothing can reach this broker")
        log.info("ready", version=VERSION, data=config.data, **self.addresses)

    async def _compose(self, resources: Resources) -> None:
        config = self.config
        native = NativeLog(resources.runtime, replace(config.part(LogSettings), open_files_max=resources.segments_max))
        try:
            await native.start()
        except OSError as error:
            raise directory_error(config.data, error) from error
        self._running.push_async_callback(native.stop)
        membership = Alone(config.node_id, self.addresses)
        self.broker = Broker(resources.runtime, native, config.part(BrokerSettings), membership)
        await self.broker.start()
        self._running.push_async_callback(self.broker.stop)
        tls = resources.certificates.contexts
        doors = OpenDoors(config, self._doors, self._capacity, tls, lambda: self._ready, self.addresses)
        self._running.push_async_callback(doors.close)
        await doors.open(self.broker)
        self._running.push_async_callback(self.broker.end_waits)

    async def reload_certificates(self) -> None:
        """Read the certificates of the doors again, if there are any."""
        await self._resources.reload_certificates()

    async def stop(self) -> None:
        """Stop in order: doors, broker, log, runtime. Safe to call twice."""
        was_ready, self._ready = self._ready, False
        if was_ready:
            log.info("stopping")
        running, self._running = self._running, AsyncExitStack()
        # A cancelled caller must not leave the log half flushed.
        await asyncio.shield(running.aclose())
        if was_ready:
            log.info("stopped")
        self.addresses.clear()
