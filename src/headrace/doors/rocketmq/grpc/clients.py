"""The clients that there are: what each has said of itself, the groups that it is in, and the stream to it.

A client tells its settings over its Telemetry stream, and is there from then on while its heartbeats come; a stream
that ends is opened again by its client, and loses nothing. A consumer is a member of its group like any other of
RocketMQ's. A producer is asked about its prepared messages over its stream, whichever client of the same topic sent
them: as at RocketMQ's proxy, the producer group of a message is the name of its topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from headrace.broker.broker import Broker
from headrace.broker.groups.rocketmq_group import RocketMqMember, RocketMqSubscription
from headrace.broker.prepared import Check
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.protocol import Code, Proto
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.doors.rocketmq.membership import Memberships
from headrace.doors.rocketmq.producers import Producer, ProducerGroups
from headrace.doors.rocketmq.settings import RocketMqSettings

# How often silent clients are looked for, in parts of the time that they may be silent.
SCANS = 12
# Bytes of commands that wait until a client reads its stream; what is beyond is not sent, and asked again later.
WAITING_BYTES_MAX = 16_777_216


class Stream:
    """The commands to one client, in order."""

    def __init__(self) -> None:
        self._commands: deque[Proto] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self.is_closed = False

    def send(self, command: Proto) -> None:
        """Send a command, unless too much waits already."""
        if not self.is_closed and self._size < WAITING_BYTES_MAX:
            self._commands.append(command)
            self._size += command.ByteSize()
            self._changed.set()

    def close(self) -> None:
        """Send what waits, and no more."""
        self.is_closed = True
        self._changed.set()

    async def next(self) -> Proto | None:
        """The next command; None at the end."""
        while not self._commands:
            if self.is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        command = self._commands.popleft()
        self._size -= command.ByteSize()
        return command


class GrpcClient:
    """One client."""

    def __init__(
        self, caller: Caller, settings: Proto, stream: Stream, broker: Broker, producers: ProducerGroups
    ) -> None:
        self.client_id = caller.client_id
        self.host = str(ip_address(caller.host.ip))
        self.settings = settings
        self.stream = stream
        self.seen = 0.0
        """When it was last heard of, by the loop's clock."""
        self._memberships = Memberships(broker.groups.rocketmq)
        self._producers = producers
        self._producer: Producer | None = None
        self._address = str(caller.host)

    @property
    def group(self) -> str:
        """Of a consumer."""
        return str(self.settings.subscription.group.name)

    async def join(self, group: str, subscriptions: dict[str, RocketMqSubscription]) -> None:
        """Be a member of a group. Raises GroupError."""
        member = RocketMqMember(self.client_id, self.host, subscriptions, lambda _: None)
        await self._memberships.join(group, member)

    def publish(self, topics: Iterable[str], ask: Callable[[Stream, Check], None]) -> None:
        """Be asked about the prepared messages of these topics."""
        if self._producer is None:
            self._producer = Producer(self.client_id, self._address, lambda check: ask(self.stream, check))
        for topic in topics:
            self._producers.join(topic, self._producer)

    def close(self) -> None:
        """It is gone."""
        self.stream.close()
        self._memberships.leave_all()
        if self._producer is not None:
            self._producers.leave_all(self._producer)


class Clients:
    """All clients, by their ids."""

    def __init__(self, broker: Broker, settings: RocketMqSettings, producers: ProducerGroups, most: int) -> None:
        self._broker = broker
        self._expiry = settings.rocketmq_client_expiry_ms / 1000
        self._producers = producers
        self._most = most
        self._clients: dict[str, GrpcClient] = {}
        self._streams: dict[Stream, None] = {}
        self._scanning: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look for silent clients from now on."""
        self._scan()

    def stop(self) -> None:
        """Every client is gone, and every stream ends."""
        if self._scanning is not None:
            self._scanning.cancel()
        for client_id in list(self._clients):
            self.forget(client_id)
        for stream in self._streams:
            stream.close()

    def open_stream(self) -> Stream:
        """A stream to a client that has not said yet what it is."""
        stream = Stream()
        self._streams[stream] = None
        return stream

    def close_stream(self, stream: Stream) -> None:
        """A stream has ended."""
        stream.close()
        self._streams.pop(stream, None)

    def update(self, caller: Caller, settings: Proto, stream: Stream) -> GrpcClient:
        """Note what a client says of itself. Raises ResponseError where there are too many."""
        client = self._clients.get(caller.client_id)
        if client is None:
            if len(self._clients) >= self._most:
                raise ResponseError(
                    Code.TOO_MANY_REQUESTS, f"there are {self._most} clients, the maximum (connections_max)"
                )
            client = self._clients[caller.client_id] = GrpcClient(
                caller, settings, stream, self._broker, self._producers
            )
        elif client.stream is not stream:
            # It was opened anew: the old one may not have been found broken yet.
            client.stream.close()
        client.settings, client.stream = settings, stream
        client.seen = asyncio.get_running_loop().time()
        return client

    def find(self, client_id: str) -> GrpcClient | None:
        """The client of that id, if it has told its settings."""
        return self._clients.get(client_id)

    def get(self, caller: Caller) -> GrpcClient:
        """The client that asks; this is a sign of life. Raises ResponseError."""
        client = self._clients.get(caller.client_id)
        if client is None:
            raise ResponseError(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "cannot find client settings for this client. Send them over a Telemetry stream first.",
            )
        client.seen = asyncio.get_running_loop().time()
        return client

    def forget(self, client_id: str) -> None:
        """A client is gone."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            client.close()

    def _scan(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - self._expiry
        for client_id, client in list(self._clients.items()):
            if client.seen < before:
                self.forget(client_id)
        self._scanning = loop.call_later(self._expiry / SCANS, self._scan)
