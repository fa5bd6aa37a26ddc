"""Exactly once over Kafka's wire: a group's offsets and what handlers send, in one transaction.

A chunk of messages is read and handled; what the handlers send is gathered. When every message of the chunk is done,
one transaction sends all of it, the dead letters too, and moves the group's offsets over the chunk. Nothing is sent
before, so a transaction is open only as long as it takes to commit it, and a handler that is slow holds no reader up.

A chunk whose transaction fails is sent again as it is; where nobody can say whether it failed, the group's offsets can,
which are part of it. A chunk of which a partition was taken away is forgotten: what is left of it is read again, and
the partition's new owner reads the rest. The coordinator refuses the offsets of a member that does not know yet that
it is out, and with them all that was sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.client import ClientError
from headrace.sdk.dead import letter, without_value
from headrace.sdk.ending import ended
from headrace.sdk.limits import Limits
from headrace.sdk.message import Message, Outgoing
from headrace.sdk.system import Unsuited
from headrace.sdk.transport import Deliver, PublishFailed, TooLarge, Wish

log = structlog.get_logger("headrace.sdk")

POLL_SECONDS = 0.1
# So long the partitions of an instance that was killed wait for another. Threads of the library keep it alive, however
# long handlers take, so it need not be long.
SESSION_SECONDS = 10
# With a heartbeat a member hears that others have come or gone. All have to, before partitions are shared out.
HEARTBEAT_MS = 1_000
# So long a chunk may take before the group is told, by asking, that its member is alive. A pause costs what is fetched.
QUIET_SECONDS = 1.0
# So long readers wait for the transaction of an instance that died in the middle of it.
TRANSACTION_SECONDS = 15
COMMIT_SECONDS = 30.0
BACKOFF_SECONDS = 0.2
# What is sent at once to topics that take that much.
BATCH_BYTES = 1_000_000

Place = tuple[str, int]


class Chunk:
    """Messages that are done together."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.messages = messages
        self.sent: list[Outgoing] = []
        self.done = threading.Event()
        self.given_up = False
        """What was its is read again, here or elsewhere."""
        self._open = len(messages)

    def settle(self, sent: Iterable[Outgoing]) -> None:
        """One more is through; on the loop."""
        self.sent += sent
        self._open -= 1
        if not self._open:
            self.done.set()

    def first(self) -> dict[Place, int]:
        """Where each partition of it begins."""
        found: dict[Place, int] = {}
        for each in self.messages:
            found.setdefault((each.topic(), each.partition()), each.offset())
        return found

    def positions(self) -> list[TopicPartition]:
        """Where to read on behind it."""
        last = {(each.topic(), each.partition()): each.offset() for each in self.messages}
        return [TopicPartition(topic, index, offset + 1) for (topic, index), offset in last.items()]


class ChunkDelivery:
    """A message of a chunk."""

    __slots__ = ("_chunk", "_receiver", "_settled", "message")

    def __init__(self, receiver: TransactionalReceiver, chunk: Chunk, raw: Any) -> None:
        self._receiver = receiver
        self._chunk = chunk
        self._settled = False
        headers = {name: value or b"" for name, value in raw.headers() or ()}
        _, timestamp = raw.timestamp()
        self.message = Message(
            raw.topic(), raw.value() or b"", raw.key(), headers, raw.partition(), raw.offset(), timestamp
        )

    def touch(self) -> bool:
        return not self._chunk.given_up

    def ack(self, sent: Sequence[Outgoing] = ()) -> None:
        if not self._settled:
            self._settled = True
            self._chunk.settle(sent)

    def retry(self, after: float | None, reason: str) -> None:
        raise AssertionError("with exactly once a message is tried again in its place")

    def reject(self, reason: str) -> None:
        if not self._settled:
            self._settled = True
            self._receiver.bury(self._chunk, self.message, reason)


