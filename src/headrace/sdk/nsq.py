"""Messages over NSQ's wire: of Headrace, whose queues do what a subscription asks for, and of a plain nsqd.

A queue of Headrace is configured when the subscription opens: its visibility timeout, retry schedule, attempts, dead
letters and order by key; a message is then settled with one command. On a plain nsqd this module keeps the retry
schedule and the attempts, and writes a dead message to a topic of its own before it is finished.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Hashable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import structlog

from headrace.client import ClientError
from headrace.format.headers import ERROR
from headrace.format.message_id import decode_id
from headrace.sdk.background import BackgroundTasks
from headrace.sdk.http_door import HttpDoor
from headrace.sdk.message import NO_HEADERS, Message, Outgoing, Receipt
from headrace.sdk.nsq_wire import (
    ENVELOPE,
    SIZE,
    NsqConnection,
    NsqError,
    NsqGone,
    Received,
    encode_deferred,
    multi,
    read_body,
    write_body,
)
from headrace.sdk.scenario import Tuning
from headrace.sdk.system import HEADRACE, OFF, Address, Unsuited, client_of, context_of
from headrace.sdk.transport import ConsumerConfig, Deliver, Delivery, PublishFailed, Receiver, Transport

log = structlog.get_logger("headrace.sdk")

HEARTBEAT_MS = 30_000
BACKOFF_FIRST, BACKOFF_MAX = 0.05, 5.0
PUBLISH_SECONDS = 30.0
SUBSCRIBE_SECONDS = 30.0
# In one MPUB: well below nsqd's default limit (5 MiB), which it does not report.
MULTI_BYTES = 1_048_576
EPHEMERAL = "#ephemeral"
# A message can be touched for so long after its delivery: a day, the longest that a queue allows.
LEASE_SECONDS = 86_400
# nsqd's default, for one that does not report it.
NSQD_LEASE_MS = 900_000
# How a message was settled, by the command.
SETTLEMENTS = {b"FIN": "ack", b"REQ": "retry"}


class NsqTransport(Transport):
    """One nsqd, or Headrace's NSQ door."""

    def __init__(self, address: Address, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self.tls = context_of(address)
        self.login = address.login
        self._out: NsqConnection | None = None
        self._connecting = asyncio.Lock()
        self.http = HttpDoor(OFF, "")

    @property
    def plain(self) -> bool:
        """Whether this is an nsqd and not Headrace."""
        return self._address.kind != HEADRACE

    async def open(self) -> None:
        try:
            out = await self._publisher()
        except (OSError, NsqError, TimeoutError) as error:
            raise PublishFailed(f"{self._address.nsq} cannot be reached: {error}") from error
        if self.plain:
            return
        try:
            await self._identify(out)
        except BaseException:
            await self.close()
            raise

    async def _identify(self, out: NsqConnection) -> None:
        """Make sure that both wires lead to one broker, and learn where its HTTP door is."""
        address, cluster_id = self._address, out.limits.get("cluster_id")
        if not cluster_id:
            raise Unsuited(f"{address.nsq} is not a Headrace. Use nsq://{address.nsq}, or correct nsq= in the URL")
        async with client_of(address, self._client_id) as client:
            try:
                await client.cluster.refresh(())
            except ClientError as error:
                raise PublishFailed(f"{address.kafka} cannot be reached: {error}") from error
            if client.cluster.cluster_id != cluster_id:
                raise Unsuited(
                    f"the NSQ door at {address.nsq} belongs to the broker {cluster_id}, the Kafka door at "
                    f"{address.kafka} to the broker {client.cluster.cluster_id}. Give both doors of one broker"
                )
        port = out.limits.get("http_port")
        learnt = f"{address.nsq.rpartition(':')[0]}:{port}" if port else OFF
        self.http = HttpDoor(address.http or learnt, cluster_id, self.login, self.tls)

    async def close(self) -> None:
        if self._out is not None:
            await self._out.close()

    # --- sending ---

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        """What gets no answer because the server went away is sent again when it is back, and may then be there twice:
        the wire has no numbers by which a server would know it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PUBLISH_SECONDS
        delay = BACKOFF_FIRST
        while True:
            try:
                timers = await asyncio.wait_for(self._publish(messages), max(end - loop.time(), 0.0))
                return [Receipt(each.topic, timer=next(timers) if each.delay else "") for each in messages]
            except (OSError, NsqGone) as error:
                if loop.time() + delay >= end:
                    raise PublishFailed(f"{self._address.nsq}: {error or 'no answer in time'}") from error
                log.debug("not yet sent", error=str(error))
            except NsqError as error:
                raise PublishFailed(f"{self._address.nsq}: {error}") from error
            await asyncio.sleep(delay)
            delay = min(delay * 2, BACKOFF_MAX)

    async def _publish(self, messages: Sequence[Outgoing]) -> Iterator[str]:
        """The timers of those that are delayed."""
        by_topic: dict[str, list[bytes]] = {}
        commands = []
        out = await self._publisher()
        for each in messages:
            body = self.body(out, each)
            if each.delay:
                commands.append(encode_deferred(each.topic, max(round(each.delay * 1_000), 1), body))
            else:
                by_topic.setdefault(each.topic, []).append(body)
        commands += [multi(topic, part) for topic, bodies in by_topic.items() for part in _parts(bodies)]
        delayed = sum(1 for each in messages if each.delay)
        answers = await asyncio.gather(*(out.ask(command) for command in commands))
        # `OK`, and under Headrace's extension the timer behind it.
        return (answer.decode()[3:] for answer in answers[:delayed])

    async def cancel(self, timer: str) -> bool:
        return await self.http.cancel(timer)

    def body(self, connection: NsqConnection, message: Outgoing) -> bytes:
        """A message as this server carries it."""
        if connection.extended:
            return write_body(message.key, message.value, message.headers)
        if self._address.envelope:
            return ENVELOPE + write_body(message.key, message.value, message.headers)
        if message.key is not None or message.headers:
            raise PublishFailed(
                f"{message.topic}: a plain NSQ carries neither key nor headers; add envelope=1 to the URL"
            )
        return message.value

    async def _publisher(self) -> NsqConnection:
        async with self._connecting:
            if self._out is None or not self._out.open:
                self._out = NsqConnection(lambda messages: None, lambda: None)
                await self._out.connect(*split_address(self._address.nsq), self.identity(), self.tls, self.login)
            return self._out

    def identity(self, timeout: float | None = None) -> dict[str, Any]:
        """What a connection sends with IDENTIFY."""
        features: dict[str, Any] = {
            "client_id": self._client_id,
            "hostname": socket.gethostname(),
            "user_agent": "headrace-sdk",
            "heartbeat_interval": HEARTBEAT_MS,
        }
        return features if timeout is None else {**features, "msg_timeout": round(timeout * 1_000)}

    # --- receiving ---

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> Receiver:
        channel = config.group
        if config.tuning.private:
            channel = f"{config.group[:40]}-{os.urandom(4).hex()}{EPHEMERAL}"
        elif not self.plain:
            await self.make_queue(
                config.topic, config.group, _queue_settings(config.tuning), replay=config.tuning.replay
            )
        if self._address.lookup:
            from headrace.sdk.nsq_lookup import LookupReceiver

            found = LookupReceiver(self, self._address.lookup, config, channel, deliver)
            await found.open()
            return found
        receiver = NsqReceiver(self, config, channel, deliver)
        await receiver.open(self._address.nsq)
        return receiver

    async def make_queue(self, topic: str, queue: str, settings: Mapping[str, Any], *, replay: bool) -> None:
        """A topic and a queue on it, with some settings; a queue that exists is given them. Raises Unsuited."""
        # Before anything is made.
        await self.http.check()
        async with client_of(self._address, self._client_id) as client:
            await client.admin.ensure_topic(topic)
        await self.http.make_queue(topic, queue, settings, replay=replay)


class NsqReceiver(Receiver):
    """One subscription; it reconnects, without end, when its connection is lost."""

    def __init__(self, transport: NsqTransport, config: ConsumerConfig, channel: str, deliver: Deliver) -> None:
        super().__init__(config, deliver)
        self.transport = transport
        # Headrace's queues hold a key back themselves.
        self.orders = not transport.plain
        self.channel = channel
        self._credit = config.credit
        self._connection: NsqConnection | None = None
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self._burials = BackgroundTasks()
        # Deliveries that the server reported as over when they were touched.
        self._taken_back: set[bytes] = set()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def open(self, address: str) -> None:
        """Raises Unsuited where the server refuses, OSError where it does not answer."""
        self._where = split_address(address)
        try:
            await self._connect()
        except NsqError as error:
            raise Unsuited(f"{self.config.topic}/{self.channel} cannot be subscribed to: {error}") from error

    async def _connect(self) -> None:
        connection = NsqConnection(lambda messages: self._came(connection, messages), lambda: self._lost(connection))
        connection.on_late = self._was_late
        self._taken_back.clear()
        transport = self.transport
        await connection.connect(
            *self._where, transport.identity(self.config.tuning.timeout), transport.tls, transport.login
        )
        try:
            subscribed = connection.ask(b"SUB %s %s\n" % (self.config.topic.encode(), self.channel.encode()))
            await asyncio.wait_for(subscribed, SUBSCRIBE_SECONDS)
            if not connection.open:
                raise NsqError("the server closed the connection")
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self.limit(self._credit)

    def _lost(self, connection: NsqConnection) -> None:
        if connection is not self._connection:
            # It was not subscribed yet: `_connect` raises, and its caller decides whether to try again.
            return
        self._connection = None
        if not self._closed:
            log.warning("the connection was lost", topic=self.config.topic, group=self.config.group)
            self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        delay = BACKOFF_FIRST
        while not self._closed:
            try:
                await self._connect()
            except (OSError, NsqError, TimeoutError) as error:
                log.debug("cannot reconnect yet", topic=self.config.topic, error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, BACKOFF_MAX)
            else:
                log.info("reconnected", topic=self.config.topic, group=self.config.group)
                return

    def limit(self, credit: int) -> None:
        self._credit = credit
        if self._connection is not None:
            most = self._connection.limits.get("max_rdy_count", credit)
            self._connection.tell(b"RDY %d\n" % min(credit, most))

    async def set_retries(self, tuning: Tuning) -> None:
        if not tuning.private and not self.transport.plain:
            await self.transport.http.set_queue(self.config.topic, self.config.group, _queue_settings(tuning))
        await super().set_retries(tuning)

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        await self._burials.finish(None)
        if self._connection is not None:
            await self._connection.wait_drained()
            await self._connection.close()

    def _came(self, connection: NsqConnection, messages: list[Received]) -> None:
        self._deliver([NsqDelivery(self, connection, each) for each in messages])

    def _was_late(self, command: bytes, delivery: bytes) -> None:
        if command == b"TOUCH":
            self._taken_back.add(delivery)
        else:
            self.on_late(self.name_of(delivery), SETTLEMENTS[command])

    def name_of(self, delivery: bytes) -> str:
        """The id of the message of a delivery."""
        place = None if self.transport.plain else decode_id(delivery)
        return delivery.decode(errors="replace") if place is None else f"{self.config.topic}/{place[0]}/{place[1]}"

    def taken_back(self, delivery: bytes) -> bool:
        """Whether a delivery is known to be over. It is asked for once."""
        if delivery not in self._taken_back:
            return False
        self._taken_back.discard(delivery)
        return True

    def bury(self, delivery: NsqDelivery, reason: str) -> None:
        """On a plain nsqd: to a topic of its own, and only then done."""
        self._burials.start(self._bury(delivery, reason))

    async def _bury(self, delivery: NsqDelivery, reason: str) -> None:
        message = delivery.message
        headers = {**message.headers, ERROR: reason.encode()} if message.headers or message.key else NO_HEADERS
        try:
            dead = f"{self.config.topic}.{self.config.group}.dead"
            await self.transport.publish([Outgoing(dead, message.value, message.key, headers)])
        except PublishFailed as error:
            log.warning("a dead letter could not be written; its message comes again", error=str(error))
            delivery.connection.tell(b"REQ %s 1000\n" % delivery.id)
        else:
            delivery.connection.tell(b"FIN %s\n" % delivery.id)


class NsqDelivery(Delivery):
    """A message in flight to one connection; when that is gone, it is too late to settle it."""

    __slots__ = ("_at", "_receiver", "connection", "id")

    leased = True

    def __init__(self, receiver: NsqReceiver, connection: NsqConnection, received: Received) -> None:
        self.connection = connection
        self.id = received.id
        self._at = monotonic()
        self._receiver = receiver
        key, value, headers = self._read(received.body)
        partition = offset = -1
        if not receiver.transport.plain and (place := decode_id(received.id)) is not None:
            partition, offset, _ = place
        topic = receiver.config.topic
        super().__init__(
            Message(topic, value, key, headers, partition, offset, received.timestamp_ms, received.attempts)
        )

    def _read(self, body: bytes) -> tuple[bytes | None, bytes, dict[str, bytes]]:
        if self.connection.extended:
            return read_body(body)
        if body.startswith(ENVELOPE):
            try:
                return read_body(body[len(ENVELOPE) :])
            except ValueError:
                pass
        return None, body, {}

    @property
    def identity(self) -> Hashable:
        """Headrace's ids name the delivery, nsqd's the message."""
        return (self.message.partition, self.message.offset) if self.message.offset >= 0 else self.id

    def hold(self, seconds: float) -> bool:
        most: float = LEASE_SECONDS
        if self._receiver.transport.plain:
            most = self.connection.limits.get("max_msg_timeout", NSQD_LEASE_MS) / 1_000
        return monotonic() - self._at + seconds <= most

    def touch(self) -> bool:
        if not self.connection.open or self._receiver.taken_back(self.id):
            return False
        self.connection.tell(b"TOUCH %s\n" % self.id)
        return True

    def ack(self) -> None:
        if self._once("ack"):
            self.connection.tell(b"FIN %s\n" % self.id)

    def retry(self, after: float | None, reason: str) -> None:
        tuning, attempt = self._receiver.config.tuning, self.message.attempt
        spent = tuning.is_spent(attempt)
        if tuning.private and spent:
            self.reject(reason)
            return
        if not self._once("retry"):
            return
        if self.connection.extended and not tuning.private:
            # 0 asks for the queue's retry schedule; attempts are counted there too.
            self._requeue(0 if after is None else max(round(after * 1_000), 1), reason)
        elif spent:
            self._receiver.bury(self, reason)
        else:
            # An ephemeral channel has no retry schedule, and neither has a plain nsqd.
            delay_ms = round((tuning.backoff(attempt) if after is None else after) * 1_000)
            if self.connection.extended:
                self._requeue(delay_ms, reason)
            else:
                self.connection.tell(b"REQ %s %d\n" % (self.id, delay_ms))

    def reject(self, reason: str) -> None:
        if not self._once("reject"):
            return
        if self._receiver.config.tuning.private:
            # It was for this instance alone.
            self.connection.tell(b"FIN %s\n" % self.id)
        elif self.connection.extended:
            self._requeue(-1, reason)
        else:
            self._receiver.bury(self, reason)

    def _requeue(self, delay_ms: int, reason: str) -> None:
        text = reason.encode()[:4_096]
        self.connection.tell(b"REQ %s %d\n" % (self.id, delay_ms) + SIZE.pack(len(text)) + text)

    def _once(self, operation: str) -> bool:
        """Whether it can be settled, for the first time."""
        if self._settled:
            return False
        self._settled = True
        if not self.connection.open:
            self._receiver.on_late(self._receiver.name_of(self.id), operation)
        return self.connection.open


def _parts(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    """As many at once as any server takes."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and size + len(body) > MULTI_BYTES:
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    yield part


def _queue_settings(tuning: Tuning) -> dict[str, Any]:
    return {
        "timeout_ms": round(tuning.timeout * 1_000),
        "timeout_max_ms": LEASE_SECONDS * 1_000,
        "max_attempts": tuning.attempts,
        "backoff_ms": [round(step * 1_000) for step in tuning.ladder],
        "order_by_key": tuning.ordered,
        "deliveries": tuning.traced,
    }


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, taken apart."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
