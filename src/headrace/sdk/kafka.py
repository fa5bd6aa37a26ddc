"""Messages over Kafka's wire: of Headrace and of an Apache Kafka cluster.

A message that is retried goes to the group's retry topic, with its due time and its attempts, and is then done where it
was: one that fails blocks no other (retry_topic.py). Dead letters go to another such topic, with the headers by which
`headrace redrive` sends them back. puller.py moves a group's offset over what is done.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import structlog
from confluent_kafka import OFFSET_STORED, TopicPartition
from msgspec import structs

from headrace.client import LATEST, BrokerError, Client, ClientError, Producer, RecordTooLarge, Sendable
from headrace.client.send_buffer import Batch
from headrace.format.headers import ATTEMPT, ORIGIN, RETRY_AT
from headrace.sdk.background import BackgroundTasks
from headrace.sdk.dead_letter import letter, without_value
from headrace.sdk.exactly_once import TransactionalReceiver
from headrace.sdk.fetched_batch import FetchedBatch, message_of
from headrace.sdk.limits import LARGEST, SETTING, UNKNOWN, Limits
from headrace.sdk.message import NO_HEADERS, Message, Outgoing, Receipt
from headrace.sdk.puller import Puller, Track
from headrace.sdk.retry_topic import WAITS, RetryPuller, partition_for
from headrace.sdk.send_buffer import SendBuffer
from headrace.sdk.system import Address, Unsuited, client_of
from headrace.sdk.transport import ConsumerConfig, Deliver, Delivery, PublishFailed, Receiver, TooLarge, Transport

log = structlog.get_logger("headrace.sdk")

# What is written on a message that is put aside is less.
ASIDE_BYTES = 65_536
# Of the messages that wait for their next try, so much is fetched ahead.
WAITING_BYTES = 262_144
NO_CONFIG: Mapping[str, str] = MappingProxyType({})


class KafkaTransport(Transport):
    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._limits: Limits | None = None
        # Topics that are known to be there, and to take what is put aside.
        self._aside: set[str] = set()

    async def open(self) -> None:
        client = self._client = client_of(self.address, self.client_id)
        try:
            await client.__aenter__()
            # Once without retries: a mistyped address fails now.
            await client.cluster.any_node()
            # A broker that wants authentication hangs up on the first question only.
            await client.cluster.refresh(())
        except ClientError as error:
            self._client = None
            await client.__aexit__(None, None, None)
            raise PublishFailed(f"{self.address.kafka} cannot be reached: {error}") from error
        self._limits = Limits(client.admin)
        self._producer = client.producer()
        await self._producer.__aenter__()

    async def close(self) -> None:
        if self._producer is not None:
            try:
                await self._producer.close()
            except ClientError:
                pass  # each sender has got its own error
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    async def partitions(self, topic: str) -> int:
        assert self._client is not None
        return len((await self._client.cluster.topic(topic, create=True)).partitions)

    @property
    def limits(self) -> Limits:
        """What its topics take."""
        assert self._limits is not None
        return self._limits

    async def check(self, message: Outgoing) -> None:
        await self.limits.check(message)

    async def publish(self, messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        producer = self._producer
        assert producer is not None
        by_topic: dict[str, list[Sendable]] = {}
        last: Mapping[str, bytes] = NO_HEADERS
        headers: list[tuple[str, bytes]] = []
        for each in messages:
            if each.headers is not last:
                last = each.headers
                headers = list(last.items())
            records = by_topic.get(each.topic)
            if records is None:
                records = by_topic[each.topic] = []
            records.append((each.key, each.value, headers, each.partition))
        sent: list[tuple[str, asyncio.Future[int]]] = []
        places: dict[str, list[tuple[Batch, int] | None]] = {topic: [] for topic in by_topic} if receipts else {}
        failed: dict[str, ClientError] = {}
        for topic, records in by_topic.items():
            try:
                limit = await self._limit(topic)
                batches = await producer.send_all(topic, records, limit, places.get(topic))
                sent += [(topic, batch) for batch in batches]
            except ClientError as error:
                failed[topic] = error
        unfit: list[Outgoing] = []
        for topic, batch in sent:
            try:
                await asyncio.shield(batch)
            except RecordTooLarge as error:
                unfit.append([each for each in messages if each.topic == topic][error.index])
            except ClientError as error:
                if isinstance(error, BrokerError) and error.error.name == "message_too_large":
                    # It took more before.
                    self.limits.forget(topic)
                failed[topic] = error
        refused = await self._publish_grown(unfit)
        if failed or refused:
            errors = [*failed.values(), *(error for _, error in refused)]
            raise PublishFailed("; ".join(map(str, errors)), failed, [each for each, _ in refused]) from errors[0]
        return _receipts(messages, places) if receipts else ()

    async def cancel(self, timer: str) -> bool:
        raise Unsuited(f"{self.address.kafka} has no timer. Cancel on a Headrace: headrace://")

    async def _limit(self, topic: str) -> int:
        if not self.limits.has(topic):
            # It is made now, if it is not there: of no topic nothing can be asked.
            await self.partitions(topic)
        return await self.limits.of(topic)

    async def _publish_grown(self, messages: Sequence[Outgoing]) -> list[tuple[Outgoing, PublishFailed]]:
        """Send what was larger than a topic took, if it takes more now; gives what is not sent, and why."""
        refused = []
        for each in messages:
            try:
                await self.limits.check(each)
                await self.publish([each])
            except PublishFailed as error:
                refused.append((each, error))
        return refused

    async def ends(self, topic: str) -> list[TopicPartition]:
        """Where each partition ends now."""
        assert self._client is not None
        count = await self.partitions(topic)
        async with self._client.consumer() as consumer:
            await consumer.assign({(topic, index): LATEST for index in range(count)})
            found = await consumer.end_offsets()
        return [TopicPartition(topic, index, found[topic, index]) for index in range(count)]

    async def subscribe(self, config: ConsumerConfig, deliver: Deliver) -> Receiver:
        await self.ensure(config.topic)
        if config.tuning.exactly_once:
            return TransactionalReceiver(self.settings(), config, deliver, self.ensure_aside, self.limits)
        receiver = KafkaReceiver(self, config, deliver)
        await receiver.open()
        return receiver

    def settings(self) -> dict[str, Any]:
        """How Kafka's own library reaches the cluster."""
        address = self.address
        tls = address.tls.librdkafka() if address.tls is not None else {}
        login = address.login.librdkafka(encrypted=bool(tls)) if address.login is not None else {}
        return {"bootstrap.servers": address.kafka, "client.id": self.client_id, **tls, **login}

    async def ensure_aside(self, message: Outgoing, origin: str) -> None:
        """The same for the topic to which a message of another goes, with more headers than it had. Raises TooLarge
        where it cannot be brought to take it."""
        await self.make_aside(message.topic, origin)
        try:
            await self.limits.check(message)
        except TooLarge as error:
            # The other topic took more once, or takes more by now.
            needed = min(error.size + ASIDE_BYTES, LARGEST)
            if not await self._extend(message.topic, needed):
                raise

    async def make_aside(self, topic: str, origin: str, partitions: int = -1) -> None:
        """Make a topic unless it is there, and let it take what another topic takes, and what is written on it."""
        if topic in self._aside:
            return
        largest = await self.limits.of(origin)
        needed = min(largest + ASIDE_BYTES, LARGEST) if largest < UNKNOWN else 0
        await self.ensure(topic, {SETTING: str(needed)} if needed else NO_CONFIG, partitions)
        if await self.limits.of(topic) < needed:
            await self._extend(topic, needed)
        self._aside.add(topic)

    async def _extend(self, topic: str, limit: int) -> bool:
        try:
            await self.limits.extend(topic, limit)
        except BrokerError as error:
            log.warning("what is put aside may be too large for its topic", topic=topic, error=str(error))
            return False
        return True

    async def ensure(self, topic: str, config: Mapping[str, str] = NO_CONFIG, partitions: int = -1) -> None:
        """Make a topic unless it is there, with so many partitions or more; -1 leaves that to the broker."""
        assert self._client is not None
        admin = self._client.admin
        try:
            await admin.ensure_topic(topic, partitions, config)
        except BrokerError as error:
            raise Unsuited(f"the topic {topic!r} cannot be created: {error}") from error
        if await self.partitions(topic) >= partitions:
            return
        try:
            await admin.create_partitions(topic, partitions)
        except BrokerError as error:
            # Another instance may have come first.
            if await self.partitions(topic) < partitions:
                raise Unsuited(f"the topic {topic!r} cannot be given {partitions} partitions: {error}") from error