class TransactionalReceiver:
    """One subscription, by a consumer and a producer of Kafka's own library, in one thread because both block."""

    orders = False

    def __init__(
        self,
        settings: Mapping[str, Any],
        wish: Wish,
        deliver: Deliver,
        ensure: Callable[[Outgoing, str], Awaitable[None]],
        limits: Limits,
    ) -> None:
        self.wish = wish
        self._limits = limits
        self.taken_away: Callable[[], None] = lambda: None
        self._deliver = deliver
        self._ensure = ensure
        self._loop = asyncio.get_running_loop()
        self._credit = wish.credit
        self._closing = threading.Event()
        self._burying: set[asyncio.Task[None]] = set()
        self._chunk: Chunk | None = None
        # What came, of partitions that were new, while a chunk was being handled.
        self._early: list[Any] = []
        self._reading = {
            **settings,
            "group.id": wish.group,
            "auto.offset.reset": "earliest" if wish.replay else "latest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_SECONDS * 1_000,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        self._consumer = Consumer(self._reading)
        self._producing = {
            **settings,
            "transactional.id": f"{wish.group}.{wish.topic}.{uuid.uuid4().hex}",
            "transaction.timeout.ms": TRANSACTION_SECONDS * 1_000,
            # What was read can be put aside, however large it is; the brokers have their own limit.
            "message.max.bytes": 1_000_000_000,
            # As Kafka's own clients and the rest of the framework choose.
            "partitioner": "murmur2_random",
            # When no broker answers, the library forgets the ones it knew, and then waits for ever to tell one of them
            # the group's offsets (librdkafka issue 5511).
            "metadata.recovery.strategy": "none",
        }
        self._producer: Producer | None = None
        # Its largest batches.
        self._largest = BATCH_BYTES
        # Nothing was heard of what became of the last transaction.
        self._unsure = False
        self._thread = threading.Thread(target=self._run, name=f"exactly once {wish.topic}", daemon=True)
        self._thread.start()

    def limit(self, credit: int) -> None:
        self._credit = credit

    async def drain(self) -> None:
        self.limit(0)

    async def close(self) -> None:
        await ended(self._burying)
        self._closing.set()
        await asyncio.to_thread(self._thread.join)

    def bury(self, chunk: Chunk, message: Message, reason: str) -> None:
        """Let a dead letter go with the chunk's transaction."""
        dead = letter(message, self.wish.topic, self.wish.group, reason)
        task = self._loop.create_task(self._bury(chunk, message, dead))
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury(self, chunk: Chunk, message: Message, dead: Outgoing) -> None:
        while not self._closing.is_set():
            try:
                await self._ensure(dead, self.wish.topic)
            except TooLarge as error:
                dead = without_value(dead, message, str(error))
            except (PublishFailed, Unsuited, ClientError) as error:
                log.warning("a message cannot be put aside yet", topic=dead.topic, error=str(error))
                await asyncio.sleep(BACKOFF_SECONDS)
            else:
                chunk.settle([dead])
                return

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Until it is closed. A consumer that breaks gives way to another, and what it read is read again."""
        while True:
            self._run_until_it_breaks()
            # Where the loop is closed nobody will ever close this, and another consumer should have the partitions.
            if self._closing.wait(BACKOFF_SECONDS) or self._loop.is_closed():
                return
            self._give_up()
            self._early = []
            self._consumer = Consumer(self._reading)

    def _run_until_it_breaks(self) -> None:
        try:
            self._consumer.subscribe([self.wish.topic], on_revoke=self._revoked, on_lost=self._lost)
            while not self._closing.is_set():
                found = self._read()
                if found:
                    self._handle(Chunk(found))
        except (KafkaException, RuntimeError) as error:
            log.error("a consumer broke, and is replaced", topic=self.wish.topic, error=str(error))
        finally:
            self._producer = None
            self._consumer.close()

    def _read(self) -> list[Any]:
        if self._early:
            found, self._early = self._early, []
            return found
        if self._credit <= 0:
            self._wait_paused(lambda: self._credit > 0)
            return []
        found = self._consumer.consume(self._credit, POLL_SECONDS)
        return [each for each in found if self._good(each)]

    def _good(self, message: Any) -> bool:
        if message.error() is not None:
            log.warning("a consumer was told", topic=self.wish.topic, error=str(message.error()))
            return False
        return True

    def _handle(self, chunk: Chunk) -> None:
        self._chunk = chunk
        deliveries = [ChunkDelivery(self, chunk, each) for each in chunk.messages]
        self._loop.call_soon_threadsafe(self._deliver, deliveries)
        if not chunk.done.wait(QUIET_SECONDS):
            self._wait_paused(lambda: chunk.done.wait(POLL_SECONDS) or self._chunk is None)
        if self._chunk is not None and chunk.done.is_set():
            self._commit(chunk)
        if self._chunk is not None:
            self._forget()

    def _wait_paused(self, over: Callable[[], bool]) -> None:
        """Go on asking without taking anything: a member that does not ask is taken for dead."""
        try:
            while not self._closing.is_set() and not over():
                # Also partitions that came just now.
                self._consumer.pause(self._consumer.assignment())
                message = self._consumer.poll(0 if self._chunk is not None else POLL_SECONDS)
                if message is not None and self._good(message):
                    self._early.append(message)
        finally:
            self._consumer.resume(self._consumer.assignment())

    def _commit(self, chunk: Chunk) -> None:
        """One transaction for the chunk; tried until it is through, or the chunk is another's."""
        while self._chunk is chunk:
            try:
                producer = self._ready(chunk)
                if self._unsure and self._is_through(chunk):
                    self._unsure = False
                    self._chunk = None
                    return
                producer.begin_transaction()
                for each in chunk.sent:
                    self._produce(producer, each)
                producer.send_offsets_to_transaction(
                    chunk.positions(), self._consumer.consumer_group_metadata(), COMMIT_SECONDS
                )
                self._unsure = True
                producer.commit_transaction(COMMIT_SECONDS)
                self._unsure = False
                self._chunk = None
            except KafkaException as failure:
                self._failed(chunk, failure.args[0])

    def _is_through(self, chunk: Chunk) -> bool:
        """Whether a transaction of which nothing was heard was committed. A new producer has ended it by now."""
        positions = chunk.positions()
        asked = [TopicPartition(each.topic, each.partition) for each in positions]
        found = {(each.topic, each.partition): each.offset for each in self._consumer.committed(asked, COMMIT_SECONDS)}
        return all(found[each.topic, each.partition] >= each.offset for each in positions)

    def _ready(self, chunk: Chunk) -> Producer:
        """A producer that sends no more at once than the topics of a chunk take."""
        largest = min([self._limits.known(topic) for topic in {each.topic for each in chunk.sent}], default=BATCH_BYTES)
        if largest < self._largest:
            self._largest = largest
            self._producer = None
        if self._producer is None:
            producer = Producer({**self._producing, "batch.size": self._largest})
            producer.init_transactions(COMMIT_SECONDS)
            self._producer = producer
        return self._producer

    @staticmethod
    def _produce(producer: Producer, message: Outgoing) -> None:
        headers: list[tuple[str, str | bytes | None]] = [*message.headers.items()]
        # -1 leaves it to the key.
        partition = -1 if message.partition is None else message.partition
        while True:
            try:
                producer.produce(message.topic, message.value, message.key, partition, headers=headers)
                return
            except BufferError:
                producer.poll(POLL_SECONDS)

    def _failed(self, chunk: Chunk, error: KafkaError) -> None:
        log.warning("a transaction failed, and is tried again", topic=self.wish.topic, error=str(error))
        try:
            if self._producer is not None:
                self._producer.abort_transaction(COMMIT_SECONDS)
                self._unsure = False
        except KafkaException:
            # It is of no use any more; its successor ends what it left open, one way or the other.
            self._producer = None
        if error.fatal():
            self._producer = None
        too_large = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        if too_large:
            # A topic takes less than it did. Handlers hear of what does not fit, when they send it anew.
            for topic in {each.topic for each in chunk.sent}:
                self._loop.call_soon_threadsafe(self._limits.forget, topic)
        if self._closing.is_set() or too_large or error.code() in OUT_OF_THE_GROUP:
            self._forget()
            return
        time.sleep(BACKOFF_SECONDS)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions go to another: what is being handled of them is finished first, if that does not take too long."""
        chunk = self._chunk
        if chunk is not None and chunk.first().keys() & {(each.topic, each.partition) for each in partitions}:
            if chunk.done.wait(self.wish.timeout):
                self._commit(chunk)
            self._forget(partitions)
        self._drop(partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions are another's already."""
        self._forget(partitions)
        self._drop(partitions)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = {(each.topic, each.partition) for each in partitions}
        self._early = [each for each in self._early if (each.topic(), each.partition()) not in gone]

    def _give_up(self) -> Chunk | None:
        """Let handlers go on with nothing of the chunk."""
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            chunk.given_up = True
            if not self._closing.is_set():
                self._loop.call_soon_threadsafe(self.taken_away)
        return chunk

    def _forget(self, gone: Sequence[TopicPartition] = ()) -> None:
        """Give up a chunk; what is still ours of it is read again."""
        chunk = self._give_up()
        if chunk is None:
            return
        lost = {(each.topic, each.partition) for each in gone}
        mine = {(each.topic, each.partition) for each in self._consumer.assignment()} - lost
        again = [TopicPartition(*place, offset) for place, offset in chunk.first().items() if place in mine]
        self._drop(again)
        for each in again:
            try:
                self._consumer.seek(each)
            except KafkaException as error:
                log.debug("a partition cannot be read again", topic=each.topic, error=str(error))


# What the coordinator says to a member that is not of the group any more.
OUT_OF_THE_GROUP = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)
