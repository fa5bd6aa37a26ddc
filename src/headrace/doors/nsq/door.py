"""The NSQ door: nsqd and nsqlookupd in front of one broker.

Each of them has a TCP and an HTTP side, and any of the four can be open without the others. What they know of each
other is how the broker is reached (`Presence`), and the channels that look-up services know of new topics.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from headrace.addresses import format_address
from headrace.doors.door import DoorContext, Listen, open_listener
from headrace.doors.nsq.known_channels import KnownChannels
from headrace.doors.nsq.presence import Presence, broadcast_address
from headrace.doors.nsq.settings import NsqSettings


class OpenListener(Protocol):
    """A side of one of the two."""

    @property
    def address(self) -> tuple[str, int]: ...

    async def stop(self) -> None: ...


class NsqDoor:
    """nsqd and nsqlookupd, as far as they are configured."""

    name = "nsq"

    def __init__(self, context: DoorContext[NsqSettings]) -> None:
        runtime = context.broker.runtime
        self.addresses: dict[str, str] = {}
        self.settings = context.settings
        self._context = context
        self._presence = Presence(runtime.hostname, runtime.clock.now_ms())
        self._known = KnownChannels(context.broker)
        self._running = AsyncExitStack()

    @staticmethod
    def preload(settings: NsqSettings) -> None:
        """Import the sides that are configured."""
        if settings.nsq != "off" or settings.nsq_http != "off":
            import headrace.doors.nsq.nsqd.http.api
            import headrace.doors.nsq.nsqd.registration
        if settings.lookup != "off" or settings.lookup_http != "off":
            import headrace.doors.nsq.lookupd.listener  # noqa: F401

    async def start(self) -> None:
        """Open what is configured. Raises DoorClosed."""
        settings = self.settings
        # A certificate for the Kafka door opens no other where NSQ's were closed, unless an address asks for it.
        https = self._context.tls is not None and settings.nsq_https not in ("off", NsqSettings.nsq_https)
        if https or settings.nsq != "off" or settings.nsq_http != "off":
            await self._start_nsqd()
        if settings.lookup != "off" or settings.lookup_http != "off":
            await self._start_lookupd()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self._running.aclose()

    async def _start_nsqd(self) -> None:
        from headrace.doors.nsq.nsqd.http.api import NsqdHttp
        from headrace.doors.nsq.nsqd.listener import Nsqd
        from headrace.doors.nsq.nsqd.registration import Registrations
        from headrace.doors.nsq.nsqd.topics import NsqTopics

        context, settings, presence = self._context, self.settings, self._presence
        nsqd: Nsqd | None = None
        topics = NsqTopics(context.broker, settings)
        if settings.nsq != "off":
            nsqd = Nsqd(context, topics)
            await self._open("nsq", settings.nsq, nsqd, nsqd.listen)
            presence.tcp_port = settings.nsq_broadcast_tcp_port or nsqd.address[1]
            self._broadcast(nsqd)
        registrations = Registrations(context.broker, settings, presence)
        self._known.services.append(registrations.channels)
        api = NsqdHttp(context, presence, topics, registrations, nsqd)
        if await self._open("nsq-http", settings.nsq_http, api.http, api.http.listen):
            presence.http_port = settings.nsq_broadcast_http_port or api.http.address[1]
            self._broadcast(api.http)
        if context.tls is not None:
            await self._open("nsq-https", settings.nsq_https, api.https, partial(api.https.listen, tls=context.tls))
        await registrations.start()
        self._running.push_async_callback(registrations.stop)

    async def _start_lookupd(self) -> None:
        from headrace.doors.nsq.lookupd.listener import Lookupd

        settings = self.settings
        lookupd = Lookupd(self._context, self._presence)
        self._known.services.append(lookupd.channels)
        await self._open("lookup-http", settings.lookup_http, lookupd.http, lookupd.http.listen)
        await self._open("lookup", settings.lookup, lookupd, lookupd.listen)

    async def _open(self, name: str, address: str, listener: OpenListener, listen: Listen) -> bool:
        self._running.push_async_callback(listener.stop)
        if not await open_listener(name, address, listen, self._context.listeners):
            return False
        self.addresses[name] = format_address(*listener.address)
        return True

    def _broadcast(self, listener: OpenListener) -> None:
        """Advertise the host of the first side that is open."""
        presence = self._presence
        presence.broadcast_address = presence.broadcast_address or broadcast_address(
            self.settings.nsq_broadcast, listener.address[0], presence.hostname
        )
