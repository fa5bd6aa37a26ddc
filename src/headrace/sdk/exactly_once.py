"""Exactly once over Kafka's wire: a group's offsets and what handlers send, in one transaction.

A chunk of messages is read and handled; what the handlers send is buffered. When every message of the chunk is done,
one transaction sends all of it, the dead letters too, and moves the group's offsets over the chunk. Nothing is sent
before, so a transaction is open only as long as it takes to commit it, and a slow handler blocks no reader.

A chunk whose transaction fails is sent again as it is; where it is not known whether it failed, the group's offsets,
which are part of it, decide. If a broker refuses for good what was sent for one of its messages, the chunk is divided
until that one is found: the others are committed, and it is retried like any that fails, and then goes to the dead
letters.

A chunk of which a partition was revoked is dropped: what is left of it is read again, and the partition's new owner
reads the rest. The coordinator refuses the offsets of a member that does not know yet that it is out, and with them all
that was sent.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from msgspec import structs

from headrace.client import ClientError
from headrace.sdk.background import BackgroundTasks
from headrace.sdk.chunk import Block, Chunk, Place, positions
from headrace.sdk.consumer_thread import POLL_SECONDS, ConsumerThread
from headrace.sdk.dead_letter import letter, without_value
from headrace.sdk.fetched_batch import message_of
from headrace.sdk.limits import Limits
from headrace.sdk.message import Message, Outgoing
from headrace.sdk.system import Unsuited
from headrace.sdk.transport import ConsumerConfig, Deliver, Delivery, PublishFailed, Receiver, TooLarge

log = structlog.get_logger("headrace.sdk")

# A chunk may take so long before the member polls to stay in its group. A pause costs what was fetched ahead.
QUIET_SECONDS = 1.0
# Readers wait so long for the transaction of an instance that died in the middle of it.
TRANSACTION_SECONDS = 15
COMMIT_SECONDS = 30.0
BACKOFF_SECONDS = 0.2
LOOK_SECONDS = 5.0
# What is sent at once to topics that take that much.
BATCH_BYTES = 1_000_000


class ChunkDelivery(Delivery):
    """A message of a chunk."""

    __slots__ = ("_chunk", "_receiver")

    def __init__(self, receiver: TransactionalReceiver, chunk: Chunk, message: Message) -> None:
        super().__init__(message)
        self._receiver = receiver
        self._chunk = chunk

    def touch(self) -> bool:
        return not self._chunk.given_up

    def ack(self) -> None:
        self._ack([self], ())

    def ack_with(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        if sent:
            self._ack(together, sent)
        # Those of other chunks, and all where nothing was sent: each is a block of its own.
        super().ack_with(together, ())

    def _ack(self, together: Sequence[Delivery], sent: Sequence[Outgoing]) -> None:
        mine = [each for each in together if isinstance(each, ChunkDelivery) and each.let_go(self._chunk)]
        if mine and self._chunk.given_up:
            for each in mine:
                self._receiver.on_late(each.message.id, "ack")
        elif mine:
            self._chunk.settle([each.message for each in mine], sent)

    def let_go(self, chunk: Chunk) -> bool:
        """Whether it is the chunk's, and was to be settled still."""
        mine = chunk is self._chunk and not self._settled
        self._settled |= mine
        return mine

    def retry(self, after: float | None, reason: str) -> None:
        raise AssertionError("with exactly once a message is tried again in its place")

    def reject(self, reason: str) -> None:
        if self.let_go(self._chunk) and self._chunk.given_up:
            self._receiver.on_late(self.message.id, "reject")
        elif not self._chunk.given_up:
            self._receiver.bury(self._chunk, self.message, reason)