class KafkaReceiver(Receiver):
    """One subscription: its topic, and its retry topic."""

    def __init__(self, transport: KafkaTransport, config: ConsumerConfig, deliver: Deliver) -> None:
        super().__init__(config, deliver)
        self._transport = transport
        self._pullers: list[Puller] = []
        self._moves = BackgroundTasks()
        # What moves at the same time moves together.
        self._line = SendBuffer(transport.publish, lambda *_: None)
        self._waits = itertools.count()
        self._wait_partitions = len(WAITS)
        self._later: set[asyncio.TimerHandle] = set()

    @property
    def retry_topic(self) -> str:
        return f"{self.config.topic}.{self.config.group}.retry"

    async def open(self) -> None:
        config = self.config
        if config.tuning.private:
            # From now on, and not from when a group would have come together.
            places = await self._transport.ends(config.topic)
            self._add(config.topic, config.group, "latest", places)
            return
        reset = "earliest" if config.tuning.replay else "latest"
        if config.tuning.partitions:
            count = await self._transport.partitions(config.topic)
            if missing := [each for each in config.tuning.partitions if each >= count]:
                raise Unsuited(f"the topic {config.topic!r} has {count} partitions, and not {missing[0]}")
            places = [TopicPartition(config.topic, each, OFFSET_STORED) for each in config.tuning.partitions]
            self._add(config.topic, config.group, reset, places)
            return
        self._add(config.topic, config.group, reset)
        if not config.tuning.ordered:
            await self._transport.make_aside(self.retry_topic, config.topic, len(WAITS))
            self._wait_partitions = await self._transport.partitions(self.retry_topic)
            self._add(self.retry_topic, f"{config.group}.retry", "earliest", waiting=True)

    def _add(
        self, topic: str, group: str, reset: str, assigned: Sequence[TopicPartition] = (), waiting: bool = False
    ) -> None:
        settings = {
            **self._transport.settings(),
            "group.id": group,
            "auto.offset.reset": reset,
            "enable.auto.commit": not self.config.tuning.private,
            "auto.commit.interval.ms": 500,
            "enable.auto.offset.store": False,
            # The library's second is long for a handler that is faster than fetches are.
            "fetch.queue.backoff.ms": 50,
        }
        if waiting:
            # What is fetched behind the first that is not due is fetched again.
            small = {"max.partition.fetch.bytes": WAITING_BYTES, "queued.max.messages.kbytes": WAITING_BYTES // 1_024}
            puller: Puller = RetryPuller({**settings, **small}, topic, self._came_again)
        else:
            puller = Puller(settings, topic, self._came, assigned)
        puller.on_revoked = lambda: self.on_revoked()
        puller.backlog = lambda: self.backlog()
        self._pullers.append(puller)
        puller.start(self.config.credit, self.config.batch)

    def limit(self, credit: int) -> None:
        for puller in self._pullers:
            puller.limit(credit)

    def check_room(self) -> None:
        for puller in self._pullers:
            puller.check_room()

    async def close(self) -> None:
        for timer in self._later:
            timer.cancel()
        await self._moves.finish()
        await asyncio.gather(*(puller.close() for puller in self._pullers))

    def _came(self, puller: Puller, found: list[Any]) -> None:
        self._deliver(FetchedBatch(puller, found, self._single))

    def _single(self, puller: Puller, raw: Any, track: Track) -> KafkaDelivery:
        return KafkaDelivery(self, puller, track, message_of(raw))

    def _came_again(self, puller: Puller, found: list[Any]) -> None:
        """Messages have waited as long as is usual where they lay."""
        now: list[KafkaDelivery] = []
        for raw in found:
            read = message_of(raw)
            headers = dict(read.headers)
            due_ms = int(headers.pop(RETRY_AT, b"0"))
            delivery = KafkaDelivery(self, puller, puller.begin(read.partition, read.offset), read)
            delivery.message = _original(read, headers)
            wait = due_ms / 1_000 - time.time()
            if wait > 0:
                self.move(delivery, self.waiting(Outgoing("", read.value, read.key, read.headers), wait))
            else:
                now.append(delivery)
        if now:
            self._deliver(now)

    def waiting(self, message: Outgoing, seconds: float) -> Outgoing:
        """A message of the retry topic that waits so long."""
        partition = partition_for(seconds, next(self._waits), self._wait_partitions)
        return structs.replace(message, topic=self.retry_topic, partition=partition)

    def hold(self, delivery: KafkaDelivery, seconds: float) -> None:
        """Deliver it in so many seconds."""

        def due() -> None:
            self._later.discard(timer)
            self._deliver([delivery])

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._later.add(timer)

    def move(self, delivery: KafkaDelivery, target: Outgoing) -> None:
        """Write a message to another topic, and only then settle it here."""
        self._moves.start(self._move(delivery, target))

    async def _move(self, delivery: KafkaDelivery, target: Outgoing) -> None:
        delay = 0.1
        while True:
            try:
                await self._transport.ensure_aside(target, self.config.topic)
                await (await self._line.send(target))
            except TooLarge as error:
                target = self._smaller(delivery.message, target, str(error))
            except (PublishFailed, Unsuited, ClientError) as error:
                log.warning("a message cannot be put aside yet", topic=target.topic, error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                delivery.done()
                return

    def _smaller(self, message: Message, target: Outgoing, reason: str) -> Outgoing:
        """What goes where a message would have gone that is too large for it."""
        if target.topic == self.retry_topic:
            return letter(message, self.config.topic, self.config.group, f"cannot be tried again: {reason}")
        return without_value(target, message, reason)


class KafkaDelivery(Delivery):
    """A message that was read. A retried one names the place where it was published, not where it was read."""

    __slots__ = ("_offset", "_puller", "_receiver", "_track")

    def __init__(self, receiver: KafkaReceiver, puller: Puller, track: Track, read: Message) -> None:
        super().__init__(read)
        self._receiver = receiver
        self._puller = puller
        self._track = track
        self._offset = read.offset

    def done(self) -> None:
        """It is done in the topic where it was read."""
        self._puller.settle(self._track, self._offset, self._offset + 1, 1)

    def touch(self) -> bool:
        # A group has no visibility timeout, but its partition may have been revoked.
        if self._puller.holds(self._track):
            return True
        if self._once():
            self.done()
        return False

    def ack(self) -> None:
        if self._once("ack"):
            self.done()

    def retry(self, after: float | None, reason: str) -> None:
        config, message = self._receiver.config, self.message
        if config.tuning.is_spent(message.attempt):
            self.reject(reason)
            return
        if not self._once("retry"):
            return
        if config.tuning.ordered:
            # It was tried in its place, and there is no topic to go to.
            self.done()
            return
        wait = config.tuning.backoff(message.attempt) if after is None else after
        if config.tuning.private:
            # It is for this instance alone, and waits in memory.
            self.message = structs.replace(message, attempt=message.attempt + 1)
            self._settled = False
            self._receiver.hold(self, wait)
            return
        due_ms = round((time.time() + wait) * 1_000)
        marks = {RETRY_AT: b"%d" % due_ms, ATTEMPT: b"%d" % (message.attempt + 1), ORIGIN: message.id.encode()}
        again = Outgoing("", message.value, message.key, {**message.headers, **marks})
        self._receiver.move(self, self._receiver.waiting(again, wait))

    def reject(self, reason: str) -> None:
        if not self._once("reject"):
            return
        message, config = self.message, self._receiver.config
        if config.tuning.private:
            self.done()
            return
        self._receiver.move(self, letter(message, config.topic, config.group, reason))

    def _once(self, operation: str = "") -> bool:
        if self._settled:
            return False
        self._settled = True
        if operation and not self._puller.holds(self._track):
            # What is done is done, but its partition's new owner handles it too.
            self._receiver.on_late(self.message.id, operation)
        return True


def _receipts(messages: Sequence[Outgoing], places: Mapping[str, list[tuple[Batch, int] | None]]) -> list[Receipt]:
    """Of messages that were delivered, each topic's in their order."""
    left = {topic: iter(found) for topic, found in places.items()}
    receipts = []
    for each in messages:
        place = next(left[each.topic])
        # What went another way, because a topic took more by then, has none.
        base = place[0].done.result() if place is not None else -1
        if place is None or base < 0:
            receipts.append(Receipt(each.topic))
        else:
            receipts.append(Receipt(each.topic, place[0].buffer.partition, base + place[1]))
    return receipts


def _original(read: Message, headers: dict[str, bytes]) -> Message:
    """A message of the retry topic, as it was."""
    attempt = int(headers.pop(ATTEMPT, b"1"))
    origin = headers.pop(ORIGIN, b"").decode().rsplit("/", 2)
    topic, partition, offset = origin if len(origin) == 3 else (read.topic, read.partition, read.offset)
    return Message(topic, read.value, read.key, headers, int(partition), int(offset), read.timestamp_ms, attempt)
