"""Registration with other look-up services: each nsqlookupd learns which topics and channels this broker has.

A task for each service keeps one connection: it introduces the broker, registers all there is, then whatever changes,
and sends PING in between. What was registered is remembered, so a change is the difference between that and what there
is now, and a new connection begins with nothing. A service that cannot be reached is tried again, after ever
longer pauses; the broker itself never waits for one, but for a moment when a topic is new and the service may know
channels of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from struct import Struct
from urllib.parse import quote

import structlog

from headrace.addresses import format_address, parse_addresses
from headrace.broker.broker import Broker
from headrace.doors.http.server.client import HttpFailed, get
from headrace.doors.nsq.names import nsq_name
from headrace.doors.nsq.presence import NSQ_VERSION, Presence
from headrace.doors.nsq.settings import NsqSettings
from headrace.errors import HeadraceError
from headrace.log.interface import Topic

MAGIC = b"  V1"
LENGTH = Struct(">i")
ANSWER_MAX_BYTES = 65_536
PING_SECONDS = 15.0
# Changes that come close together are sent together.
GATHER_SECONDS = 0.02
# Commands sent before their answers are read.
BURST = 200
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

log = structlog.get_logger("headrace.nsq")

Registered = tuple[str, str]
"""A topic, and a channel of it or nothing."""


class LookupRefused(HeadraceError):
    """A look-up service answered with an error, or with what makes no sense."""


class Registrations:
    """The look-up services that are kept informed."""

    def __init__(self, broker: Broker, settings: NsqSettings, presence: Presence) -> None:
        self.broker = broker
        self.presence = presence
        self.timeout = settings.lookupd_timeout_ms / 1000
        self._services: dict[tuple[str, int], Service] = {}
        self._first = parse_addresses(settings.lookupd_tcp)

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each service."""
        return [format_address(*address) for address in self._services]

    async def start(self) -> None:
        """Begin to register."""
        self.broker.topics.changed.append(self._changed)
        await self.use(self._first)

    async def stop(self) -> None:
        """End the connections; the services then know that this broker is gone."""
        if self._changed in self.broker.topics.changed:
            self.broker.topics.changed.remove(self._changed)
        await self.use([])

    async def use(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Register with these services from now on, and with no others."""
        wanted = dict.fromkeys(addresses)
        gone = [address for address in self._services if address not in wanted]
        await asyncio.gather(*(self._services.pop(address).stop() for address in gone))
        for address in wanted:
            if address not in self._services:
                self._services[address] = Service(self, *address)

    def _changed(self, topic: Topic) -> None:
        for service in self._services.values():
            service.changed.set()

    def present(self) -> set[Registered]:
        """What there is to register."""
        there: set[Registered] = set()
        for name in self.broker.topics.all:
            topic = nsq_name(name)
            if topic is not None:
                there.add((topic, ""))
                there.update((topic, channel) for channel in self.broker.queues.of(name))
        return there

    async def channels(self, topic: str) -> list[str]:
        """The channels that the services know of a topic. Waits for them no longer than they may take."""
        answers = await asyncio.gather(*(service.channels(topic) for service in self._services.values()))
        return [channel for answer in answers for channel in answer]


class Service:
    """One look-up service."""

    def __init__(self, registrations: Registrations, host: str, port: int) -> None:
        self.changed = asyncio.Event()
        self._all = registrations
        self._host = host
        self._port = port
        self._http_port = 0
        self._registered: set[Registered] = set()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def channels(self, topic: str) -> list[str]:
        """The channels that it knows of a topic; none where it cannot be asked."""
        if not self._http_port:
            return []
        url = f"http://{format_address(self._host, self._http_port)}/channels?topic={quote(topic, safe='')}"
        try:
            answer = await get(
                url, timeout=self._all.timeout, headers=(("Accept", "application/vnd.nsq; version=1.0"),)
            )
            if answer.status != 200:
                raise LookupRefused(f"it answered {answer.status}")
            channels = json.loads(answer.body)["channels"] or []
            return [channel for channel in channels if isinstance(channel, str)]
        except (HttpFailed, LookupRefused, ValueError, KeyError, TypeError) as error:
            log.warning(
                "a look-up service could not be asked for the channels of a new topic",
                service=format_address(self._host, self._port),
                topic=topic,
                error=str(error),
            )
            return []

    async def _keep(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        reported = ""
        address = format_address(self._host, self._port)
        while True:
            try:
                async with asyncio.timeout(self._all.timeout):
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    await self._introduce(reader, writer)
                    log.info("registering with a look-up service", service=address)
                    pause, reported = FIRST_PAUSE_SECONDS, ""
                    await self._register(reader, writer)
                finally:
                    self._http_port = 0
                    writer.close()
            except (OSError, TimeoutError, asyncio.IncompleteReadError, LookupRefused) as error:
                reason = str(error) or type(error).__name__
                if reason != reported:
                    # Once for each reason, or a service that is down would fill the log.
                    log.warning("a look-up service is not reached", service=address, error=reason)
                    reported = reason
            except Exception:
                log.exception("registering with a look-up service failed", service=address)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        presence = self._all.presence
        body = json.dumps(
            {
                "version": NSQ_VERSION,
                "tcp_port": presence.tcp_port,
                "http_port": presence.http_port,
                "hostname": presence.hostname,
                "broadcast_address": presence.broadcast_address,
            }
        ).encode()
        writer.write(MAGIC + b"IDENTIFY\n" + LENGTH.pack(len(body)) + body)
        answer = await self._answer(reader)
        try:
            port = json.loads(answer)["http_port"]
        except (ValueError, KeyError, TypeError):
            raise LookupRefused(f"IDENTIFY was answered with {answer[:200]!r}") from None
        self._http_port = port if type(port) is int and 0 < port <= 65_535 else 0

    async def _register(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._registered = set()
        while True:
            self.changed.clear()
            there = self._all.present()
            # Channels before the topic that they belong to.
            commands = [_command("UNREGISTER", each) for each in sorted(self._registered - there, reverse=True)]
            commands += [_command("REGISTER", each) for each in sorted(there - self._registered)]
            for at in range(0, len(commands), BURST):
                await self._run(reader, writer, commands[at : at + BURST])
            self._registered = there
            if await self._is_changed(reader):
                await asyncio.sleep(GATHER_SECONDS)
            else:
                await self._run(reader, writer, [b"PING\n"])

    async def _is_changed(self, reader: asyncio.StreamReader) -> bool:
        """Whether there is something new to register; False when it is time for a PING instead. A service that ends the
        connection is noticed at once."""
        changing = asyncio.ensure_future(self.changed.wait())
        ending = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((changing, ending), timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                await ending
                raise LookupRefused("it ended the connection")
            return changing.done()
        finally:
            changing.cancel()
            ending.cancel()
            await asyncio.wait((changing, ending))

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commands: list[bytes]) -> None:
        writer.write(b"".join(commands))
        for command in commands:
            answer = await self._answer(reader)
            if answer != b"OK":
                raise LookupRefused(f"{command.decode().strip()} was answered with {answer[:200]!r}")

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(self._all.timeout):
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if not 0 <= size <= ANSWER_MAX_BYTES:
                raise LookupRefused(f"it announced an answer of {size} bytes")
            return await reader.readexactly(size)


def _command(name: str, what: Registered) -> bytes:
    return f"{name} {what[0]} {what[1]}".rstrip().encode() + b"\n"