class TransactionalReceiver(Receiver, ConsumerThread):
    """One subscription, by a consumer and a producer of Kafka's own library, in one thread because both block."""

    again_seconds = BACKOFF_SECONDS

    def __init__(
        self,
        settings: Mapping[str, Any],
        config: ConsumerConfig,
        deliver: Deliver,
        ensure: Callable[[Outgoing, str], Awaitable[None]],
        limits: Limits,
    ) -> None:
        Receiver.__init__(self, config, deliver)
        reading = {
            **settings,
            "group.id": config.group,
            "auto.offset.reset": "earliest" if config.tuning.replay else "latest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        ConsumerThread.__init__(self, reading, config.topic, f"exactly once {config.topic}")
        self._limits = limits
        self._ensure = ensure
        self._credit = config.credit
        self._burials = BackgroundTasks()
        self._chunk: Chunk | None = None
        # What came, of partitions that were new, while a chunk was being handled.
        self._early: list[Any] = []
        self._producing = {
            **settings,
            "transactional.id": f"{config.group}.{config.topic}.{uuid.uuid4().hex}",
            "transaction.timeout.ms": TRANSACTION_SECONDS * 1_000,
            # What was read can be put aside, however large it is; the brokers have their own limit.
            "message.max.bytes": 1_000_000_000,
            # As Kafka's own clients and the rest of the framework choose.
            "partitioner": "murmur2_random",
            # When no broker answers, the library forgets the ones it knew, and then waits without end to send one of
            # them the group's offsets (librdkafka issue 5511).
            "metadata.recovery.strategy": "none",
        }
        self._producer: Producer | None = None
        # Its largest batches.
        self._largest = BATCH_BYTES
        # The result of the last transaction is not known.
        self._unsure = False
        # What brokers refused of the open transaction: codes and reasons.
        self._refusals: list[tuple[int, str]] = []
        # Whether a message of it timed out in the library, without an answer of the broker.
        self._timed_out = False
        # Topics to which the chunk sends, and which are not there or closed to us.
        self._gone: set[str] = set()
        # Where the chunk began whose handlers were retried last because something is too large.
        self._too_large_at: dict[Place, int] = {}
        self._thread.start()

    def limit(self, credit: int) -> None:
        self._credit = credit

    async def close(self) -> None:
        await self._burials.finish()
        await ConsumerThread.close(self)

    def bury(self, chunk: Chunk, message: Message, reason: str) -> None:
        """Let a dead letter go with the chunk's transaction."""
        self._burials.start(self._bury(chunk, message, reason))

    async def _bury(self, chunk: Chunk, message: Message, reason: str) -> None:
        dead = await self._letter(message, reason)
        if dead is not None:
            chunk.settle([message], [dead])

    async def _letter(self, message: Message, reason: str) -> Outgoing | None:
        """A message's dead letter, once its topic takes it; None at the end."""
        dead = letter(message, self.config.topic, self.config.group, reason)
        while not self._closing.is_set():
            try:
                await self._ensure(dead, self.config.topic)
            except TooLarge as error:
                dead = without_value(dead, message, str(error))
            except (PublishFailed, Unsuited, ClientError) as error:
                log.warning("a message cannot be put aside yet", topic=dead.topic, error=str(error))
                await asyncio.sleep(BACKOFF_SECONDS)
            else:
                return dead
        return None

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        self._consumer.subscribe([self.config.topic], on_revoke=self._on_revoked, on_lost=self._on_lost)
        while not self._closing.is_set():
            found = self._read()
            if found:
                self._handle(found)

    def _leave(self) -> None:
        self._producer = None

    def _recover(self) -> None:
        # What the other consumer read is read again.
        self._give_up()
        self._early = []

    def _read(self) -> list[Any]:
        if self._early:
            found, self._early = self._early, []
            return found
        if self._credit <= 0:
            self._wait_paused(lambda: self._credit > 0)
            return []
        return self._messages(self._consumer.consume(self._credit, POLL_SECONDS))

    def _handle(self, found: list[Any]) -> None:
        messages = [message_of(raw) for raw in found]
        chunk = self._chunk = Chunk(messages)
        deliveries = [ChunkDelivery(self, chunk, each) for each in messages]
        self._loop.call_soon_threadsafe(self._deliver, deliveries)
        if not chunk.done.wait(QUIET_SECONDS):
            self._wait_paused(lambda: chunk.done.wait(POLL_SECONDS) or self._chunk is None)
        if self._chunk is not None and chunk.done.is_set():
            self._commit(chunk)
        if self._chunk is not None:
            self._forget()

    def _wait_paused(self, over: Callable[[], bool]) -> None:
        """Go on polling without taking anything: a member that does not poll is taken for dead."""
        try:
            while not self._closing.is_set() and not over():
                # Also partitions that came just now.
                self._consumer.pause(self._consumer.assignment())
                message = self._consumer.poll(0 if self._chunk is not None else POLL_SECONDS)
                if message is not None:
                    self._early += self._messages([message])
        finally:
            self._consumer.resume(self._consumer.assignment())

    def _commit(self, chunk: Chunk, *, patient: bool = True) -> None:
        """One transaction for the chunk, or, where something in it is refused for good, as many as it takes; tried
        until all is committed, or the chunk is given up. Without patience what is refused is left for later."""
        self._gone = set()
        if self._commit_part(chunk, [chunk.whole()]) is not None:
            chunk.part()
            while self._chunk is chunk and chunk.left:
                parts = chunk.free(time.monotonic())
                if not parts and not (patient and self._wait_until(chunk, min(each.due for each in chunk.left))):
                    return
                culprit = self._commit_parts(chunk, parts)
                if culprit is not None and not patient:
                    culprit[0].due = math.inf
                elif culprit is not None and not self._put_off(chunk, *culprit):
                    return
        if self._chunk is chunk:
            self._chunk = None

    def _commit_parts(self, chunk: Chunk, parts: list[list[Block]]) -> tuple[Block, str] | None:
        """Parts one after the other, each smaller where it is refused; the first block that is refused by itself."""
        parts = parts[::-1]
        while parts and self._chunk is chunk:
            part = parts.pop()
            refused = self._commit_part(chunk, part)
            if refused is not None and len(part) == 1:
                return part[0], refused
            if refused is not None:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return None

    def _commit_part(self, chunk: Chunk, part: Sequence[Block]) -> str | None:
        """One transaction; None when it is committed, or the chunk is given up, and else what was refused."""
        sent = [each for block in part for each in block.sent]
        moved = positions(part)
        while self._chunk is chunk:
            self._refusals, self._timed_out = [], False
            try:
                producer = self._ready(sent)
                if not (self._unsure and self._is_through(moved)):
                    if self._look_for(self._gone.intersection(each.topic for each in sent)):
                        return self._describe_refusals()
                    producer.begin_transaction()
                    for each in sent:
                        self._produce(producer, each)
                    producer.send_offsets_to_transaction(
                        moved, self._consumer.consumer_group_metadata(), COMMIT_SECONDS
                    )
                    self._unsure = True
                    producer.commit_transaction(COMMIT_SECONDS)
                self._unsure = False
                chunk.finish(part)
                return None
            except KafkaException as failure:
                refused = self._on_failure(chunk, sent, failure.args[0])
                if refused is not None:
                    return refused
        return None

    def _put_off(self, chunk: Chunk, block: Block, reason: str) -> bool:
        """Say when what was refused is to be tried again, or put its dead letters in its place; false where the
        chunk is given up by then."""
        block.tries += 1
        tuning = self.config.tuning
        log.error(
            "what was sent for a message is refused", message=block.messages[0].id, tries=block.tries, error=reason
        )
        if block.buried or not tuning.is_spent(block.tries):
            block.due = time.monotonic() + (tuning.backoff(block.tries) if tuning.ladder else BACKOFF_SECONDS)
            return True
        cause = f"tried {block.tries} times: what was sent for it is refused: {reason}"
        tried = [structs.replace(each, attempt=block.tries) for each in block.messages]
        letters = asyncio.run_coroutine_threadsafe(self._letters(tried, cause), self._loop)
        self._wait_paused(lambda: letters.done() or self._chunk is not chunk or self._closing.wait(POLL_SECONDS))
        if not letters.done():
            letters.cancel()
            return False
        block.sent, block.buried = letters.result(), True
        return self._chunk is chunk

    def _wait_until(self, chunk: Chunk, due: float) -> bool:
        """False where the chunk is given up by then, or this is closed before."""
        self._wait_paused(
            lambda: time.monotonic() >= due or self._chunk is not chunk or self._closing.wait(POLL_SECONDS)
        )
        return self._chunk is chunk and not self._closing.is_set()

    async def _letters(self, messages: Sequence[Message], reason: str) -> list[Outgoing]:
        found = [await self._letter(each, reason) for each in messages]
        return [each for each in found if each is not None]

    def _is_through(self, moved: Sequence[TopicPartition]) -> bool:
        """Whether a transaction whose result is not known was committed. A new producer has ended it by now."""
        asked = [TopicPartition(each.topic, each.partition) for each in moved]
        found = {(each.topic, each.partition): each.offset for each in self._consumer.committed(asked, COMMIT_SECONDS)}
        return all(found[each.topic, each.partition] >= each.offset for each in moved)

    def _ready(self, sent: Sequence[Outgoing]) -> Producer:
        """A producer that sends no more at once than the topics take to which something is sent."""
        largest = min([self._limits.known(topic) for topic in {each.topic for each in sent}], default=BATCH_BYTES)
        if largest < self._largest:
            self._largest = largest
            self._producer = None
        if self._producer is None:
            producer = Producer({**self._producing, "batch.size": self._largest})
            producer.init_transactions(COMMIT_SECONDS)
            self._producer = producer
        return self._producer

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        headers: list[tuple[str, str | bytes | None]] = [*message.headers.items()]
        # -1 leaves it to the key.
        partition = -1 if message.partition is None else message.partition
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, partition, headers=headers, on_delivery=self._on_delivery
                )
                return
            except BufferError:
                producer.poll(POLL_SECONDS)
            except KafkaException as failure:
                self._on_delivery(failure.args[0], message)
                raise

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and error.code() in REFUSED:
            topic = message.topic if isinstance(message, Outgoing) else message.topic()
            self._refusals.append((error.code(), f"{topic}: {error.str()}"))
        elif error is not None and error.code() in TIMED_OUT:
            self._timed_out = True

    def _describe_refusals(self) -> str:
        """What was refused, and why."""
        return "; ".join(dict.fromkeys(reason for _, reason in self._refusals))

    def _on_failure(self, chunk: Chunk, sent: Sequence[Outgoing], error: KafkaError) -> str | None:
        """A transaction failed: make ready for another. What was refused, if trying again is of no use."""
        try:
            if self._producer is not None:
                self._producer.abort_transaction(COMMIT_SECONDS)
                self._producer.poll(0)
                self._unsure = False
        except KafkaException:
            # It is of no use any more; its successor ends what it left open, one way or the other.
            self._producer = None
        if error.fatal():
            self._producer = None
        if self._timed_out:
            self._look_for({each.topic for each in sent})
        if error.txn_requires_abort() and error.code() in REFUSED and not self._refusals:
            self._refusals.append((error.code(), error.str()))
        too_large = any(code == KafkaError.MSG_SIZE_TOO_LARGE for code, _ in self._refusals)
        if too_large and not self._too_large_at.items() & chunk.first().items():
            # A topic takes less than it did. Handlers get an error for what does not fit when they send it anew; once.
            self._too_large_at = chunk.first()
            for topic in {each.topic for each in sent}:
                self._loop.call_soon_threadsafe(self._limits.forget, topic)
        elif self._refusals and sent:
            return self._describe_refusals()
        elif not (self._closing.is_set() or error.code() in OUT_OF_THE_GROUP):
            log.warning("a transaction failed, and is tried again", topic=self.config.topic, error=str(error))
            time.sleep(BACKOFF_SECONDS)
            return None
        self._forget()
        return None

    def _look_for(self, topics: Set[str]) -> bool:
        """Whether a topic is gone, or closed to us. That the library does not say when it gives a message up, and it
        takes its time for it: so once it is known, it is asked for before anything is sent there."""
        for topic in sorted(topics):
            try:
                error = self._ready(()).list_topics(topic, LOOK_SECONDS).topics[topic].error
            except KafkaException:
                return False
            if error is not None and error.code() in REFUSED:
                self._gone.add(topic)
                self._refusals.append((error.code(), f"{topic}: {error.str()}"))
            else:
                self._gone.discard(topic)
        return bool(self._refusals)

    def _on_revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions go to another: what is being handled of them is finished first, if that does not take too long."""
        chunk = self._chunk
        if chunk is not None and chunk.first().keys() & {(each.topic, each.partition) for each in partitions}:
            if chunk.done.wait(self.config.tuning.timeout):
                # Here nothing may be asked of the consumer, and others wait.
                self._commit(chunk, patient=False)
            self._forget(partitions)
        self._drop(partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions belong to another member already."""
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
                self._loop.call_soon_threadsafe(self.on_revoked)
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


# A broker's errors for a message that it will never take.
REFUSED = (
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError._INVALID_ARG,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)
TIMED_OUT = (KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT)
# The coordinator's errors for a member that is not in the group any more.
OUT_OF_THE_GROUP = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)
